"""The keeper's side: passes the requests of workers to the aggregate's handler, and answers reviews.

The worker decides about users, policies and refusals. The keeper looks up the plans by the policies' names; the plans
have the clusters, credentials and limits for the handler's own requests to members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mcproxy.identity.authorization.access_review import ReviewUnavailable
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.client_table import UNIX
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy.aggregated_request import LocalAggregatedRequest
from mcproxy.proxy.filters import while_connected
from mcproxy.proxy.keeper import wire
from mcproxy.proxy.keeper.keeper_exchange import KeeperExchange, RelayedClient
from mcproxy.proxy.keeper.keeper_frames import FrameError, FrameType
from mcproxy.proxy.keeper.link import Link
from mcproxy.proxy.request import Request, RequestClient, ServedBy
from mcproxy.requests.coroutines import settled, start

if TYPE_CHECKING:
    from mcproxy.dispatch.plan import Plan
    from mcproxy.http.messages import Header
    from mcproxy.identity.client_identity_headers import IdentityHeaders
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.aggregated_request import Outcomes
    from mcproxy.proxy.routes import AggregateBackend, VirtualServer

log = Logger(__name__)

_FULL = 4 * 1024 * 1024  # limit of the bytes queued for a worker; above it, even shared data of watches waits
_USERS = 2048  # maximum number of cached users
_RETRY_AFTER = 1
_DECIDE_FOR = 1.0  # maximum seconds for a worker to follow a reload that the keeper has already applied
_DECIDE_STEP = 0.05


class KeeperServer:
    """The requests of all workers. They arrive only after `serve` is called, when the keeper has a configuration."""

    def __init__(self, clock: IReactorTime, in_flight: set[Request]) -> None:
        """`in_flight` are the requests of the process."""
        self.clock = clock
        self.in_flight = in_flight
        self.user: Callable[[bytes], UserInfo] = lru_cache(_USERS)(wire.decode_user)
        self._links: set[WorkerLink] = set()
        self._servers: Callable[[], Mapping[str, VirtualServer]] | None = None
        self._unlinked: list[Deferred[None]] = []

    def serve(self, servers: Callable[[], Mapping[str, VirtualServer]]) -> None:
        """Accept requests from now on; `servers` returns the servers in force, by name."""
        before, self._servers = self._servers, servers
        if before is None:
            for link in self._links:
                link.say_serving()

    def link(self) -> WorkerLink:
        """Return the protocol for a connection to a worker."""
        return WorkerLink(self)

    def connected(self, link: WorkerLink) -> None:
        """A worker has connected."""
        self._links.add(link)
        if self._servers is not None:
            link.say_serving()

    def close(self) -> None:
        """End the connections to all workers after the queued data is sent."""
        for link in list(self._links):
            link.close()

    def gone(self, link: WorkerLink) -> None:
        """The connection has ended."""
        self._links.discard(link)
        if not self._links:
            unlinked, self._unlinked = self._unlinked, []
            for each in unlinked:
                each.callback(None)

    def unlinked(self) -> Deferred[None]:
        """Return a Deferred that fires when no worker is connected."""
        waiting: Deferred[None] = Deferred()
        if self._links:
            self._unlinked.append(waiting)
        else:
            waiting.callback(None)
        return waiting

    def backend(self, server: str, aggregate: str | None) -> tuple[VirtualServer, AggregateBackend] | None:
        """Return a server in force and its aggregate; None if a reload has removed them.

        If `aggregate` is the name of a cluster, return the documents of this one-cluster backend.
        """
        live = self._servers().get(server) if self._servers is not None else None
        if live is None:
            return None
        documents = live.documents.get(aggregate or "")
        if documents is not None:
            return live, documents
        if live.aggregate is None or aggregate not in (None, live.aggregate.name):
            return None
        return live, live.aggregate


class WorkerLink(Link):
    """The connection to one worker, and its requests."""

    def __init__(self, server: KeeperServer) -> None:
        super().__init__()
        self._server = server
        self._streams: dict[int, _Open] = {}
        self._reviews: dict[int, Deferred[Any]] = {}
        self._held: list[KeeperExchange] = []

    @property
    def full(self) -> bool:
        return self.transport.queued > _FULL

    def connectionMade(self) -> None:
        super().connectionMade()
        self._server.connected(self)

    def say_serving(self) -> None:
        """Notify the worker that it can send requests."""
        self.send(FrameType.SERVING, 0)

    # -- Link ---------------------------------------------------------------------------------------------------

    def frame(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == FrameType.OPEN:
            self._open(stream, _OPENED(payload))
        elif kind == FrameType.REVIEW:
            self._review(stream, _REVIEW(payload))
        elif kind == FrameType.CANCEL and stream in self._reviews:
            self._reviews.pop(stream).cancel()
        else:
            known = self._streams.get(stream)
            if known is None:
                return  # the stream was answered a moment ago
            try:
                known.frame(kind, payload)
            except FrameError:
                raise
            except Exception:  # an error must not affect the worker's other requests
                log.failure("handling a request failed unexpectedly", event="internal_error")
                known.exchange.abort()
                known.cancel()

    def batch_ended(self) -> None:
        """Do nothing: no data is held back."""

    def unblocked(self) -> None:
        held, self._held = self._held, []
        for exchange in held:
            exchange.released()

    def ended(self) -> None:
        self._server.gone(self)
        for known in list(self._streams.values()):
            known.cancel()
        reviews, self._reviews = self._reviews, {}
        for review in reviews.values():
            review.cancel()

    # -- exchange.WorkerConnection --------------------------------------------------------------------------------

    def hold(self, exchange: KeeperExchange) -> None:
        self._held.append(exchange)

    def over(self, exchange: KeeperExchange) -> None:
        self._streams.pop(exchange.stream, None)

    # -- requests -----------------------------------------------------------------------------------------------

    def _open(self, stream: int, opened: wire.Opened) -> None:
        if stream in self._streams:
            raise FrameError("a request with the number of another")
        server = self._server
        address = opened.address
        client = None
        if address:
            client = (IPv6Address if ":" in address else IPv4Address)("TCP", address, 0)
        origin = RelayedClient(self, server.clock, client, address or UNIX, opened.forwarded)
        head = wire.request_head(opened.head)
        exchange = KeeperExchange(self, stream, origin.as_connection, head, server.clock.seconds())
        request = KeeperRequest(exchange, cast("RequestClient", origin), server.in_flight, opened, server.user)
        known = self._streams[stream] = _Open(self, exchange)
        start(self._serve(request, exchange, known, opened))

    async def _serve(self, request: KeeperRequest, exchange: KeeperExchange, known: _Open, opened: wire.Opened) -> None:
        found = self._server.backend(opened.server, opened.aggregate)
        if found is None:
            refusal = retry_after(503, "the aggregate is served no longer", _RETRY_AFTER)
            exchange.refuse(refusal, wire.GONE)
            return
        server, backend = found
        request.server = server
        try:
            request.info = info = requestinfo.parse(opened.head.method, opened.target)
            outcomes = RemoteOutcomes(server, backend, info, opened.members, self._server.user)
            admitted = KeeperAggregatedRequest(request, exchange, known, backend, info, opened.target, outcomes)
            if admitted.undecided:
                await self._decided(admitted)
            if exchange.ended:
                return
            await while_connected(request, Deferred.fromCoroutine(backend.handler.handle(admitted)))
            if not exchange.responded and exchange.handler is None and not exchange.ended:
                raise RuntimeError("the aggregate has neither answered nor begun to")
        except CancelledError:
            pass  # the client disconnected
        except StatusError as refusal:
            exchange.reason = "upstream_broken"
            if exchange.responded:
                exchange.abort()
            else:
                exchange.refuse(refusal, "")
        except Exception:
            log.failure("handling a request failed unexpectedly", event="internal_error")
            if exchange.responded:
                exchange.abort()
            else:
                exchange.refuse(StatusError(500, "internal error"), "internal_error")

    async def _decided(self, admitted: KeeperAggregatedRequest) -> None:
        """Let the worker decide about a member that a reload has added here, and will soon add in the worker."""
        clock = self._server.clock
        until = clock.seconds() + _DECIDE_FOR
        while admitted.undecided and not admitted.exchange.ended and clock.seconds() < until:
            await deferLater(clock, _DECIDE_STEP)
            if not admitted.exchange.ended:
                await admitted.decide_again()

    # -- reviews ------------------------------------------------------------------------------------------------

    def _review(self, stream: int, review: wire.Review) -> None:
        waiting: Deferred[Any] = Deferred.fromCoroutine(self._reviewed(review))
        self._reviews[stream] = waiting
        waiting.addCallbacks(self._answer_review, self._review_failed, (stream,), errbackArgs=(stream,))

    async def _reviewed(self, review: wire.Review) -> wire.Reviewed:
        found = self._server.backend(review.server, None)
        if found is None:
            return wire.Reviewed(False, b"", "unavailable")
        _, backend = found
        user, attributes = wire.decode_user(review.user), wire.decode_attributes(review.attributes)
        reviewer = backend.read_impersonation.reviewer(review.cluster)
        try:
            decision = await settled(reviewer.decide(user, attributes))
        except ReviewUnavailable as problem:
            return wire.reviewed(problem)
        return wire.reviewed(decision)

    def _answer_review(self, answer: wire.Reviewed, stream: int) -> None:
        if self._reviews.pop(stream, None) is not None:
            self.send(FrameType.REVIEWED, stream, wire.encode(answer))

    def _review_failed(self, failure: Any, stream: int) -> None:
        if self._reviews.pop(stream, None) is None or isinstance(failure.value, CancelledError):
            return
        if not isinstance(failure.value, StatusError):
            log.failure("a bug in the review of access", event="internal_error", failure=failure)
        self.send(FrameType.REVIEWED, stream, wire.encode(wire.Reviewed(False, b"", "unavailable")))


_OPENED, _REVIEW = wire.decoder(wire.Opened), wire.decoder(wire.Review)
_REDECIDED = wire.decoder(wire.Redecided)
_TRAILERS = wire.decoder(list[tuple[bytes, bytes]])


class _Open:
    """An open request: not answered yet, and not ended by the worker."""

    __slots__ = ("_link", "_number", "_waiting", "exchange")

    def __init__(self, link: WorkerLink, exchange: KeeperExchange) -> None:
        self.exchange = exchange
        self._link = link
        self._number = 0  # the number of the last DECIDE
        self._waiting: dict[int, Deferred[wire.Redecided]] = {}

    def frame(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the worker."""
        exchange = self.exchange
        if kind == FrameType.BODY:
            exchange.body_received(payload)
        elif kind == FrameType.BODY_END:
            trailers: list[Header] = _TRAILERS(payload)
            exchange.body_finished(trailers)
        elif kind == FrameType.CANCEL:
            self.cancel()
        elif kind == FrameType.PAUSE:
            exchange.pause()
        elif kind == FrameType.RESUME:
            exchange.resume()
        elif kind == FrameType.DECIDED:
            answer = _REDECIDED(payload)
            waiting = self._waiting.pop(answer.number, None)
            if waiting is not None:
                waiting.callback(answer)
        else:
            raise FrameError(f"a frame of kind {kind} for a request")

    def cancel(self) -> None:
        """Cancel the request: the client or the worker has disconnected."""
        self.exchange.cancel()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.cancel()

    async def decide_again(self) -> wire.Redecided:
        """Let the worker decide again by its configuration in force, and return its decisions."""
        self._number += 1
        number = self._number

        def cancelled(_: object) -> None:
            self._waiting.pop(number, None)

        self._waiting[number] = waiting = Deferred[wire.Redecided](cancelled)
        self._link.send(FrameType.DECIDE, self.exchange.stream, number.to_bytes(8, "little"))
        return await waiting


class KeeperRequest(Request):
    """A request in the keeper. It is not in the access log, which the worker writes."""

    __slots__ = ("_headers",)

    def __init__(
        self,
        exchange: KeeperExchange,
        client: RequestClient,
        in_flight: set[Request],
        opened: wire.Opened,
        user: Callable[[bytes], UserInfo],
    ) -> None:
        super().__init__(exchange, client, in_flight, Recorders())
        self._headers: IdentityHeaders | None = None
        self.caller = wire.authenticated_user(opened, user(opened.caller))
        self.user = user(opened.user)
        self.impersonates = opened.impersonates
        self.response_fields = opened.response_fields

    def headers_for_members(self) -> IdentityHeaders:
        """Return the client's identity headers, which are parsed for the first request to a member."""
        if self._headers is None:
            self._headers = split_identity_headers(self.exchange.head.fields)
        return self._headers

    def restart(self, body: list[bytes] | None = None) -> bool:
        """Return False: the worker restarts the request."""
        return False


class RemoteOutcomes:
    """A worker's decisions (`aggregated_request.Outcomes`), with the plans of this process."""

    def __init__(
        self,
        server: VirtualServer,
        backend: AggregateBackend,
        info: requestinfo.RequestInfo,
        members: list[wire.MemberDecision],
        user: Callable[[bytes], UserInfo],
    ) -> None:
        self.users: dict[str, UserInfo] = {}
        self.plans: dict[str, Plan] = {}
        self.refusals: dict[str, StatusError] = {}
        for member in members:
            name = member.cluster
            if name not in backend.clusters:
                continue  # a reload has removed the cluster
            if member.user is not None:
                self.users[name] = user(member.user)
            if member.refusal is not None:
                self.refusals[name] = wire.decode_refusal(member.refusal)
            elif member.policy is not None and name in self.users:
                plan = server.dispatch.plan_of(member.policy, name) or server.dispatch.plan(
                    self.users[name], info, name
                )
                if plan is None or plan.reject is not None:  # during a reload, before the worker follows it
                    self.refusals[name] = retry_after(503, "the policies have just changed", _RETRY_AFTER)
                else:
                    self.plans[name] = plan


async def _elsewhere() -> None:
    raise AssertionError("the worker decides")


class KeeperAggregatedRequest(LocalAggregatedRequest):
    """A request that a worker has admitted."""

    __slots__ = ("_exchange", "_known")

    def __init__(
        self,
        request: KeeperRequest,
        exchange: KeeperExchange,
        known: _Open,
        backend: AggregateBackend,
        info: requestinfo.RequestInfo,
        target: bytes,
        outcomes: Outcomes,
    ) -> None:
        super().__init__(
            request,
            backend,
            info,
            target,
            users=outcomes.users,
            plans=outcomes.plans,
            refusals=outcomes.refusals,
            served=ServedBy(backend.name),
            decide=_elsewhere,
        )
        self._exchange = exchange
        self._known = known

    @property
    def undecided(self) -> bool:
        """Whether a reload has added members about which the worker has not decided."""
        return len(self.members) + len(self.left_out) < len(self._backend.members)

    async def decide_again(self) -> None:
        answer = await self._known.decide_again()
        if answer.refusal is not None:
            raise wire.decode_refusal(answer.refusal)
        request = self._request
        link = cast(WorkerLink, self.exchange.connection.factory)
        assert request.server is not None
        found = link._server.backend(request.server.name, self._backend.name)
        if found is None:
            return
        server, backend = found
        outcomes = RemoteOutcomes(server, backend, self.info, answer.members, link._server.user)
        self._take(backend, outcomes.users, outcomes.plans, outcomes.refusals)

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        if body is not None:  # only the keeper has the body now
            await super().forward(member, target, body)
            return
        self._plan(member)
        self._exchange.forward(member, target)

    def served_by(self, *members: str, cached: bool) -> None:
        super().served_by(*members, cached=cached)
        self._exchange.note = self._note

    def long_running(self) -> None:
        self._exchange.begin_lasting()

    def _note(self) -> bytes:
        served = self._served
        return wire.encode(wire.ResponseNote(list(served.clusters), served.cached))

    def restart(self) -> bool:
        return False
