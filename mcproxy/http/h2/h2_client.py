"""The HTTP/2 client engine: a connection to an upstream that many requests share, each a stream (`h2_client_stream`).

An `H2Pool` opens streams on a connection while the connection is `usable`: until GOAWAY, an error, its loss, or until
the pool retires it. Open streams then continue, except those that the upstream has not processed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Protocol

from mypy_extensions import mypyc_attr

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h2 import frames
from mcproxy.http.h2.frames import MAX_STREAM_ID, PREFACE, ErrorCode, HTTP2ConnectionError, code_name
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.http.h2.h2_connection import H2Connection
from mcproxy.http.h2.h2_stream import STREAM_WINDOW
from mcproxy.http.h2.hpack.decoder import DecodedFields, HPACKDecoder, Representations
from mcproxy.http.h2.hpack.encoder import HPACKEncoder
from mcproxy.http.messages import Header

#: Limits of a response head: bytes (encoded and decoded) and number of fields.
MAX_HEAD: Final = 256 * 1024
MAX_FIELDS: Final = 2000
#: Maximum of streams of a connection, even if the upstream permits more.
MAX_STREAMS: Final = 1000
#: Timeout in seconds for the upstream's SETTINGS and its acknowledgement, and for a header block.
BEGIN_TIMEOUT: Final = 15.0
#: Seconds for which no stream is opened after the upstream has refused one.
REFUSING: Final = 1.0

#: Maximum of resets on a connection within RESETS_PERIOD (seconds); then it accepts no more streams. Servers end a
#: connection after rapid resets (CVE-2023-44487): nghttp2 after 1,000 at once, then 33 a second; Envoy after 500
#: streams if half of them were reset; Go's server when 1,000 handlers have not begun yet.
MOST_RESETS: Final = 200
RESETS_PERIOD: Final = 30.0

#: Maximum of logged characters of a GOAWAY's debug data.
MAX_DEBUG: Final = 100
#: Maximum of bytes presumed in transit on reset streams; a DATA frame counts as at least LEAST_FRAME of these bytes.
MOST_LATE: Final = 64 * 1024 * 1024
LEAST_FRAME: Final = 16

#: Receive windows in bytes: of the connection; of a stream whose client keeps up; and the maximum by which all streams
#: of a connection together exceed their initial windows.
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
LARGEST_WINDOW: Final = 4 * 1024 * 1024
EXTRA_WINDOWS: Final = 16 * 1024 * 1024
#: A window grows by this factor if half of it (a quarter, once it has grown) arrives within FAST seconds.
GROWTH: Final = 4
FAST: Final = 0.5

_ANNOUNCED = [
    (frames.ENABLE_PUSH, 0),
    (frames.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
]


class H2ConnectionOwner(Protocol):
    """The pool of a connection (`h2_pool.H2Pool`)."""

    presumed_limit: int  # streams of a connection before the upstream's SETTINGS

    @property
    def waits(self) -> bool:
        """Whether a request waits for a stream."""
        ...

    def room(self, connection: H2ClientConnection) -> None:
        """Called when a connection has room again: when its last stream has ended, or while a request waits."""

    def limit_announced(self, connection: H2ClientConnection) -> None:
        """Called when the upstream has announced its maximum of streams; `limit` is set."""

    def connection_unusable(self, connection: H2ClientConnection) -> None:
        """Called once, when a connection accepts no further stream."""

    def connection_ended(self, connection: H2ClientConnection) -> None:
        """Called once, when a connection is closed, after `connection_unusable`."""


class H2ClientResources:
    """The state that the connections of a pool share."""

    __slots__ = ("encoder", "most_head", "remembered", "sends_trailers")

    def __init__(self, *, most_head: int = MAX_HEAD, sends_trailers: bool = False) -> None:
        self.encoder = HPACKEncoder()
        self.remembered = Representations()
        self.most_head = most_head  # maximum of bytes of a response's head
        self.sends_trailers = sends_trailers  # for requests; False after trailers may have ended a connection


@mypyc_attr(allow_interpreted_subclasses=True)
class H2ClientConnection(H2Connection[H2ClientStream]):
    """One HTTP/2 connection to an upstream."""

    __slots__ = (
        "_extra",
        "_last_id",
        "_late",
        "_limit_changed",
        "_owner",
        "_refusing_until",
        "_resets_made",
        "_resets_since",
        "_resources",
        "_trailers_sent",
        "_violated",
        "encoder",
        "idle_until",
        "lasting",
        "limit",
        "scheme",
        "stalled",
        "touched",
        "usable",
    )

    connection_window: ClassVar[int] = CONNECTION_WINDOW
    held_limit: ClassVar[int] = 2**31  # no limit, because each stream's window bounds its held bytes

    def __init__(
        self,
        owner: H2ConnectionOwner,
        deadlines: Deadlines,
        resources: H2ClientResources,
        violated: Callable[[str], None],
    ) -> None:
        """`violated(cause)` is called if the connection ends because of the upstream's behaviour."""
        super().__init__(
            deadlines,
            HPACKDecoder(resources.remembered),
            max_block=resources.most_head,
            max_fields=MAX_FIELDS,
            begin_timeout=BEGIN_TIMEOUT,
            remembered_resets=MAX_STREAMS + MOST_RESETS,
        )
        self._owner = owner
        self._violated = violated
        self._resources = resources
        self._trailers_sent = False
        self._limit_changed = False
        self._late = 0  # bytes that the upstream may have sent on streams before it received their resets
        self._resets_made = 0  # number of resets since `_resets_since`
        self._resets_since = self.last_received
        self._last_id = -1  # id of the last opened stream
        self._extra = EXTRA_WINDOWS  # bytes by which windows may still grow
        self.encoder = resources.encoder
        self.scheme = b"https"
        self.usable = True  # whether the connection accepts new streams
        self.limit = owner.presumed_limit  # maximum of concurrent streams
        self.lasting = 0  # number of streams whose response is expected to last
        self.stalled = 0  # number of streams whose client reads slowly
        self._refusing_until = NEVER  # after a refused stream: time before which no stream is opened
        self.idle_until = NEVER  # time at which a connection without streams is closed
        self.touched: list[H2ClientStream] = []  # streams with frames in the read that is being processed

    def connectionMade(self) -> None:
        if not self.transport.is_tls:
            self.scheme = b"http"
        most_head = self._resources.most_head
        self.begin([*_ANNOUNCED, (frames.MAX_HEADER_LIST_SIZE, most_head)], PREFACE)

    # -- streams ------------------------------------------------------------------------------------------------

    def new_request(self, lasting: bool) -> H2ClientStream:
        """Return a stream for a request; it is opened when the request is sent."""
        return H2ClientStream(self, lasting)

    def sibling(self, stream: H2ClientStream) -> H2ClientStream | None:
        """Return a stream for another request in addition to an open one; None if the connection has no room."""
        if self.closed or not self.usable or self.streams.get(stream.stream_id) is not stream:
            return None
        return self.new_request(lasting=False) if len(self.streams) < self.limit else None

    def begin_stream(self, stream: H2ClientStream) -> bool:
        """Open a stream, on which a request is sent next; return False if the connection has ended meanwhile."""
        if self.sender.closed or self._last_id >= MAX_STREAM_ID - 2:
            stream.open_stream(0, 0)
            stream.send_closed = True
            return False
        self._last_id = stream_id = self._last_id + 2
        stream.open_stream(stream_id, self.sender.peer_stream_window)
        self.streams[stream_id] = stream
        self._budget.stream_begun()
        if stream.lasting:
            self.lasting += 1
        if stream_id > MAX_STREAM_ID - 4:
            self.retire()
        return True

    def trailer_block(self, trailers: list[Header]) -> bytes | None:
        """Return the block of a request's trailers; None if trailers are not sent to this upstream."""
        if not self._resources.sends_trailers:
            return None
        self._trailers_sent = True
        return self.encoder.trailers(trailers)

    def stream_removed(self, stream: H2ClientStream) -> None:
        if stream.lasting:
            self.lasting -= 1
        if stream.receive_paused:
            stream.receive_paused = False
            self.stalled -= 1
        self._extra += stream.receive_target - STREAM_WINDOW
        owner = self._owner
        if not self.streams or owner.waits:
            if self.usable:
                owner.room(self)
            elif not self.streams:
                self.close(ErrorCode.NO_ERROR, "")

    def reset_stream(self, stream: H2ClientStream, code: int) -> None:
        """Reset a stream, if it is open, for a reason other than an error of the upstream."""
        if stream.stream_id not in self.streams:
            return
        self._late = min(self._late + stream.receive_window, MOST_LATE)
        self.table.reset_stream(stream, code)
        if self.usable and not self.closed:
            self._count_reset()

    def _count_reset(self) -> None:
        """Count a reset, and retire the connection after too many: an upstream may end a connection with many resets.

        Otherwise a client that cancels all the time could end other clients' watches on the same connection.
        """
        now = self.seconds()
        if now - self._resets_since >= RESETS_PERIOD:
            self._resets_since = now
            self._resets_made = 0
        self._resets_made += 1
        if self._resets_made > MOST_RESETS:
            self.retire()

    def data_on_closed(self, stream_id: int, size: int) -> None:
        # Frames in transit at the time of a reset must not count against the upstream: otherwise a client that cancels
        # many small responses would end other clients' streams. The windows at that time bound these frames.
        counted = max(size, LEAST_FRAME)
        if counted <= self._late and self.table.was_reset_by_us(stream_id):
            self._late -= counted
        else:
            super().data_on_closed(stream_id, size)

    def stream_refused(self) -> None:
        """Open no stream for a while, because the upstream has refused one although its settings permit more."""
        self.limit = min(self.limit, len(self.streams))
        self._refusing_until = until = self.seconds() + REFUSING
        self.deadline = min(self.deadline, until)

    def doubt(self, since: float) -> None:
        """Check the peer after a late response: if no byte has arrived since `since`, the peer may be gone.

        Then the connection gets no further request, and its streams end unless the peer answers a PING.
        """
        if not self.closed and self.last_received <= since:
            self._leave_pool()
            self.ask_peer()

    def retire(self) -> None:
        """Accept no further stream; close when the last stream has ended."""
        self._leave_pool()
        if not self.streams:
            self.close(ErrorCode.NO_ERROR, "")

    def _leave_pool(self) -> None:
        if self.usable:
            self.usable = False
            self._owner.connection_unusable(self)

    def grow_window(self, stream: H2ClientStream) -> None:
        """Widen a stream's window if it was used up quickly, as by a long list."""
        target, now = stream.receive_target, self.last_received
        if now - stream.window_since < FAST and target < LARGEST_WINDOW and (GROWTH - 1) * target <= self._extra:
            self._extra -= (GROWTH - 1) * target
            stream.receive_target = target = GROWTH * target
            stream.receive_low = target - (
                target >> 2
            )  # so that a WINDOW_UPDATE reaches a distant sender before the window is used up
        stream.window_since = now

    # -- the upstream's side --------------------------------------------------------------------------------------

    def settings_received(self) -> None:
        self.limit = min(self.limit, self.peer_streams)  # at once: a lower limit binds as soon as it is acknowledged
        self._limit_changed = True  # applied at the end of this read, because further SETTINGS can follow in it

    def push_setting_received(self, value: int) -> None:
        """Check SETTINGS_ENABLE_PUSH, which a server must not set to 1 (RFC 9113 6.5.2)."""
        if value:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a server that enables push")

    def _apply_limit(self) -> None:
        """Set the limit of streams to the one that the upstream permits now."""
        self._limit_changed = False
        self._refusing_until = NEVER
        self.limit = min(self.peer_streams, MAX_STREAMS)
        if self.usable:
            self._owner.limit_announced(self)

    def is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or not stream_id & 1  # the upstream opens no (even) stream: push is disabled

    def was_opened(self, stream_id: int) -> bool:
        return True

    def new_stream(self, stream_id: int, fields: DecodedFields, end_stream: bool) -> None:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on an idle stream")

    def last_peer_stream(self) -> int:
        return 0

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        self._leave_pool()
        if code != ErrorCode.NO_ERROR:
            if self._trailers_sent:
                self._resources.sends_trailers = False  # trailers can be the cause, and are optional (RFC 9110 6.5.1)
            text = "".join(filter(str.isprintable, debug[:MAX_DEBUG].decode("ascii", "replace")))
            self._violated(f"it sent GOAWAY {code_name(code)}" + (f" ({text})" if text else ""))
        refused = [stream for stream_id, stream in self.streams.items() if stream_id > last_stream_id]
        for stream in refused:
            self.table.remove(stream)
            stream.not_processed()
        if not self.streams:
            self.close(ErrorCode.NO_ERROR, "")

    def read_done(self) -> None:
        if self._limit_changed:
            self._apply_limit()
        if self.touched:
            touched, self.touched = self.touched, []
            for stream in touched:
                stream.read_done()

    # -- the end ------------------------------------------------------------------------------------------------

    def failing(self, error: HTTP2ConnectionError) -> None:
        self._violated(error.cause)

    def peer_is_silent(self, cause: str) -> None:
        self._violated(cause)

    def _end_streams(self, cause: str) -> None:
        self._leave_pool()  # first, because the requests of these streams can be sent again at once
        super()._end_streams(cause)

    def ended(self, cause: str, clean: bool) -> None:
        self.touched = []
        self._owner.connection_ended(self)

    def times_checked(self, now: float) -> None:
        if now >= self._refusing_until:
            self._apply_limit()
        elif self._refusing_until != NEVER:
            self.deadline = min(self.deadline, self._refusing_until)
        if not self.streams:
            if now >= self.idle_until:
                self.retire()
            else:
                self.deadline = min(self.deadline, self.idle_until)

    def close_if_idle_until(self, until: float) -> None:
        """Close at `until` if no stream is opened before that time."""
        self.idle_until = until
        self.deadline = min(self.deadline, until)
