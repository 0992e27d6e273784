"""The filters of a request to an aggregate, which decide about each cluster that the request can touch.

The steps and their order are those of a request to one cluster (`filters`), but each cluster has its own outcome. A
cluster that refuses is left out, and the request is refused if all clusters refuse. A policy counts a request once for
all its members; a cluster counts the requests that are sent to it (`aggregated_request`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from mcproxy.config.model import UpstreamIdentity
from mcproxy.dispatch.request_limits import Permit
from mcproxy.identity.authorization.attributes import Attributes, attributes_of, forbidden, required_attributes
from mcproxy.kube.status import StatusError
from mcproxy.proxy.aggregated_request import LocalAggregatedRequest, Outcomes
from mcproxy.proxy.filters import (
    impersonated_user,
    log_refusal,
    refuse_pages,
    resource_for_limits,
    while_connected,
)
from mcproxy.proxy.request import ServedBy
from mcproxy.requests.coroutines import settled
from mcproxy.requests.reasons import Step, refusal_reason

if TYPE_CHECKING:
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.authorization.authorizer import Authorizer
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import AggregateBackend, VirtualServer


_READS = frozenset({"get", "list", "watch"})


class ClusterOutcomes:
    """The decisions of the filters so far about each cluster of an aggregate, by name."""

    __slots__ = ("_reasons", "_request", "clusters", "plans", "refusals", "users")

    def __init__(self, request: Request, backend: AggregateBackend) -> None:
        self._request = request
        self.clusters = backend.clusters
        self.users: dict[str, UserInfo] = {}
        self.plans: dict[str, Plan] = {}
        self.refusals: dict[str, StatusError] = {}
        self._reasons: dict[str, str] = {}  # access-log reasons of the refusals

    @property
    def open(self) -> list[str]:
        """The clusters that have not refused the request, in the aggregate's order."""
        return [name for name in self.clusters if name not in self.refusals]

    def refuse(self, name: str, refusal: StatusError, reason: str) -> None:
        """Leave a cluster out."""
        self.refusals[name] = refusal
        self._reasons[name] = reason

    def check(self) -> None:
        """If no cluster remains, raise the first refusal with 5xx (no decision was possible), else the first one."""
        if len(self.refusals) < len(self.clusters):
            return
        name = next((name for name in self.clusters if self.refusals[name].code >= 500), next(iter(self.clusters)))
        self._request.reason = self._reasons[name]
        raise self.refusals[name]

    async def each(self, step: Step, decide: Callable[[str], Coroutine[Deferred[Any], Any, None]]) -> None:
        """Decide about all remaining clusters at once; a cluster whose `decide` raises StatusError is left out.

        Raises StatusError if no cluster remains, and CancelledError if the client disconnects.
        """
        names = self.open
        waiting: list[Deferred[Any]] = [Deferred.fromCoroutine(decide(name)) for name in names]
        results = await while_connected(self._request, DeferredList(waiting, consumeErrors=True))
        for name, (_, result) in zip(names, results, strict=True):
            if not isinstance(result, Failure):
                continue
            if not isinstance(result.value, StatusError):
                result.raiseException()
            self.refuse(name, result.value, refusal_reason(step, result.value.code))
        self.check()


async def admit_to_members(
    request: Request, server: VirtualServer, backend: AggregateBackend, info: RequestInfo, target: bytes
) -> LocalAggregatedRequest:
    """Return the request for the aggregate, with its permits. Raises StatusError, and CancelledError."""
    served = request.served = ServedBy(backend.name)
    outcomes = await _decide(request, server, backend, info, target, served)

    async def decide_again() -> tuple[AggregateBackend, Outcomes] | None:
        registry = server.session_registry
        now = None if registry is None else registry.server_of(request)
        if now is None or now.aggregate is None or now.aggregate.name != backend.name:
            return None
        return now.aggregate, await _decide(request, now, now.aggregate, info, target, None)

    return LocalAggregatedRequest(
        request,
        backend,
        info,
        target,
        users=outcomes.users,
        plans=outcomes.plans,
        refusals=outcomes.refusals,
        served=served,
        decide=decide_again,
    )


async def _decide(
    request: Request,
    server: VirtualServer,
    backend: AggregateBackend,
    info: RequestInfo,
    target: bytes,
    served: ServedBy | None,
) -> ClusterOutcomes:
    """Decide for each cluster whether the request may be sent there, as which user and under which policy.

    `served` is None when a running request is decided again. For a new request permits are acquired, and its policies
    and whether it is logged are set in `served`.
    """
    reads = info.verb in _READS and not info.subresource
    outcomes = ClusterOutcomes(request, backend)
    _name_the_user(request, outcomes)
    if request.identity_headers.impersonate:
        await _impersonate(request, server, target, backend if reads else None, outcomes)
    _choose_plans(request, server, info, target, outcomes)
    if served is not None:
        plans = [outcomes.plans[name] for name in outcomes.open]
        served.policy = ",".join(dict.fromkeys(plan.policy for plan in plans))
        served.access_log = any(plan.access_log for plan in plans)
        if not request.exchange.ended:  # if the client has disconnected, a permit would never be released
            await _admit(request, info, plans)
    authorizer = backend.read_authorizer if reads else server.authorizer
    if authorizer is not None:
        await _authorize(request, authorizer, info, target, outcomes)
    return outcomes


def _name_the_user(request: Request, outcomes: ClusterOutcomes) -> None:
    """Find the authenticated user's identity for each cluster: `system:` names are valid only in their own cluster."""
    caller = request.caller
    for name in outcomes.clusters:
        try:
            outcomes.users[name] = caller.for_cluster(name) if caller.cluster else caller.user
        except StatusError as refusal:
            outcomes.refuse(name, refusal, "foreign_account")
            if len(outcomes.refusals) == len(outcomes.clusters):
                log_refusal(
                    "a system account of another cluster was refused",
                    request,
                    name,
                    refusal,
                    event="foreign_account_refused",
                )
    outcomes.check()


async def _impersonate(
    request: Request,
    server: VirtualServer,
    target: bytes,
    backend: AggregateBackend | None,
    outcomes: ClusterOutcomes,
) -> None:
    """Let each cluster decide whether the caller may impersonate the requested user; `backend` is set for a read."""
    impersonated: list[UserInfo] = []
    authorizer = server.impersonation if backend is None else backend.read_impersonation

    async def decide(name: str) -> None:
        cluster = outcomes.clusters[name]
        if cluster.config.identity is UpstreamIdentity.PASSTHROUGH and not server.authenticates:
            return  # only the cluster knows the caller, so it decides itself
        try:
            real = outcomes.users[name]
            user = await impersonated_user(
                request, authorizer, cluster, real, target=target, from_cache=backend is not None
            )
        except StatusError as refusal:
            if refusal.code == 403:  # a 400 is counted as `request_malformed`
                log_refusal("impersonation refused", request, name, refusal, event="impersonation_refused")
            raise
        if user is not None:
            outcomes.users[name] = user
            impersonated.append(user)

    await outcomes.each(Step.IMPERSONATION, decide)
    if impersonated:
        request.user = impersonated[0]  # all clusters have the same user
        request.impersonates = True


def _choose_plans(
    request: Request, server: VirtualServer, info: RequestInfo, target: bytes, outcomes: ClusterOutcomes
) -> None:
    """Find the policy that applies to each cluster. Raises StatusError if no policy admits the request."""
    for name in outcomes.open:
        user = outcomes.users[name]
        plan = server.dispatch.plan(user, info, name)
        if plan is None:
            why = f'no dispatch policy of server "{server.name}" matches'
            outcomes.refuse(name, forbidden(user, attributes_of(info, target), why), "no_policy")
        elif plan.reject is not None:
            outcomes.refuse(name, StatusError(plan.reject.code, plan.reject.message, details={}), "rejected")
        else:
            outcomes.plans[name] = plan
            if plan.cluster.config.identity is UpstreamIdentity.PROXY:
                refuse_pages(request)
    outcomes.check()


async def _admit(request: Request, info: RequestInfo, plans: Iterable[Plan]) -> None:
    """Get one permit for each distinct policy. Raises StatusError (429), and CancelledError."""
    resource = resource_for_limits(info)
    for limits in dict.fromkeys(plan.policy_limits for plan in plans):
        permit = limits.acquire(request.user.name, info.long_running, resource)
        if not isinstance(permit, Permit):
            permit = await while_connected(request, permit)
        request.permit = permit if request.permit is None else request.permit.joined(permit)


async def _authorize(
    request: Request, authorizer: Authorizer, info: RequestInfo, target: bytes, outcomes: ClusterOutcomes
) -> None:
    """Let the server's authorizer decide about each cluster. Raises StatusError if it allows the request for none."""
    wanted = required_attributes(info, target)

    async def decide(name: str) -> None:
        for attributes in wanted:
            await _authorize_one(request, authorizer, outcomes.users[name], attributes, name)

    await outcomes.each(Step.AUTHORIZATION, decide)


async def _authorize_one(
    request: Request, authorizer: Authorizer, user: UserInfo, attributes: Attributes, cluster_name: str
) -> None:
    if authorizer.reviewer is not None and request.caller.cluster and not request.impersonates:
        # Any cluster other than the user's own would treat the user's `system:` names as its own accounts.
        if authorizer.allowed_by_rules(user, attributes, cluster_name):
            return
        user = request.caller.for_cluster(authorizer.reviewer)
    decision = await settled(authorizer.decide(user, attributes, cluster_name))
    if request.decision is None or decision.allowed:
        request.decision = decision
    if not decision.allowed:
        raise forbidden(user, attributes, decision.reason)
