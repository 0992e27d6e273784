"""The HTTP/2 client engine: a connection to an upstream that many requests share, each a stream (`client_stream`).

It belongs to an `H2Pool`, which gives it streams for as long as it is `usable`: until GOAWAY, an error or the loss of
the connection, or until the pool retires it. Streams that it has then go on, but for those that were not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h2 import settings
from mcproxy.http.h2.client_stream import H2ClientStream
from mcproxy.http.h2.connection import Connection
from mcproxy.http.h2.errors import ErrorCode, HTTP2ConnectionError, code_name
from mcproxy.http.h2.frames import MAX_STREAM_ID, PREFACE
from mcproxy.http.h2.hpack.decoder import DecodedFields, Decoder, Representations
from mcproxy.http.h2.hpack.encoder import Encoder
from mcproxy.http.h2.stream import Stream

if TYPE_CHECKING:
    from mcproxy.http.h2.pool import H2Pool

#: Limits of a response head: bytes, encoded or decoded, and fields.
MAX_HEAD = 256 * 1024
MAX_FIELDS = 2000
#: Streams of a connection, whatever the upstream permits.
MAX_STREAMS = 1000
#: Seconds for the upstream's SETTINGS and their acknowledgement, and for a header block.
BEGIN_TIMEOUT = 15.0
#: Seconds for which no request follows a stream that was refused.
REFUSING = 1.0

#: Streams that are reset on a connection within some time (seconds) before it takes no more. Servers end a connection
#: with rapid resets (CVE-2023-44487): those on nghttp2 after 1,000 at once, then 33 a second; Envoy after 500 streams,
#: if half of them were; Go's when 1,000 handlers have not begun yet.
MOST_RESETS = 200
RESETS_PERIOD = 30.0

#: Characters of a GOAWAY's debug data that are logged.
MAX_DEBUG = 100
#: Bytes that may be on their way on streams that were reset, and what a frame of DATA counts at least.
MOST_LATE = 64 * 1024 * 1024
LEAST_FRAME = 16

#: Receive windows (bytes): of the connection; of a stream whose client keeps up; and how much more than the initial one
#: the streams of a connection may have together.
CONNECTION_WINDOW = 16 * 1024 * 1024
LARGEST_WINDOW = 4 * 1024 * 1024
EXTRA_WINDOWS = 16 * 1024 * 1024
#: A window grows by this factor if the half of it (a quarter, once it has grown) arrives within this time (seconds).
GROWTH = 4
FAST = 0.5

_ANNOUNCED = [
    (settings.ENABLE_PUSH, 0),
    (settings.INITIAL_WINDOW_SIZE, Connection.stream_window),
    (settings.MAX_HEADER_LIST_SIZE, MAX_HEAD),
]


class H2ClientResources:
    """What the connections of a pool share."""

    __slots__ = ("encoder", "remembered")

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.remembered = Representations()


class H2ClientConnection(Connection[H2ClientStream]):
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
        "_violated",
        "deadlines",
        "encoder",
        "idle_until",
        "lasting",
        "limit",
        "stalled",
        "touched",
        "usable",
    )

    connection_window = CONNECTION_WINDOW
    held_limit = 2**31  # each stream's window bounds what it holds

    def __init__(
        self, owner: H2Pool, deadlines: Deadlines, resources: H2ClientResources, violated: Callable[[str], None]
    ) -> None:
        """`violated(cause)` is called if the connection ends because of what the upstream did."""
        super().__init__(
            deadlines,
            Decoder(resources.remembered),
            max_block=MAX_HEAD,
            max_fields=MAX_FIELDS,
            begin_timeout=BEGIN_TIMEOUT,
            remembered_resets=MAX_STREAMS + MOST_RESETS,
        )
        self._owner = owner
        self._violated = violated
        self._limit_changed = False
        self._late = 0  # bytes that the upstream may have sent on streams before it saw that they were reset
        self._resets_made = 0  # since `_resets_since`
        self._resets_since = self.last_received
        self._last_id = -1  # of the stream that was opened last
        self._extra = EXTRA_WINDOWS  # bytes by which windows may still grow
        self.deadlines = deadlines
        self.encoder = resources.encoder
        self.usable = True  # takes new streams
        self.limit = owner.presumed_limit  # streams at the same time
        self.lasting = 0  # streams whose response is expected to last
        self.stalled = 0  # streams whose client reads slowly
        self._refusing_until = NEVER  # it has refused a stream, and gets no more before
        self.idle_until = NEVER  # when it is closed, if it has no stream
        self.touched: list[H2ClientStream] = []  # in the read that is being handled

    def connectionMade(self) -> None:
        self.begin(_ANNOUNCED, PREFACE)

    # -- streams ------------------------------------------------------------------------------------------------

    def new_request(self, lasting: bool) -> H2ClientStream:
        """Return a stream for a request; it is opened when the request is sent."""
        return H2ClientStream(self, lasting)

    def begin_stream(self, stream: H2ClientStream) -> bool:
        """Open a stream: its request is sent next; False if the connection has ended meanwhile."""
        if self.closed or self._last_id >= MAX_STREAM_ID - 2:
            stream.open_stream(self, 0)
            stream.send_closed = True
            return False
        self._last_id = stream_id = self._last_id + 2
        stream.open_stream(self, stream_id)
        self.streams[stream_id] = stream
        self._budget.stream_begun()
        if stream.lasting:
            self.lasting += 1
        if stream_id > MAX_STREAM_ID - 4:
            self.retire()
        return True

    def stream_removed(self, stream: H2ClientStream) -> None:
        if stream.lasting:
            self.lasting -= 1
        if stream.receive_paused:
            stream.receive_paused = False
            self.stalled -= 1
        self._extra += stream.receive_target - self.stream_window
        owner = self._owner
        if not self.streams or owner.waits:
            if self.usable:
                owner.room(self)
            elif not self.streams:
                self.close(ErrorCode.NO_ERROR, "")

    def reset_stream(self, stream: H2ClientStream, code: int) -> None:
        if stream.stream_id not in self.streams:
            return
        self._late = min(self._late + stream.receive_window, MOST_LATE)
        super().reset_stream(stream, code)
        if self.usable and not self.closed:
            self._count_reset()

    def _count_reset(self) -> None:
        """Leave a connection to the streams that it has once many were reset: the upstream may end it for that.

        Else a client that cancels all the time would cost others their watches, which may be on the same connection.
        """
        now = self.seconds()
        if now - self._resets_since >= RESETS_PERIOD:
            self._resets_since = now
            self._resets_made = 0
        self._resets_made += 1
        if self._resets_made > MOST_RESETS:
            self.retire()

    def _data_on_closed(self, stream_id: int, size: int) -> None:
        # What was on its way may not be counted against the upstream: a client that cancels when much of it is, in many
        # small frames, would cost others their streams. The windows of then bound it.
        counted = max(size, LEAST_FRAME)
        if counted <= self._late and self._resets.get(stream_id):
            self._late -= counted
        else:
            super()._data_on_closed(stream_id, size)

    def stream_refused(self) -> None:
        """The upstream takes no more streams than it has, whatever its settings say: send it none for a while."""
        self.limit = min(self.limit, len(self.streams))
        self._refusing_until = until = self.seconds() + REFUSING
        self.deadline = min(self.deadline, until)

    def retire(self) -> None:
        """Take no further stream; close when the last one has ended."""
        self._leave_pool()
        if not self.streams:
            self.close(ErrorCode.NO_ERROR, "")

    def _leave_pool(self) -> None:
        if self.usable:
            self.usable = False
            self._owner.connection_unusable(self)

    def _give_back_stream(self, stream: Stream) -> None:
        """Open a stream's window again; wider than before if it was used up quickly, which it is by a long list."""
        assert isinstance(stream, H2ClientStream)
        target, now = stream.receive_target, self.last_received
        if now - stream.window_since < FAST and target < LARGEST_WINDOW and (GROWTH - 1) * target <= self._extra:
            self._extra -= (GROWTH - 1) * target
            stream.receive_target = target = GROWTH * target
            stream.receive_low = target - (target >> 2)  # a sender that is far away gets what it may in time
        stream.window_since = now
        super()._give_back_stream(stream)

    # -- the upstream's side --------------------------------------------------------------------------------------

    def settings_received(self) -> None:
        self.limit = min(self.limit, self.peer_streams)  # at once: it holds from our acknowledgement on
        self._limit_changed = True  # what more is permitted is used when all of the read is seen: others may follow

    def push_setting_received(self, value: int) -> None:
        """SETTINGS_ENABLE_PUSH: a server may not set it to 1 (RFC 9113 6.5.2)."""
        if value:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a server that enables push")

    def _apply_limit(self) -> None:
        """Take as many streams as the upstream permits now."""
        self._limit_changed = False
        self._refusing_until = NEVER
        self.limit = min(self.peer_streams, MAX_STREAMS)
        if self.usable:
            self._owner.limit_announced(self)

    def is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or not stream_id & 1  # it opens none: push is disabled

    def was_opened(self, stream_id: int) -> bool:
        return True

    def new_stream(self, stream_id: int, fields: DecodedFields, end_stream: bool) -> None:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on an idle stream")

    def last_peer_stream(self) -> int:
        return 0

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        self._leave_pool()
        if code != ErrorCode.NO_ERROR:
            text = "".join(filter(str.isprintable, debug[:MAX_DEBUG].decode("ascii", "replace")))
            self._violated(f"it sent GOAWAY {code_name(code)}" + (f" ({text})" if text else ""))
        refused = [stream for stream_id, stream in self.streams.items() if stream_id > last_stream_id]
        for stream in refused:
            self.remove(stream)
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
        self._leave_pool()  # first: the requests of these streams may be sent again at once
        super()._end_streams(cause)

    def ended(self, cause: str, clean: bool) -> None:
        self.touched = []

    def times_checked(self, now: float) -> None:
        if now >= self._refusing_until:
            self._apply_limit()
        elif self._refusing_until is not NEVER:
            self.deadline = min(self.deadline, self._refusing_until)
        if not self.streams:
            if now >= self.idle_until:
                self.retire()
            else:
                self.deadline = min(self.deadline, self.idle_until)

    def idle_since(self, until: float) -> None:
        """Close at `until` if no stream has been opened before."""
        self.idle_until = until
        self.deadline = min(self.deadline, until)
