"""A request to an aggregate, in the process that has the client's connection: `aggregate.request.AggregatedRequest`.

It has the decision about each member: the user for the member, the plan of the policy that applies, or the refusal. All
requests to members use `proxy.subrequest`, and therefore the forwarding path.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from mcproxy.aggregate.request import LeftOut
from mcproxy.dispatch.request_limits import Permit
from mcproxy.kube.status import StatusError
from mcproxy.proxy import subrequest
from mcproxy.proxy.filters import resource_for_limits
from mcproxy.proxy.request import ServedBy

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.dispatch.plan import Plan
    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header, RequestHead
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import AggregateBackend

T = TypeVar("T")


class Outcomes(Protocol):
    """The filters' decisions about each cluster (`aggregate_filters.ClusterOutcomes`)."""

    users: dict[str, UserInfo]
    plans: dict[str, Plan]
    refusals: dict[str, StatusError]


class Decided(NamedTuple):
    """`Outcomes` as plain values."""

    users: Mapping[str, UserInfo]
    plans: Mapping[str, Plan]
    refusals: Mapping[str, StatusError]


Decide = Callable[[], "Coroutine[Deferred[Any], Any, tuple[AggregateBackend, Outcomes] | None]"]
"""Decides again by the configuration in force; returns None if the server no longer has such an aggregate."""

_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})


@mypyc_attr(allow_interpreted_subclasses=True)  # KeeperAggregatedRequest
class LocalAggregatedRequest:
    """One request to an aggregate that the filters have admitted."""

    __slots__ = (
        "_backend",
        "_decide",
        "_plans",
        "_refusals",
        "_request",
        "_served",
        "_users",
        "info",
        "left_out",
        "members",
        "target",
    )

    def __init__(
        self,
        request: Request,
        backend: AggregateBackend,
        info: RequestInfo,
        target: bytes,
        *,
        users: Mapping[str, UserInfo],
        plans: Mapping[str, Plan],
        refusals: Mapping[str, StatusError],
        served: ServedBy,
        decide: Decide,
    ) -> None:
        """`users`, `plans` and `refusals` are by cluster; each cluster of `backend` has a plan or a refusal."""
        self._decide = decide
        self._request = request
        self._served = served
        self.info = info
        self.target = target
        self._take(backend, users, plans, refusals)

    def _take(
        self,
        backend: AggregateBackend,
        users: Mapping[str, UserInfo],
        plans: Mapping[str, Plan],
        refusals: Mapping[str, StatusError],
    ) -> None:
        self._backend = backend
        self._users = users
        self._plans = plans
        self._refusals = refusals
        self.members = tuple(name for name in backend.members if name in plans and name not in refusals)
        self.left_out = tuple(_left_out(name, refusals[name]) for name in backend.members if name in refusals)

    def for_request(self, request: Request) -> LocalAggregatedRequest:
        """Return another request of the same client, with the same decisions."""
        assert request.info is not None
        return LocalAggregatedRequest(
            request,
            self._backend,
            request.info,
            request.exchange.head.target,
            users=self._users,
            plans=self._plans,
            refusals=self._refusals,
            served=self._served,
            decide=self._decide,
        )

    @property
    def request(self) -> Request:
        """The client's request."""
        return self._request

    @property
    def served(self) -> ServedBy:
        """The clusters and policies that served it, for the access log."""
        return self._served

    @property
    def decided(self) -> Decided:
        """The decisions about each cluster."""
        return Decided(self._users, self._plans, self._refusals)

    @property
    def exchange(self) -> Exchange:
        return self._request.exchange

    @property
    def head(self) -> RequestHead:
        return self._request.exchange.head

    def leave_out(self, left_out: Sequence[LeftOut]) -> None:
        more = {each.member: each for each in left_out if each.member in self.members}
        self.members = tuple(name for name in self.members if name not in more)
        known = {each.member: each for each in self.left_out} | more
        self.left_out = tuple(known[name] for name in self._backend.members if name in known)

    async def decide_again(self) -> None:
        decided = await self._decide()
        if decided is not None:
            backend, outcomes = decided
            self._take(backend, outcomes.users, outcomes.plans, outcomes.refusals)

    def user_for(self, member: str) -> UserInfo:
        self._plan(member)
        return self._users[member]

    def user_at(self, cluster: str) -> UserInfo:
        request = self._request
        if request.impersonates:
            return request.user
        return request.caller.for_cluster(cluster)

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        return self._request.own_fields(more, cache_control=cache_control)

    async def send(
        self,
        member: str,
        method: bytes,
        target: bytes,
        *,
        fields: Sequence[Header] | None = (),
        body: bytes = b"",
        timeout: float | None = None,
    ) -> MemberResponse:
        plan = self._plan(member)
        permit = await self._permit(member, plan)
        return await subrequest.send(
            self._request,
            plan,
            self._users[member],
            method,
            target,
            clock=self._backend.clock,
            fields=fields,
            body=body,
            timeout=timeout,
            permit=permit,
        )

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        if body is not None:
            response = await self.send(member, self.head.method, target, fields=None, body=body)
            subrequest.relay(self._request, response)
            return
        plan = self._plan(member)
        permit = await self._permit(member, plan)
        request = self._request
        if request.exchange.ended:
            permit.release()
            return
        request.permit = permit if request.permit is None else request.permit.joined(permit)
        request.waiting = None  # from now on the forwarding path ends the request
        request.upstream = None
        await subrequest.forward(request, plan, self._users[member], target)

    async def hand_to(self, member: str, request: Request) -> None:
        """Let a member answer `request`, another request of the same client, with the user's identity."""
        plan = self._plan(member)
        request.permit = await self._permit(member, plan)
        request.user = self._users[member]
        await subrequest.forwarded(request, plan)

    def served_by(self, *members: str, cached: bool) -> None:
        self._served.clusters = members
        self._served.cached = cached

    def long_running(self) -> None:
        self._request.begin_session()

    async def while_connected(self, waiting: Deferred[T]) -> T:
        return await waiting  # if the client disconnects, the pipeline cancels the whole handling, with this wait

    def _plan(self, member: str) -> Plan:
        """Return the plan for requests to a member. Raises StatusError if this request may not touch it."""
        refusal = self._refusals.get(member)
        if refusal is not None:
            raise refusal
        if member not in self._plans:
            raise StatusError(403, f'cluster "{member}" is not for this request', details={})
        return self._plans[member]

    async def _permit(self, member: str, plan: Plan) -> Permit:
        """Return a permit of the member's own limits. Raises StatusError (429)."""
        name, resource = self._users[member].name, resource_for_limits(self.info)
        permit = plan.cluster_limits.acquire(name, self.info.long_running, resource)
        return permit if isinstance(permit, Permit) else await permit

    # -- proxy.request.UpstreamHandler ----------------------------------------------------------------------------

    def endpoint_out(self) -> None:
        """Do nothing: only subrequests were sent, and they choose other endpoints by themselves."""

    def restart(self) -> bool:
        head, exchange = self.head, self.exchange
        if head.method not in _SAFE or head.length != 0 or head.upgrade is not None or exchange.handler is not None:
            return False
        return self._request.restart()


def of_one_cluster(
    request: Request, backend: AggregateBackend, plan: Plan, info: RequestInfo, target: bytes
) -> LocalAggregatedRequest:
    """Return an admitted request for the merged documents of one cluster and API services."""
    name = plan.cluster.name

    async def decide_again() -> tuple[AggregateBackend, Outcomes] | None:
        return None  # these requests are not long-running

    return LocalAggregatedRequest(
        request,
        backend,
        info,
        target,
        users={name: request.user},
        plans={name: plan},
        refusals={},
        served=ServedBy(name),
        decide=decide_again,
    )


def _left_out(member: str, refusal: StatusError) -> LeftOut:
    """Return the reason why a member is left out; a 429 or 5xx means that no decision was possible."""
    return LeftOut(member, refusal.message, refusal.code == 429 or refusal.code >= 500)
