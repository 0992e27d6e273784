"""One request and its response, as a handler sees them, independent of the protocol version.

An engine (`h1.server`, `h2.server`) makes an exchange of its own class for each request and owns it until it is done; a
handler reads the body, responds, and is called when the client disconnects. Both directions have back-pressure and no
body is buffered whole.

    engine:  H1Exchange(head) -> handle(exchange)
    handler: exchange.attach(handler) -> body_data* body_end        (request body)
             respond -> write* -> flush / end                      (response)
             or switch_protocols -> Tunnel                         (upgrade; HTTP/1.1 alone)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mcproxy.http.messages import CHUNKED, Header, RequestHead

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from mcproxy.http.server_factory import ServerFactory
    from mcproxy.http.transport import Transport
    from mcproxy.http.tunnel import TunnelSide


LINGER = 2.0
"""Seconds for which the rest of a request is read and discarded after an early response.

The client can then read the response before its writes fail."""


class ExchangeHandler(Protocol):
    """Receives the request's body and gives the response."""

    def body_data(self, data: bytes) -> None:
        """A piece of the request's body."""

    def body_end(self, trailers: list[Header]) -> None:
        """The request's body is complete; not called for a request without a body."""

    def cancelled(self) -> None:
        """The client has disconnected: stop all work for the request; no response is possible."""

    def pause_response(self) -> None:
        """The client reads slowly: write no more until `resume_response`."""

    def resume_response(self) -> None:
        """The client reads again."""

    def finish_up(self) -> None:
        """End the response as soon as it can be ended in an orderly way (drain)."""


class ServerConnection(Protocol):
    """What is known of the connection that a request came on; both engines' connections have it."""

    client: IAddress | None
    facts: object  # state of the layers above for this connection; not used by the engine
    seconds: Callable[[], float]  # the clock
    transport: Transport  # for its properties (TLS, server name, certificate); never to write to

    @property
    def factory(self) -> ServerFactory:
        """The factory (of the listener) of this connection."""
        ...

    def wall_seconds(self) -> float:
        """Return the time of day, in seconds since 1970."""
        ...


class Exchange(ABC):
    """One request and its response. The engines' subclasses have the response side."""

    __slots__ = (
        "_connection",
        "_early",
        "_trailers",
        "body_complete",
        "bytes_in",
        "bytes_out",
        "carried",
        "completed",
        "ended",
        "first_byte_at",
        "handler",
        "head",
        "long_running",
        "on_done",
        "responded",
        "stalled",
        "started_at",
        "status",
        "upgraded",
    )

    protocol: str
    """The protocol version as access logs have it: "HTTP/1.1", "HTTP/2.0"."""

    def __init__(self, connection: ServerConnection, head: RequestHead, now: float) -> None:
        self._connection = connection
        self.head = head  # its fields may be gone when the exchange has ended
        self.handler: ExchangeHandler | None = None
        self.on_done: ExchangeObserver | None = None
        self.body_complete = head.length == 0
        self.responded = False  # the final response head was written
        self.ended = False  # complete, aborted, or upgraded and closed
        self.completed = False  # the response was sent completely
        self.upgraded = False
        self.long_running = False
        self.stalled = False  # it was aborted because the client neither read nor sent
        self.status = 0  # of the final response; 0 before it
        self.bytes_in = 0
        self.bytes_out = 0
        self.carried: object = None  # state of the layers above that a request keeps when it begins again
        self.started_at = now
        self.first_byte_at = 0.0
        self._early: list[bytes] | None = None  # body received before a handler was attached
        self._trailers: list[Header] | None = None

    @property
    def connection(self) -> ServerConnection:
        """The connection, for its properties (address, TLS); never to write to."""
        return self._connection

    @property
    @abstractmethod
    def write_blocked(self) -> bool:
        """Whether the client does not take what is written: a handler that writes now should wait."""

    @abstractmethod
    def set_long_running(self) -> None:
        """Exempt the request from `limits.stallTimeout`: a watch, a followed log, a tunnel."""

    # -- the request's body -------------------------------------------------------------------------------------

    def attach(self, handler: ExchangeHandler) -> None:
        """Set the handler, and pass on what has arrived already."""
        self.handler = handler
        if self.head.length:
            early, self._early = self._early, None
            if early:  # resume first: passing them on may pause the client again
                self.resume_body()
                for data in early:
                    handler.body_data(data)
            if self.body_complete:
                handler.body_end(self._trailers or [])
        if self.write_blocked:
            handler.pause_response()

    def body_received(self, data: bytes) -> None:
        """Engine: a piece of the body arrived."""
        self.bytes_in += len(data)
        if self.ended:
            return
        if self.handler is None:
            if self._early is None:
                self._early = []
            self._early.append(data)
            self.pause_body()
        else:
            self.handler.body_data(data)

    def body_finished(self, trailers: list[Header]) -> None:
        """Engine: the body is complete."""
        self.body_complete = True
        self._trailers = trailers
        if self.handler is not None and not self.ended:
            self.handler.body_end(trailers)

    def detach(self, body: list[bytes]) -> None:
        """Take the handler off for another one, which is given `body`, what this one got, before what follows."""
        self.handler = None
        if body:
            self._early = [*body, *(self._early or ())]
        if not self.body_complete:
            if self._early:
                self.pause_body()
            else:
                self.resume_body()  # the former handler may have paused it, and `attach` resumes what it passes on

    @abstractmethod
    def pause_body(self) -> None:
        """Stop reading the request's body until `resume_body`."""

    @abstractmethod
    def resume_body(self) -> None:
        """Read the request's body again."""

    # -- the response -------------------------------------------------------------------------------------------

    @abstractmethod
    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        """Send an interim response (1xx, but not 101); `fields` is a block as in `ResponseHead`."""

    @abstractmethod
    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        """Start the response; it is sent with the first `flush` or `end`.

        `fields` is a block of end-to-end fields as in `ResponseHead`, without framing. `length` is the body's size in
        bytes, or any negative number if it is not known. `declared` is the Content-Length of a response without a body
        (HEAD, 304).
        """

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add a piece of the body; it is sent with the next `flush` or `end`."""

    @abstractmethod
    def write_shared(self, data: bytes, chunk: bytes) -> None:
        """Send a piece of the body that many exchanges get; `chunk` is `data` as `framing.encode_chunk` makes it."""

    @abstractmethod
    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        """Add pieces of the body that are `size` bytes together; they are joined at most once."""

    @abstractmethod
    def flush(self) -> None:
        """Send what was written since the last flush."""

    @abstractmethod
    def end(self, trailers: list[Header] | None = None) -> None:
        """The response is complete."""

    @abstractmethod
    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        """Send a whole response; without its body if the method is HEAD."""

    @abstractmethod
    def abort(self) -> None:
        """Break the response off, so that the client does not take what it has for a complete one."""

    @abstractmethod
    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        """Respond with 101 and make the connection one side of a tunnel; the exchange lasts as long as the tunnel.

        Only for a request whose head has an `upgrade`; none of HTTP/2 has.
        """

    # -- the end ------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Engine: the client has disconnected, or its request cannot be completed."""
        if self.ended:
            return
        handler = self.handler
        self._finish()
        if handler is not None:
            handler.cancelled()

    def _finish(self) -> None:
        self.ended = True
        self._early = None
        self.handler = None
        observer, self.on_done = self.on_done, None
        if observer is not None:
            observer.exchange_done(self)


class ExchangeObserver(Protocol):
    """Is called at the end of an exchange: log, metrics, permits."""

    def exchange_done(self, exchange: Exchange) -> None:
        """Called exactly once, however the exchange ended."""


__all__ = ["CHUNKED", "Exchange", "ExchangeHandler", "ExchangeObserver", "ServerConnection"]
