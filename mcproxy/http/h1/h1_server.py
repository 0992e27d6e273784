"""The HTTP/1.1 server engine: one protocol instance per client connection, one exchange at a time.

    HEAD -> (BODY ->) WAIT -> HEAD ...      reading; WAIT: the request is complete, the response is not
    any  -> LINGER -> closed                the response ended before the request: the rest of it is discarded
    WAIT -> TUNNEL                          after 101

A pipelined request is parsed only after the previous response is complete. All sizes and times are bounded
(`config.model.Limits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twisted.internet import error
from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import NEVER
from mcproxy.http.exchange import LINGER, ServerContext
from mcproxy.http.h1.framing import BodyReader, ChunkedReader, FramingError, LengthReader
from mcproxy.http.h1.h1_exchange import H1Exchange
from mcproxy.http.h1.head_parser import RequestHeadParser, incomplete_head_error, parse_request_head
from mcproxy.http.messages import CHUNKED, REASON_PHRASES, ProtocolError
from mcproxy.http.transport import Transport
from mcproxy.http.tunnel import TunnelSide

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from mcproxy.net.wall_time import WallSeconds

log = Logger(__name__)

#: The part of HTTP/2's client preface that looks like the head of a request (RFC 9113 3.4).
H2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\n"


class H1ServerConnection:
    """One client connection."""

    __slots__ = (
        "_body_paused",
        "_body_size",
        "_buffer",
        "_buffer_full",
        "_closing",
        "_exchange",
        "_factory",
        "_feeding",
        "_head_begun",
        "_idle_since",
        "_limits",
        "_lingering",
        "_parser",
        "_reader",
        "_sent_at_last_check",
        "_tunnel_side",
        "client",
        "deadline",
        "handler_state",
        "requests",
        "seconds",
        "transport",
        "write_blocked",
    )

    transport: Transport

    def __init__(self, factory: ServerContext, limits: Limits) -> None:
        self._factory = factory
        self.seconds = factory.deadlines.seconds  # the clock
        self._limits = limits
        self._buffer = b""  # an incomplete head, or pipelined bytes after the current request
        self._buffer_full = False
        self._parser: RequestHeadParser | None = None
        self._reader: BodyReader | None = None
        self._body_paused = False
        self._body_size = 0
        self._exchange: H1Exchange | None = None
        self._tunnel_side: TunnelSide | None = None
        self._closing = False
        self._sent_at_last_check = 0  # bytes sent to a slow client, or through a half-closed tunnel, at the last check
        self._lingering = False
        self._feeding = False
        self._idle_since = 0.0
        self._head_begun = True  # True, because the timeout of the first head starts with the connection
        self.write_blocked = False
        self.requests = 0
        self.deadline = NEVER
        self.client: IAddress | None = None
        self.handler_state: object = None  # the handler's state for this connection; not used by the engine

    # -- called by the transport --------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        self.client = self.transport.getPeer()
        self.transport.registerProducer(self, True)
        self._factory.connections.add(self)
        self._idle_since = self.seconds()
        self.deadline = self._factory.deadlines.after(self._limits.head_timeout)
        self._factory.deadlines.add(self)

    def dataReceived(self, data: bytes) -> None:
        if self._tunnel_side is not None:
            self._tunnel_side.received(data)
            return
        if self._lingering:
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        self._feed(data)

    def readConnectionLost(self) -> None:
        """Half-close a tunnel whose client sends no more; outside of a tunnel, the client has disconnected."""
        if self._tunnel_side is not None:
            self._watch_half_open(self._tunnel_side)
            self._tunnel_side.eof()
        else:
            self._close_connection()
            self._cancel_request()

    def _watch_half_open(self, tunnel: TunnelSide) -> None:
        """Keep a half-closed tunnel as long as data is sent to the client: a client that has closed its socket looks
        the same as one that has only stopped sending.
        """
        self._sent_at_last_check = tunnel.bytes_sent
        self.deadline = self._factory.deadlines.after(self._limits.idle_timeout)

    def writeConnectionLost(self) -> None:
        """Do nothing: the proxy's half-close is sent."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._factory.deadlines.remove(self)
        self._factory.connections.discard(self)
        if self._tunnel_side is not None:
            self._tunnel_side.connection_lost(isinstance(reason.value, error.ConnectionDone))
        self._cancel_request()

    def _cancel_request(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._closing = True
        if exchange is not None:
            exchange.cancel()

    # -- IPushProducer: the send buffer towards the client is full, or drained --------------------------------------

    def pauseProducing(self) -> None:
        self.write_blocked = True
        exchange = self._exchange
        if self._tunnel_side is not None:
            self._tunnel_side.pause()
        elif exchange is not None:
            if self._reader is None or self._body_paused:  # otherwise the deadline of the request's body applies
                self._wait_for_reading(exchange)
            if exchange.handler is not None:
                exchange.handler.pause_response()

    def _wait_for_reading(self, exchange: H1Exchange) -> None:
        """Set the deadline for the client of a short request to read a part of its response from the full buffer."""
        if not exchange.long_running:
            self._sent_at_last_check = self.transport.sent_from_queue
            self.deadline = self._factory.deadlines.after(self._limits.stall_timeout)

    def resumeProducing(self) -> None:
        self.write_blocked = False
        if self._tunnel_side is not None:
            self._tunnel_side.resume()
        elif self._exchange is None:
            self._resume_pipelined()
        else:
            if self._reader is None or self._body_paused:
                self.deadline = NEVER
            if self._exchange.handler is not None:
                self._exchange.handler.resume_response()

    def stopProducing(self) -> None:
        """Do nothing: the transport is closed, and connectionLost follows."""

    # -- reading ------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Process received bytes; buffer the bytes that must wait for the end of the current exchange."""
        self._feeding = True
        try:
            while data and not self._lingering:
                if self._reader is not None:
                    data = self._feed_body(data)
                elif self._tunnel_side is not None:
                    self._tunnel_side.received(data)
                    return
                elif self._exchange is not None or self.write_blocked:
                    self._hold_pipelined(data)  # a client that does not read its responses gets no further response
                    return
                elif self._closing:
                    return
                else:
                    data = self._feed_head(data)
        except ProtocolError as problem:
            self._reject(problem)
        finally:
            self._feeding = False

    def _feed_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end == 0:
            raise ProtocolError(400, "empty line instead of a request")
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
        limits = self._limits
        if not self.requests and self._factory.prior_knowledge and data.startswith(H2_PREFACE):
            self._become_h2(data)
            return b""
        if not self.requests:  # a connection with only one request, such as a watch, does not remember its fields
            head = parse_request_head(data[:size], limits.target_bytes, limits.headers)
        else:
            if self._parser is None:
                self._parser = RequestHeadParser(limits.target_bytes, limits.headers)
            head = self._parser.parse(data[:size])
        limit = limits.body_bytes
        if limit and head.length > limit:
            raise ProtocolError(413, f"the request body is longer than {limit} bytes")
        self._head_begun = False
        factory = self._factory
        if head.length:
            self._reader = ChunkedReader() if head.length == CHUNKED else LengthReader(head.length)
            self._body_size = 0
            self.deadline = factory.deadlines.after(self._limits.stall_timeout)
        else:
            self.deadline = NEVER
        self.requests += 1
        if not head.keep_alive:
            self._closing = True
        exchange = self._exchange = H1Exchange(self, head, self.seconds())
        factory.handle(exchange)
        return data[size:]

    def _become_h2(self, data: bytes) -> None:
        """Hand the connection over to the HTTP/2 engine: the client uses HTTP/2 with prior knowledge (RFC 9113 3.3)."""
        transport, factory = self.transport, self._factory
        factory.connections.discard(self)
        factory.deadlines.remove(self)
        transport.unregisterProducer()
        factory.begin_h2(transport).dataReceived(data)

    def _feed_body(self, data: bytes) -> bytes:
        reader = self._reader
        assert reader is not None
        try:
            pieces, rest = reader.feed(data)
        except FramingError as problem:
            raise ProtocolError(400, str(problem)) from None
        exchange = self._exchange
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # one call for many tiny chunks
            self._body_size += len(piece)
            if self._limits.body_bytes and self._body_size > self._limits.body_bytes:
                raise ProtocolError(413, f"the request body is longer than {self._limits.body_bytes} bytes")
            if exchange is not None:
                exchange.body_received(piece)
        if reader.complete:
            self._reader = None
            self.deadline = NEVER
            if exchange is not None:
                if self.write_blocked:
                    self._wait_for_reading(exchange)
                exchange.body_finished(reader.trailers)
        elif pieces and not self._body_paused and self._exchange is not None:
            self._wait_for_body()
        return rest

    def _hold_pipelined(self, data: bytes) -> None:
        """Buffer bytes after the current request, up to the maximum size of a head; then stop reading."""
        self._buffer = data
        if len(data) >= self._limits.head_bytes:
            self._buffer_full = True
            self.transport.pauseProducing()

    def long_running(self) -> None:
        """Note that the request is long-running: only `limits.idleTimeout` applies to its body."""
        if self._reader is not None and not self._body_paused:
            self._wait_for_body()

    def _wait_for_body(self) -> None:
        exchange, limits = self._exchange, self._limits
        lasting = exchange is not None and exchange.long_running
        self.deadline = self._factory.deadlines.after(limits.idle_timeout if lasting else limits.stall_timeout)

    def pause_body(self) -> None:
        """Stop reading the request's body, because the upstream is slower than the client."""
        if not self._body_paused:
            self._body_paused = True
            self.deadline = NEVER  # the client is not slow, unless it does not read its response
            if self.write_blocked and self._exchange is not None:
                self._wait_for_reading(self._exchange)
            self.transport.pauseProducing()

    def resume_body(self) -> None:
        if self._body_paused:
            self._body_paused = False
            if self._reader is not None:
                self._wait_for_body()
            if not self._buffer_full:
                self.transport.resumeProducing()

    # -- called by H1Exchange (`H1ExchangeConnection`) ----------------------------------------------------------------

    @property
    def factory(self) -> ServerContext:
        """The state that all connections of the listener share."""
        return self._factory

    def wall_seconds(self) -> WallSeconds:
        """Return the time of day."""
        return self._factory.deadlines.wall_seconds()

    @property
    def idle_since(self) -> float | None:
        """When the last request ended (on `deadlines`' clock); None while a request or a tunnel is in progress."""
        return None if self._exchange is not None or self._tunnel_side is not None else self._idle_since

    @property
    def closing(self) -> bool:
        return self._closing or self._factory.ends_http1

    def close_after_response(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._exchange = None
        self.transport.abortConnection()

    def become_tunnel(self) -> TunnelSide:
        """Become one side of a tunnel; bytes after the request belong to the tunnel."""
        self.deadline = NEVER
        tunnel = self._tunnel_side = TunnelSide(self)
        held, self._buffer = self._buffer, b""
        if self._buffer_full or self._body_paused:
            self._buffer_full = self._body_paused = False
            self.transport.resumeProducing()
        if held:
            tunnel.received(held)
        return tunnel

    def transport_taken(self) -> None:
        """End the exchange, whose 101 is sent: the connection belongs to another engine."""
        self._factory.connections.discard(self)
        self._factory.deadlines.remove(self)
        self.transport.unregisterProducer()
        self.tunnel_ended()

    def tunnel_ended(self) -> None:
        exchange, self._exchange = self._exchange, None
        tunnel = self._tunnel_side
        if exchange is not None and tunnel is not None:
            exchange.tunnel_closed(tunnel.bytes_received, tunnel.bytes_sent)

    def exchange_done(self, exchange: H1Exchange) -> None:
        """Continue with the next request after a complete response, linger, or close."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        if self._reader is not None and not self._reader.complete:
            self._linger()
        elif self._closing or self._factory.ends_http1:
            self._close_connection()
        else:
            idle_timeout = self._limits.idle_timeout
            now = self._idle_since = self.seconds()
            self.deadline = now + idle_timeout if idle_timeout else NEVER
            if self._buffer or self._body_paused:
                self._resume_pipelined()

    def _resume_pipelined(self) -> None:
        """Continue with the bytes after the last request."""
        if self._lingering or self._closing:
            return
        if self._buffer_full or self._body_paused:
            self._buffer_full = self._body_paused = False
            self.transport.resumeProducing()
        if self._buffer and not self._feeding:
            data, self._buffer = self._buffer, b""
            self._feed(data)

    # -- closing ------------------------------------------------------------------------------------------------

    def _close_connection(self) -> None:
        self._closing = True
        self.deadline = NEVER
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def _linger(self) -> None:
        """Let a client that is still sending read the response: discard its data for a while, then close."""
        self._lingering = self._closing = True
        self._reader = None
        if self._body_paused or self._buffer_full:
            self._body_paused = self._buffer_full = False
            self.transport.resumeProducing()
        self.deadline = self._factory.deadlines.after(LINGER)
        self.transport.unregisterProducer()
        self.transport.loseWriteConnection()

    def _reject(self, problem: ProtocolError) -> None:
        """Respond to an invalid request, cancel its handler, and close."""
        exchange, self._exchange = self._exchange, None
        self._reader = None
        self._closing = True
        answered = exchange is not None and exchange.responded
        if exchange is not None:
            if not answered:
                exchange.status = problem.status
            exchange.cancel()
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
        """End the request or the connection whose deadline has passed (`Deadlines`)."""
        if self._tunnel_side is not None:
            if self._tunnel_side.bytes_sent != self._sent_at_last_check:
                self._watch_half_open(self._tunnel_side)
            else:
                self._tunnel_side.close(clean=False)
        elif self._lingering:
            self.transport.abortConnection()
        elif self._reader is not None and not self._body_paused:
            self._body_stalled()
        elif self._exchange is not None:
            self._reading_stalled(self._exchange)
        elif self._buffer:
            self._reject(ProtocolError(408, "the request head took too long"))
        else:
            self._close_connection()

    def _body_stalled(self) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.stalled = True
        self._reject(ProtocolError(408, "the request body stalled"))

    def _reading_stalled(self, exchange: H1Exchange) -> None:
        """Abort if the client has read no byte of its response for `limits.stallTimeout`."""
        if exchange.long_running:
            return
        if self.transport.sent_from_queue != self._sent_at_last_check:
            self._wait_for_reading(exchange)
            return
        exchange.stalled = True
        self._exchange = None
        exchange.cancel()
        self.transport.abortConnection()

    def drain(self, *, unused: bool) -> None:
        """Close an idle connection now, another one after its current or just begun request (`ends_http1`).

        A connection without any request yet is closed only with `unused`, because its first request may be on its way.
        """
        idle = self._exchange is None and self._tunnel_side is None and not self._buffer and not self._lingering
        if idle and (self.requests or unused):
            self._close_connection()


classImplements(H1ServerConnection, IProtocol, IHalfCloseableProtocol, IPushProducer)
