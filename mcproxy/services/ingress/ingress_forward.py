"""Forwards one request of an ingress to a target, retries it at others, and streams the response back.

    choose target -> stream of its pool -> send head -> body ... ; response head -> body ... -> end
          ^                                                                |
          '---- retry: no connection, the target refused it unprocessed, --'
                or no response came and the method is idempotent

`IngressForward` connects the two engines (`http.request_relay`). Its owner (the request) chooses targets, and answers
the client if there is no response to pass on.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError

from mcproxy.http.client_stream import (
    ClientStream,
    ConnectionClosed,
    HTTP1Required,
    RequestNotProcessed,
    ResponseTimeout,
)
from mcproxy.http.deadlines import NEVER
from mcproxy.http.messages import CHUNKED, Header, RequestHead, ResponseHead
from mcproxy.http.request_relay import RequestRelay
from mcproxy.net.connect_errors import ConnectError, ConnectTimeout
from mcproxy.requests.coroutines import start
from mcproxy.services.ingress.forward_target import AttemptOutcome, Failure, Sent, Target, TargetGone

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.http.exchange import Exchange
    from mcproxy.http.tunnel import TunnelSide

#: Idempotent methods (RFC 9110 9.2.2).
IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})
#: Maximum of targets that are tried for one request.
MAX_TRIES = 3
#: Content types of remote procedure calls. Their clients set a deadline, and either side can be silent for long.
_CALLS = (b"application/grpc", b"application/connect+")


class ForwardedRequest(Protocol):
    """The owner of an `IngressForward`. When its exchange is done, it calls `IngressForward.exchange_done`."""

    exchange: Exchange

    def choose(self, tried: Sequence[Target]) -> Target | None:
        """Return the target of the next attempt, which is none of `tried`; None if there is no other target."""

    def attempt_ended(self, target: Target, outcome: AttemptOutcome) -> None:
        """Called at the end of each attempt, once for each chosen target, unless the target was gone."""

    def response_fields(self, head: ResponseHead, target: Target) -> bytes:
        """Return the fields of a response for the client."""

    def broken(self, problem: Exception) -> None:
        """Called when the target's response breaks off, before the client's response is broken off."""

    def refuse(self, failure: Failure, problem: Exception | None) -> None:
        """Send the proxy's own response, because no target has answered."""

    def fail(self) -> None:
        """Send the proxy's own response after an internal error; called in an except clause."""


class IngressForward(RequestRelay):
    """The forwarding of one request."""

    __slots__ = (
        "_fresh",
        "_head",
        "_opening",
        "_owner",
        "_paused",
        "_picked",
        "_problem",
        "_read_timeout",
        "_repeatable",
        "_repeated",
        "_retries",
        "_retry_on",
        "_target",
        "_timeout",
        "_tried",
        "_tries",
        "_upgrade",
        "deadline",
    )

    def __init__(
        self,
        owner: ForwardedRequest,
        head: Sent,
        *,
        response_timeout: float,
        retries: int,
        retry_on: Container[int] = (),
        timeout: float = 0.0,
        read_timeout: float = 0.0,
    ) -> None:
        """`response_timeout`: seconds until the response begins, 0 for no limit; remote procedure calls have none.

        `retries`: how often an idempotent request is sent to another target after no response or a status of
        `retry_on`, within MAX_TRIES. `timeout`: seconds until the response begins, over all attempts and for all kinds
        of requests, 0 for no limit. `read_timeout`: seconds without progress of a begun response and of its request's
        body, 0 for no limit; remote procedure calls and tunnels have no such limit.
        """
        exchange = owner.exchange
        super().__init__(exchange)
        request = exchange.head
        self._owner = owner
        self._head = head
        self._timeout = response_timeout
        self._retries = retries
        self._retry_on = retry_on
        self._upgrade = request.upgrade is not None
        self._repeatable = request.method in IDEMPOTENT and not self._upgrade
        self._target: Target | None = None  # target of the present attempt
        self._picked: Target | None = None  # target chosen for the next attempt
        self._tried: tuple[Target, ...] = ()
        self._tries = 0
        self._opening: Deferred[ClientStream] | None = None
        self._problem: Exception | None = None  # why the last attempt failed
        self._fresh = False  # whether the connection was opened for this attempt
        self._repeated = False  # whether an idle connection of the pool was dead
        self.deadline = NEVER
        self._read_timeout = read_timeout
        self._paused = False  # whether the client reads too slowly
        if request.length and is_call(request):
            self._timeout = self._read_timeout = 0.0
            exchange.set_open_ended()
        if timeout:
            deadlines = exchange.connection.factory.deadlines
            self.deadline = deadlines.after(timeout)
            deadlines.add(self)

    def start(self) -> None:
        """Send the request, usually at once on a connection of the pool."""
        target = self._owner.choose(())
        if target is None:
            self._owner.refuse(Failure.NO_ENDPOINT, None)
            return
        self._begin(target)
        stream = target.take(upgrade=self._upgrade)
        if stream is not None:
            self._send(target, stream)
            return
        self._picked = target
        start(self._run())

    async def _run(self) -> None:
        try:
            await self._send_somewhere()
        except Exception:
            self._owner.fail()

    async def _send_somewhere(self) -> None:
        """Send the request to the picked target; if no connection succeeds there, to the next targets in turn."""
        owner = self._owner
        while not self._exchange.ended:
            target, self._picked = self._picked, None
            if target is None:
                target = owner.choose(self._tried) if self._tries < MAX_TRIES else None
                if target is None:
                    self._give_up()
                    return
                self._begin(target)
            # If one idle connection was dead, others may be dead too: the second attempt gets a new connection.
            stream = None if self._repeated else target.take(upgrade=self._upgrade)
            self._fresh = stream is None
            if stream is None:
                stream = await self._opened(target)
            if stream is not None:
                self._send(target, stream)
                return

    async def _opened(self, target: Target) -> ClientStream | None:
        """Return a stream on a new connection; None if connecting failed or the client went away."""
        self._opening = opening = target.open(upgrade=self._upgrade)
        try:
            return await opening
        except ConnectError as problem:
            self._not_connected(target, problem)
        except CancelledError:
            pass
        finally:
            self._opening = None
        return None

    def _not_connected(self, target: Target, problem: ConnectError) -> None:
        self._tried = (*self._tried, target)
        if isinstance(problem, TargetGone):
            self._leave(target)
            self._tries -= 1
            return
        self._problem = problem
        self._over(AttemptOutcome.CONNECT_FAILED)

    def _give_up(self) -> None:
        problem = self._problem
        if isinstance(problem, RequestNotProcessed):
            failure = Failure.REFUSED
        elif isinstance(problem, ConnectTimeout):
            failure = Failure.CONNECT_TIMEOUT
        elif isinstance(problem, ConnectError):
            failure = Failure.UNREACHABLE
        elif isinstance(problem, ResponseTimeout):
            failure = Failure.TIMED_OUT
        elif problem is not None:
            failure = Failure.UNANSWERED
        else:
            failure = Failure.NO_ENDPOINT
        self._owner.refuse(failure, problem)

    # -- attempts -----------------------------------------------------------------------------------------------

    def _begin(self, target: Target) -> None:
        self._target = target
        self._tries += 1
        target.in_flight += 1

    def _leave(self, target: Target) -> None:
        self._target = None
        target.in_flight -= 1

    def _over(self, outcome: AttemptOutcome) -> None:
        """End the present attempt, if there is one."""
        target = self._target
        if target is not None:
            self._target = None
            target.in_flight -= 1
            self._owner.attempt_ended(target, outcome)

    def expired(self) -> None:
        """End a request that has exceeded its time for all attempts or its time without progress (`Expiring`)."""
        exchange = self._exchange
        deadlines = exchange.connection.factory.deadlines
        if exchange.responded and not exchange.ended and self._paused:  # the client stalls, see `stallTimeout`
            self.deadline = deadlines.after(self._read_timeout)
            return
        deadlines.remove(self)
        if exchange.ended:
            return
        if exchange.responded:
            self._cancel_upstream()
            self._over(AttemptOutcome.BROKEN)
            self._owner.broken(ResponseTimeout(f"nothing more of the response came within {self._read_timeout:g} s"))
            exchange.abort_with(None)
            return
        stream = self._stream
        if stream is not None:
            stream.doubt(exchange.started_at)
        self._cancel_upstream()
        self._over(AttemptOutcome.TIMED_OUT)
        self._owner.refuse(Failure.TIMED_OUT, None)  # calls `exchange_done`, so that no connection is opened any more

    def exchange_done(self) -> None:
        """Release the target, because the exchange of the request has ended, successfully or not."""
        self._without_deadline()
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        self._over(AttemptOutcome.ANSWERED if self._tunnel_side is not None else AttemptOutcome.CANCELLED)

    # -- the request --------------------------------------------------------------------------------------------

    def _send(self, target: Target, stream: ClientStream) -> None:
        exchange = self._exchange
        head = exchange.head
        self._stream = stream
        try:
            stream.send_head(head, *self._head, self, self._timeout)
        except BaseException:
            self._cancel_upstream()  # otherwise its connection would have no owner, and be counted for ever
            raise
        if exchange.handler is None:
            if head.length and (self._repeatable or stream.refusable):
                self._kept = []
            exchange.attach(self)
            return
        self._continue_on(stream)

    def body_data(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange.responded and self.deadline != NEVER:
            self.deadline = exchange.connection.factory.deadlines.after(self._read_timeout)
        super().body_data(data)

    # -- failures -----------------------------------------------------------------------------------------------

    def response_failed(self, problem: Exception) -> None:
        stream, self._stream = self._stream, None
        exchange, target = self._exchange, self._target
        assert target is not None
        if exchange.responded:
            self._over(AttemptOutcome.BROKEN)
            self._owner.broken(problem)
            exchange.abort_with(problem.code if isinstance(problem, ConnectionClosed) else None)
            return
        self._problem = problem
        if isinstance(problem, RequestNotProcessed):
            self._not_processed(target, problem)
            return
        began = stream is not None and stream.began
        timed_out = isinstance(problem, ResponseTimeout)
        if not began and self._may_repeat and (timed_out or isinstance(problem, ConnectionClosed)):
            if not self._fresh and not self._repeated and not timed_out:
                self._repeated = True  # a dead idle connection is no failure of the target
                self._send_again(target)
                return
            self._over(AttemptOutcome.TIMED_OUT if timed_out else AttemptOutcome.UNANSWERED)
            self._tried = (*self._tried, target)
            if self._retries > 0:
                self._retries -= 1
                self._repeated = False
                self._send_again(None)
                return
            self._give_up()
            return
        if timed_out:
            self._over(AttemptOutcome.TIMED_OUT)
            self._owner.refuse(Failure.TIMED_OUT, problem)
        elif isinstance(problem, ConnectionClosed):
            self._over(AttemptOutcome.UNANSWERED)
            self._owner.refuse(Failure.UNANSWERED, problem)
        else:
            self._over(AttemptOutcome.INVALID)
            self._owner.refuse(Failure.INVALID, problem)

    @property
    def _may_repeat(self) -> bool:
        """Whether the request is safe to repeat, and its sent part is still buffered."""
        return self._repeatable and (self._kept is not None or not self._exchange.head.length)

    def _not_processed(self, target: Target, problem: RequestNotProcessed) -> None:
        """Repeat a request that the target has not processed, whatever its method, if its body is buffered."""
        if not self._may_send_again():
            self._over(AttemptOutcome.REFUSED)
            self._owner.refuse(Failure.REFUSED, problem)
            return
        if isinstance(problem, HTTP1Required):
            self._upgrade = True
        elif self._times_not_processed > 1 or not target.takes_requests:
            other = self._owner.choose((*self._tried, target))
            if other is not None:
                self._over(AttemptOutcome.REFUSED)
                self._begin(other)
                target = other
        self._send_again(target)

    def _send_again(self, target: Target | None) -> None:
        """Send the request again, to the target of the present attempt or to the next one."""
        self._picked = target
        exchange = self._exchange
        if not exchange.body_complete:
            exchange.pause_body()
        start(self._run())

    # -- the response -------------------------------------------------------------------------------------------

    def response_head(self, head: ResponseHead) -> None:
        if head.status in self._retry_on and self._rejected():
            return
        exchange = self._exchange
        length = head.length
        if not length and head.declared_length is None and exchange.protocol == "HTTP/2.0":
            length = CHUNKED  # a response that is only a head (gRPC's Trailers-Only) gets no content-length
        fields = self._fields_of(head)
        if not exchange.body_complete:
            exchange.set_open_ended()  # a bidirectional call: the client can wait for a part of the response now
        if self._read_timeout:
            deadlines = exchange.connection.factory.deadlines
            self.deadline = deadlines.after(self._read_timeout)
            deadlines.add(self)
        exchange.respond(head.status, head.reason, fields, length, head.declared_length)

    def _rejected(self, *, whole: bool = False) -> bool:
        """Send the request to another target after a status of `retry_on`, if it is repeatable and there is one.

        `whole`: the response is complete.
        """
        target = self._target
        assert target is not None
        if not self._may_repeat or self._retries <= 0 or self._tries >= MAX_TRIES:
            return False
        self._tried = (*self._tried, target)
        other = self._owner.choose(self._tried)
        if other is None:
            return False
        self._retries -= 1
        if whole:
            self._stream = None
        self._cancel_upstream()
        self._over(AttemptOutcome.REJECTED)
        self._begin(other)
        self._repeated = False
        self._send_again(other)
        return True

    def _fields_of(self, head: ResponseHead) -> bytes:
        target = self._target
        assert target is not None
        self._without_deadline()
        return self._owner.response_fields(head, target)

    def _without_deadline(self) -> None:
        if self.deadline != NEVER:
            self.deadline = NEVER
            self._exchange.connection.factory.deadlines.remove(self)

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        if head.status in self._retry_on and self._rejected(whole=True):
            return
        self._stream = None
        fields = self._fields_of(head)
        self._over(AttemptOutcome.ANSWERED)
        self._exchange.answer(head.status, fields, body, head.reason)

    def response_data(self, data: bytes) -> None:
        exchange = self._exchange
        if self.deadline != NEVER:
            self.deadline = exchange.connection.factory.deadlines.after(self._read_timeout)
        exchange.write(data)

    def pause_response(self) -> None:
        self._paused = True
        super().pause_response()

    def resume_response(self) -> None:
        self._paused = False
        if self.deadline != NEVER and self._exchange.responded:
            self.deadline = self._exchange.connection.factory.deadlines.after(self._read_timeout)
        super().resume_response()

    def response_flush(self) -> None:
        self._exchange.flush()

    def response_end(self, trailers: list[Header]) -> None:
        self._stream = None
        self._without_deadline()  # only the client's speed matters now
        self._over(AttemptOutcome.ANSWERED)
        self._exchange.end(trailers)

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        self._stream = None
        exchange = self._exchange
        upgrade = head.upgrade or exchange.head.upgrade or b""
        fields = self._fields_of(head)
        exchange.set_long_running()
        self._tunnel_side = exchange.switch_protocols(head.reason, fields, upgrade)
        self._tunnel_side.splice(side)

    def end_gracefully(self) -> None:
        """Close a tunnel at a shutdown; other responses continue to their end."""
        if self._tunnel_side is not None:
            self._tunnel_side.close(clean=True)


def is_call(head: RequestHead) -> bool:
    """Whether a request with a body is a remote procedure call, which can stream."""
    kind = head.header(b"content-type")
    return kind is not None and kind.lower().startswith(_CALLS)
