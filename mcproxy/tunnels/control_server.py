"""The edge's end of a control connection: serves POST /dial and POST /drain of the hub.

What a hub can ask for is that the edge dials this same hub once more, with a ticket of the hub; no request has an
address. Dials are limited in number and rate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.tunnels import protocol

if TYPE_CHECKING:
    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header

log = Logger(__name__)

_JSON = b"Content-Type: application/json\r\n"
_DIALS_PER_SECOND = 20.0


class DialFailed(Exception):
    """A dial was not done; `status` of the answer, and the cause for the hub's operator."""

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status
        self.cause = cause


class ControlledLink(Protocol):
    """What a hub controls (`hub_link.HubLink`)."""

    def dial(self, request: protocol.DialRequest) -> Awaitable[None]:
        """Open a connection with a ticket. Raises DialFailed."""
        ...

    def replace(self, within: float) -> None:
        """Replace the control connection, at a random time within so many seconds."""


class DialRate:
    """A token bucket: so many dials in a second, and as many at once. Pure."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, now: float) -> None:
        self._tokens = _DIALS_PER_SECOND
        self._at = now

    def allows(self, now: float) -> bool:
        """Take a token; return whether there was one. `now`: seconds."""
        self._tokens = min(_DIALS_PER_SECOND, self._tokens + (now - self._at) * _DIALS_PER_SECOND)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ControlRequest:
    """One request of the hub (`http.exchange.ExchangeHandler`)."""

    __slots__ = ("_body", "_exchange", "_link", "_working")

    def __init__(self, exchange: Exchange, link: ControlledLink) -> None:
        self._exchange = exchange
        self._link = link
        self._body = b""
        self._working: Deferred[None] | None = None
        if exchange.head.method != b"POST" or not exchange.head.length:
            self._answer(405, "a control connection takes POST with a body")
        else:
            exchange.attach(self)

    def body_data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > protocol.MAX_BODY and not self._exchange.ended:
            self._answer(413, f"the body has more than {protocol.MAX_BODY} bytes")

    def body_end(self, trailers: list[Header]) -> None:
        if self._exchange.ended:
            return
        try:
            target = self._exchange.head.target.decode("latin-1")
            if target == protocol.DIAL:
                request = protocol.DialRequest.decode(self._body)
                self._working = Deferred.fromCoroutine(self._dial(request))
                self._working.addErrback(self._failed)
            elif target == protocol.DRAIN:
                self._link.replace(protocol.DrainRequest.decode(self._body).within)
                self._answer(200)
            else:
                self._answer(404, "a control connection has /dial and /drain")
        except ValueError as error:
            self._answer(400, str(error))

    async def _dial(self, request: protocol.DialRequest) -> None:
        try:
            await self._link.dial(request)
        except DialFailed as problem:
            self._answer(problem.status, problem.cause)
        else:
            self._answer(200)

    def _failed(self, failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            log.failure("a bug in a dial", event="internal_error", failure=failure)
            self._answer(500, "internal error")

    def _answer(self, status: int, cause: str = "") -> None:
        if not self._exchange.ended and not self._exchange.responded:
            self._exchange.answer(status, _JSON, b"{}" if status == 200 else protocol.encode_cause(cause))

    def cancelled(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def pause_response(self) -> None:
        """Do nothing: the answer is small."""

    def resume_response(self) -> None:
        """Do nothing: the answer is small."""

    def end_gracefully(self) -> None:
        """Do nothing: the answer is on its way."""


def handler_for(link: ControlledLink) -> Callable[[Exchange], None]:
    """Return the handler of the requests on a link's control connections."""

    def handle(exchange: Exchange) -> None:
        ControlRequest(exchange, link)

    return handle
