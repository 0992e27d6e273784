"""The HTTP/1.1 client engine: one protocol instance per upstream connection, one request at a time.

    IDLE -> HEAD -> BODY -> IDLE     the connection returns to the pool
            HEAD -> TUNNEL           after 101
    any  -> CLOSED

The response is passed to a `ResponseSink` as it arrives; only an incomplete head is buffered.
"""

from __future__ import annotations

from typing import Any, Final
from typing import Protocol as Interface

from twisted.internet import error
from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.http.client_stream import MAX_INTERIM, ConnectionClosed, ResponseSink, ResponseTimeout
from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h1.framing import (
    BodyReader,
    ChunkedReader,
    FramingError,
    LengthReader,
    UntilCloseReader,
    encode_chunk,
    encode_last_chunk,
)
from mcproxy.http.h1.head_parser import ResponseHeadParser
from mcproxy.http.messages import (
    BODIED_METHODS,
    CHUNKED,
    UNTIL_CLOSE,
    Header,
    RequestHead,
    ResponseHead,
    UpstreamProtocolError,
)
from mcproxy.http.transport import Transport
from mcproxy.http.tunnel import TunnelSide

#: Maximum of bytes of a response head with its status line.
MAX_HEAD: Final = 256 * 1024
_VERSION: Final = b"HTTP/1."


class H1ConnectionOwner(Interface):
    """Owner of a connection (the pool)."""

    def connection_idle(self, connection: H1ClientConnection) -> None:
        """Called when the response is complete and the connection can carry another request."""

    def connection_closed(self, connection: H1ClientConnection) -> None:
        """Called once, when the connection is closed or can carry no further request."""

    def closed_after_idleness(self, seconds: float) -> None:
        """Called when the upstream has closed a connection idle for `seconds`; `connection_closed` follows."""


class H1ClientConnection:
    """One connection to an upstream."""

    __slots__ = (
        "_buffer",
        "_chunked",
        "_deadlines",
        "_heads",
        "_interim",
        "_keep_alive",
        "_left_pool",
        "_may_upgrade",
        "_method",
        "_most_head",
        "_owner",
        "_paused",
        "_reader",
        "_request_complete",
        "_sink",
        "_taken",
        "_timeout",
        "_tunnel_side",
        "_write_blocked",
        "announced_idle",
        "began",
        "deadline",
        "idle_since",
        "requests",
        "reused_after",
        "transport",
    )

    refusable = False
    multiplexed = False
    transport: Transport

    def __init__(self, owner: H1ConnectionOwner, deadlines: Deadlines, most_head: int = MAX_HEAD) -> None:
        self._heads = ResponseHeadParser()
        self._owner = owner
        self._deadlines = deadlines
        self._most_head = most_head
        self._sink: ResponseSink | None = None
        self._method = b""
        self._buffer = b""
        self._reader: BodyReader | None = None
        self._request_complete = True
        self._chunked = False  # whether the request's body is chunked
        self._keep_alive = True
        self._may_upgrade = False
        self._timeout = 0.0
        self._taken = 0  # bytes that the upstream had read when its time to read the request was set
        self._interim = 0  # number of interim responses to the current request
        self._left_pool = False
        self._tunnel_side: TunnelSide | None = None
        self._paused = False
        self._write_blocked = False
        self.requests = 0
        self.announced_idle = 0  # idle seconds after which the upstream will close it (Keep-Alive); 0: unknown
        self.idle_since = 0.0  # start of the present idle time
        self.reused_after = -1.0  # seconds of idleness before the present request; -1: the connection is new
        self.began = False  # a byte of the current response has arrived
        self.deadline = NEVER

    # -- requests -----------------------------------------------------------------------------------------------

    def send_head(
        self,
        head: RequestHead,
        target: bytes,
        authority: bytes,
        fields: tuple[bytes, ...],
        sink: ResponseSink,
        timeout: float,
    ) -> None:
        """Send the head of a request (`ClientStream.send_head`)."""
        self._sink = sink
        method = self._method = head.method
        length = head.length
        upgrade = head.upgrade
        self._request_complete = not length
        self._chunked = length == CHUNKED
        self._may_upgrade = upgrade is not None
        self._timeout = timeout
        self.began = False
        self._interim = 0
        self.requests += 1
        if timeout and not length:
            self.deadline = self._deadlines.after(timeout)
        plain = not length and upgrade is None and not head.te_trailers and method not in BODIED_METHODS
        self.transport.write(
            b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n"
            % (method, target, authority, b"".join(fields), b"" if plain else framing_fields(head))
        )

    def send_body(self, data: bytes) -> None:
        """Send a piece of the request's body."""
        if self._sink is not None:
            self.transport.write(encode_chunk(data) if self._chunked else data)

    def end_body(self, trailers: list[Header]) -> None:
        """End the request's body."""
        self._request_complete = True
        if self._sink is not None:
            if self._chunked:
                self.transport.write(encode_last_chunk(trailers))
            if not self.began:
                self.deadline = self._deadlines.after(self._timeout)

    def sibling(self) -> None:
        """Return None: an HTTP/1.1 connection has no room for another request (`ClientStream.sibling`)."""
        return

    def doubt(self, since: float) -> None:
        """Do nothing (`ClientStream.doubt`), because `cancel` ends the connection."""

    def cancel(self) -> None:
        """Abort the connection, so that the upstream stops working on the response."""
        self._sink = None
        self.transport.abortConnection()
        self._leave_pool()

    def pause(self) -> None:
        """Stop reading the response until `resume`."""
        if not self._paused:
            self._paused = True
            self.transport.pauseProducing()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._left_pool:
                self.transport.resumeProducing()

    def retire(self) -> None:
        """Close an idle connection."""
        self._leave_pool()
        self._close_transport()

    # -- the transport's side -----------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._deadlines.add(self)

    def dataReceived(self, data: bytes) -> None:
        if self._tunnel_side is not None:
            self._tunnel_side.received(data)
            return
        sink = self._sink
        if sink is None:
            if not self._left_pool:  # unsolicited bytes would be taken for the next response
                self.transport.abortConnection()
                self._leave_pool()
            return
        self.began = True  # the deadline stays until the head is complete
        try:
            self._feed(data, sink)
        except (UpstreamProtocolError, FramingError) as problem:
            self._fail(problem if isinstance(problem, UpstreamProtocolError) else UpstreamProtocolError(str(problem)))

    def _feed(self, data: bytes, sink: ResponseSink) -> None:
        reader = self._reader
        while reader is None:
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > self._most_head:
                    raise self._head_too_long()
                if not data.startswith(_VERSION[: len(data)]):
                    raise UpstreamProtocolError("the response is not HTTP/1.1")  # SSH, SMTP: no head would ever follow
                self._buffer = data
                return
            if end > self._most_head:
                raise self._head_too_long()
            head = self._heads.parse(data[: end + 4], self._method)
            data = data[end + 4 :]
            if head.status < 200:
                if head.status == 101:
                    self._upgrade(head, data, sink)
                    return
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise UpstreamProtocolError(f"more than {MAX_INTERIM} interim responses")
                sink.response_interim(head)
                if self._sink is not sink:
                    return
                if data:
                    continue
                self.began = False  # the timeout of the final response starts again
                if self._request_complete:
                    self.deadline = self._deadlines.after(self._timeout)
                return
            self.deadline = NEVER
            self._keep_alive = head.keep_alive
            if head.idle_limit:
                self.announced_idle = head.idle_limit
            length = head.length
            if 0 < length <= len(data):
                self._release(len(data) > length)
                sink.response_whole(head, data[:length])
                return
            sink.response_head(head)
            if self._sink is not sink:
                return
            if not length:
                self._finish(sink, [], data)
                return
            if length == CHUNKED:
                reader = ChunkedReader()
            elif length == UNTIL_CLOSE:
                reader = UntilCloseReader()
            else:
                reader = LengthReader(length)
            self._reader = reader
            if not data:
                sink.response_flush()
                return
        pieces, rest = reader.feed(data)
        for piece in pieces:
            sink.response_data(piece)
        if reader.complete:
            if self._sink is sink:
                self._reader = None
                self._finish(sink, reader.trailers, rest)
        elif self._sink is sink:
            sink.response_flush()

    def _head_too_long(self) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"response head longer than {self._most_head} bytes")

    def _finish(self, sink: ResponseSink, trailers: list[Header], rest: bytes) -> None:
        self._release(bool(rest))
        sink.response_end(trailers)

    def _release(self, too_much: bool) -> None:
        """Return the connection to the pool, or close it. `too_much`: whether bytes followed the response."""
        self._sink = None
        if too_much or not self._keep_alive or not self._request_complete or self._write_blocked:
            self._leave_pool()
            if self._request_complete and not too_much:
                self._close_transport()
            else:
                self.transport.abortConnection()
        else:
            if self._paused:
                self.resume()
            self._owner.connection_idle(self)

    def _upgrade(self, head: ResponseHead, data: bytes, sink: ResponseSink) -> None:
        if not self._may_upgrade or not self._request_complete:
            raise UpstreamProtocolError("unexpected 101, or 101 before the request was complete")
        self._sink = None
        self._leave_pool()
        tunnel = self._tunnel_side = TunnelSide(self)
        if data:
            tunnel.received(data)
        sink.response_upgraded(head, tunnel)

    def readConnectionLost(self) -> None:
        if self._tunnel_side is not None:
            self._tunnel_side.eof()
            return
        self._close_transport()
        self._ended(clean=True)

    def writeConnectionLost(self) -> None:
        """Do nothing: the proxy's half-close is sent."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        clean = isinstance(reason.value, error.ConnectionDone)
        if self._tunnel_side is not None:
            self._tunnel_side.connection_lost(clean)
            return
        self._ended(clean)

    def _ended(self, clean: bool) -> None:
        sink = self._sink
        if sink is None:
            if not self._left_pool:
                self._owner.closed_after_idleness(self._deadlines.seconds() - self.idle_since)
            self._leave_pool()
        elif clean and isinstance(self._reader, UntilCloseReader):
            self._keep_alive = False
            self._reader = None
            self._finish(sink, [], b"")
        else:
            cause = "the connection was closed before the response was complete"
            if self.reused_after >= 0 and not self.began:
                self._owner.closed_after_idleness(self.reused_after)
                cause = (
                    f"the connection had been idle for {self.reused_after:.1f} s and was closed before the response "
                    "began; the request may have taken effect"
                )
            self._fail(ConnectionClosed(cause))

    def expired(self) -> None:
        """Close an idle connection that is too old, or fail a request not read or answered in time (`Deadlines`)."""
        if self._sink is None:
            self.retire()  # an idle connection of the pool
        elif not self._request_complete and self._taken != self.transport.sent_from_queue:
            self._wait_for_reading()
        else:
            self._fail(ResponseTimeout(f"no response within {self._timeout:g} s"))

    def _fail(self, problem: Exception) -> None:
        sink, self._sink = self._sink, None
        self._leave_pool()
        self.transport.abortConnection()
        if sink is not None:
            sink.response_failed(problem)

    def _close_transport(self) -> None:
        self.transport.unregisterProducer()  # with a producer the transport would not close
        self.transport.loseConnection()

    def _leave_pool(self) -> None:
        if not self._left_pool:
            self._left_pool = True
            self._deadlines.remove(self)
            self._owner.connection_closed(self)

    def transport_taken(self) -> None:
        """Stop following the send buffer: the connection belongs to another engine."""
        self.transport.unregisterProducer()

    def tunnel_ended(self) -> None:
        """Do nothing: the pool dropped this connection when the tunnel began."""

    # -- IPushProducer: the send buffer towards the upstream is full, or drained ------------------------------------

    def pauseProducing(self) -> None:
        self._write_blocked = True
        if self._tunnel_side is not None:
            self._tunnel_side.pause()
        elif self._sink is not None:
            if self._timeout and not self.began and not self._request_complete:
                self._wait_for_reading()
            self._sink.pause_request()

    def _wait_for_reading(self) -> None:
        """Set the deadline for the upstream to read a part of the request, by the timeout for its response."""
        self._taken = self.transport.sent_from_queue
        self.deadline = self._deadlines.after(self._timeout)

    def resumeProducing(self) -> None:
        self._write_blocked = False
        if self._tunnel_side is not None:
            self._tunnel_side.resume()
        elif self._sink is not None:
            if not self.began and not self._request_complete:
                self.deadline = NEVER
            self._sink.resume_request()

    def stopProducing(self) -> None:
        """Do nothing: the transport is closed, and connectionLost follows."""


classImplements(H1ClientConnection, IProtocol, IHalfCloseableProtocol, IPushProducer)


def framing_fields(head: RequestHead) -> bytes:
    """Return the framing and connection fields of a request as a block, which is usually empty."""
    fields = b""
    if head.length == CHUNKED:
        fields = b"Transfer-Encoding: chunked\r\n"
    elif head.length or head.method in BODIED_METHODS:
        fields = b"Content-Length: %d\r\n" % head.length
    if head.expects_continue:
        fields += b"Expect: 100-continue\r\n"
    if head.upgrade is not None:
        fields += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade
    elif head.te_trailers:
        fields += b"TE: trailers\r\nConnection: TE\r\n"
    return fields
