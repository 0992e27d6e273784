"""One request and its response, as a handler sees them, independent of the protocol version.

An engine (`h1_server`, `h2_server`) makes an exchange for each request and owns it until it is done; a
handler reads the body, responds, and is called when the client disconnects. Both directions have back-pressure and no
body is buffered whole.

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

# Bounds the unread bytes of request bodies, over all connections of a listener.
#
# A body is not read before its request is authenticated, allowed and admitted, which may wait for others (a review, a
# queue). What has arrived until then is bounded on each connection: one read of HTTP/1.1, the windows of HTTP/2. Many
# connections can still hold much; so there is a bound for all of them, above which a request that sends more of its
# body is refused. From half of the bound on, clients that hold a large share are refused: the rest is for others.

MOST_UNREAD: Final = 64 * 1024 * 1024
"""Bytes, of all connections of a listener."""
_SHARES: Final = 8  # a client's share is one part in so many


class UnreadBodies:
    """The unread bodies of one listener. `client` is the address of a connection, None if it has none."""

    __slots__ = ("_by_client", "_most", "size")

    def __init__(self, most: int = MOST_UNREAD) -> None:
        self._most = most
        self._by_client: dict[str, int] = {}
        self.size = 0
        """Bytes that are held."""

    def add(self, client: IAddress | None, data: bytes) -> None:
        """Hold a piece that has arrived. Raises ProtocolError (503) if there is no room; then it is not held."""
        size, name = len(data), _name(client)
        after, own = self.size + size, self._by_client.get(name, 0) + size
        if after > self._most or (2 * after > self._most and _SHARES * own > self._most):
            raise ProtocolError(503, "too many bodies of requests wait to be read, please try again later")
        self.size, self._by_client[name] = after, own

    def take_back(self, client: IAddress | None, pieces: Iterable[bytes]) -> None:
        """Hold a piece that a handler gave back: it is in memory anyway, so nothing is refused."""
        size, name = sum(map(len, pieces)), _name(client)
        self.size += size
        self._by_client[name] = self._by_client.get(name, 0) + size

    def remove(self, client: IAddress | None, pieces: Iterable[bytes]) -> None:
        """The pieces are held no longer."""
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
    """Receives the request's body and gives the response."""

    def body_data(self, data: bytes) -> None:
        """A piece of the request's body."""

    def body_end(self, trailers: list[Header]) -> None:
        """The request's body is complete; not called for a request without a body."""

    def cancelled(self) -> None:
        """The request gets no response from this handler: stop all work for it.

        The client disconnected, stalled, or sent something invalid.
        """

    def pause_response(self) -> None:
        """The client reads slowly: write no more until `resume_response`."""

    def resume_response(self) -> None:
        """The client reads again."""

    def end_gracefully(self) -> None:
        """End the response as soon as it can be ended in an orderly way (drain)."""


class ServerConnection(Protocol):
    """What is known of the connection that a request came on; both engines' connections have it."""

    client: IAddress | None
    handler_state: object  # of the layers above for this connection; not used by the engine
    seconds: Callable[[], float]  # the clock
    transport: Transport  # for its properties (TLS, server name, certificate); never to write to

    @property
    def factory(self) -> ServerContext:
        """What the connections of its listener share."""
        ...

    def wall_seconds(self) -> WallSeconds:
        """Return the time of day."""
        ...


class ServerEngine(ServerConnection, Protocol):
    """A connection to the owner of its listener."""

    def drain(self, *, unused: bool) -> None:
        """Close after the requests under way. `unused`: close a connection without any request yet as well."""


class ServerContext(metaclass=ABCMeta):
    """What the client connections of one listener share (`server_factory.ServerFactory`).

    `handle` is called with each exchange; `refusal` returns the response to an invalid request. `name` is the
    listener's, for the log. `goaway_chance` is the probability, 0 to 1, that a request over HTTP/2 makes its client
    connect again; `random` returns numbers of 0 to 1. `prior_knowledge`: a connection without TLS on which HTTP/2
    begins at once is served by that engine (RFC 9113 3.3).

    While `ends_http1` or `ends_http2` is set, connections of that version are asked to end by their next response:
    `Connection: close`, or GOAWAY.
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
        self.ends_http1 = False
        self.ends_http2 = False
        self.connections: set[ServerEngine] = set()  # that are open
        self.log_once = LogOnce()
        self.unread_bodies = UnreadBodies()

    @abstractmethod
    def begin_h2(self, transport: Any) -> IProtocol:
        """Let the HTTP/2 engine take over a plaintext connection whose client has sent the preface of HTTP/2."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange(metaclass=ABCMeta):
    """One request and its response. The engines' subclasses have the response side."""

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
    """The protocol version as access logs have it: "HTTP/1.1", "HTTP/2.0"."""

    def __init__(self, connection: ServerConnection, head: RequestHead, now: float) -> None:
        self.connection = connection  # for its properties (address, TLS); never to write to
        self.head = head  # its fields may be gone when the exchange has ended
        self.handler: ExchangeHandler | None = None
        self.on_done: ExchangeObserver | None = None
        self.body_complete = head.length == 0
        self.body_limit = 0  # bytes, beside that of the listener; 0: none
        self.body_ended_at = 0.0  # when the last of the body arrived; 0 before that, and without a body
        self.responded = False  # the final response head was written
        self.ended = False  # complete, aborted, or upgraded and closed
        self.completed = False  # the response was sent completely
        self.upgraded = False
        self.long_running = False
        self.stalled = False  # it was aborted because the client neither read nor sent
        self.status = 0  # of the final response; 0 before it
        self.bytes_in = 0
        self.bytes_out = 0
        self.handler_state: object = None  # of the layers above, kept when a reload restarts the request
        self.started_at = now
        self.first_byte_at = 0.0
        self._early: list[bytes] | None = None  # body received before a handler was attached
        self._trailers: list[Header] | None = None

    @property
    @abstractmethod
    def write_blocked(self) -> bool:
        """Whether the client does not take what is written: a handler that writes now should wait."""

    @abstractmethod
    def set_long_running(self) -> None:
        """Exempt the request from `limits.stallTimeout`: a watch, a followed log, a tunnel."""

    def set_open_ended(self) -> None:
        """Exempt the request from all limits on silence: client and upstream may wait for each other as long as both
        exist.

        Over HTTP/2 only, where a PING shows that the client still exists; else as `set_long_running`.
        """
        self.set_long_running()

    # -- the request's body -------------------------------------------------------------------------------------

    def attach(self, handler: ExchangeHandler) -> None:
        """Set the handler, and pass on what has arrived already."""
        self.handler = handler
        if self.head.length:
            early, self._early = self._early, None
            if early:  # resume first: passing them on may pause the client again
                self._no_longer_held(early)
                self.resume_body()
                for data in early:
                    handler.body_data(data)
            if self.body_complete:
                handler.body_end(self._trailers or [])
        if self.write_blocked:
            handler.pause_response()

    def body_received(self, data: bytes) -> None:
        """Engine: a piece of the body arrived.

        Raises ProtocolError: 413 beyond `body_limit`, 503 if too much of the listener's is unread.
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
        """Engine: the body is complete."""
        self.body_complete = True
        self.body_ended_at = self.connection.seconds()
        self._trailers = trailers
        if self.handler is not None and not self.ended:
            self.handler.body_end(trailers)

    def detach(self, body: list[bytes]) -> None:
        """Remove the handler for another one, which gets `body` (what this one has got) before the rest."""
        self.handler = None
        if body:
            if (bodies := self._unread_bodies()) is not None:
                bodies.take_back(self.connection.client, body)
            self._early = [*body, *(self._early or ())]
        if not self.body_complete:
            if self._early:
                self.pause_body()
            else:
                self.resume_body()  # the former handler may have paused it, and `attach` resumes what it passes on

    def _unread_bodies(self) -> UnreadBodies | None:
        """Return the counter of held pieces; None where the body does not come from a client's connection."""
        return self.connection.factory.unread_bodies

    def _no_longer_held(self, pieces: list[bytes]) -> None:
        if (bodies := self._unread_bodies()) is not None:
            bodies.remove(self.connection.client, pieces)

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
        """Break the response off, so that the client cannot take it for a complete one."""

    def abort_with(self, code: int | None) -> None:
        """As `abort`, because the upstream has reset its stream; `code` is its error code, None if there was none."""
        self.abort()

    @abstractmethod
    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        """Respond with 101 and make the connection one side of a tunnel; the exchange lasts as long as the tunnel.

        Only for a request whose head has an `upgrade`; none of HTTP/2 has.
        """

    # -- the end ------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Engine: the client has disconnected, or its request cannot be completed."""
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
    """Is called at the end of an exchange: log, metrics, permits."""

    def exchange_done(self, exchange: Exchange) -> None:
        """Called exactly once, however the exchange ended."""
