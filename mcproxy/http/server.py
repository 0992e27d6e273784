"""The HTTP/1.1 server engine: one protocol instance a client connection, one exchange at a time.

    HEAD -> (BODY ->) WAIT -> HEAD ...      reading side; WAIT: the request is whole, its answer is under way
    any  -> LINGER -> closed                an answer was given before the request was whole: the rest is discarded
    WAIT -> TUNNEL                          after 101

The next request of a pipeline is looked at only when the answer before it is complete, so a client can never have two
requests judged under different circumstances out of order. Everything is bounded: see `config.model.Limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IProtocolFactory, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.framing import BodyReader, ChunkedReader, FramingError, LengthReader
from mcproxy.http.head import incomplete_head_error, parse_request_head
from mcproxy.http.messages import CHUNKED, REASON_PHRASES, ProtocolError
from mcproxy.http.transport import Transport
from mcproxy.http.tunnel import TunnelSide

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

log = Logger()

#: How long the rest of a request is read and thrown away after an early answer (seconds), so that the client can read
#: the answer before its writes fail.
LINGER = 2.0


Refusal = tuple[bytes, bytes]  # fields (as in ResponseHead) and body of an answer to what is no proper request


@implementer(IProtocol, IHalfCloseableProtocol, IPushProducer)
class ServerConnection:
    """One client connection."""

    __slots__ = (
        "_body_paused",
        "_body_size",
        "_buffer",
        "_buffer_full",
        "_close",
        "_exchange",
        "_factory",
        "_feeding",
        "_head_begun",
        "_limits",
        "_lingering",
        "_reader",
        "_sent_before",
        "_tunnel",
        "client",
        "deadline",
        "facts",
        "requests",
        "seconds",
        "transport",
        "write_blocked",
    )

    transport: Transport

    def __init__(self, factory: ServerFactory, limits: Limits) -> None:
        self._factory = factory
        self.seconds = factory.deadlines.seconds  # the clock
        self._limits = limits
        self._buffer = b""  # an unfinished head, or what came behind the request under way
        self._buffer_full = False
        self._reader: BodyReader | None = None
        self._body_paused = False
        self._body_size = 0
        self._exchange: Exchange | None = None
        self._tunnel: TunnelSide | None = None
        self._close = False
        self._sent_before = 0  # through the tunnel to a client that has closed its side, when that was looked at last
        self._lingering = False
        self._feeding = False
        self._head_begun = True  # the time for the first head runs from the connection's beginning
        self.write_blocked = False
        self.requests = 0
        self.deadline = NEVER
        self.client: IAddress | None = None
        self.facts: object = None  # what the layers above remember of this connection; the engine never looks

    # -- the transport's side -----------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        self.client = self.transport.getPeer()
        self.transport.registerProducer(self, True)
        self._factory.connections.add(self)
        self.deadline = self._factory.deadlines.after(self._limits.head_timeout)
        self._factory.deadlines.add(self)

    def dataReceived(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.received(data)
            return
        if self._lingering:
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        self._feed(data)

    def readConnectionLost(self) -> None:
        """The client will send no more. In a tunnel that is half of an end; in HTTP it is a client that left."""
        if self._tunnel is not None:
            self._watch_half_open(self._tunnel)
            self._tunnel.eof()
        else:
            self._lose()
            self._request_lost()

    def _watch_half_open(self, tunnel: TunnelSide) -> None:
        """A client that has closed looks as one that only sends no more: it may read on while there is something."""
        self._sent_before = tunnel.bytes_sent
        self.deadline = self._factory.deadlines.after(self._limits.idle_timeout)

    def writeConnectionLost(self) -> None:
        """Our own half-close went out; nothing follows from that."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._factory.deadlines.remove(self)
        self._factory.connections.discard(self)
        if self._tunnel is not None:
            self._tunnel.connection_lost(isinstance(reason.value, error.ConnectionDone))
        self._request_lost()

    def _request_lost(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._close = True
        if exchange is not None:
            exchange.lost()

    # -- IPushProducer: the send buffer towards the client is full, or empty again ----------------------------------

    def pauseProducing(self) -> None:
        self.write_blocked = True
        if self._tunnel is not None:
            self._tunnel.pause()
        elif self._exchange is not None and self._exchange.handler is not None:
            self._exchange.handler.pause_response()

    def resumeProducing(self) -> None:
        self.write_blocked = False
        if self._tunnel is not None:
            self._tunnel.resume()
        elif self._exchange is None:
            self._take_held()
        elif self._exchange.handler is not None:
            self._exchange.handler.resume_response()

    def stopProducing(self) -> None:
        """The transport is lost; connectionLost does what is to be done."""

    # -- reading ------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Take bytes from the beginning of a head or from within a body, as far as they may be looked at now."""
        self._feeding = True
        try:
            while data and not self._lingering:
                if self._reader is not None:
                    data = self._feed_body(data)
                elif self._tunnel is not None:
                    self._tunnel.received(data)
                    return
                elif self._exchange is not None or self.write_blocked:
                    self._hold(data)  # who does not read the answers gets no more of them
                    return
                elif self._close:
                    return
                else:
                    data = self._feed_head(data)
        except ProtocolError as problem:
            self._refuse(problem)
        finally:
            self._feeding = False

    def _feed_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end == 0:
            raise ProtocolError(400, "empty lines instead of a request")
        size = end + 4 if end >= 0 else len(data)
        if size > self._limits.head_bytes:
            raise ProtocolError(431, f"the request head is longer than {self._limits.head_bytes} bytes")
        if end < 0:
            if problem := incomplete_head_error(data):
                raise ProtocolError(400, problem)
            if not self._head_begun:
                self._head_begun = True
                self.deadline = self._factory.deadlines.after(self._limits.head_timeout)
            self._buffer = data
            return b""
        head = parse_request_head(data[:size], self._limits.target_bytes, self._limits.headers)
        limit = self._limits.body_bytes
        if limit and head.length > limit:
            raise ProtocolError(413, f"the request body is longer than {limit} bytes")
        self._head_begun = False
        factory = self._factory
        if head.length:
            self._reader = ChunkedReader() if head.length == CHUNKED else LengthReader(head.length)
            self._body_size = 0
            self.deadline = factory.deadlines.after(self._limits.idle_timeout)
        else:
            self.deadline = NEVER
        self.requests += 1
        if not head.keep_alive:
            self._close = True
        exchange = self._exchange = Exchange(self, head, self.seconds())
        factory.handle(exchange)
        return data[size:]

    def _feed_body(self, data: bytes) -> bytes:
        reader = self._reader
        assert reader is not None
        try:
            pieces, rest = reader.feed(data)
        except FramingError as problem:
            raise ProtocolError(400, str(problem)) from None
        exchange = self._exchange
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # tiny chunks must not cost a write each
            self._body_size += len(piece)
            if self._limits.body_bytes and self._body_size > self._limits.body_bytes:
                raise ProtocolError(413, f"the request body is longer than {self._limits.body_bytes} bytes")
            if exchange is not None:
                exchange.body_received(piece)
        if reader.complete:
            self._reader = None
            self.deadline = NEVER
            if exchange is not None:
                exchange.body_finished(reader.trailers)
        elif pieces and not self._body_paused and self._exchange is not None:
            self.deadline = self._factory.deadlines.after(self._limits.idle_timeout)
        return rest

    def _hold(self, data: bytes) -> None:
        """Keep what came behind the request under way; read on only while that is little."""
        self._buffer = data
        if len(data) >= self._limits.head_bytes:
            self._buffer_full = True
            self.transport.pauseProducing()

    def pause_body(self) -> None:
        """The handler cannot take more of the request's body now."""
        if not self._body_paused:
            self._body_paused = True
            self.deadline = NEVER  # it is not the client who is slow
            self.transport.pauseProducing()

    def resume_body(self) -> None:
        if self._body_paused:
            self._body_paused = False
            if self._reader is not None:
                self.deadline = self._factory.deadlines.after(self._limits.idle_timeout)
            if not self._buffer_full:
                self.transport.resumeProducing()

    # -- writing, for Exchange ----------------------------------------------------------------------------------

    @property
    def factory(self) -> ServerFactory:
        """The listener's factory that made this connection."""
        return self._factory

    @property
    def closing(self) -> bool:
        return self._close or self._factory.draining

    def close_after_response(self) -> None:
        self._close = True

    def abort(self) -> None:
        self._exchange = None
        self.transport.abortConnection()

    def become_tunnel(self) -> TunnelSide:
        """Turn into one side of a tunnel; bytes that came behind the request belong to it."""
        self.deadline = NEVER
        tunnel = self._tunnel = TunnelSide(self)
        held, self._buffer = self._buffer, b""
        if self._buffer_full or self._body_paused:
            self._buffer_full = self._body_paused = False
            self.transport.resumeProducing()
        if held:
            tunnel.received(held)
        return tunnel

    def tunnel_over(self) -> None:
        exchange, self._exchange = self._exchange, None
        tunnel = self._tunnel
        if exchange is not None and tunnel is not None:
            exchange.tunnel_closed(tunnel.bytes_received, tunnel.bytes_sent)

    def exchange_done(self, exchange: Exchange) -> None:
        """The response is complete: go on to the next request, linger, or close."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        if self._reader is not None and not self._reader.complete:
            self._linger()
        elif self._close or self._factory.draining:
            self._lose()
        else:
            idle_timeout = self._limits.idle_timeout
            self.deadline = self.seconds() + idle_timeout if idle_timeout else NEVER
            if self._buffer or self._body_paused:
                self._take_held()

    def _take_held(self) -> None:
        """No request is under way: go on with what came behind the last one."""
        if self._lingering or self._close:
            return
        if self._buffer_full or self._body_paused:
            self._buffer_full = self._body_paused = False
            self.transport.resumeProducing()
        if self._buffer and not self._feeding:
            data, self._buffer = self._buffer, b""
            self._feed(data)

    # -- ends ---------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        self._close = True
        self.deadline = NEVER
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def _linger(self) -> None:
        """Let the client read the answer although it is still sending: discard what comes, then close."""
        self._lingering = self._close = True
        self._reader = None
        if self._body_paused or self._buffer_full:
            self._body_paused = self._buffer_full = False
            self.transport.resumeProducing()
        self.deadline = self._factory.deadlines.after(LINGER)
        self.transport.unregisterProducer()
        self.transport.loseWriteConnection()

    def _refuse(self, problem: ProtocolError) -> None:
        """Answer what is no proper request, and close; whatever its handler did for it ends."""
        exchange, self._exchange = self._exchange, None
        self._reader = None
        self._close = True
        answered = exchange is not None and exchange.responded
        if exchange is not None:
            exchange.lost()
        if answered:
            self.transport.abortConnection()
            return
        fields, body = self._factory.refusal(self, problem)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (problem.status, REASON_PHRASES.get(problem.status, b"Error"), fields, len(body), body)
        )
        self._linger()

    def expired(self) -> None:
        """A deadline passed (`Deadlines`)."""
        if self._tunnel is not None:
            if self._tunnel.bytes_sent != self._sent_before:
                self._watch_half_open(self._tunnel)
            else:
                self._tunnel.close(clean=False)
        elif self._lingering:
            self.transport.abortConnection()
        elif self._reader is not None:
            self._refuse(ProtocolError(408, "the request body did not go on in time"))
        elif self._buffer:
            self._refuse(ProtocolError(408, "the request head did not come in time"))
        else:
            self._lose()

    def drain(self) -> None:
        """Close now if no request is under way; else after it, or after one whose head has begun (`draining`)."""
        if self._exchange is None and self._tunnel is None and not self._buffer and not self._lingering:
            self._lose()


@implementer(IProtocolFactory)
class ServerFactory:
    """Makes server connections for one listener and knows those that live.

    `handle` gets each exchange; `refusal` words the answer to what is no proper request.
    """

    noisy = False

    def __init__(
        self,
        deadlines: Deadlines,
        limits: Limits,
        handle: Callable[[Exchange], None],
        refusal: Callable[[ServerConnection, ProtocolError], Refusal],
    ) -> None:
        self.deadlines = deadlines
        self.limits = limits
        self.handle = handle
        self.refusal = refusal
        self.draining = False
        self.connections: set[ServerConnection] = set()

    def doStart(self) -> None:
        """Nothing to prepare."""

    def doStop(self) -> None:
        """Nothing to undo."""

    def buildProtocol(self, addr: IAddress | None) -> ServerConnection:
        return ServerConnection(self, self.limits)

    def drain(self) -> None:
        """Let each connection end with the request that it is serving; idle ones end now."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()
