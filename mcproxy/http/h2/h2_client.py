"""The HTTP/2 client engine: a connection to an upstream that many requests share, each a stream (`h2_client_stream`).

It belongs to an `H2Pool`, which gives it streams for as long as it is `usable`: until GOAWAY, an error or the loss of
the connection, or until the pool retires it. Its open streams then continue, except those that the
upstream has not processed.
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

#: Limits of a response head: bytes, encoded or decoded, and fields.
MAX_HEAD: Final = 256 * 1024
MAX_FIELDS: Final = 2000
#: Streams of a connection, whatever the upstream permits.
MAX_STREAMS: Final = 1000
#: Seconds for the upstream's SETTINGS and their acknowledgement, and for a header block.
BEGIN_TIMEOUT: Final = 15.0
#: Seconds for which no request follows a stream that was refused.
REFUSING: Final = 1.0

#: Streams that are reset on a connection within some time (seconds) before it takes no more. Servers end a connection
#: with rapid resets (CVE-2023-44487): those on nghttp2 after 1,000 at once, then 33 a second; Envoy after 500 streams,
#: if half of them were; Go's when 1,000 handlers have not begun yet.
MOST_RESETS: Final = 200
RESETS_PERIOD: Final = 30.0

#: Characters of a GOAWAY's debug data that are logged.
MAX_DEBUG: Final = 100
#: Bytes that may be on their way on streams that were reset, and what a frame of DATA counts at least.
MOST_LATE: Final = 64 * 1024 * 1024
LEAST_FRAME: Final = 16

#: Receive windows (bytes): of the connection; of a stream whose client keeps up; and how much more than the initial one
#: the streams of a connection may have together.
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
LARGEST_WINDOW: Final = 4 * 1024 * 1024
EXTRA_WINDOWS: Final = 16 * 1024 * 1024
#: A window grows by this factor if the half of it (a quarter, once it has grown) arrives within this time (seconds).
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
        """A connection has room again; called when its last stream has ended, or while a request waits."""

    def limit_announced(self, connection: H2ClientConnection) -> None:
        """The upstream has announced how many streams a connection may have; `limit` is set."""

    def connection_unusable(self, connection: H2ClientConnection) -> None:
        """A connection takes no further stream. Called once."""

    def connection_ended(self, connection: H2ClientConnection) -> None:
        """A connection is closed, and was `connection_unusable` before. Called once."""


class H2ClientResources:
    """What the connections of a pool share."""

    __slots__ = ("encoder", "most_head", "remembered", "sends_trailers")

    def __init__(self, *, most_head: int = MAX_HEAD, sends_trailers: bool = False) -> None:
        self.encoder = HPACKEncoder()
        self.remembered = Representations()
        self.most_head = most_head  # of a response (bytes)
        self.sends_trailers = sends_trailers  # of requests; not any more once a connection has ended because of them


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
    held_limit: ClassVar[int] = 2**31  # each stream's window bounds what it holds

    def __init__(
        self,
        owner: H2ConnectionOwner,
        deadlines: Deadlines,
        resources: H2ClientResources,
        violated: Callable[[str], None],
    ) -> None:
        """`violated(cause)` is called if the connection ends because of what the upstream did."""
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
        self._late = 0  # bytes that the upstream may have sent on streams before it received our resets
        self._resets_made = 0  # since `_resets_since`
        self._resets_since = self.last_received
        self._last_id = -1  # of the stream that was opened last
        self._extra = EXTRA_WINDOWS  # bytes by which windows may still grow
        self.encoder = resources.encoder
        self.scheme = b"https"
        self.usable = True  # takes new streams
        self.limit = owner.presumed_limit  # streams at the same time
        self.lasting = 0  # streams whose response is expected to last
        self.stalled = 0  # streams whose client reads slowly
        self._refusing_until = NEVER  # the upstream has refused a stream: no new one before this time
        self.idle_until = NEVER  # when it is closed, if it has no stream
        self.touched: list[H2ClientStream] = []  # in the read that is being handled

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
        """Return a stream for another request beside an open one, None if the connection takes no other."""
        if self.closed or not self.usable or self.streams.get(stream.stream_id) is not stream:
            return None
        return self.new_request(lasting=False) if len(self.streams) < self.limit else None

    def begin_stream(self, stream: H2ClientStream) -> bool:
        """Open a stream: its request is sent next; False if the connection has ended meanwhile."""
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
        """Return the block of a request's trailers, None if the upstream gets none."""
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
        """End a stream for a reason of our own, if it is open."""
        if stream.stream_id not in self.streams:
            return
        self._late = min(self._late + stream.receive_window, MOST_LATE)
        self.table.reset_stream(stream, code)
        if self.usable and not self.closed:
            self._count_reset()

    def _count_reset(self) -> None:
        """Open no more streams on a connection once many were reset: the upstream may end it for that.

        Else a client that cancels all the time would cost others their watches, which may be on the same connection.
        """
        now = self.seconds()
        if now - self._resets_since >= RESETS_PERIOD:
            self._resets_since = now
            self._resets_made = 0
        self._resets_made += 1
        if self._resets_made > MOST_RESETS:
            self.retire()

    def data_on_closed(self, stream_id: int, size: int) -> None:
        # Frames that were on their way must not count against the upstream: a client that cancels while many small ones
        # are would cost others their streams. The windows at that time bound them.
        counted = max(size, LEAST_FRAME)
        if counted <= self._late and self.table.was_reset_by_us(stream_id):
            self._late -= counted
        else:
            super().data_on_closed(stream_id, size)

    def stream_refused(self) -> None:
        """The upstream has refused a stream, although its settings permit more: open none for a while."""
        self.limit = min(self.limit, len(self.streams))
        self._refusing_until = until = self.seconds() + REFUSING
        self.deadline = min(self.deadline, until)

    def doubt(self, since: float) -> None:
        """A response is late: if nothing at all has arrived since `since`, the peer may be gone.

        Then the connection gets no further request, and its streams end unless the peer answers a PING.
        """
        if not self.closed and self.last_received <= since:
            self._leave_pool()
            self.ask_peer()

    def retire(self) -> None:
        """Take no further stream; close when the last one has ended."""
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
            )  # so that it reaches a distant sender before the window is empty
        stream.window_since = now

    # -- the upstream's side --------------------------------------------------------------------------------------

    def settings_received(self) -> None:
        self.limit = min(self.limit, self.peer_streams)  # at once: it holds from our acknowledgement on
        self._limit_changed = True  # applied at the end of this read: further SETTINGS may follow in it

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
            if self._trailers_sent:
                self._resources.sends_trailers = False  # perhaps because of them; they may be left out (RFC 9110 6.5.1)
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
        self._leave_pool()  # first: the requests of these streams may be sent again at once
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
        """Close at `until` if no stream has been opened before."""
        self.idle_until = until
        self.deadline = min(self.deadline, until)
