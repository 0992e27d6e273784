"""The interface of one request and its response for handlers, independent of the protocol version.

An engine (`h1_server`, `h2_server`) makes an exchange for each request and owns it until its end. A handler reads the
body, responds, and is called when the client disconnects. Both directions have back-pressure, and no body is buffered
as a whole.

    engine:  H1Exchange(head) -> handle(exchange)
    handler: exchange.attach(handler) -> body_data* body_end        (request body)
             respond -> write* -> flush / end                      (response)
             or switch_protocols -> TunnelSide                       (upgrade; HTTP/1.1 alone)
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from random import random as random_number
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from mypy_extensions import mypyc_attr

from mcproxy.http.messages import Header, ProtocolError, RequestHead
from mcproxy.log_once import LogOnce
from mcproxy.net.client_table import client_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress, IProtocol

    from mcproxy.config.model import Limits
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.http.transport import Transport
    from mcproxy.http.tunnel import TunnelSide
    from mcproxy.net.wall_time import WallSeconds

# Limits the unread bytes of request bodies over all connections of a listener.
#
# A body is not read before its request is authenticated, authorized and admitted, which may have to wait (for a review,
# or in a queue). The bytes that arrive meanwhile are limited on each connection: to one read of HTTP/1.1, or to the
# windows of HTTP/2. A second limit applies to all connections together: a request that exceeds it with its body is
# refused. From half of that limit on, clients with a large share are refused, so that room remains for other clients.

MOST_UNREAD: Final = 64 * 1024 * 1024
"""Maximum of unread bytes of all connections of a listener."""
_SHARES: Final = 8  # a client's share is this fraction (1/8) of the limit


class UnreadBodies:
    """Counts the unread bodies of one listener. `client`: the address of a connection, or None if it has none."""

    __slots__ = ("_by_client", "_most", "size")

    def __init__(self, most: int = MOST_UNREAD) -> None:
        self._most = most
        self._by_client: dict[str, int] = {}
        self.size = 0
        """The number of unread bytes."""

    def add(self, client: IAddress | None, data: bytes) -> None:
        """Count an arrived piece. Raises ProtocolError (503) if there is no room; then the piece is not counted."""
        size, name = len(data), _name(client)
        after, own = self.size + size, self._by_client.get(name, 0) + size
        if after > self._most or (2 * after > self._most and _SHARES * own > self._most):
            raise ProtocolError(503, "too many bodies of requests wait to be read, please try again later")
        self.size, self._by_client[name] = after, own

    def take_back(self, client: IAddress | None, pieces: Iterable[bytes]) -> None:
        """Count pieces that a handler gave back; they are in memory anyway, so they are never refused."""
        size, name = sum(map(len, pieces)), _name(client)
        self.size += size
        self._by_client[name] = self._by_client.get(name, 0) + size

    def remove(self, client: IAddress | None, pieces: Iterable[bytes]) -> None:
        """Subtract pieces that are read or dropped."""
        size, name = sum(map(len, pieces)), _name(client)
        self.size -= size
        left = self._by_client.pop(name, 0) - size
        if left > 0:
            self._by_client[name] = left


def _name(client: IAddress | None) -> str:
    return "" if client is None else client_of(client)


Refusal = tuple[bytes, bytes]
"""Fields (as in `ResponseHead`) and body of the response to an invalid request."""

LINGER = 2.0
"""Seconds for which the rest of a request is read and discarded after an early response.

The client can then read the response before its writes fail."""


class ExchangeHandler(Protocol):
    """Receives the request's body and sends the response."""

    def body_data(self, data: bytes) -> None:
        """Called with a piece of the request's body."""

    def body_end(self, trailers: list[Header]) -> None:
        """Called when the request's body is complete; not called for a request without a body."""

    def cancelled(self) -> None:
        """Stop all work for the request, which gets no response from this handler any more.

        The client has disconnected, stalled, or sent an invalid message.
        """

    def pause_response(self) -> None:
        """Stop writing until `resume_response`, because the client reads slowly."""

    def resume_response(self) -> None:
        """Continue writing."""

    def end_gracefully(self) -> None:
        """End the response as soon as an orderly end is possible (drain)."""


class ServerConnection(Protocol):
    """The properties of a request's connection, which both engines provide."""

    client: IAddress | None
    handler_state: object  # the handler's state for this connection; not used by the engine
    seconds: Callable[[], float]  # the clock
    transport: Transport  # for its properties (TLS, server name, certificate); never to write to

    @property
    def factory(self) -> ServerContext:
        """The state that all connections of the listener share."""
        ...

    def wall_seconds(self) -> WallSeconds:
        """Return the time of day."""
        ...


class ServerEngine(ServerConnection, Protocol):
    """The interface of a connection for the owner of its listener."""

    def drain(self, *, unused: bool) -> None:
        """Close after the requests in progress. `unused`: also close a connection that has had no request yet."""


def _ignore(transport: Transport) -> None:
    """Do nothing: the default of `ServerContext.exempt`."""


class ServerContext(metaclass=ABCMeta):
    """The state that the client connections of one listener share (`server_factory.ServerFactory`).

    `handle` is called with each exchange. `refusal` returns the response to an invalid request. `name` is the name of
    the listener, for the log. `goaway_chance` is the probability (0 to 1) that a request over HTTP/2 makes its client
    reconnect; `random` returns numbers from 0 to 1. `prior_knowledge`: a connection without TLS can use HTTP/2 from the
    start (RFC 9113 3.3).

    While `ends_http1` or `ends_http2` is set, each connection of that version ends with its next response, by
    `Connection: close` or GOAWAY.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        limits: Limits,
        handle: Callable[[Exchange], None],
        refusal: Callable[[ServerConnection, ProtocolError], Refusal],
        *,
        name: str = "",
        goaway_chance: float = 0.0,
        random: Callable[[], float] = random_number,
        prior_knowledge: bool = False,
    ) -> None:
        self.name = name
        self.deadlines = deadlines
        self.limits = limits
        self.handle = handle
        self.refusal = refusal
        self.goaway_chance = goaway_chance
        self.random = random
        self.prior_knowledge = prior_knowledge
        self.dials = False  # whether its connections were dialled (tunnels), so that the peer is a hub
        self.exempt: Callable[[Transport], None] = _ignore  # exempts a connection from the limit for one client
        self.ends_http1 = False
        self.ends_http2 = False
        self.connections: set[ServerEngine] = set()  # the open connections
        self.log_once = LogOnce()
        self.unread_bodies = UnreadBodies()

    @abstractmethod
    def begin_h2(self, transport: Any) -> IProtocol:
        """Hand a plaintext connection over to the HTTP/2 engine, after its client has sent HTTP/2's preface."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange(metaclass=ABCMeta):
    """One request and its response. The engines' subclasses implement the response."""

    __slots__ = (
        "_early",
        "_trailers",
        "body_complete",
        "body_ended_at",
        "body_limit",
        "bytes_in",
        "bytes_out",
        "completed",
        "connection",
        "ended",
        "first_byte_at",
        "handler",
        "handler_state",
        "head",
        "long_running",
        "on_done",
        "responded",
        "stalled",
        "started_at",
        "status",
        "upgraded",
    )

    protocol: ClassVar[str]
    """The protocol version in the form of access logs: "HTTP/1.1", "HTTP/2.0"."""

    def __init__(self, connection: ServerConnection, head: RequestHead, now: float) -> None:
        self.connection = connection  # for its properties (address, TLS); never to write to
        self.head = head  # its fields may be dropped after the end of the exchange
        self.handler: ExchangeHandler | None = None
        self.on_done: ExchangeObserver | None = None
        self.body_complete = head.length == 0
        self.body_limit = 0  # maximum of the body in bytes, in addition to the listener's limit; 0: none
        self.body_ended_at = 0.0  # time at which the body was complete; 0 before that, and without a body
        self.responded = False  # the final response head was written
        self.ended = False  # the exchange is complete, aborted, or upgraded and closed
        self.completed = False  # the response was sent completely
        self.upgraded = False
        self.long_running = False
        self.stalled = False  # the exchange was aborted because the client neither read nor sent
        self.status = 0  # status code of the final response; 0 before it
        self.bytes_in = 0
        self.bytes_out = 0
        self.handler_state: object = None  # the handler's state, kept when a reload restarts the request
        self.started_at = now
        self.first_byte_at = 0.0
        self._early: list[bytes] | None = None  # body received before a handler was attached
        self._trailers: list[Header] | None = None

    @property
    @abstractmethod
    def write_blocked(self) -> bool:
        """Whether the client reads too slowly, so that the handler should wait before it writes."""

    @abstractmethod
    def set_long_running(self) -> None:
        """Exempt a watch, a followed log or a tunnel from `limits.stallTimeout`."""

    def set_open_ended(self) -> None:
        """Exempt the request from all limits on silence, because client and upstream may wait for each other as long as
        both exist.

        Over HTTP/1.1, which has no PING to show that the client still exists, it does the same as `set_long_running`.
        """
        self.set_long_running()

    # -- the request's body -------------------------------------------------------------------------------------

    def attach(self, handler: ExchangeHandler) -> None:
        """Set the handler, and pass on the part of the body that has arrived already."""
        self.handler = handler
        if self.head.length:
            early, self._early = self._early, None
            if early:  # resume first, because passing the pieces on can pause the client again
                self._no_longer_held(early)
                self.resume_body()
                for data in early:
                    handler.body_data(data)
            if self.body_complete:
                handler.body_end(self._trailers or [])
        if self.write_blocked:
            handler.pause_response()

    def body_received(self, data: bytes) -> None:
        """Called by the engine with a piece of the body.

        Raises ProtocolError: 413 beyond `body_limit`, 503 if too many bytes of the listener's bodies are unread.
        """
        self.bytes_in += len(data)
        if self.ended:
            return
        if self.body_limit and self.bytes_in > self.body_limit:
            raise ProtocolError(413, f"the request body is longer than {self.body_limit} bytes")
        if self.handler is None:
            if (bodies := self._unread_bodies()) is not None:
                bodies.add(self.connection.client, data)
            if self._early is None:
                self._early = []
            self._early.append(data)
            self.pause_body()
        else:
            self.handler.body_data(data)

    def body_finished(self, trailers: list[Header]) -> None:
        """Called by the engine when the body is complete."""
        self.body_complete = True
        self.body_ended_at = self.connection.seconds()
        self._trailers = trailers
        if self.handler is not None and not self.ended:
            self.handler.body_end(trailers)

    def detach(self, body: list[bytes]) -> None:
        """Remove the handler; the next handler gets `body` (the part that this one has received), then the rest."""
        self.handler = None
        if body:
            if (bodies := self._unread_bodies()) is not None:
                bodies.take_back(self.connection.client, body)
            self._early = [*body, *(self._early or ())]
        if not self.body_complete:
            if self._early:
                self.pause_body()
            else:
                self.resume_body()  # the former handler may have paused it; `attach` resumes it only with early data

    def _unread_bodies(self) -> UnreadBodies | None:
        """Return the counter of unread bodies; None if the body does not come from a client's connection."""
        return self.connection.factory.unread_bodies

    def _no_longer_held(self, pieces: list[bytes]) -> None:
        if (bodies := self._unread_bodies()) is not None:
            bodies.remove(self.connection.client, pieces)

    @abstractmethod
    def pause_body(self) -> None:
        """Stop reading the request's body until `resume_body`."""

    @abstractmethod
    def resume_body(self) -> None:
        """Continue reading the request's body."""

    # -- the response -------------------------------------------------------------------------------------------

    @abstractmethod
    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        """Send an interim response (1xx except 101); `fields` is a block as in `ResponseHead`."""

    @abstractmethod
    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        """Start the response; its head is sent with the first `flush` or `end`.

        `fields` is a block of end-to-end fields as in `ResponseHead`, without framing. `length` is the body's size in
        bytes, or any negative number if unknown. `declared` is the Content-Length of a response without a body (HEAD,
        304).
        """

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add a piece of the body; it is sent with the next `flush` or `end`."""

    @abstractmethod
    def write_shared(self, data: bytes, chunk: bytes) -> None:
        """Send a piece of the body that many exchanges share; `chunk` is the result of `framing.encode_chunk(data)`."""

    @abstractmethod
    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        """Add pieces of the body with `size` bytes in total; they are joined at most once."""

    @abstractmethod
    def flush(self) -> None:
        """Send what was written since the last flush."""

    @abstractmethod
    def end(self, trailers: list[Header] | None = None) -> None:
        """End the response."""

    @abstractmethod
    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        """Send a complete response, without its body if the method is HEAD."""

    @abstractmethod
    def abort(self) -> None:
        """Break off the response, so that the client does not take it for complete."""

    def abort_with(self, code: int | None) -> None:
        """Do the same as `abort`; `code` is the error code of the upstream's RST_STREAM, or None without one."""
        self.abort()

    @abstractmethod
    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        """Respond with 101 and make the connection one side of a tunnel; the exchange lasts as long as the tunnel.

        Allowed only if the request's head has an `upgrade`, which no head of HTTP/2 has.
        """

    # -- the end ------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Called by the engine when the client has disconnected, or its request cannot be completed."""
        if self.ended:
            return
        handler = self.handler
        self._finish()
        if handler is not None:
            handler.cancelled()

    def _finish(self) -> None:
        self.ended = True
        if self._early:
            self._no_longer_held(self._early)
            self._early = None
        self.handler = None
        observer, self.on_done = self.on_done, None
        if observer is not None:
            observer.exchange_done(self)


class ExchangeObserver(Protocol):
    """Is called at the end of an exchange, for logs, metrics and permits."""

    def exchange_done(self, exchange: Exchange) -> None:
        """Called exactly once, however the exchange ended."""
