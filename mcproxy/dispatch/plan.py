"""The plan of a request: the live objects that serve it, chosen by the first matching policy.

A `Plan` is made once for each policy and cluster, for the first request that needs it; later requests look it up. A
reload makes new plans, which take over the positions of their load balancing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import PolicyIndex
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.request_limits import UNLIMITED, RequestLimits
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.user import UserInfo
from mcproxy.upstream.balancing.balancer import Balancer, make_balancer

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster


class Plan:
    """The objects that serve the requests of one policy to one cluster."""

    __slots__ = (
        "access_log",
        "authority",
        "balancer",
        "cluster",
        "cluster_limits",
        "limits",
        "policy",
        "policy_limits",
        "reject",
    )

    def __init__(
        self,
        policy: str,
        cluster: Cluster,
        balancer: Balancer,
        limits: RequestLimits,
        *,
        policy_limits: RequestLimits = UNLIMITED,
        cluster_limits: RequestLimits = UNLIMITED,
        reject: model.Reject | None = None,
        access_log: bool = True,
        authority: str | None = None,
    ) -> None:
        """`authority`: the authority of an API service (`config.model.APIService`)."""
        self.policy = policy  # name of the policy; "" if the server has no dispatch
        self.cluster = cluster
        self.balancer = balancer
        self.limits = limits
        #: The parts of `limits`, for requests to an aggregate: a policy counts each request once, however many members
        #: serve it (all share the object), and a cluster counts only the requests that are sent to it.
        self.policy_limits, self.cluster_limits = policy_limits, cluster_limits
        self.reject = reject
        self.access_log = access_log
        #: the cluster that authenticates and authorizes the users of `cluster`
        self.authority = authority or cluster.name


class Dispatch:
    """The policies of one server under one Runtime."""

    __slots__ = (
        "_clusters",
        "_flow_controls",
        "_index",
        "_numbers",
        "_plans",
        "_policy_limits",
        "_positions",
        "_server",
        "_service_plans",
    )

    def __init__(
        self,
        server: model.Server,
        clusters: Mapping[str, Cluster],
        flow_controls: FlowControls,
        previous: Dispatch | None = None,
    ) -> None:
        """`clusters`: all live clusters of the Runtime. `previous`: the Dispatch of the same server before a reload."""
        self._server = server
        self._clusters = clusters
        self._flow_controls = flow_controls
        self._index = None if server.dispatch is None else PolicyIndex(server.dispatch)
        self._plans: dict[tuple[int, str], Plan] = {}
        self._service_plans: dict[tuple[int, model.APIService], Plan] = {}
        self._numbers: dict[str, int] | None = None  # indices of the policies by name, computed on first use
        self._policy_limits: dict[tuple[int, str], RequestLimits] = {}
        self._positions: dict[tuple[str, str], Balancer] = (
            {} if previous is None else previous._positions_of(server.dispatch or ())
        )

    def plan(self, user: UserInfo, info: RequestInfo, cluster: str) -> Plan | None:
        """Return the plan of a request of `user` (after impersonation) to `cluster`; None if no policy matches."""
        number = 0 if self._index is None else self._index.find(user, info, cluster)
        if number is None:
            return None
        plan = self._plans.get((number, cluster))
        if plan is None:
            plan = self._plans[number, cluster] = self._make(number, cluster)
        return plan

    def plan_of_service(self, user: UserInfo, info: RequestInfo, service: model.APIService) -> Plan | None:
        """Return the plan of a request to an API service of the server; None if no policy matches.

        The group-version has one owner, so a policy's `backend` does not apply. `endpoints` apply only if they belong
        to the owner.
        """
        number = 0 if self._index is None else self._index.find(user, info, service.cluster)
        if number is None:
            return None
        plan = self._service_plans.get((number, service))
        if plan is None:
            plan = self._service_plans[number, service] = self._make(number, service.cluster, service)
        return plan

    def plan_of(self, policy: str, cluster: str) -> Plan | None:
        """Return the plan of a request to `cluster` whose policy another process has found.

        `policy`: the name of the policy in that process's plan. Returns None if there is no such policy.
        """
        if self._numbers is None:
            policies = self._server.dispatch
            names = [""] if policies is None else [policy.name for policy in policies]
            self._numbers = {name: number for number, name in enumerate(names)}
        number = self._numbers.get(policy)
        if number is None:
            return None
        plan = self._plans.get((number, cluster))
        if plan is None:
            plan = self._plans[number, cluster] = self._make(number, cluster)
        return plan

    def _positions_of(self, policies: Sequence[model.Policy]) -> dict[tuple[str, str], Balancer]:
        """Return the balancers by policy and cluster. The plans themselves would keep earlier Runtimes alive."""
        names = {policy.name for policy in policies}
        plans = (*self._plans.values(), *self._service_plans.values())
        made = {(plan.policy, plan.cluster.name): plan.balancer for plan in plans}
        return {key: balancer for key, balancer in (self._positions | made).items() if key[0] in names}

    def _make(self, number: int, named: str, service: model.APIService | None = None) -> Plan:
        """Make the plan of a policy for requests to a cluster, or to an API service in that cluster."""
        server, authority = self._server, None if service is None else service.authority
        if server.dispatch is None:
            cluster = self._clusters[named]
            limits = self._flow_controls.limits_for(cluster.config.flow_controls, named)
            return Plan(
                "",
                cluster,
                cluster.balancer,
                limits,
                cluster_limits=limits,
                access_log=server.access_log,
                authority=authority,
            )
        policy = server.dispatch[number]
        chosen = named if policy.backend is None else policy.backend.cluster
        endpoints = policy.endpoints
        if service is not None:
            of_server = server.backend.cluster if isinstance(server.backend, model.ClusterBackend) else ""
            if service.cluster != (of_server if policy.backend is None else policy.backend.cluster):
                endpoints = ()
            chosen = service.cluster
        cluster = self._clusters[chosen]
        balancer = make_balancer(
            policy.strategy, cluster.subset(endpoints), self._positions.pop((policy.name, cluster.name), None)
        )
        controls = (policy.flow_control,) if policy.flow_control is not None else ()
        return Plan(
            policy.name,
            cluster,
            balancer,
            self._flow_controls.limits_for((*controls, *cluster.config.flow_controls), cluster.name),
            policy_limits=self._limits_of_policy(number, cluster.name),
            cluster_limits=self._flow_controls.limits_for(
                [name for name in cluster.config.flow_controls if name not in controls], cluster.name
            ),
            reject=policy.reject,
            access_log=server.access_log and policy.access_log is not False,
            authority=authority,
        )

    def _limits_of_policy(self, number: int, cluster: str) -> RequestLimits:
        """Return the policy's own limits: one object, or with `per: Cluster` one for each cluster."""
        assert self._server.dispatch is not None
        name = self._server.dispatch[number].flow_control
        if name is None:
            return UNLIMITED
        shared = self._flow_controls.per(name) is not model.Per.CLUSTER
        key = (number, "" if shared else cluster)
        limits = self._policy_limits.get(key)
        if limits is None:
            backend = self._server.backend
            shown = backend.aggregate if shared and isinstance(backend, model.AggregateBackendConfig) else cluster
            limits = self._policy_limits[key] = self._flow_controls.limits_for((name,), shown)
        return limits
