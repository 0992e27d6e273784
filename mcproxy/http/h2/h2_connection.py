"""The base class of HTTP/2 connections of both sides (RFC 9113): reads frames, settings, PING, GOAWAY.

    bytes -> frames -> header blocks, assembled and decoded -> a stream's headers_received, data_received, ...
                  '-> SETTINGS, PING, WINDOW_UPDATE, GOAWAY: processed here

A connection has a `sender` (`frame_sender`: output and the flow control of sending) and a `table` of its streams
(`stream_table`: receiving, windows, resets). `h2_server.H2ServerConnection` and `h2_client.H2ClientConnection` are its
subclasses; their streams are subclasses of `H2Stream`. All input of a peer is bounded: header blocks in size, fields,
frames and time, control frames by a budget (`budgets`), bodies by windows, and unread answers by their size.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from mypy_extensions import mypyc_attr
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h2 import frames
from mcproxy.http.h2.budgets import ControlFrameBudget
from mcproxy.http.h2.frame_sender import FrameSender
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
    ErrorCode,
    Flood,
    HeaderBlock,
    HTTP2ConnectionError,
    HTTP2StreamError,
    check_ping,
    check_priority,
    goaway,
    goaway_fields,
    header_fragment,
    ping,
    reset_code,
    window_increment,
    window_update,
    without_padding,
)
from mcproxy.http.h2.h2_stream import H2Stream
from mcproxy.http.h2.hpack.decoder import MAX_EXCESS, TABLE_SIZE
from mcproxy.http.h2.hpack.encoder import NO_TABLE
from mcproxy.http.h2.keepalive import DEAD, PING_DUE, KeepAlive
from mcproxy.http.h2.stream_table import StreamTable

if TYPE_CHECKING:
    from mcproxy.http.h2.hpack.decoder import DecodedFields, HPACKDecoder
    from mcproxy.http.transport import Transport

S = TypeVar("S", bound=H2Stream)

_CHECK = 30.0  # maximum of seconds between two checks of a connection's times; `deadline` can be set earlier
_PING: Final = b"mcproxy\0"

_unpack: Final = HEADER.unpack_from
#: If END_HEADERS is the only one of these flags, the payload of HEADERS is a complete header block.
_PLAIN_HEADERS: Final = END_HEADERS | PADDED | PRIORITY_FLAG


@mypyc_attr(allow_interpreted_subclasses=True)
class H2Connection(Generic[S], metaclass=ABCMeta):
    """Base of both sides' connections."""

    __slots__ = (
        "_acknowledged",
        "_begin_timeout",
        "_block",
        "_budget",
        "_decoder",
        "_incomplete_until",
        "_keepalive",
        "_keeps_idle_alive",
        "_max_block",
        "_max_fields",
        "_pinged_at",
        "_preface",
        "_rest",
        "_settled",
        "deadline",
        "deadlines",
        "last_received",
        "peer_streams",
        "rtt",
        "seconds",
        "sender",
        "streams",
        "table",
        "transport",
    )

    transport: Transport
    #: Receive window of the connection, and maximum of held data of paused streams (bytes).
    connection_window: ClassVar[int] = 1024 * 1024
    held_limit: ClassVar[int] = 1024 * 1024

    def __init__(
        self,
        deadlines: Deadlines,
        decoder: HPACKDecoder,
        *,
        max_block: int,
        max_fields: int,
        begin_timeout: float,
        remembered_resets: int = 500,
    ) -> None:
        """`max_block` limits a header block (bytes, encoded and decoded), `max_fields` the number of its fields. A
        larger message is refused; the connection ends only for a block that exceeds its limit by MAX_EXCESS.

        The peer has `begin_timeout` seconds (0: no limit) for its preface and its acknowledgement of mcproxy's
        SETTINGS, and the same time for each header block. The last `remembered_resets` reset streams are remembered: a
        further frame of such a stream was in transit, or is an error of only that stream.
        """
        self.seconds = deadlines.seconds  # the clock
        now = self.seconds()
        self.streams: dict[int, S] = {}  # open and half-closed streams by id; the table adds and removes them
        self._budget = ControlFrameBudget(now)
        self.sender = FrameSender(self, self.streams)
        self.table = StreamTable[S](
            self,
            self.sender,
            self.streams,
            self._budget,
            self.seconds,
            connection_window=self.connection_window,
            held_limit=self.held_limit,
            remembered_resets=remembered_resets,
        )
        self.deadlines = deadlines
        self._decoder = decoder
        self._max_block = max_block
        self._max_fields = max_fields
        self._begin_timeout = begin_timeout
        self._preface = b""  # the part of the peer's preface that has not arrived yet
        self._rest = b""  # an incomplete frame: the received bytes of it
        self._settled = False  # the peer's first SETTINGS have arrived
        self._acknowledged = False  # the peer has acknowledged mcproxy's SETTINGS
        self._incomplete_until = NEVER  # deadline of the connection's beginning, then of an incomplete header block
        self._block: HeaderBlock | None = None  # a header block that awaits CONTINUATION
        self._keepalive = KeepAlive()
        self._keeps_idle_alive = False  # whether the peer is asked also while no stream is open
        self.deadline = NEVER
        self.last_received = now
        self._pinged_at = 0.0  # time of the oldest PING whose ACK has not arrived; 0: there is none
        self.rtt = 0.0  # the newest round trip of a PING (seconds); 0: none was measured
        self.peer_streams = MAX_STREAM_ID  # the peer's SETTINGS_MAX_CONCURRENT_STREAMS

    # -- for subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream that is not open is idle: the side that can open it has not done so yet."""

    @abstractmethod
    def was_opened(self, stream_id: int) -> bool:
        """Whether a stream that is neither open nor idle was once open; if not, its id was skipped."""

    @abstractmethod
    def stream_removed(self, stream: S) -> None:
        """Called when a stream has ended on both sides or was reset, after its removal from `streams`."""

    def reset_because_of_peer(self, stream_id: int) -> None:
        """Called when a stream was reset because of an error of the peer. May raise Flood."""

    def data_on_closed(self, stream_id: int, size: int) -> None:
        """Called for DATA on a stream that is closed. May raise Flood or HTTP2ConnectionError."""
        self.table.data_on_closed(stream_id, size)

    def sender_backlogged(self) -> None:
        """Called when many bytes wait to be sent (`FrameSender.queued`)."""

    @abstractmethod
    def new_stream(self, stream_id: int, fields: DecodedFields, end_stream: bool) -> None:
        """Called for HEADERS on an idle stream. May raise HTTP2ConnectionError, or HTTP2StreamError to reset it."""

    @abstractmethod
    def last_peer_stream(self) -> int:
        """Return the last stream of the peer that was or can be processed, for GOAWAY."""

    @abstractmethod
    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Called after GOAWAY: the peer processes no streams above `last_stream_id`."""

    @abstractmethod
    def failing(self, error: HTTP2ConnectionError) -> None:
        """Log and count an error of the peer, before the connection ends with GOAWAY."""

    @abstractmethod
    def ended(self, cause: str, clean: bool) -> None:
        """Called when the transport is closed, after the streams' `connection_ended`. `clean`: in an orderly way."""

    def peer_is_silent(self, cause: str) -> None:
        """Called before the connection is aborted because the peer does not answer."""

    def settings_received(self) -> None:
        """Called when the peer's settings have changed (`peer_streams`, ...)."""

    def read_done(self) -> None:
        """Called after all frames of one read were passed on."""

    def reset_by_peer(self, stream: S) -> None:
        """Called when the peer resets a stream that is still open. May raise Flood."""

    def times_checked(self, now: float) -> None:
        """Called periodically, at the latest after `deadline`; it can set `deadline` to an earlier time."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, so that it neither sends nor receives."""
        return self.sender.closed

    @property
    def settled(self) -> bool:
        """Whether the peer's first SETTINGS have arrived."""
        return self._settled

    def spend(self, kind: int, count: int = 1) -> None:
        """Count frames that have no content but cost work. Raises Flood."""
        self._budget.spend(kind, count, self.seconds)

    # -- the beginning and the end --------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = self.sender.transport = transport
        transport.registerProducer(self.sender, True)
        self._incomplete_until = self.deadlines.after(self._begin_timeout)
        self.deadline = min(self._incomplete_until, self.seconds() + _CHECK)
        self.deadlines.add(self)
        self.connectionMade()

    def connectionMade(self) -> None:
        """Send the beginning of the connection (`begin`); subclasses implement this."""

    def begin(self, announced: list[tuple[int, int]], preface: bytes = b"") -> None:
        """Send the beginning of a connection: the client's preface, SETTINGS, and the connection's window."""
        more = self.connection_window - DEFAULT_WINDOW
        self.table.receive_window += more
        self.sender.write_frames(preface + frames.encode_settings(announced) + window_update(0, more))

    def fail(self, error: HTTP2ConnectionError) -> None:
        """End the connection with GOAWAY because the peer has violated the protocol or a limit."""
        if not self.closed:
            self.failing(error)
            self.close(error.code, error.cause)

    def close(self, code: int, cause: str) -> None:
        """Send all output and GOAWAY, end all streams, and close."""
        if not self.closed:
            self.shut(cause, goaway(self.last_peer_stream(), code, cause.encode("ascii", "replace")))

    def shut(self, cause: str, last_frame: bytes = b"") -> None:
        """Send all output and close; no stream is open any more, and the peer knows that it must open none."""
        if not self.closed:
            self.deadline = NEVER
            self.sender.end(last_frame)
            self.transport.unregisterProducer()
            self.transport.loseConnection()
            self._end_streams(cause)

    def abort(self, cause: str) -> None:
        """Reset the connection, because the peer does not read or does not answer."""
        if self.closed:
            return
        self.deadline = NEVER
        self.sender.drop()
        self.transport.abortConnection()
        self._end_streams(cause)

    def answers_unread(self) -> None:
        self.failing(Flood("unread_answers", "answers to control frames are not read"))
        self.abort("answers to control frames are not read")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.sender.drop()
        self.deadline = NEVER
        self.deadlines.remove(self)
        clean = isinstance(reason.value, ConnectionDone)
        cause = "the connection was closed" if clean else "the connection was lost"
        self._end_streams(cause)
        self.ended(cause, clean)
        self.sender.release()
        self.table.release()

    def _end_streams(self, cause: str) -> None:
        self.table.end_all(cause)

    # -- frames -------------------------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        if self.sender.closed:
            return
        sender, table = self.sender, self.table
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
                    self._header_block_goes_on(self._block, kind, flags, stream_id, data[start:at])
                elif kind == DATA and self._settled:
                    # DATA is the most frequent frame, so it is handled inline; methods handle its rare cases.
                    stop = at
                    if flags & PADDED:
                        start, stop = without_padding(data, start, stop)
                    table.receive_window -= size
                    if table.receive_window * 2 < table.connection_window:
                        if table.receive_window < 0:
                            raise HTTP2ConnectionError(
                                ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window"
                            )
                        table.give_back_connection()
                    stream = streams.get(stream_id)
                    if stream is None or stream.remote_closed:
                        self.data_on_closed(stream_id, size)
                    else:
                        table.data_received(stream, data[start:stop], size, flags & END_STREAM)
                elif kind == HEADERS and self._settled:
                    if flags & _PLAIN_HEADERS == END_HEADERS and stream_id:
                        self._header_block(data[start:at], stream_id, flags)
                    else:
                        self._header_block_begins(flags, stream_id, data, start, at)
                else:
                    self._control(kind, flags, stream_id, data[start:at])
                if sender.closed:
                    return
        except HTTP2ConnectionError as error:
            self.fail(error)
            return
        if at < end:
            self._rest = data[at:] if at else data
            if end - at > 3 and data[at + 3] in (HEADERS, CONTINUATION):
                self._expect_completion()
        self.read_done()

    def _read_preface(self, data: bytes) -> int:
        """Check the client's preface (RFC 9113 3.4); return where it ends in `data`."""
        expected = self._preface
        size = min(len(data), len(expected))
        if data[:size] != expected[:size]:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no connection preface")
        self._preface = expected[size:]
        return size

    def _expect_completion(self) -> None:
        """Set the deadline for an incomplete header block or an incomplete beginning of the connection."""
        due = self.deadlines.after(self._begin_timeout)
        if due < self._incomplete_until:
            self._incomplete_until = due
            self.deadline = min(self.deadline, due)

    # -- header blocks --------------------------------------------------------------------------------------------

    def _header_block_begins(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        start, stop = header_fragment(flags, stream_id, data, start, stop)
        if flags & END_HEADERS:
            self._header_block(data[start:stop], stream_id, flags)
        else:
            self._block = HeaderBlock(stream_id, flags, data[start:stop], self._max_block + MAX_EXCESS)
            self._expect_completion()

    def _header_block_goes_on(self, block: HeaderBlock, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        complete = block.add(kind, flags, stream_id, payload)
        if complete is not None:
            self._block = None
            self._header_block(complete, stream_id, block.flags)

    def _header_block(self, block: bytes, stream_id: int, flags: int) -> None:
        """Decode a complete block even if it is unused, because the decoder's table depends on every block."""
        if self._acknowledged:
            self._incomplete_until = NEVER
        fields = self._decoder.decode(block, self._max_block, self._max_fields)
        end_stream = bool(flags & END_STREAM)
        stream = self.streams.get(stream_id)
        try:
            if stream is None:
                if self.is_idle(stream_id):
                    self.new_stream(stream_id, fields, end_stream)
                else:
                    self.spend(HEADERS)
                    self.table.frame_on_closed(stream_id, "HEADERS")
            elif stream.remote_closed:
                self.table.frame_on_closed(stream_id, "HEADERS")
            else:
                stream.remote_closed = end_stream
                stream.headers_received(fields, end_stream)
                if end_stream and stream.send_closed:
                    self.table.remove(stream)
        except HTTP2StreamError as error:
            self.table.stream_error(stream_id, error.code, error.cause)

    # -- the other frames -----------------------------------------------------------------------------------------

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
            if self.sender.updates_paid > 0:  # gRPC measures its bandwidth with PINGs (BDP), which sent DATA pays for
                self.sender.updates_paid -= 1
            else:
                self.spend(PING)
            check_ping(stream_id, payload)
            if not flags & ACK:
                self.sender.write_control(ping(payload, ack=True))
            elif self._pinged_at and payload == _PING:
                self.rtt = self.seconds() - self._pinged_at
                self._pinged_at = 0.0
        elif kind == GOAWAY:
            self.spend(GOAWAY)
            self.goaway_received(*goaway_fields(stream_id, payload))
        elif kind == PRIORITY:
            self._priority(stream_id, payload)
        elif kind in (PUSH_PROMISE, CONTINUATION):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} that may not come")
        else:
            self.spend(kind)  # unknown types are ignored (RFC 9113 4.1)

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        sender = self.sender
        if sender.updates_paid > 0:
            sender.updates_paid -= 1
        else:
            self.spend(WINDOW_UPDATE)
        more = window_increment(payload)
        if not stream_id:
            if not more:
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            sender.grow_connection_window(more)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.is_idle(stream_id):
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        elif not more:
            self.table.stream_error(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        elif not sender.grow_stream_window(stream, more):
            self.table.stream_error(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window exceeds 2^31-1")

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        self.spend(RST_STREAM)
        code = reset_code(payload)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.reset_by_peer(stream)
            self.table.remember_reset(stream_id, by_us=False)
            self.table.remove(stream)
            stream.reset_received(code)
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
        window = self.sender.peer_stream_window
        for identifier, value in frames.decode_settings(payload):
            if identifier == frames.INITIAL_WINDOW_SIZE:
                window = value
            elif identifier == frames.MAX_CONCURRENT_STREAMS:
                self.peer_streams = value
            elif identifier == frames.ENABLE_PUSH:
                self.push_setting_received(value)
            elif identifier == frames.HEADER_TABLE_SIZE and value < TABLE_SIZE:
                self.sender.block_prefix = NO_TABLE
            # MAX_FRAME_SIZE is ignored: mcproxy's frames have the minimum. MAX_HEADER_LIST_SIZE is only advisory.
        self.sender.set_peer_stream_window(window)  # only the last value: intermediate ones would not be observable
        self._settled = True
        self.sender.write_control(frames.SETTINGS_ACK)
        self.settings_received()

    def push_setting_received(self, value: int) -> None:
        """Ignore a client's SETTINGS_ENABLE_PUSH, because mcproxy never pushes."""

    def _priority(self, stream_id: int, payload: bytes) -> None:
        """Ignore priorities (RFC 9113 5.3.2), but reject malformed ones."""
        self.spend(PRIORITY)
        try:
            check_priority(stream_id, payload)
        except HTTP2StreamError as error:
            if stream_id in self.streams:
                self.table.stream_error(stream_id, error.code, error.cause)
            else:  # RST_STREAM is not allowed on an idle stream
                raise HTTP2ConnectionError(error.code, error.cause) from None

    # -- time ---------------------------------------------------------------------------------------------------

    def expired(self) -> None:
        """Check the times of the connection, because a deadline may have passed (`Deadlines`)."""
        if self.closed:
            return
        now = self.seconds()
        if now >= self._incomplete_until:
            self._too_late()
            return
        self.deadline = min(now + _CHECK, self._incomplete_until)
        if self.streams or self._keeps_idle_alive:
            state, due = self._keepalive.check(now, self.last_received)
            self.deadline = min(self.deadline, due)
            if state == PING_DUE:
                self._send_ping(now)
            elif state == DEAD:
                self.peer_is_silent("the peer does not answer a PING")
                self.abort("the peer does not answer a PING")
                return
        self.times_checked(now)

    def ask_peer(self) -> None:
        """Send a PING; the peer must send any bytes within the time of `keepalive`."""
        now = self.seconds()
        self.deadline = min(self.deadline, self._keepalive.ask(now))
        self._send_ping(now)

    def _send_ping(self, now: float) -> None:
        """Send a PING. Its ACK gives `rtt`, unless an earlier one is unanswered: ACKs come in the order of PINGs."""
        if not self._pinged_at:
            self._pinged_at = now
        self.sender.write_frames(ping(_PING))

    def keep_alive(self, after: float, timeout: float) -> None:
        """Send a PING after each `after` seconds without a byte, also while no stream is open; a peer that does not
        answer within `timeout` seconds is gone.
        """
        self._keepalive = KeepAlive(after, timeout)
        self._keeps_idle_alive = True
        self.deadline = min(self.deadline, self.seconds() + after)

    def _too_late(self) -> None:
        if not self._settled:
            self.fail(HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no SETTINGS in time"))
        elif self._block is not None or self._rest:
            self.fail(HTTP2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block took too long"))
        else:
            self.fail(HTTP2ConnectionError(ErrorCode.SETTINGS_TIMEOUT, "no acknowledgement of SETTINGS in time"))


classImplements(H2Connection, IProtocol)
