"""A `ClientStream` over HTTP/2: one request to an upstream, on a stream of a shared connection.

    take (pool) -> send_head -> AWAITED -> HELD -> BODY -> over
                                 '--------------------^   reset, refused, lost, cancelled

The response's head is held until the end of the read in which it arrived. Usually the same read contains the whole
body, and then both are passed on at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mypy_extensions import mypyc_attr

from mcproxy.http.client_stream import (
    MAX_INTERIM,
    ConnectionClosed,
    HTTP1Required,
    RequestNotProcessed,
    ResponseSink,
    ResponseTimeout,
)
from mcproxy.http.deadlines import NEVER
from mcproxy.http.h2.frames import END_STREAM, ErrorCode, HTTP2StreamError, code_name
from mcproxy.http.h2.h2_stream import STREAM_SLOTS, H2Stream
from mcproxy.http.h2.heads import response_head, trailer_fields
from mcproxy.http.messages import BODIED_METHODS, CHUNKED, Header, RequestHead, ResponseHead, UpstreamProtocolError

if TYPE_CHECKING:
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.http.h2.frame_sender import FrameSender
    from mcproxy.http.h2.hpack.decoder import DecodedFields
    from mcproxy.http.h2.hpack.encoder import HPACKEncoder
    from mcproxy.http.h2.stream_table import StreamTable

_AWAITED, _HELD, _BODY = range(3)


class StreamConnection(Protocol):
    """The connection of a stream (`h2_client.H2ClientConnection`)."""

    deadlines: Deadlines
    encoder: HPACKEncoder
    last_received: float  # time of the last received bytes
    scheme: bytes
    seconds: Callable[[], float]  # the clock
    sender: FrameSender
    stalled: int  # number of streams whose client reads slowly
    table: StreamTable[H2ClientStream]
    touched: list[H2ClientStream]  # streams with frames in the read that is being processed

    def begin_stream(self, stream: H2ClientStream) -> bool:
        """Open a stream, on which a request is sent next; return False if the connection has ended meanwhile."""
        ...

    def sibling(self, stream: H2ClientStream) -> H2ClientStream | None:
        """Return a stream for another request in addition to an open one; None if the connection has no room."""
        ...

    def trailer_block(self, trailers: list[Header]) -> bytes | None:
        """Return the block of a request's trailers; None if trailers are not sent to this upstream."""
        ...

    def reset_stream(self, stream: H2ClientStream, code: int) -> None:
        """Reset a stream, if it is open, for a reason other than an error of the upstream."""

    def stream_refused(self) -> None:
        """Called when the upstream has refused a stream: it accepts no more streams at present."""

    def doubt(self, since: float) -> None:
        """Check the connection of a late response (`ClientStream.doubt`)."""

    def grow_window(self, stream: H2ClientStream) -> None:
        """Enlarge a stream's window if it was used up quickly."""


@mypyc_attr(allow_interpreted_subclasses=True)
class H2ClientStream(H2Stream):
    """One request and its response."""

    __slots__ = (
        *STREAM_SLOTS,
        "_connection",
        "_head",
        "_interim",
        "_method",
        "_remaining",
        "_sink",
        "_state",
        "_timeout",
        "_touched",
        "_unread",
        "began",
        "deadline",
        "lasting",
        "window_since",
    )

    refusable = True
    multiplexed = True

    def __init__(self, connection: StreamConnection, lasting: bool) -> None:
        self._connection = connection
        self._sink: ResponseSink | None = None
        self._method = b""
        self._head: ResponseHead | None = None  # the response's head, while it is held
        self._state = _AWAITED
        self._remaining = 0  # bytes of the response's body still to arrive; negative without a content-length
        self._interim = 0  # number of interim responses
        self._timeout = 0.0
        self._unread = 0  # unread bytes of the request when the upstream's time to read it was set
        self._touched = False  # whether the connection will call `read_done`
        self.lasting = lasting
        self.began = False  # a byte of the response has arrived
        self.deadline = NEVER
        self.window_since = 0.0  # time of the last opening of the receive window

    # -- the request --------------------------------------------------------------------------------------------

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
        connection = self._connection
        self._sink = sink
        method = self._method = head.method
        length = head.length
        self._timeout = timeout
        if not connection.begin_stream(self):
            self._timeout = 0.0
            self._start_timer(connection.seconds())  # the sink is never called from within `send_head`
            return
        if length or head.te_trailers or method in BODIED_METHODS:
            fields = (*fields, _framing_fields(head))
        block = connection.encoder.request(method, connection.scheme, target, authority, fields)
        if length:
            connection.sender.write_headers(self.stream_id, block, 0)
        else:
            self.send_closed = True
            connection.sender.write_headers(self.stream_id, block, END_STREAM)
            if timeout:
                self._start_timer(connection.seconds() + timeout)

    def send_body(self, data: bytes) -> None:
        """Send a piece of the request's body."""
        if self._sink is not None and not self.send_closed:
            self.add(data)
            self._connection.sender.send(self)

    def end_body(self, trailers: list[Header]) -> None:
        """End the request's body.

        Trailers are left out, as RFC 9110 6.5.1 permits, unless the pool sends them (`sends_trailers`): some servers
        (nginx 1.22) treat them as an error of the connection, so that one client could end the streams of all others.
        """
        if self._sink is not None and not self.send_closed:
            if self._timeout and not self.began:
                self._start_timer(self._connection.seconds() + self._timeout)
            connection = self._connection
            connection.sender.finish(self, connection.trailer_block(trailers) if trailers else None)

    def cancel(self) -> None:
        """Reset the stream, so that the upstream stops its work on the response."""
        self._sink = None
        self._stop_timer()
        self._connection.reset_stream(self, ErrorCode.CANCEL)

    def sibling(self) -> H2ClientStream | None:
        """Return a stream for another short request on the same connection (`ClientStream.sibling`)."""
        return self._connection.sibling(self)

    def doubt(self, since: float) -> None:
        """Check the connection after a late response (`ClientStream.doubt`)."""
        self._connection.doubt(since)

    def pause(self) -> None:
        """Open the stream's window no further until `resume`."""
        if not self.receive_paused and self._sink is not None and not self.remote_closed:
            self.pause_receiving()
            self.window_since = 0.0  # the window grows only for clients that keep up
            self._connection.stalled += 1

    def resume(self) -> None:
        """Continue reading the response."""
        if self.receive_paused and self._sink is not None:
            self._connection.stalled -= 1
            self._connection.table.resume_receiving(self)

    def receive_window_used(self) -> None:
        self._connection.grow_window(self)

    # -- sending ------------------------------------------------------------------------------------------------

    def pause_sending(self) -> None:
        if self._sink is not None:
            if self._timeout and not self.began:
                self._wait_for_reading()
            self._sink.pause_request()

    def _wait_for_reading(self) -> None:
        """Set the deadline for the upstream to read a part of the request, by the timeout for its response."""
        self._unread = self.unsent
        self._start_timer(self._connection.seconds() + self._timeout)

    def resume_sending(self) -> None:
        if self._sink is not None:
            if not self.began and not self.end_follows:
                self._stop_timer()
            self._sink.resume_request()

    def sending_waits(self) -> None:
        """Do nothing: the limits of the sender suffice."""

    def sending_proceeds(self) -> None:
        """Do nothing, as in `sending_waits`."""

    def sending_ended(self) -> None:
        """Do nothing after END_STREAM: the response is not complete yet, or its end would have reset the stream."""

    # -- the response -------------------------------------------------------------------------------------------

    def headers_received(self, fields: DecodedFields, end_stream: bool) -> None:
        sink = self._sink
        if sink is None:
            return
        if self._state != _AWAITED:
            self._trailers_received(sink, fields, end_stream)
            return
        head = response_head(fields, self._method, end_stream=end_stream)
        self.began = True
        if head.status < 200:
            self._interim_received(sink, head)
            return
        self._stop_timer()
        self._remaining = head.length
        if not end_stream:
            self._state = _HELD
            self._head = head
            self.window_since = self._connection.last_received
            self._touch()
            return
        self._state = _BODY
        self._over()
        sink.response_head(head)
        if self._sink is sink:
            self._sink = None
            sink.response_end([])

    def _interim_received(self, sink: ResponseSink, head: ResponseHead) -> None:
        self._interim += 1
        if self._interim > MAX_INTERIM:
            raise HTTP2StreamError(ErrorCode.ENHANCE_YOUR_CALM, f"more than {MAX_INTERIM} interim responses")
        sink.response_interim(head)
        if self._sink is sink:
            self.began = False  # the timeout of the final response starts again
            if self.end_follows or self.send_closed:
                self._stop_timer()
                if self._timeout:
                    self._start_timer(self._connection.seconds() + self._timeout)

    def _trailers_received(self, sink: ResponseSink, fields: DecodedFields, end_stream: bool) -> None:
        if not end_stream:
            raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "malformed response: HEADERS within its body")
        trailers = trailer_fields(fields)
        if self._remaining > 0:
            raise _wrong_length()
        if self._state == _HELD:
            self._pass_head(sink)
            if self._sink is not sink:
                return
        self._over()
        self._sink = None
        sink.response_end(trailers)

    def data_received(self, data: bytes, end_stream: bool) -> None:
        sink = self._sink
        if sink is None:
            return
        if self._remaining >= 0:
            self._remaining -= len(data)
            if self._remaining < 0 or (end_stream and self._remaining):
                if self._state == _AWAITED:
                    raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "malformed response: DATA before HEADERS")
                raise _wrong_length()
        if self._state != _BODY:
            head = self._head
            if head is None:
                raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "malformed response: DATA before HEADERS")
            if end_stream and data:
                self._head = None
                self._over()
                self._sink = None
                sink.response_whole(head, data)
                return
            self._pass_head(sink)
            if self._sink is not sink:
                return
        if data:
            sink.response_data(data)
            if self._sink is not sink:
                return
        if end_stream:
            self._over()
            self._sink = None
            sink.response_end([])
        elif not self._touched:
            self._touch()

    def _pass_head(self, sink: ResponseSink) -> None:
        head, self._head = self._head, None
        self._state = _BODY
        assert head is not None
        sink.response_head(head)

    def _touch(self) -> None:
        self._touched = True
        self._connection.touched.append(self)

    def read_done(self) -> None:
        """Called by the connection after a read that had frames of this stream."""
        self._touched = False
        sink = self._sink
        if sink is None:
            return
        if self._state == _HELD:
            self._pass_head(sink)
            if self._sink is not sink:
                return
        sink.response_flush()

    # -- the end ------------------------------------------------------------------------------------------------

    def _over(self) -> None:
        """Remove the stream from the connection after a complete response; the rest of its request is dropped."""
        self._stop_timer()
        connection = self._connection
        if self.send_closed:
            connection.table.remove(self)
        else:
            connection.reset_stream(self, ErrorCode.NO_ERROR)

    def _fail(self, problem: Exception) -> None:
        """Report to the sink that the response failed; the stream has left the connection."""
        sink, self._sink = self._sink, None
        self._stop_timer()
        if sink is not None:
            sink.response_failed(problem)

    def reset_received(self, code: int) -> None:
        if self.began:
            cause = f"the stream was reset before the response was complete: {code_name(code)}"
            problem = ConnectionClosed(cause, code)
        elif code == ErrorCode.REFUSED_STREAM:
            self._connection.stream_refused()
            problem = RequestNotProcessed("the stream was refused", code)
        elif code == ErrorCode.HTTP_1_1_REQUIRED:
            problem = HTTP1Required("the stream was refused: HTTP/1.1 is required", code)
        else:
            problem = ConnectionClosed(f"the stream was reset before the response began: {code_name(code)}", code)
        self._fail(problem)

    def not_processed(self) -> None:
        """Called by the connection if the stream's id exceeds the last one in a GOAWAY.

        If the response has begun, the request was processed, whatever GOAWAY states, and must not be sent again.
        """
        if self.began:
            self._fail(ConnectionClosed("the connection was taken out of service before the response was complete"))
        else:
            self._fail(RequestNotProcessed("the connection was taken out of service"))

    def stream_failed(self, code: int, cause: str) -> None:
        self._fail(UpstreamProtocolError(cause))

    def connection_ended(self, cause: str) -> None:
        late = "before the response was complete"
        closed = cause.startswith("the connection was ")  # closed, or lost
        self._fail(ConnectionClosed(f"{cause} {late}" if closed else f"the connection ended {late}: {cause}"))

    # -- time ---------------------------------------------------------------------------------------------------

    def _start_timer(self, deadline: float) -> None:
        self.deadline = deadline
        self._connection.deadlines.add(self)

    def _stop_timer(self) -> None:
        if self.deadline != NEVER:
            self.deadline = NEVER
            self._connection.deadlines.remove(self)

    def expired(self) -> None:
        """Fail a request that the upstream has not read, or not begun to answer, in time (`Deadlines`)."""
        if self._sink is not None and self.send_paused and not self.end_follows and self._unread != self.unsent:
            self._wait_for_reading()
            return
        self._connection.deadlines.remove(self)
        if not self._timeout:
            self._fail(RequestNotProcessed("the connection was closed"))
        elif self._sink is not None:
            self._connection.reset_stream(self, ErrorCode.CANCEL)
            self._fail(ResponseTimeout(f"no response within {self._timeout:g} s"))


def _wrong_length() -> HTTP2StreamError:
    return HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "malformed response: its body is not of its content-length")


def _framing_fields(head: RequestHead) -> bytes:
    """Return the fields of a request that describe its body, as a block."""
    fields = b""
    if head.length != CHUNKED and (head.length or head.method in BODIED_METHODS):
        fields = b"content-length: %d\r\n" % head.length
    if head.expects_continue:
        fields += b"expect: 100-continue\r\n"
    if head.te_trailers:
        fields += b"te: trailers\r\n"
    return fields
