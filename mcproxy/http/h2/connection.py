"""One HTTP/2 connection, what both sides have in common (RFC 9113): frames, settings, flow control, PING, bounds.

    bytes -> frames -> header blocks, assembled and decoded -> a stream's headers_received, data_received, ...
                  '-> SETTINGS, PING, WINDOW_UPDATE, GOAWAY: here

`server.H2ServerConnection` and the client's connection derive from it; their streams derive from `stream.Stream`. What
it sends is in `sending`. Everything that a peer sends is bounded: a header block in size, fields, frames and time,
control frames by a budget (`budgets`), bodies by windows, answers that it does not read by their size.

The window of the connection is given back as frames arrive, so that a stream whose owner is slow holds no other; only
while `held_limit` bytes of paused streams are in memory the connection waits too.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h2 import settings
from mcproxy.http.h2.budgets import ControlFrameBudget
from mcproxy.http.h2.errors import ErrorCode, HTTP2ConnectionError, HTTP2StreamError
from mcproxy.http.h2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER,
    HEADER_SIZE,
    HEADERS,
    MAX_FRAME,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    goaway,
    ping,
    rst_stream,
    window_update,
)
from mcproxy.http.h2.sending import SendingConnection
from mcproxy.http.h2.stream import Stream

if TYPE_CHECKING:
    from mcproxy.http.h2.hpack.decoder import DecodedFields, Decoder

S = TypeVar("S", bound=Stream)

MAX_CONTINUATIONS = 8
"""CONTINUATION frames of one header block."""

PING_AFTER = 30.0
"""Seconds of silence, with streams open, after which the peer is asked whether it is there."""
PING_TIMEOUT = 15.0
"""Seconds that it has to send anything."""
_CHECK = 30.0  # seconds between two looks at a connection's times; any shorter time sets `deadline` itself
_PING = b"mcproxy\0"

_unpack = HEADER.unpack_from


class Flood(HTTP2ConnectionError):
    """An attack that only costs us work; `kind` is what it is counted as."""

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, cause)
        self.kind = kind


_FLOODS = {
    PRIORITY: "priority_flood",
    RST_STREAM: "reset_flood",
    SETTINGS: "settings_flood",
    PING: "ping_flood",
    GOAWAY: "goaway_flood",
    WINDOW_UPDATE: "window_update_flood",
    DATA: "empty_data_flood",
    HEADERS: "headers_flood",
}


@implementer(IProtocol, IPushProducer)
class Connection(SendingConnection[S]):
    """Base of both sides' connections."""

    __slots__ = (
        "_acknowledged",
        "_begin_timeout",
        "_block",
        "_block_flags",
        "_block_frames",
        "_block_size",
        "_block_stream",
        "_budget",
        "_deadlines",
        "_decoder",
        "_held",
        "_incomplete_until",
        "_max_block",
        "_max_fields",
        "_pinged_at",
        "_preface",
        "_receive_window",
        "_remembered_resets",
        "_resets",
        "_rest",
        "_settled",
        "deadline",
        "last_received",
        "peer_header_list",
        "peer_streams",
        "seconds",
    )

    #: Receive windows (bytes): of each stream, of the connection, and how much of paused streams may be in memory.
    stream_window = 64 * 1024
    connection_window = 1024 * 1024
    held_limit = 1024 * 1024

    def __init__(
        self,
        deadlines: Deadlines,
        decoder: Decoder,
        *,
        max_block: int,
        max_fields: int,
        begin_timeout: float,
        remembered_resets: int = 500,
    ) -> None:
        """`max_block` bounds a header block, encoded and decoded (bytes), `max_fields` the fields in it.

        The peer has `begin_timeout` seconds (0: no limit) for what a connection begins with, up to the acknowledgement
        of our SETTINGS, and for each header block. The last `remembered_resets` streams that were reset are remembered:
        what arrives on them was on its way, or is an error of that stream alone.
        """
        super().__init__()
        self.seconds = deadlines.seconds  # the clock
        self._deadlines = deadlines
        self._decoder = decoder
        self._max_block = max_block
        self._max_fields = max_fields
        self._begin_timeout = begin_timeout
        now = self.seconds()
        self._budget = ControlFrameBudget(now)
        self._preface = b""  # what must come before the first frame, as far as it has not come yet
        self._rest = b""  # the beginning of a frame
        self._settled = False  # the peer's first SETTINGS have arrived
        self._acknowledged = False  # ours were acknowledged
        self._incomplete_until = NEVER  # deadline of the beginning, then of the header block in progress
        self._block: list[bytes] | None = None  # fragments of a header block whose CONTINUATION is to come
        self._block_stream = self._block_flags = self._block_frames = self._block_size = 0
        self._receive_window = DEFAULT_WINDOW
        self._held = 0  # bytes of paused streams' bodies
        self._remembered_resets = remembered_resets
        self._resets: dict[int, bool] = {}  # streams that were reset lately, True: by us
        self._pinged_at = 0.0  # the time of a PING of ours that nothing has followed, 0: none
        self.deadline = NEVER
        self.last_received = now
        self.peer_streams = MAX_STREAM_ID  # the peer's SETTINGS_MAX_CONCURRENT_STREAMS
        self.peer_header_list = MAX_STREAM_ID  # the peer's SETTINGS_MAX_HEADER_LIST_SIZE

    # -- for subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream that is not open has not been opened yet by the side that may."""

    @abstractmethod
    def was_opened(self, stream_id: int) -> bool:
        """Whether a stream that is neither open nor idle was open once; if not, its id was skipped."""

    @abstractmethod
    def new_stream(self, stream_id: int, fields: DecodedFields, end_stream: bool) -> None:
        """HEADERS on an idle stream. May raise HTTP2ConnectionError, or HTTP2StreamError to reset it."""

    @abstractmethod
    def last_peer_stream(self) -> int:
        """The last stream of the peer that was or may be processed, for GOAWAY."""

    @abstractmethod
    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer processes no streams of ours above `last_stream_id`."""

    @abstractmethod
    def stream_removed(self, stream: S) -> None:
        """A stream has ended on both sides or was reset, and is not in `streams` any more."""

    @abstractmethod
    def failing(self, error: HTTP2ConnectionError) -> None:
        """The connection is about to end with GOAWAY because of the peer: log, count."""

    @abstractmethod
    def ended(self, cause: str, clean: bool) -> None:
        """The transport is closed; the streams were told. `clean`: in an orderly way."""

    def settings_received(self) -> None:
        """The peer's settings have changed (`peer_streams`, ...)."""

    def read_done(self) -> None:
        """All frames of one read were handed on."""

    def reset_by_peer(self, stream: S) -> None:
        """The peer has reset an open stream. May raise Flood."""

    def reset_because_of_peer(self, stream_id: int) -> None:
        """An error of the peer made us reset a stream. May raise Flood."""

    def times_checked(self, now: float) -> None:
        """Called now and then, at the latest when `deadline` has passed; `deadline` may be set to an earlier time."""

    # -- the beginning and the end --------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        transport.registerProducer(self, True)
        self._incomplete_until = self._deadlines.after(self._begin_timeout)
        self.deadline = min(self._incomplete_until, self.seconds() + _CHECK)
        self._deadlines.add(self)
        self.connectionMade()

    def connectionMade(self) -> None:
        """For subclasses: send what the connection begins with (`begin`)."""

    def begin(self, announced: list[tuple[int, int]], preface: bytes = b"") -> None:
        """Send what a connection begins with: the client's preface, our SETTINGS, the window of the connection."""
        more = self.connection_window - DEFAULT_WINDOW
        self._receive_window += more
        self.put(preface + settings.encode(announced) + window_update(0, more))

    def fail(self, error: HTTP2ConnectionError) -> None:
        """End the connection with GOAWAY because the peer has violated the protocol or a bound."""
        if not self.closed:
            self.failing(error)
            self.close(error.code, error.cause)

    def close(self, code: int, cause: str) -> None:
        """Send GOAWAY and what was put before it, end all streams, close."""
        if not self.closed:
            self._out.append(goaway(self.last_peer_stream(), code, cause.encode("ascii", "replace")))
            self.shut(cause)

    def shut(self, cause: str) -> None:
        """Send what was put and close: nothing is open any more, and the peer knows that nothing may be."""
        if not self.closed:
            self.closed = True
            self.deadline = NEVER
            if self._out:
                self._write_out()
            self.transport.unregisterProducer()
            self.transport.loseConnection()
            self._end_streams(cause)

    def abort(self, cause: str) -> None:
        """Reset the connection: the peer does not read, or is not there."""
        if self.closed:
            return
        self.closed = True
        self.deadline = NEVER
        self._out = []
        self.transport.abortConnection()
        self._end_streams(cause)

    def answers_unread(self) -> None:
        self.failing(Flood("unread_answers", "answers to control frames are not read"))
        self.abort("answers to control frames are not read")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.closed = True
        self.deadline = NEVER
        self._deadlines.remove(self)
        clean = isinstance(reason.value, ConnectionDone)
        cause = "the connection was closed" if clean else "the connection was lost"
        self._end_streams(cause)
        self._out = []
        self.ended(cause, clean)

    def _end_streams(self, cause: str) -> None:
        streams, self.streams = self.streams, {}
        self.turns.clear()
        for stream in streams.values():
            stream.drop()
            stream.connection_ended(cause)

    # -- frames -------------------------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        if self.closed:
            return
        self.last_received = self.seconds()
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        try:
            if self._preface:
                at = self._read_preface(data)
            streams = self.streams
            while end - at >= HEADER_SIZE:
                kind, flags, stream_id = _unpack(data, at)
                size = kind >> 8
                start = at + HEADER_SIZE
                at = start + size
                if size > MAX_FRAME:
                    raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                if at > end:
                    at = start - HEADER_SIZE
                    break
                kind &= 0xFF
                stream_id &= MAX_STREAM_ID
                if self._block is not None:
                    self._continue_block(kind, flags, stream_id, data[start:at])
                elif kind == DATA and self._settled:
                    # The most frequent frame; what is rare about it is in methods.
                    stop = at
                    if flags & PADDED:
                        start, stop = _without_padding(data, start, stop)
                    self._receive_window -= size
                    if self._receive_window * 2 < self.connection_window:
                        self._give_back_connection()
                    stream = streams.get(stream_id)
                    if stream is None or stream.remote_closed:
                        self._data_on_closed(stream_id, size)
                    else:
                        self._data(stream, data[start:stop], size, flags & END_STREAM)
                elif kind == HEADERS and self._settled:
                    self._header_block_begins(flags, stream_id, data, start, at)
                else:
                    self._control(kind, flags, stream_id, data[start:at])
                if self.closed:
                    return
        except HTTP2ConnectionError as error:
            self.fail(error)
            return
        if at < end:
            self._rest = data[at:] if at else data
            if self._incomplete_until is NEVER and end - at > 3 and data[at + 3] in (HEADERS, CONTINUATION):
                self._expect_completion()
        self.read_done()

    def _read_preface(self, data: bytes) -> int:
        """Compare what a client sends first (RFC 9113 3.4); return where it ends in `data`."""
        expected = self._preface
        size = min(len(data), len(expected))
        if data[:size] != expected[:size]:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no connection preface")
        self._preface = expected[size:]
        return size

    def _expect_completion(self) -> None:
        """A header block is incomplete: its time runs."""
        due = self._incomplete_until = self._deadlines.after(self._begin_timeout)
        if due < self.deadline:
            self.deadline = due

    # -- DATA ---------------------------------------------------------------------------------------------------

    def _data(self, stream: S, data: bytes, size: int, end_stream: int) -> None:
        """DATA on an open stream; `size` is what it takes of the windows, with padding."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            self.stream_error(stream.stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
            return
        if end_stream:
            stream.remote_closed = True
        elif not data:
            self.spend(DATA)
        try:
            stream.data_received(data, bool(end_stream))
        except HTTP2StreamError as error:
            self.stream_error(stream.stream_id, error.code, error.cause)
            return
        if stream.receive_paused:
            if stream.stream_id in self.streams:
                stream.held += size
                self._held += size
        elif not end_stream and stream.receive_window * 2 < self.stream_window:
            self._give_back_stream(stream)
        if end_stream and stream.send_closed:
            self.remove(stream)

    def _data_on_closed(self, stream_id: int, size: int) -> None:
        if size < 1024:  # larger ones may have been on their way, and cost less than their sender pays
            self.spend(DATA)
        self._frame_on_closed(stream_id, "DATA")

    def _frame_on_closed(self, stream_id: int, name: str) -> None:
        """DATA or HEADERS where none may come (RFC 9113 5.1); ignored after our own RST_STREAM."""
        if stream_id in self.streams:  # half-closed (remote)
            self.stream_error(stream_id, ErrorCode.STREAM_CLOSED, f"{name} behind the end of a stream")
            return
        if not stream_id or self.is_idle(stream_id):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on an idle stream")
        by_us = self._resets.get(stream_id)
        if by_us is None:
            if not self.was_opened(stream_id):
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on a stream whose id was skipped")
            raise HTTP2ConnectionError(ErrorCode.STREAM_CLOSED, f"{name} on a closed stream")
        if not by_us:
            self.stream_error(stream_id, ErrorCode.STREAM_CLOSED, f"{name} behind RST_STREAM")

    # -- header blocks --------------------------------------------------------------------------------------------

    def _header_block_begins(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if not stream_id:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        if flags & (PADDED | PRIORITY_FLAG):
            if flags & PADDED:
                start, stop = _without_padding(data, start, stop)
            if flags & PRIORITY_FLAG:
                if stop - start < 5:
                    raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
                if int.from_bytes(data[start : start + 4], "big") & MAX_STREAM_ID == stream_id:
                    raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
                start += 5
        if flags & END_HEADERS:
            self._header_block(data[start:stop], stream_id, flags)
            return
        self._block = [data[start:stop]]
        self._block_size = stop - start
        self._block_stream, self._block_flags, self._block_frames = stream_id, flags, 0
        self._expect_completion()

    def _continue_block(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind != CONTINUATION or stream_id != self._block_stream:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        assert self._block is not None
        self._block_frames += 1
        self._block_size += len(payload)
        if self._block_frames > MAX_CONTINUATIONS:
            raise Flood("continuation_flood", f"a header block of more than {MAX_CONTINUATIONS} CONTINUATION frames")
        self._block.append(payload)
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._header_block(block, stream_id, self._block_flags)
        elif self._block_size > self._max_block:
            raise Flood("continuation_flood", f"a header block of more than {self._max_block} bytes")

    def _header_block(self, block: bytes, stream_id: int, flags: int) -> None:
        """Decode a complete block, whatever becomes of it: the decoder's table depends on each."""
        self._incomplete_until = NEVER if self._acknowledged else self._incomplete_until
        if len(block) > self._max_block:
            raise Flood("large_header_block", f"a header block of more than {self._max_block} bytes")
        fields = self._decoder.decode(block, self._max_block, self._max_fields)
        end_stream = bool(flags & END_STREAM)
        stream = self.streams.get(stream_id)
        try:
            if stream is None:
                if self.is_idle(stream_id):
                    self.new_stream(stream_id, fields, end_stream)
                else:
                    self.spend(HEADERS)
                    self._frame_on_closed(stream_id, "HEADERS")
            elif stream.remote_closed:
                self._frame_on_closed(stream_id, "HEADERS")
            else:
                stream.remote_closed = end_stream
                stream.headers_received(fields, end_stream)
                if end_stream and stream.send_closed:
                    self.remove(stream)
        except HTTP2StreamError as error:
            self.stream_error(stream_id, error.code, error.cause)

    # -- the other frames -----------------------------------------------------------------------------------------

    def spend(self, kind: int, count: int = 1) -> None:
        """Count frames that cost us something and carry nothing. Raises Flood."""
        if not self._budget.spend(count, self.seconds):
            raise Flood(_FLOODS.get(kind, "unknown_frame_flood"), "too many frames that carry nothing")

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._settled and (kind != SETTINGS or flags & ACK):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == RST_STREAM:
            self._rst_stream(stream_id, payload)
        elif kind == SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == PING:
            self.spend(PING)
            if stream_id:
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
            if len(payload) != 8:
                raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
            if not flags & ACK:
                self.put_answer(ping(payload, ack=True))
        elif kind == GOAWAY:
            self.spend(GOAWAY)
            if stream_id:
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
            last = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
            self.goaway_received(last, int.from_bytes(payload[4:8], "big"), payload[8:])
        elif kind == PRIORITY:
            self._priority(stream_id, payload)
        elif kind in (PUSH_PROMISE, CONTINUATION):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} that may not come")
        else:
            self.spend(kind)  # unknown types are ignored (RFC 9113 4.1)

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if self.updates_paid > 0:
            self.updates_paid -= 1
        else:
            self.spend(WINDOW_UPDATE)
        if len(payload) != 4:
            raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        more = int.from_bytes(payload, "big") & MAX_STREAM_ID
        if not stream_id:
            if not more:
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.connection_window_grows(more)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.is_idle(stream_id):
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        elif not more:
            self.stream_error(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        elif not self.stream_window_grows(stream, more):
            self.stream_error(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window exceeds 2^31-1")

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        self.spend(RST_STREAM)
        if len(payload) != 4:
            raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._remember_reset(stream_id, by_us=False)
            self.remove(stream)
            stream.reset_received(int.from_bytes(payload, "big"))
            self.reset_by_peer(stream)
        elif not stream_id or self.is_idle(stream_id):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on an idle stream")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            if self._acknowledged:
                self.spend(SETTINGS)
            else:
                self._acknowledged = True
                self._incomplete_until = NEVER
            return
        self.spend(SETTINGS, 1 + len(payload) // 6)
        window = self.peer_stream_window
        for identifier, value in settings.decode(payload):
            if identifier == settings.INITIAL_WINDOW_SIZE:
                window = value
            elif identifier == settings.MAX_CONCURRENT_STREAMS:
                self.peer_streams = value
            elif identifier == settings.MAX_HEADER_LIST_SIZE:
                self.peer_header_list = value
            elif identifier == settings.ENABLE_PUSH:
                self.push_setting_received(value)
            # HEADER_TABLE_SIZE: our encoder enters nothing into the peer's table. MAX_FRAME_SIZE: ours are the least.
        self.initial_window_changes(window)  # the last value counts; changes between would not be observable
        self._settled = True
        self.put_answer(settings.ACKNOWLEDGEMENT)
        self.settings_received()

    def push_setting_received(self, value: int) -> None:
        """SETTINGS_ENABLE_PUSH. A client's is ignored: this is no server that pushes."""

    def _priority(self, stream_id: int, payload: bytes) -> None:
        """Priorities are ignored (RFC 9113 5.3.2), but not malformed ones."""
        self.spend(PRIORITY)
        if not stream_id:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            code, cause = ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes"
        elif int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
            code, cause = ErrorCode.PROTOCOL_ERROR, "a stream depends on itself"
        else:
            return
        if stream_id in self.streams:
            self.stream_error(stream_id, code, cause)
        else:  # RST_STREAM is not allowed on an idle stream
            raise HTTP2ConnectionError(code, cause)

    # -- the end of streams ---------------------------------------------------------------------------------------

    def stream_error(self, stream_id: int, code: int, cause: str) -> None:
        """End a stream because of an error of the peer (RFC 9113 5.4.2). Raises Flood."""
        stream = self.streams.get(stream_id)
        self._remember_reset(stream_id, by_us=True)
        self.put_answer(rst_stream(stream_id, code))
        if stream is not None:
            self.remove(stream)
            stream.stream_failed(code, cause)
        self.reset_because_of_peer(stream_id)

    def reset_stream(self, stream: S, code: int) -> None:
        """End an open stream for a reason of our own."""
        if self.streams.get(stream.stream_id) is stream:
            self._remember_reset(stream.stream_id, by_us=True)
            self.put_answer(rst_stream(stream.stream_id, code))
            self.remove(stream)

    def remove(self, stream: S) -> None:
        """Forget a stream that has ended on both sides or was reset."""
        if self.streams.pop(stream.stream_id, None) is None:
            return
        if stream.held:
            self._held -= stream.held
            stream.held = 0
            self._give_back_connection()
        self.forget_unsent(stream)
        self.stream_removed(stream)

    def _remember_reset(self, stream_id: int, *, by_us: bool) -> None:
        resets = self._resets
        resets[stream_id] = by_us
        if len(resets) > self._remembered_resets:
            del resets[next(iter(resets))]

    # -- receive windows ------------------------------------------------------------------------------------------

    def give_back(self, stream: Stream) -> None:
        """A stream that was paused is read again."""
        if stream.held:
            self._held -= stream.held
            stream.held = 0
            self._give_back_connection()
        if not stream.remote_closed and not self.closed and stream.receive_window * 2 < self.stream_window:
            self._give_back_stream(stream)

    def _give_back_stream(self, stream: Stream) -> None:
        if stream.stream_id in self.streams:
            self.put_answer(window_update(stream.stream_id, self.stream_window - stream.receive_window))
            stream.receive_window = self.stream_window

    def _give_back_connection(self) -> None:
        window = self._receive_window
        if window < 0:
            raise HTTP2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        if window * 2 < self.connection_window and self._held < self.held_limit and not self.closed:
            self.put_answer(window_update(0, self.connection_window - window))
            self._receive_window = self.connection_window

    # -- time ---------------------------------------------------------------------------------------------------

    def expired(self) -> None:
        """A time may have passed (`Deadlines`)."""
        if self.closed:
            return
        now = self.seconds()
        if now >= self._incomplete_until:
            self._too_late()
            return
        self.deadline = min(now + _CHECK, self._incomplete_until)
        if self.streams and self._peer_is_dead(now):
            self.failing(HTTP2ConnectionError(ErrorCode.NO_ERROR, "the peer does not answer a PING"))
            self.abort("the peer does not answer a PING")
            return
        self.times_checked(now)

    def _too_late(self) -> None:
        if not self._settled:
            self.fail(HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no SETTINGS in time"))
        elif self._block is not None or self._rest:
            self.fail(HTTP2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block took too long"))
        else:
            self.fail(HTTP2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no acknowledgement of SETTINGS in time"))

    def _peer_is_dead(self, now: float) -> bool:
        """Ask a silent peer with PING; return whether one that was asked has sent nothing since."""
        if self._pinged_at:
            if self.last_received < self._pinged_at:
                if now - self._pinged_at >= PING_TIMEOUT:
                    return True
                self.deadline = min(self.deadline, self._pinged_at + PING_TIMEOUT)
                return False
            self._pinged_at = 0.0
        due = self.last_received + PING_AFTER
        if now >= due:
            self._pinged_at = now
            self.put(ping(_PING))
            due = now + PING_TIMEOUT
        self.deadline = min(self.deadline, due)
        return False


def _without_padding(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return the bounds of a payload without its padding (RFC 9113 6.1)."""
    if start == stop:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
    if data[start] >= stop - start:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return start + 1, stop - data[start]
