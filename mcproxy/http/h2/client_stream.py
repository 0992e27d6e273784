"""One request to an upstream over HTTP/2, a `ClientStream`: a stream of a connection that others share.

    take (pool) -> send_head -> AWAITED -> HELD -> BODY -> over
                                 '--------------------^   reset, refused, lost, cancelled

The response's head is held until the end of the read in which it arrived: most often the whole body is in it too, and
then both are handed on at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.http.client_stream import (
    ConnectionClosed,
    HTTP1Required,
    ResponseSink,
    ResponseTimeout,
    StreamRefused,
)
from mcproxy.http.deadlines import NEVER
from mcproxy.http.h2.errors import ErrorCode, HTTP2StreamError, code_name
from mcproxy.http.h2.frames import END_STREAM
from mcproxy.http.h2.heads import response_head, trailer_fields
from mcproxy.http.h2.stream import STREAM_SLOTS, Stream
from mcproxy.http.messages import BODIED_METHODS, CHUNKED, Header, RequestHead, ResponseHead, UpstreamProtocolError

if TYPE_CHECKING:
    from mcproxy.http.h2.client import H2ClientConnection
    from mcproxy.http.h2.hpack.decoder import DecodedFields

#: Interim responses (1xx) before the final one.
MAX_INTERIM = 32

_AWAITED, _HELD, _BODY = range(3)


class H2ClientStream(Stream):
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
        "began",
        "deadline",
        "lasting",
        "window_since",
    )

    refusable = True
    _connection: H2ClientConnection

    def __init__(self, connection: H2ClientConnection, lasting: bool) -> None:
        self._connection = connection
        self._sink: ResponseSink | None = None
        self._method = b""
        self._head: ResponseHead | None = None  # while it is held
        self._state = _AWAITED
        self._remaining = 0  # bytes of the response's body that must come, negative if it has no content-length
        self._interim = 0  # responses
        self._timeout = 0.0
        self._touched = False  # `read_done` is to be called
        self.lasting = lasting
        self.began = False  # a byte of the response has arrived
        self.deadline = NEVER
        self.window_since = 0.0  # when the receive window was opened last

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
        block = connection.encoder.request(method, b"https", target, authority, fields)
        if length:
            connection.put_headers(self.stream_id, block, 0)
        else:
            self.send_closed = True
            connection.put_headers(self.stream_id, block, END_STREAM)
            if timeout:
                self._start_timer(connection.seconds() + timeout)

    def send_body(self, data: bytes) -> None:
        """Send a piece of the request's body."""
        if self._sink is not None and not self.send_closed:
            self.add(data)
            self.send()

    def end_body(self, trailers: list[Header]) -> None:
        """The request is complete.

        Trailers are left out, as RFC 9110 6.5.1 permits: some servers (nginx 1.22) take them for an error of the
        connection, so that one client could end the streams of all others. Whoever sends trailers uses HTTP/1.1.
        """
        if self._sink is not None and not self.send_closed:
            if self._timeout and not self.began:
                self._start_timer(self._connection.seconds() + self._timeout)
            self.finish()

    def cancel(self) -> None:
        """Reset the stream, so that the upstream stops working on the response."""
        self._sink = None
        self._stop_timer()
        self.reset(ErrorCode.CANCEL)

    def pause(self) -> None:
        """Open the stream's window no further until `resume`."""
        if not self.receive_paused and self._sink is not None and not self.remote_closed:
            self.pause_receiving()
            self.window_since = 0.0  # it grows only for clients that keep up
            self._connection.stalled += 1

    def resume(self) -> None:
        """Read the response again."""
        if self.receive_paused and self._sink is not None:
            self._connection.stalled -= 1
            self.resume_receiving()

    # -- sending ------------------------------------------------------------------------------------------------

    def pause_sending(self) -> None:
        if self._sink is not None:
            self._sink.pause_request()

    def resume_sending(self) -> None:
        if self._sink is not None:
            self._sink.resume_request()

    def sending_waits(self) -> None:
        """The bounds of `sending` suffice."""

    def sending_proceeds(self) -> None:
        """As `sending_waits`."""

    def sending_ended(self) -> None:
        """END_STREAM was sent; the response is still to come, for its end would have reset the stream."""

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
        """Connection: all frames of the read, in which some of this stream were, are handed on."""
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
        """The response is complete: the stream leaves the connection, without the rest of its request."""
        self._stop_timer()
        connection = self._connection
        if self.send_closed:
            connection.remove(self)
        else:
            connection.reset_stream(self, ErrorCode.NO_ERROR)

    def _fail(self, problem: Exception) -> None:
        """There will be no response, or no more of it; the stream has left the connection."""
        sink, self._sink = self._sink, None
        self._stop_timer()
        if sink is not None:
            sink.response_failed(problem)

    def reset_received(self, code: int) -> None:
        if self.began:
            problem = ConnectionClosed(f"the stream was reset before the response was complete: {code_name(code)}")
        elif code == ErrorCode.REFUSED_STREAM:
            self._connection.stream_refused()
            problem = StreamRefused("the stream was refused")
        elif code == ErrorCode.HTTP_1_1_REQUIRED:
            problem = HTTP1Required("the stream was refused: HTTP/1.1 is required")
        else:
            problem = ConnectionClosed(f"the stream was reset before the response began: {code_name(code)}")
        self._fail(problem)

    def not_processed(self) -> None:
        """Connection: the stream is above the last one that a GOAWAY names.

        One whose response has begun was processed, whatever is said now: it must not be sent again.
        """
        if self.began:
            self._fail(ConnectionClosed("the connection was taken out of service before the response was complete"))
        else:
            self._fail(StreamRefused("the connection was taken out of service"))

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
        if self.deadline is not NEVER:
            self.deadline = NEVER
            self._connection.deadlines.remove(self)

    def expired(self) -> None:
        """The first byte of the response did not arrive in time (`Deadlines`)."""
        self._connection.deadlines.remove(self)
        if not self._timeout:
            self._fail(StreamRefused("the connection was closed"))
        elif self._sink is not None:
            self.reset(ErrorCode.CANCEL)
            self._fail(ResponseTimeout(f"no response within {self._timeout:g} s"))


def _wrong_length() -> HTTP2StreamError:
    return HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "malformed response: its body is not of its content-length")


def _framing_fields(head: RequestHead) -> bytes:
    """Return the fields of a request about its body as a block."""
    fields = b""
    if head.length != CHUNKED and (head.length or head.method in BODIED_METHODS):
        fields = b"content-length: %d\r\n" % head.length
    if head.expects_continue:
        fields += b"expect: 100-continue\r\n"
    if head.te_trailers:
        fields += b"te: trailers\r\n"
    return fields
