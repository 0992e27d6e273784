"""A watch of the backend that is opened with the client's identity, with the server's own events added.

The backend's watch is decisive: its refusal is passed on, and the client's watch ends with it. The client gets only
whole lines, so the watch can end cleanly at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from mcproxy.apiservices.object_merge import UnreadableAnswer
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header
    from mcproxy.proxy.request import Request

JSON = b"Content-Type: application/json\r\n"
_MAX_REFUSAL = 256 * 1024  # maximum bytes of an answer that is not a watch


class BackendWatch:
    """One watch: the handler of the client's exchange, and the sink of the backend's response."""

    def __init__(self, request: Request) -> None:
        self.begun: Deferred[MemberResponse | None] = Deferred()
        """Fires with None when the watch has begun, else with the backend's other answer."""
        self._request = request
        self._exchange = request.exchange
        self._backend: Exchange | None = None
        self._refused: tuple[int, bytes] | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._over = False
        self._unsubscribe: list[Callable[[], None]] = []
        self._timers: list[IDelayedCall] = []

    def _accepted(self) -> None:
        """The backend's watch and the client's response have begun."""
        raise NotImplementedError

    def _lines(self, data: bytes) -> list[bytes]:
        """Return the client's lines for the next bytes of the backend. Raises Unreadable."""
        raise NotImplementedError

    def follow(self, *subscriptions: Callable[[], None]) -> None:
        """Call these functions when the watch has ended."""
        self._unsubscribe += subscriptions

    def opened(self, backend: Exchange) -> None:
        """The request to the backend was sent on this exchange."""
        if self._over:
            backend.cancel()
        else:
            self._backend = backend

    # -- the client -----------------------------------------------------------------------------------------------

    def _respond(self) -> None:
        request, exchange = self._request, self._exchange
        exchange.respond(200, b"OK", request.own_fields(JSON), -1)
        exchange.flush()
        request.begin_session()
        if exchange.handler is None and not exchange.ended:
            exchange.attach(self)
        if not self.begun.called:
            self.begun.callback(None)

    def _write(self, lines: list[bytes]) -> None:
        if lines and not self._over and not self._exchange.ended:
            self._exchange.write(b"".join(lines))
            self._exchange.flush()

    def body_data(self, data: bytes) -> None:
        """A watch has no body."""

    def body_end(self, trailers: list[Header]) -> None:
        """A watch has no body."""

    def cancelled(self) -> None:
        self.stop()

    def pause_response(self) -> None:
        if self._backend is not None and self._backend.handler is not None:
            self._backend.handler.pause_response()

    def resume_response(self) -> None:
        if self._backend is not None and self._backend.handler is not None:
            self._backend.handler.resume_response()

    def end_gracefully(self) -> None:
        self.stop()
        if self._exchange.responded and not self._exchange.ended:
            self._exchange.end()

    def stop(self) -> None:
        """End everything except the client's response."""
        if self._over:
            return
        self._over = True
        for each in self._unsubscribe:
            each()
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.cancel()

    # -- the backend (subrequest.StreamSink) ----------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether the client does not read the written data."""
        return self._exchange.responded and not self._exchange.ended and self._exchange.write_blocked

    def head(self, status: int, fields: bytes) -> None:
        """The head of the backend's response has arrived."""
        if self._over:
            return
        if status != 200:
            self._refused = status, fields
            return
        self._respond()
        self._accepted()

    def data(self, data: bytes) -> None:
        """Bytes of the backend's response have arrived."""
        if self._over:
            return
        if self._refused is not None:
            self._body.append(data)
            self._body_size += len(data)
            if self._body_size > _MAX_REFUSAL:
                self.failed(StatusError(502, "the backend has refused the watch at great length", reason="BadGateway"))
            return
        try:
            self._write(self._lines(data))
        except UnreadableAnswer:
            self._request.reason = "upstream_broken"
            self.stop()
            self._exchange.abort()

    def flush(self) -> None:
        """Do nothing: lines are sent when they arrive."""

    def ended(self) -> None:
        """The backend's response is complete."""
        from mcproxy.aggregate.request import MemberResponse

        self._backend = None
        if self._over:
            return
        if self._refused is None:
            self.end_gracefully()
        elif not self.begun.called:
            status, block = self._refused
            fields = tuple(
                (name, value.strip()) for name, _, value in (line.partition(b":") for line in block.split(b"\r\n")[:-1])
            )
            self.begun.callback(MemberResponse("", status, fields, b"".join(self._body)))

    def failed(self, refusal: StatusError) -> None:
        """The response failed or was broken off: the client has only whole events and can resume."""
        self._backend = None
        if self._over:
            return
        if self._exchange.responded:
            self._request.reason = "upstream_closed_watch"
            self.end_gracefully()
            return
        self.stop()
        if not self.begun.called:
            self.begun.errback(refusal)
