"""The sending half of an HTTP/2 connection: collects output for one write per turn of the reactor, and schedules DATA.

    H2Stream.send --(windows open, no stream waits)--> output --(end of the turn)--> transport
         '------(otherwise)--> `ready`: round robin, one frame of each stream --'
         '------(the stream's window is 0)--> waits outside of `ready` until a WINDOW_UPDATE

The waiting bytes are bounded: a stream with more than STREAM_HIGH is paused. Above CONNECTION_HIGH in total, all
streams that cannot send a frame at once are paused. Other streams never hold up a stream that can send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.interfaces import IPushProducer
from zope.interface import classImplements

from mcproxy.http.h2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADERS,
    MAX_FRAME,
    MAX_WINDOW,
    ErrorCode,
    HTTP2ConnectionError,
    header_frames,
)
from mcproxy.http.h2.h2_stream import H2Stream

if TYPE_CHECKING:
    from mcproxy.http.transport import Transport

#: Waiting bytes of all streams, above which those that cannot send are paused, and below which they are resumed.
CONNECTION_HIGH: Final = 256 * 1024
CONNECTION_LOW: Final = 128 * 1024
#: Waiting bytes of one stream above which it is paused, and up to which it is resumed.
STREAM_HIGH: Final = 64 * 1024
STREAM_LOW: Final = 16 * 1024
#: Output of more bytes than this is written to the transport before the end of the turn.
OUTPUT_HIGH: Final = 64 * 1024
#: Maximum of answers (SETTINGS, PING, RST_STREAM, WINDOW_UPDATE) in bytes that wait while the send buffer is full.
UNREAD_ANSWERS: Final = 64 * 1024

_pack: Final = HEADER.pack


class SenderOwner(Protocol):
    """The connection of a sender."""

    def answers_unread(self) -> None:
        """End the connection without a further frame, because the peer causes answers and does not read them."""

    def sender_backlogged(self) -> None:
        """Called when `queued` has risen above CONNECTION_HIGH."""


class FrameSender:
    """The sending half of a connection; `streams` are the connection's open streams."""

    __slots__ = (
        "_out",
        "_out_size",
        "_owner",
        "_scheduled",
        "_streams",
        "_unread_answers",
        "backlogged",
        "block_prefix",
        "blocked",
        "closed",
        "peer_stream_window",
        "queued",
        "ready",
        "send_window",
        "sent",
        "transport",
        "updates_paid",
    )
    __deletable__ = ("_owner",)  # `release` deletes it, which mypyc requires to be declared

    transport: Transport

    def __init__(self, owner: SenderOwner, streams: Mapping[int, H2Stream]) -> None:
        self._owner = owner
        self._streams = streams
        self.closed = False  # whether the connection has ended, so that it neither sends nor receives
        self.block_prefix = b""  # bytes with which the next header block must begin
        self.blocked = False  # the transport's send buffer is full: only answers are sent
        self.send_window = DEFAULT_WINDOW  # the connection's window for sending
        self.peer_stream_window = DEFAULT_WINDOW  # the peer's SETTINGS_INITIAL_WINDOW_SIZE
        self.ready: deque[H2Stream] = deque()  # streams with waiting bytes and an open window, in turn
        self.queued = 0  # waiting bytes of all streams' bodies
        self.backlogged = False  # `queued` has risen above CONNECTION_HIGH and not fallen below CONNECTION_LOW since
        self.sent = 0  # sent bytes of bodies
        self.updates_paid = 0  # WINDOW_UPDATEs and PINGs that are free of the budget, because sent DATA causes them
        self._out: list[bytes] = []
        self._out_size = 0
        self._scheduled = False
        self._unread_answers = 0

    # -- output -------------------------------------------------------------------------------------------------

    def write_frames(self, data: bytes) -> None:
        """Send frames at the end of this turn of the reactor, in order."""
        self._out.append(data)
        if not self._scheduled:
            self._scheduled = True
            self.transport.flush_later(self)

    def write_control(self, data: bytes) -> None:
        """Send a control frame; if the peer leaves too many unread, end the connection."""
        if self.blocked:
            self._unread_answers += len(data)
            if self._unread_answers > UNREAD_ANSWERS:
                self._owner.answers_unread()
                return
        self._out.append(data)
        if not self._scheduled:
            self._scheduled = True
            self.transport.flush_later(self)

    def write_headers(self, stream_id: int, block: bytes, flags: int) -> None:
        """Send a header block; `flags`: END_STREAM or 0."""
        if self.block_prefix:
            block, self.block_prefix = self.block_prefix + block, b""
        size = len(block)
        if size <= MAX_FRAME:
            self._out += (_pack(size << 8 | HEADERS, flags | END_HEADERS, stream_id), block)
        else:
            self._out.append(header_frames(stream_id, block, end_stream=bool(flags)))
        self._out_size += size
        if not self._scheduled:
            self._scheduled = True
            self.transport.flush_later(self)

    def write_data(self, stream: H2Stream, size: int, flags: int) -> None:
        """Send the next `size` added bytes of a stream in one frame; the windows must permit this."""
        out = self._out
        out.append(_pack(size << 8 | DATA, flags, stream.stream_id))
        if size:
            self.send_window -= size
            stream.send_window -= size
            self.sent += size
            self.updates_paid += 3 + (size >> 11)
            pieces = stream.pieces
            if size == stream.unsent and not stream.offset and pieces is not None:  # the usual case of `take`, inlined
                out += pieces
                stream.pieces = None
                stream.unsent = 0
            else:
                stream.take(size, out)
        self._out_size += size
        if not self._scheduled:
            self._scheduled = True
            self.transport.flush_later(self)
        elif self._out_size > OUTPUT_HIGH:
            self._flush()

    def can_send(self, stream: H2Stream, size: int) -> bool:
        """Whether `size` bytes can be sent on a stream at once: the windows permit this, and no stream waits."""
        return (
            size <= stream.send_window
            and size <= self.send_window
            and not self.blocked
            and not self.ready
            and not stream.unsent
        )

    def write_message(self, stream: H2Stream, block: bytes, body: bytes) -> None:
        """Send a header block, a body and END_STREAM. Each must fit into one frame; `can_send` must allow the body."""
        if self.block_prefix:
            block, self.block_prefix = self.block_prefix + block, b""
        size, stream_id = len(body), stream.stream_id
        self.send_window -= size
        self.sent += size
        self.updates_paid += 3 + (size >> 11)
        self._out += (
            _pack(len(block) << 8 | HEADERS, END_HEADERS, stream_id),
            block,
            _pack(size << 8 | DATA, END_STREAM, stream_id),
            body,
        )
        self._out_size += size
        if not self._scheduled:
            self._scheduled = True
            self.transport.flush_later(self)
        elif self._out_size > OUTPUT_HIGH:
            self._flush()

    def flush_coalesced(self) -> None:
        """Write the output at the end of the reactor's turn (`Transport.flush_later`)."""
        if self.ready and not self.blocked:
            self._send_ready()
        self._scheduled = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._out_size = 0
        self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def end(self, last_frame: bytes = b"") -> None:
        """Send the output and then `last_frame`, because the connection ends in an orderly way."""
        self.closed = True
        if last_frame:
            self._out.append(last_frame)
        if self._out:
            self._flush()

    def drop(self) -> None:
        """Drop the output, because the connection has been lost or aborted."""
        self.closed = True
        self._out = []

    def forget_streams(self) -> None:
        """Forget the streams, which have ended with the connection."""
        self.ready.clear()
        self.queued = 0
        self.backlogged = False

    def release(self) -> None:
        """Delete the reference to the closed connection, so that its memory is freed without the garbage collector."""
        self.drop()
        self.blocked = False
        del self._owner

    # -- IPushProducer: the transport's send buffer is full, or drained ---------------------------------------------

    def pauseProducing(self) -> None:
        self.blocked = True

    def resumeProducing(self) -> None:
        self.blocked = False
        self._unread_answers = 0
        if self.ready:
            self._schedule()
        if self.backlogged:
            self._resume_those_that_can_send()

    def stopProducing(self) -> None:
        """Do nothing: the transport is closed, and connectionLost follows."""

    # -- a stream's body ----------------------------------------------------------------------------------------

    def send(self, stream: H2Stream) -> None:
        """Send the added bytes of a stream now if the windows permit, otherwise in turn with other streams."""
        size = stream.unsent
        if (
            size > MAX_FRAME
            or size > stream.send_window
            or size > self.send_window
            or self.blocked
            or self.ready
            or stream.queued
        ):
            if not stream.send_closed:
                self._enqueue(stream)
            return
        if stream.send_closed:
            return
        if stream.pending_head:
            block, stream.pending_head = stream.pending_head, b""
            if stream.end_follows and not size and stream.trailer_block is None:
                stream.send_closed = True
                self.write_headers(stream.stream_id, block, END_STREAM)
                stream.sending_ended()
                return
            self.write_headers(stream.stream_id, block, 0)
        if stream.end_follows:
            stream.send_closed = True
            if stream.trailer_block is None:
                self.write_data(stream, size, END_STREAM)
            else:
                if size:
                    self.write_data(stream, size, 0)
                self.write_headers(stream.stream_id, stream.trailer_block, END_STREAM)
            stream.sending_ended()
        elif size:
            self.write_data(stream, size, 0)

    def finish(self, stream: H2Stream, trailer_block: bytes | None = None) -> None:
        """End a stream's body: send the added bytes, then any trailers, and END_STREAM."""
        stream.end_follows = True
        stream.trailer_block = trailer_block
        self.send(stream)

    # -- the streams that wait ----------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self.transport.flush_later(self)

    def _enqueue(self, stream: H2Stream) -> None:
        """Let a stream whose added bytes cannot be sent at once wait for its turn, or for its window."""
        grown = stream.unsent - stream.queued
        stream.queued += grown
        self.queued += grown
        self._make_ready(stream)
        stream.sending_waits()
        if self.queued > CONNECTION_HIGH and not self.backlogged:
            self.backlogged = True
            self._owner.sender_backlogged()
            for other in list(self._streams.values()):
                if not other.send_paused and not other.end_follows and not self._can_send_now(other):
                    self._pause(other)
        elif (
            not stream.send_paused
            and not stream.end_follows
            and (stream.queued > STREAM_HIGH or (self.backlogged and not self._can_send_now(stream)))
        ):
            self._pause(stream)

    def _make_ready(self, stream: H2Stream) -> None:
        if not stream.is_ready and (stream.send_window > 0 or not stream.unsent or stream.pending_head):
            stream.is_ready = True
            self.ready.append(stream)
            if not self.blocked:
                self._schedule()

    def _send_ready(self) -> None:
        """Send frames of the streams in turn, until no stream can send."""
        ready = self.ready
        waiting = 0  # number of successive streams that wait only for the connection's window
        while waiting < len(ready) and not self.blocked:
            stream = ready.popleft()
            stream.is_ready = False
            if self._send_frame(stream):
                waiting = 0
            if stream.send_closed:
                stream.sending_ended()
                continue
            if stream.unsent and stream.send_window > 0:
                stream.is_ready = True
                ready.append(stream)
                if self.send_window <= 0:
                    waiting += 1
            if (
                stream.send_paused
                and stream.queued <= STREAM_LOW
                and (not self.backlogged or self._can_send_now(stream))
            ):
                self._resume(stream)
        if self.backlogged and self.queued < CONNECTION_LOW:
            self._resume_all()

    def _send_frame(self, stream: H2Stream) -> bool:
        """Send the head that is held, and one frame of the body; return whether any frame was sent."""
        progress = False
        if stream.pending_head:
            block, stream.pending_head = stream.pending_head, b""
            progress = True
            if stream.end_follows and not stream.unsent and stream.trailer_block is None:
                stream.send_closed = True
                self.write_headers(stream.stream_id, block, END_STREAM)
                return True
            self.write_headers(stream.stream_id, block, 0)
        if stream.unsent:
            size = min(stream.unsent, MAX_FRAME, stream.send_window, self.send_window)
            if size <= 0:
                return progress
            last = stream.end_follows and size == stream.unsent and stream.trailer_block is None
            counted = min(size, stream.queued)  # `queued` does not yet count the bytes added after the last `send`
            self.queued -= counted
            stream.queued -= counted
            self.write_data(stream, size, END_STREAM if last else 0)
            stream.sending_proceeds()
            progress = True
            if last:
                stream.send_closed = True
        if stream.end_follows and not stream.unsent and not stream.send_closed:
            stream.send_closed = True
            if stream.trailer_block is not None:
                self.write_headers(stream.stream_id, stream.trailer_block, END_STREAM)
            else:
                self.write_data(stream, 0, END_STREAM)
            return True
        return progress

    # -- back-pressure ------------------------------------------------------------------------------------------

    def starts_paused(self, stream: H2Stream) -> bool:
        """Whether a new stream must wait before it adds bytes."""
        return self.backlogged and not self._can_send_now(stream)

    def _can_send_now(self, stream: H2Stream) -> bool:
        """Whether a stream could send a full frame now, or the most that the peer's initial window permits."""
        if stream.queued or self.blocked or self.send_window < MAX_FRAME:
            return False
        window = stream.send_window
        return window >= MAX_FRAME or (window > 0 and window >= self.peer_stream_window)

    def _pause(self, stream: H2Stream) -> None:
        stream.send_paused = True
        stream.pause_sending()

    def _resume(self, stream: H2Stream) -> None:
        stream.send_paused = False
        stream.resume_sending()

    def _resume_those_that_can_send(self) -> None:
        for stream in list(self._streams.values()):
            if stream.send_paused and self._can_send_now(stream):
                self._resume(stream)

    def discard_unsent(self, stream: H2Stream) -> None:
        """Drop the waiting bytes of a reset stream, and its turn."""
        self.queued -= stream.queued
        stream.queued = 0
        if stream.is_ready:  # removed now, because a client can open and reset many streams before its turn
            stream.is_ready = False
            self.ready.remove(stream)
        stream.drop()
        if self.backlogged and self.queued < CONNECTION_LOW:
            self._resume_all()

    def _resume_all(self) -> None:
        """Resume all streams except those with many waiting bytes, because few bytes are queued in total."""
        self.backlogged = False
        for stream in list(self._streams.values()):
            if stream.send_paused and stream.queued <= STREAM_LOW:
                self._resume(stream)

    # -- the peer's windows -------------------------------------------------------------------------------------

    def grow_connection_window(self, more: int) -> None:
        """Process a WINDOW_UPDATE of the connection. Raises HTTP2ConnectionError beyond 2^31-1."""
        self.send_window += more
        if self.send_window > MAX_WINDOW:
            raise HTTP2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1")
        if self.ready and not self.blocked:
            self._schedule()
        if self.backlogged:
            self._resume_those_that_can_send()

    def grow_stream_window(self, stream: H2Stream, more: int) -> bool:
        """Process a stream's WINDOW_UPDATE or a change of the initial size; return False beyond 2^31-1."""
        stream.send_window += more
        if stream.send_window > MAX_WINDOW:
            return False
        if stream.waiting:
            self._make_ready(stream)
        elif stream.send_paused and self.backlogged and self._can_send_now(stream):
            self._resume(stream)
        return True

    def set_peer_stream_window(self, size: int) -> None:
        """Apply the peer's SETTINGS_INITIAL_WINDOW_SIZE, also to open streams, even to below 0 (RFC 9113 6.9.2)."""
        more = size - self.peer_stream_window
        self.peer_stream_window = size
        if more:
            for stream in list(self._streams.values()):
                if not self.grow_stream_window(stream, more):
                    raise HTTP2ConnectionError(
                        ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a stream's window exceed 2^31-1"
                    )


classImplements(FrameSender, IPushProducer)
