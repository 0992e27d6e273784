"""One request and its response on a stream of an HTTP/2 connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from mcproxy.http.deadlines import NEVER
from mcproxy.http.exchange import LINGER, Exchange, ServerConnection
from mcproxy.http.h2.frames import MAX_FRAME, ErrorCode, HTTP2StreamError
from mcproxy.http.h2.h2_stream import STREAM_SLOTS, STREAM_WINDOW, H2Stream
from mcproxy.http.h2.heads import trailer_fields
from mcproxy.http.h2.hpack.encoder import content_length
from mcproxy.http.messages import Header, ProtocolError, RequestHead

if TYPE_CHECKING:
    from mcproxy.config.model import Limits
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.http.h2.frame_sender import FrameSender
    from mcproxy.http.h2.hpack.decoder import DecodedFields
    from mcproxy.http.h2.hpack.encoder import HPACKEncoder
    from mcproxy.http.h2.stream_table import StreamTable
    from mcproxy.http.tunnel import TunnelSide

_BODILESS = (204, 304)
#: Error codes of an upstream's RST_STREAM that concern the request; gRPC maps each one to a status.
_PASSED_ON = frozenset({ErrorCode.CANCEL, ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.INADEQUATE_SECURITY})


class H2ExchangeConnection(ServerConnection, Protocol):
    """The connection of an exchange (`h2_server.H2ServerConnection`)."""

    deadlines: Deadlines
    encoder: HPACKEncoder
    limits: Limits
    sender: FrameSender
    stream_window: ClassVar[int]  # the receive window of a stream
    table: StreamTable[H2Exchange]

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        ...

    @property
    def progress(self) -> int:
        """A number that changes when the client has read any bytes."""
        ...

    def reject(self, exchange: H2Exchange, problem: ProtocolError) -> None:
        """Respond to an invalid request, and cancel its handler."""

    def log_stream_error(self, cause: str) -> None:
        """Log that a stream was reset because of an error of the client."""


class H2Exchange(Exchange, H2Stream):
    """An exchange and its stream; after the exchange's end, the response can still wait for flow-control windows."""

    __slots__ = (
        *STREAM_SLOTS,
        "_body_left",
        "_connection",
        "_open_ended",
        "_progress",
        "_proceeded",
        "deadline",
        "watched",
    )

    protocol: ClassVar[str] = "HTTP/2.0"

    def __init__(
        self, connection: H2ExchangeConnection, stream_id: int, head: RequestHead, now: float, end_stream: bool
    ) -> None:
        Exchange.__init__(self, connection, head, now)
        self._connection = connection
        sender = connection.sender
        self.open_stream(stream_id, sender.peer_stream_window)
        window = connection.stream_window
        if window != STREAM_WINDOW:
            self.receive_window = self.receive_target = window
            self.receive_low = window >> 1
        self.send_paused = sender.backlogged and sender.starts_paused(self)  # `attach` then pauses the handler
        self.remote_closed = end_stream
        self._body_left = head.length  # bytes of the body still to arrive; negative if its length is not declared
        self._open_ended = False
        self.deadline = NEVER
        self.watched = False  # whether the Deadlines contain this exchange
        self._progress = 0  # the connection's `progress` when the client's deadline to read was set
        self._proceeded = False  # whether a part of the waiting bytes was sent since then

    # -- the request --------------------------------------------------------------------------------------------

    def set_long_running(self) -> None:
        self.long_running = True
        if self.watched:
            self.set_deadline()

    def set_open_ended(self) -> None:
        self._open_ended = True
        self.set_long_running()

    def data_received(self, data: bytes, end_stream: bool) -> None:
        if self.send_closed:
            return  # the exchange lingers
        size = len(data)
        left = self._body_left
        if left >= 0:
            left = self._body_left = left - size
            if left < 0 or (end_stream and left):
                raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA of another length than content-length")
        elif size:
            limit = self._connection.limits.body_bytes
            if limit and self.bytes_in + size > limit and not self.ended:
                self._connection.reject(self, ProtocolError(413, f"the request body is longer than {limit} bytes"))
                return
        if size:
            try:
                self.body_received(data)
            except ProtocolError as problem:
                self._connection.reject(self, problem)
                return
        if end_stream:
            self._request_ended([])
        else:
            self.set_deadline()

    def headers_received(self, fields: DecodedFields, end_stream: bool) -> None:
        if not end_stream:
            raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "a header block in the middle of a body")
        if self.send_closed:
            return
        if self._body_left > 0:
            raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA of another length than content-length")
        self._request_ended(trailer_fields(fields))

    def _request_ended(self, trailers: list[Header]) -> None:
        if self.watched:
            self.set_deadline()
        if self.head.length:
            self.body_finished(trailers)

    def pause_body(self) -> None:
        if not self.ended:
            self.pause_receiving()
            if self.watched:
                self.set_deadline()  # the client is not slow, unless it does not read its response

    def resume_body(self) -> None:
        if not self.ended and self.receive_paused:
            self._connection.table.resume_receiving(self)
            if self.watched:
                self.set_deadline()

    def receive_window_used(self) -> None:
        """Do nothing: the window of a request's body does not grow."""

    # -- the response -------------------------------------------------------------------------------------------

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        if not self.ended and not self.responded:
            connection = self._connection
            connection.sender.write_headers(self.stream_id, connection.encoder.response(status, fields), 0)

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        if self.ended:
            return
        self.responded = True
        self.status = status
        block = self._connection.encoder.response(status, fields)
        if length > 0:
            block += content_length(length)
        elif length == 0:
            if declared is not None:
                if status != 204:
                    block += content_length(declared)
            elif self.head.method != b"HEAD" and status not in _BODILESS:
                block += content_length(0)
        self.add_head(block)

    def write(self, data: bytes) -> None:
        if not self.ended and data:
            self.bytes_out += len(data)
            self.add(data)

    def write_shared(self, data: bytes, chunk: bytes) -> None:
        if not self.ended:
            self.bytes_out += len(data)
            self.add(data)
            self.flush()

    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        if not self.ended and size:
            self.bytes_out += size
            self.add_pieces(pieces, size)

    def flush(self) -> None:
        if self.responded and not self.ended:
            if not self.first_byte_at:
                self.first_byte_at = self._connection.seconds()
            self._connection.sender.send(self)

    def end(self, trailers: list[Header] | None = None) -> None:
        if self.ended:
            return
        connection = self._connection
        if not self.first_byte_at:
            self.first_byte_at = connection.seconds()
        self.completed = True
        block = connection.encoder.trailers(trailers) if trailers and self.head.te_trailers else None
        connection.sender.finish(self, block)
        self._finish()

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        if self.ended:
            return
        size = len(body)
        if self.head.method == b"HEAD":
            self.respond(status, reason, fields, 0, size)
            self.end()
            return
        connection = self._connection
        block = connection.encoder.response(status, fields)
        if size or status not in _BODILESS:
            block += content_length(size)
        self.responded = self.completed = True
        self.status = status
        self.bytes_out = size
        self.first_byte_at = connection.seconds()
        sender = connection.sender
        if size and size <= MAX_FRAME and len(block) < MAX_FRAME and sender.can_send(self, size):
            self.send_closed = True
            sender.write_message(self, block, body)
            self.sending_ended()
        else:
            self.add_head(block)
            if size:
                self.add(body)
            sender.finish(self)
        self._finish()

    def abort(self) -> None:
        """Reset the stream; the connection and its other streams stay open."""
        if not self.ended:
            self._finish()
            self._reset(ErrorCode.INTERNAL_ERROR)

    def abort_with(self, code: int | None) -> None:
        if not self.ended:
            self._finish()
            self._reset(code if code in _PASSED_ON else ErrorCode.INTERNAL_ERROR)

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        raise AssertionError("no request of HTTP/2 asks for an upgrade")

    @property
    def write_blocked(self) -> bool:
        return self.send_paused

    def pause_sending(self) -> None:
        if self.handler is not None:
            self.handler.pause_response()

    def resume_sending(self) -> None:
        if self.handler is not None:
            self.handler.resume_response()

    def sending_ended(self) -> None:
        if self.remote_closed:
            self._connection.table.remove(self)
        else:
            self.linger()

    # -- times --------------------------------------------------------------------------------------------------

    def set_deadline(self) -> None:
        """Set the client's deadline, to continue its body or else to read a part of its response."""
        connection, limits = self._connection, self._connection.limits
        if not self.remote_closed and not self.receive_paused and not self.ended:
            if self._open_ended:
                self.deadline = NEVER
                return
            self.deadline = connection.deadlines.after(
                limits.idle_timeout if self.long_running else limits.stall_timeout
            )
        elif self.waiting and (self.ended or not self.long_running):
            self._progress = connection.progress
            self._proceeded = False
            self.deadline = connection.deadlines.after(limits.stall_timeout)
        else:
            self.deadline = NEVER
            return
        self._watch()

    def linger(self) -> None:
        """Discard the rest of a request for a moment, because its response was sent before its end.

        Some clients read no response while they send, and treat a reset as the loss of the response.
        """
        self.deadline = self._connection.deadlines.after(LINGER)
        self._watch()

    def _watch(self) -> None:
        """Have `expired` called when the deadline has passed."""
        if not self.watched:
            self.watched = True
            if not self._connection.closed:
                self._connection.deadlines.add(self)

    def sending_waits(self) -> None:
        if self.deadline == NEVER and not self.long_running:
            self.set_deadline()

    def sending_proceeds(self) -> None:
        self._proceeded = True

    def expired(self) -> None:
        """End a stream whose client has missed its deadline (`Deadlines`)."""
        connection = self._connection
        if self.send_closed:
            self._reset(ErrorCode.NO_ERROR)  # the rest of the request is not needed (RFC 9113 8.1)
        elif not self.remote_closed and not self.receive_paused and not self.ended:
            self.stalled = True
            connection.reject(self, ProtocolError(408, "the request body stalled"))
        elif not self.waiting or (self.long_running and not self.ended):
            return
        elif self._proceeded or (
            # The stream does not wait for its own window, so it is not stalled while the client reads other bytes.
            (self.send_window > 0 or connection.sender.blocked) and connection.progress != self._progress
        ):
            self.set_deadline()
        else:
            self.stalled = True
            self.cancel()
            self._reset(ErrorCode.CANCEL)

    # -- the end ------------------------------------------------------------------------------------------------

    def reset_received(self, code: int) -> None:
        self.cancel()

    def stream_failed(self, code: int, cause: str) -> None:
        self._connection.log_stream_error(cause)
        self.cancel()

    def connection_ended(self, cause: str) -> None:
        if self.watched:
            self._connection.deadlines.remove(self)
        self.cancel()

    def _reset(self, code: int) -> None:
        """End the stream with RST_STREAM, and drop its waiting bytes."""
        self._connection.table.reset_stream(self, code)

    def _finish(self) -> None:
        Exchange._finish(self)
        if self.receive_paused:  # further data of the body is discarded
            self._connection.table.resume_receiving(self)
        if not self.send_closed:  # the rest of the response waits for the client
            self.set_deadline()
        self.head.fields = b""  # frees memory, because hundreds of streams can wait or linger
