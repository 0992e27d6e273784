"""Relays requests to aggregates to the keeper, in the worker that has the client's connection.

The pipeline passes requests to `RelayHandler` (`aggregate.request.AggregateHandler`). A `Relay` is the handler of the
client's exchange while the keeper reads the body or responds. If the keeper ends before it has answered, a request that
is safe to repeat is sent to the next keeper.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mcproxy.kube.status import StatusError
from mcproxy.net.failures import failure
from mcproxy.proxy.aggregated_request import LocalAggregatedRequest
from mcproxy.proxy.keeper import wire
from mcproxy.proxy.keeper.keeper_client import KeeperLost
from mcproxy.proxy.keeper.keeper_frames import FrameError, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.python.failure import Failure

    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.http.messages import Header
    from mcproxy.proxy.keeper.keeper_client import KeeperClient, KeeperLink

log = Logger(__name__)

_FOLLOWS_WITHIN = 2.0  # maximum seconds for this process to follow a reload that the keeper has already applied
_FOLLOW_STEP = 0.05
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_LOST = (
    "the process that has the caches of the aggregate ended before it had answered; the request may have taken effect"
)

_RESPONSE, _WHOLE, _INTERIM = wire.decoder(wire.Response), wire.decoder(wire.Whole), wire.decoder(wire.Interim)
_REFUSAL, _FORWARDING, _NOTE = (
    wire.decoder(wire.Refusal),
    wire.decoder(wire.Forwarding),
    wire.decoder(wire.ResponseNote),
)
_TRAILERS = wire.decoder(list[tuple[bytes, bytes]])


class _Gone(Exception):
    """The keeper has a configuration without the server or its aggregate."""

    def __init__(self, refusal: StatusError) -> None:
        super().__init__()
        self.refusal = refusal


class RelayHandler:
    """Passes the requests to one aggregate to the keeper."""

    def __init__(self, client: KeeperClient, aggregate: str) -> None:
        self._client = client
        self._aggregate = aggregate

    async def handle(self, request: AggregatedRequest) -> None:
        """Answer a request, or begin to. Raises StatusError."""
        assert isinstance(request, LocalAggregatedRequest)
        client = self._client
        until = client.clock.seconds() + client.patience
        while True:
            link = await client.ready(until)
            if request.exchange.ended:
                return
            relay = Relay(link, request)
            relay.open(client, self._aggregate)
            try:
                outcome = await relay.begun
            except _Gone as gone:
                await self._follow(request)
                raise gone.refusal from None
            except KeeperLost:
                if relay.repeatable:
                    continue
                request.request.reason = "upstream_closed"
                raise StatusError(502, _LOST, reason="BadGateway") from None
            if isinstance(outcome, wire.Whole):
                request.exchange.answer(outcome.status, outcome.fields, outcome.body, outcome.reason)
            elif outcome is not None:
                await request.forward(outcome.member, outcome.target)
            return

    async def _follow(self, request: LocalAggregatedRequest) -> None:
        """Wait until this process has the keeper's configuration, then restart the request (which cancels this
        coroutine).
        """
        until = self._client.clock.seconds() + _FOLLOWS_WITHIN
        while self._client.clock.seconds() < until:
            await self._restarted(request)

    def _restarted(self, request: LocalAggregatedRequest) -> Deferred[None]:
        """Restart the request soon, if possible; the returned Deferred is then cancelled, otherwise it fires."""

        def cancelled(_: object) -> None:
            if call.active():
                call.cancel()

        def restart() -> None:
            if not request.restart():
                waiting.callback(None)

        waiting: Deferred[None] = Deferred(cancelled)
        call = self._client.clock.callLater(_FOLLOW_STEP, restart)
        return waiting


class Relay:
    """One request that was sent to the keeper.

    `begun` fires when its response has begun, or with a task for `RelayHandler`: to forward the request, or to send a
    whole response. The handler's coroutine sends it, since the end of the exchange cancels all that wait for it.
    """

    __slots__ = (
        "_admitted",
        "_body_begun",
        "_exchange",
        "_lasting",
        "_link",
        "_number",
        "_over",
        "_unanswered",
        "begun",
    )

    def __init__(self, link: KeeperLink, admitted: LocalAggregatedRequest) -> None:
        self._link = link
        self._admitted = admitted
        self._exchange = admitted.exchange
        self._number = link.begin(self)
        self._over = False  # no more frames are sent to the keeper or accepted from it
        self._lasting = False  # the response is a watch, which can end between any two frames
        self._body_begun = False
        self.begun: Deferred[wire.Forwarding | wire.Whole | None] = Deferred(lambda _: self.cancelled())
        self._unanswered = True
        link.unanswered += 1

    @property
    def repeatable(self) -> bool:
        """Whether the request can be sent to another keeper: it is safe to repeat, and its body was not read."""
        head, exchange = self._exchange.head, self._exchange
        return head.method in _SAFE and not self._body_begun and not exchange.responded and exchange.handler is None

    def open(self, client: KeeperClient, aggregate: str) -> None:
        """Send the request, without its body."""
        admitted, exchange, request = self._admitted, self._exchange, self._admitted.request
        users, plans, refusals = admitted.decided
        caller, head, user_bytes = request.caller, exchange.head, client.user_bytes
        assert request.server is not None
        opened = wire.Opened(
            request.server.name,
            aggregate,
            wire.head_of(head, expects_continue=head.expects_continue and not exchange.body_complete),
            admitted.target,
            request.client.address,
            request.client.forwarded_fields(head),
            request.response_fields,
            user_bytes(caller.user),
            caller.cluster,
            caller.shares_accounts,
            caller.by_token,
            list(caller.also_of),
            user_bytes(request.user),
            request.impersonates,
            wire.members_of(users, {name: plan.policy for name, plan in plans.items()}, refusals, user_bytes),
        )
        self._link.send(FrameType.OPEN, self._number, wire.encode(opened))

    def _close(self) -> None:
        """The stream has ended."""
        if not self._over:
            self._over = True
            self._link.over(self._number)
            self._answered()

    def _answered(self) -> None:
        if self._unanswered:
            self._unanswered = False
            self._link.unanswered -= 1

    def _give_up(self) -> None:
        """Cancel the request in the keeper."""
        if not self._over:
            self._link.send(FrameType.CANCEL, self._number)
            self._close()

    # -- the keeper's frames --------------------------------------------------------------------------------------

    def frame(self, kind: int, payload: bytes) -> None:
        handle = _HANDLERS.get(kind)
        if handle is None:
            raise FrameError(f"a frame of kind {kind} for a request")
        if self._exchange.ended:  # the client has gone
            self._give_up()
            return
        try:
            handle(self, payload)
        except FrameError:
            raise
        except Exception:
            self._failed()

    def shared(self, data: bytes, chunk: bytes) -> None:
        try:
            self._exchange.write_shared(data, chunk)
        except Exception:
            self._failed()

    def _failed(self) -> None:
        log.failure("a bug in the relaying of a response", event="internal_error")
        self._give_up()
        self._exchange.abort()
        if not self.begun.called:
            self.begun.callback(None)

    def _data(self, payload: bytes) -> None:
        self._exchange.write(payload)
        self._link.written(self)

    def batch_ended(self) -> None:
        self._exchange.flush()

    def _respond(self, payload: bytes) -> None:
        response = _RESPONSE(payload)
        exchange = self._exchange
        exchange.respond(response.status, response.reason, response.fields, response.length, response.declared)
        self._link.written(self)
        if exchange.handler is None and not exchange.ended:
            exchange.attach(self)
        self._begin()

    def _whole(self, payload: bytes) -> None:
        whole = _WHOLE(payload)
        self._close()
        if not self.begun.called:
            self.begun.callback(whole)

    def _end(self, payload: bytes) -> None:
        trailers: list[Header] = _TRAILERS(payload)
        self._close()
        self._exchange.end(trailers or None)

    def _abort(self, payload: bytes) -> None:
        request = self._admitted.request
        self._close()
        request.reason = request.reason or payload.decode()
        self._exchange.abort()
        self._begin()

    def _interim(self, payload: bytes) -> None:
        interim = _INTERIM(payload)
        exchange = self._exchange
        if interim.status != 100 or not exchange.body_complete:
            exchange.send_interim(interim.status, interim.reason, interim.fields)

    def _refuse(self, payload: bytes) -> None:
        refusal = _REFUSAL(payload)
        self._close()
        status = wire.decode_refusal(refusal.status)
        if refusal.reason and refusal.reason != wire.GONE:
            self._admitted.request.reason = refusal.reason
        if not self.begun.called:
            self.begun.errback(failure(_Gone(status) if refusal.reason == wire.GONE else status))

    def _forward(self, payload: bytes) -> None:
        forwarding = _FORWARDING(payload)
        self._close()
        if not self.begun.called:
            self.begun.callback(forwarding)

    def _begin(self) -> None:
        if not self.begun.called:
            self._answered()
            self.begun.callback(None)

    def _note(self, payload: bytes) -> None:
        note = _NOTE(payload)
        self._admitted.served_by(*note.clusters, cached=note.cached)

    def _long_running(self, payload: bytes) -> None:
        self._lasting = True
        if not self._exchange.ended:
            self._admitted.long_running()

    # -- the request's body -------------------------------------------------------------------------------------

    def _read_body(self, payload: bytes) -> None:
        self._body_begun = True
        if self._exchange.handler is None:
            self._exchange.attach(self)

    def _pause_body(self, payload: bytes) -> None:
        self._exchange.pause_body()

    def _resume_body(self, payload: bytes) -> None:
        if not self._link.blocked:
            self._exchange.resume_body()

    def body_data(self, data: bytes) -> None:
        if self._over or not self._body_begun:
            return
        self._link.send(FrameType.BODY, self._number, data)
        if self._link.blocked:
            self._exchange.pause_body()

    def unblocked(self) -> None:
        if self._body_begun and not self._exchange.body_complete:
            self._exchange.resume_body()

    def body_end(self, trailers: list[Header]) -> None:
        if not self._over and self._body_begun:
            self._link.send(FrameType.BODY_END, self._number, wire.encode(trailers))

    # -- decisions ----------------------------------------------------------------------------------------------

    def _decide(self, payload: bytes) -> None:
        number = int.from_bytes(payload, "little")
        deciding = Deferred.fromCoroutine(self._decided())
        deciding.addCallbacks(self._tell, self._tell_refusal, (number,), errbackArgs=(number,))

    async def _decided(self) -> list[wire.MemberDecision]:
        await self._admitted.decide_again()
        users, plans, refusals = self._admitted.decided
        policies = {name: plan.policy for name, plan in plans.items()}
        return wire.members_of(users, policies, refusals, wire.encode_user)

    def _tell(self, members: list[wire.MemberDecision], number: int) -> None:
        if not self._over:
            self._link.send(FrameType.DECIDED, self._number, wire.encode(wire.Redecided(number, members, None)))

    def _tell_refusal(self, problem: Failure, number: int) -> None:
        refusal = problem.value
        if isinstance(refusal, CancelledError) or self._over:
            return
        if not isinstance(refusal, StatusError):
            log.failure("a bug in the authorization of a watch", event="internal_error", failure=problem)
            refusal = StatusError(500, "internal error")
        answer = wire.Redecided(number, [], wire.encode_refusal(refusal))
        self._link.send(FrameType.DECIDED, self._number, wire.encode(answer))

    # -- the client (http.exchange.ExchangeHandler) -----------------------------------------------------------------

    def cancelled(self) -> None:
        self._give_up()

    def pause_response(self) -> None:
        if not self._over:
            self._link.send(FrameType.PAUSE, self._number)

    def resume_response(self) -> None:
        if not self._over:
            self._link.send(FrameType.RESUME, self._number)

    def end_gracefully(self) -> None:
        if self._lasting and not self._over:
            self._give_up()
            self._exchange.end()
        # else: no other response can be ended early and cleanly

    def keeper_lost(self) -> None:
        exchange, request = self._exchange, self._admitted.request
        self._over = True
        if exchange.ended:
            return
        if not self.begun.called:
            self.begun.errback(failure(KeeperLost()))
        elif self._lasting:
            request.reason = "upstream_closed_watch"
            exchange.end()
        else:
            request.reason = "upstream_broken"
            exchange.abort()


_HANDLERS: Mapping[int, Callable[[Relay, bytes], None]] = MappingProxyType(
    {
        FrameType.DATA: Relay._data,
        FrameType.RESPOND: Relay._respond,
        FrameType.WHOLE: Relay._whole,
        FrameType.END: Relay._end,
        FrameType.ABORT: Relay._abort,
        FrameType.INTERIM: Relay._interim,
        FrameType.REFUSE: Relay._refuse,
        FrameType.FORWARD: Relay._forward,
        FrameType.NOTE: Relay._note,
        FrameType.LASTING: Relay._long_running,
        FrameType.READ_BODY: Relay._read_body,
        FrameType.PAUSE_BODY: Relay._pause_body,
        FrameType.RESUME_BODY: Relay._resume_body,
        FrameType.DECIDE: Relay._decide,
    }
)
