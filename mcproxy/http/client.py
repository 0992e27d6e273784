"""The HTTP/1.1 client engine: one protocol instance an upstream connection, one request at a time.

    IDLE -> HEAD -> BODY -> IDLE     the pool lends the connection out again
            HEAD -> TUNNEL           after 101
    any  -> CLOSED

The response goes to a `ResponseSink` in the pieces in which it arrives; nothing is buffered but an unfinished head.
"""

from __future__ import annotations

from typing import Any
from typing import Protocol as Interface

from twisted.internet import error
from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.framing import BodyReader, ChunkedReader, FramingError, LengthReader, UntilCloseReader
from mcproxy.http.head import parse_response_head
from mcproxy.http.messages import CHUNKED, UNTIL_CLOSE, Header, ResponseHead, UpstreamProtocolError
from mcproxy.http.transport import Transport
from mcproxy.http.tunnel import TunnelSide

#: An upstream's response head may be this long (bytes), with its status line.
MAX_HEAD = 256 * 1024


class ConnectionClosed(Exception):
    """The upstream closed the connection before the response was complete."""


class ResponseTimeout(Exception):
    """The first byte of the response did not come in time."""


class ResponseSink(Interface):
    """Whoever waits for a response."""

    def response_informed(self, head: ResponseHead) -> None:
        """An interim response (1xx) came."""

    def response_head(self, head: ResponseHead) -> None:
        """The final response begins."""

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        """All of a response that came at once, with a body that is not empty; nothing else is called for it."""

    def response_data(self, data: bytes) -> None:
        """A piece of its body."""

    def response_flush(self) -> None:
        """All that had arrived was given; more will take a while."""

    def response_end(self, trailers: list[Header]) -> None:
        """The response is complete."""

    def response_failed(self, problem: Exception) -> None:
        """There will be no (further) response; the connection is gone.

        `problem` is ConnectionClosed, ResponseTimeout or UpstreamProtocolError.
        """

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        """The upstream answered 101; `side` is its half of the tunnel."""

    def pause_request(self) -> None:
        """The upstream reads slowly: give no more of the request's body until `resume_request`."""

    def resume_request(self) -> None:
        """The upstream reads again."""


class ConnectionOwner(Interface):
    """Whoever lends the connection out (the pool)."""

    def connection_idle(self, connection: ClientConnection) -> None:
        """The exchange is over and the connection can carry another."""

    def connection_closed(self, connection: ClientConnection) -> None:
        """The connection is gone or can carry no further request; called once."""


@implementer(IProtocol, IHalfCloseableProtocol, IPushProducer)
class ClientConnection:
    """One connection to an upstream."""

    __slots__ = (
        "_buffer",
        "_closed",
        "_deadlines",
        "_keep_alive",
        "_may_upgrade",
        "_method",
        "_owner",
        "_paused",
        "_reader",
        "_request_complete",
        "_sink",
        "_timeout",
        "_tunnel",
        "_write_blocked",
        "began",
        "deadline",
        "requests",
        "transport",
    )

    transport: Transport

    def __init__(self, owner: ConnectionOwner, deadlines: Deadlines) -> None:
        self._owner = owner
        self._deadlines = deadlines
        self._sink: ResponseSink | None = None
        self._method = b""
        self._buffer = b""
        self._reader: BodyReader | None = None
        self._request_complete = True
        self._keep_alive = True
        self._may_upgrade = False
        self._timeout = 0.0
        self._closed = False
        self._tunnel: TunnelSide | None = None
        self._paused = False
        self._write_blocked = False
        self.requests = 0
        self.began = False  # a byte of the current response came
        self.deadline = NEVER

    # -- requests -----------------------------------------------------------------------------------------------

    def send(
        self,
        head: bytes,
        sink: ResponseSink,
        method: bytes,
        timeout: float,
        has_body: bool = False,
        may_upgrade: bool = False,
    ) -> None:
        """Send a request's head, `head` being all of it; a body follows with `send_body` and `end_body`.

        `timeout` is the time to the response's first byte after the request is complete (seconds; 0 is no limit).
        """
        self._sink = sink
        self._method = method
        self._request_complete = not has_body
        self._may_upgrade = may_upgrade
        self._timeout = timeout
        self.began = False
        self.requests += 1
        if timeout and not has_body:
            self.deadline = self._deadlines.after(timeout)
        self.transport.write(head)

    def send_body(self, data: bytes) -> None:
        """Send a piece of the request's body as it goes onto the wire (framing is the caller's)."""
        if self._sink is not None:
            self.transport.write(data)

    def end_body(self) -> None:
        """The request is complete."""
        self._request_complete = True
        if self._sink is not None and not self.began:
            self.deadline = self._deadlines.after(self._timeout)

    def cancel(self) -> None:
        """Nobody wants the response any more: the connection is broken off, which tells the upstream so."""
        self._sink = None
        self.transport.abortConnection()
        self._close()

    def pause(self) -> None:
        """Read no more of the response until `resume`."""
        if not self._paused:
            self._paused = True
            self.transport.pauseProducing()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._closed:
                self.transport.resumeProducing()

    def retire(self) -> None:
        """Close an idle connection."""
        self._close()
        self._lose()

    # -- the transport's side -----------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._deadlines.add(self)

    def dataReceived(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.received(data)
            return
        sink = self._sink
        if sink is None:
            if not self._closed:  # unasked bytes: nobody can say what the next response would be
                self.transport.abortConnection()
                self._close()
            return
        self.began = True  # the deadline stands until the head is whole
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
                if len(data) > MAX_HEAD:
                    raise UpstreamProtocolError(f"response head longer than {MAX_HEAD} bytes")
                self._buffer = data
                return
            head = parse_response_head(data[: end + 4], self._method)
            data = data[end + 4 :]
            if head.status < 200:
                if head.status == 101:
                    self._upgrade(head, data, sink)
                    return
                sink.response_informed(head)
                if self._sink is not sink:
                    return
                if data:
                    continue
                self.began = False  # the time for the response itself begins anew
                if self._request_complete:
                    self.deadline = self._deadlines.after(self._timeout)
                return
            self.deadline = NEVER
            self._keep_alive = head.keep_alive
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

    def _finish(self, sink: ResponseSink, trailers: list[Header], rest: bytes) -> None:
        self._release(bool(rest))
        sink.response_end(trailers)

    def _release(self, too_much: bool) -> None:
        """The response is complete: the connection is free, or of no further use (`too_much` came on it)."""
        self._sink = None
        if too_much or not self._keep_alive or not self._request_complete or self._write_blocked:
            self._close()
            if self._request_complete and not too_much:
                self._lose()
            else:
                self.transport.abortConnection()
        else:
            if self._paused:
                self.resume()
            self._owner.connection_idle(self)

    def _upgrade(self, head: ResponseHead, data: bytes, sink: ResponseSink) -> None:
        if not self._may_upgrade or not self._request_complete:
            raise UpstreamProtocolError("101 that was not asked for, or before the request was complete")
        self._sink = None
        self._close()
        tunnel = self._tunnel = TunnelSide(self)
        if data:
            tunnel.received(data)
        sink.response_upgraded(head, tunnel)

    def readConnectionLost(self) -> None:
        if self._tunnel is not None:
            self._tunnel.eof()
            return
        self._lose()
        self._ended(clean=True)

    def writeConnectionLost(self) -> None:
        """Our own half-close went out; nothing follows from that."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        clean = isinstance(reason.value, error.ConnectionDone)
        if self._tunnel is not None:
            self._tunnel.connection_lost(clean)
            return
        self._ended(clean)

    def _ended(self, clean: bool) -> None:
        sink = self._sink
        if sink is None:
            self._close()
        elif clean and isinstance(self._reader, UntilCloseReader):
            self._keep_alive = False
            self._reader = None
            self._finish(sink, [], b"")
        else:
            self._fail(ConnectionClosed("the connection was closed before the response was complete"))

    def expired(self) -> None:
        """The response's first byte did not come in time (`Deadlines`)."""
        if self._sink is None:
            self.retire()  # an idle connection of the pool
        else:
            self._fail(ResponseTimeout(f"no response within {self._timeout:g} s"))

    def _fail(self, problem: Exception) -> None:
        sink, self._sink = self._sink, None
        self._close()
        self.transport.abortConnection()
        if sink is not None:
            sink.response_failed(problem)

    def _lose(self) -> None:
        self.transport.unregisterProducer()  # nothing more is written, and a transport waits for its producer
        self.transport.loseConnection()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._deadlines.remove(self)
            self._owner.connection_closed(self)

    def tunnel_over(self) -> None:
        """The tunnel is closed; the owner forgot this connection when it became one."""

    # -- IPushProducer: the send buffer towards the upstream is full, or empty again --------------------------------

    def pauseProducing(self) -> None:
        self._write_blocked = True
        if self._tunnel is not None:
            self._tunnel.pause()
        elif self._sink is not None:
            self._sink.pause_request()

    def resumeProducing(self) -> None:
        self._write_blocked = False
        if self._tunnel is not None:
            self._tunnel.resume()
        elif self._sink is not None:
            self._sink.resume_request()

    def stopProducing(self) -> None:
        """The transport is lost; connectionLost does what is to be done."""
