"""The HTTP/2 server engine: one client connection, an exchange for each of its streams.

    HEADERS -> H2Exchange -> (end of the read) -> handle     a request reset in the same read is never handled
    drain:  GOAWAY 2^31-1 -> 1 s -> GOAWAY with the true last stream -> closed after its last stream

Floods are refused with GOAWAY ENHANCE_YOUR_CALM and counted (`Floods`). `config.model.Limits` has further limits in
addition to those of `h2_connection`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Final

from twisted.logger import Logger

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import NEVER, RESOLUTION, Deadlines
from mcproxy.http.exchange import ServerContext
from mcproxy.http.h2 import frames
from mcproxy.http.h2.budgets import RESET_PERIOD, ResetCount
from mcproxy.http.h2.frames import (
    HEADERS,
    MAX_FRAME,
    MAX_STREAM_ID,
    PREFACE,
    ErrorCode,
    Flood,
    HTTP2ConnectionError,
    HTTP2StreamError,
    code_name,
    goaway,
)
from mcproxy.http.h2.h2_connection import H2Connection
from mcproxy.http.h2.h2_exchange import H2Exchange
from mcproxy.http.h2.h2_stream import STREAM_WINDOW
from mcproxy.http.h2.heads import request_head
from mcproxy.http.h2.hpack.checked_field import METHOD
from mcproxy.http.h2.hpack.decoder import TABLE_SIZE, HPACKDecoder, Representations
from mcproxy.http.h2.hpack.encoder import HPACKEncoder, content_length
from mcproxy.http.messages import CHUNKED, ProtocolError, RequestHead
from mcproxy.log_once import LogOnce
from mcproxy.net.client_table import UNIX, client_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from mcproxy.http.h2.frame_sender import FrameSender
    from mcproxy.http.h2.hpack.decoder import DecodedFields
    from mcproxy.net.wall_time import WallSeconds

# Limits the responses that the clients of a listener do not read, for all connections together.
#
# Each connection has its own limits (`frame_sender`), but 250 streams that begin at once can have 64 KiB waiting each,
# because so many bytes were in transit when they were paused. This is allowed for a single connection: a client behind
# a slow network lists many objects at its start. But many such connections could take all memory. So above MOST_WAITING
# the client with the most waiting bytes loses the connection on which most of them wait.

MOST_WAITING: Final = 256 * 1024 * 1024
"""Maximum of waiting bytes of all connections of a listener with more than `frame_sender.CONNECTION_HIGH` each."""


class UnreadResponses:
    """Checks the unread responses of one listener, four times a second while any connection has many waiting bytes."""

    __slots__ = ("_connections", "_deadlines", "_most", "deadline")

    def __init__(self, deadlines: Deadlines, most: int = MOST_WAITING) -> None:
        self._deadlines = deadlines
        self._most = most
        self._connections: set[H2ServerConnection] = set()
        self.deadline = NEVER

    def note(self, connection: H2ServerConnection) -> None:
        """Note that a connection has many waiting bytes."""
        if not self._connections:
            self.deadline = self._deadlines.after(RESOLUTION)
            self._deadlines.add(self)
        self._connections.add(connection)

    def expired(self) -> None:
        """Check all noted connections."""
        waiting = {each: each.sender.queued for each in self._connections if _is_backlogged(each.sender)}
        self._connections = set(waiting)
        if not waiting:
            self._deadlines.remove(self)
            return
        self.deadline = self._deadlines.after(RESOLUTION)
        excess = sum(waiting.values()) - self._most
        if excess > 0:
            self._end_largest(waiting, excess)

    def _end_largest(self, waiting: dict[H2ServerConnection, int], excess: int) -> None:
        of_clients: Counter[str] = Counter()
        for connection, size in waiting.items():
            of_clients[_client(connection)] += size
        largest_first = sorted(waiting, key=lambda connection: waiting[connection], reverse=True)
        while excess > 0:
            client = max(of_clients, key=lambda name: of_clients[name])
            connection = next(each for each in largest_first if _client(each) == client)
            largest_first.remove(connection)
            size = waiting[connection]
            of_clients[client] -= size
            excess -= size
            self._connections.discard(connection)
            connection.fail(Flood("unread_responses", f"{size} bytes of responses wait that the client does not read"))


def _is_backlogged(sender: FrameSender) -> bool:
    return sender.backlogged and not sender.closed


def _client(connection: H2ServerConnection) -> str:
    return "" if connection.client is None else client_of(connection.client)


log = Logger(__name__)

#: Maximum of bytes of a request's fields that are kept to compare them with the next request's.
MAX_REMEMBERED: Final = 8192
#: Seconds between the two GOAWAYs, in which the first one and the requests that the client sends meanwhile arrive.
GOAWAY_STEP: Final = 1.0


class H2ServerResources:
    """The state that the HTTP/2 connections of one listener share."""

    __slots__ = ("encoder", "floods", "representations", "unread_responses")

    def __init__(self, deadlines: Deadlines) -> None:
        self.encoder = HPACKEncoder()
        self.representations = Representations()
        self.floods = Floods()
        self.unread_responses = UnreadResponses(deadlines)


class H2ServerConnection(H2Connection[H2Exchange]):
    """One client connection. `stream_window`: the receive window of a stream (bytes)."""

    __slots__ = (
        "_factory",
        "_fields",
        "_final_at",
        "_final_id",
        "_idle_since",
        "_last_id",
        "_new",
        "_reset_count",
        "_resources",
        "_skipped",
        "client",
        "encoder",
        "handler_state",
        "limits",
        "requests",
    )

    stream_window: ClassVar[int] = STREAM_WINDOW

    def __init__(self, factory: ServerContext, limits: Limits, resources: H2ServerResources) -> None:
        super().__init__(
            factory.deadlines,
            HPACKDecoder(resources.representations),
            max_block=limits.head_bytes,
            max_fields=limits.headers,
            begin_timeout=limits.head_timeout,
            remembered_resets=max(2 * limits.streams, 100),
        )
        self._factory = factory
        self.limits = limits
        self._resources = resources
        self.encoder = resources.encoder
        self._preface = PREFACE
        self._last_id = -1  # the greatest stream id of the client
        self._skipped = False  # whether the client has skipped ids below `_last_id`
        self._final_at = NEVER  # the time of the second GOAWAY, after the first one was sent
        self._final_id: int | None = None  # the last stream in the second GOAWAY; later streams are ignored
        self._fields = b""  # header fields of the last request
        self._new: list[H2Exchange] = []  # exchanges of the present read that are not handled yet
        now = self._idle_since = self.seconds()
        self._reset_count = ResetCount(now)
        self.requests = 0
        self.client: IAddress | None = None
        self.handler_state: object = None  # the handler's state for this connection; not used by the engine

    # -- the connection -----------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self.client = self.transport.getPeer()
        self._factory.connections.add(self)
        limits = self.limits
        self.begin(
            [
                (frames.HEADER_TABLE_SIZE, TABLE_SIZE),
                (frames.ENABLE_PUSH, 0),
                (frames.MAX_CONCURRENT_STREAMS, limits.streams),
                (frames.INITIAL_WINDOW_SIZE, self.stream_window),
                (frames.MAX_FRAME_SIZE, MAX_FRAME),
                (frames.MAX_HEADER_LIST_SIZE, limits.head_bytes),
            ]
        )

    @property
    def factory(self) -> ServerContext:
        """The state that all connections of the listener share."""
        return self._factory

    def wall_seconds(self) -> WallSeconds:
        """Return the time of day."""
        return self._factory.deadlines.wall_seconds()

    @property
    def idle_since(self) -> float | None:
        """When the last stream ended (on `deadlines`' clock); None while a stream is open."""
        return None if self.streams else self._idle_since

    def failing(self, error: HTTP2ConnectionError) -> None:
        client = self._client_name()
        if isinstance(error, Flood):
            self._resources.floods.refused(error.kind, client, error.cause, self.seconds())
        else:
            log.info(
                "an HTTP/2 connection was closed: protocol error",
                event="http2_connection_malformed",
                listener=self._factory.name,
                client=client,
                cause=f"{code_name(error.code)}: {error.cause}",
            )

    def ended(self, cause: str, clean: bool) -> None:
        self._factory.connections.discard(self)

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Do nothing: the client opens no more streams, and open streams continue."""

    # -- streams ------------------------------------------------------------------------------------------------

    def is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or not stream_id & 1

    def was_opened(self, stream_id: int) -> bool:
        return not self._skipped

    def last_peer_stream(self) -> int:
        return max(self._last_id, 0) if self._final_id is None else self._final_id

    def new_stream(self, stream_id: int, fields: DecodedFields, end_stream: bool) -> None:
        if not stream_id & 1:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a client opens a stream with an even id")
        if stream_id != self._last_id + 2:
            self._skipped = True
        if self._final_id is not None:
            self._last_id = stream_id
            self.table.remember_reset(stream_id, by_us=True)  # ignored (RFC 9113 6.8); the client retries it elsewhere
            self.spend(HEADERS)
            return
        self._last_id = stream_id
        self._budget.stream_begun()
        self._reset_count.stream_begun(self.last_received)
        limits, factory = self.limits, self._factory
        if len(self.streams) >= limits.streams:
            self._tell_of_limit(limits.streams)
            raise HTTP2StreamError(ErrorCode.REFUSED_STREAM, f"more than {limits.streams} streams")
        try:
            head = request_head(fields, end_stream=end_stream, max_target=limits.target_bytes)
            limit = limits.body_bytes
            if limit and head.length > limit:
                raise ProtocolError(413, f"the request body is longer than {limit} bytes")
        except ProtocolError as problem:
            head = _refused_head(fields, end_stream)
            exchange = self.streams[stream_id] = H2Exchange(self, stream_id, head, self.last_received, end_stream)
            self.reject(exchange, problem)
            return
        except HTTP2StreamError as error:
            self.log_stream_error(error.cause)
            raise
        self.requests += 1
        if head.fields == self._fields:
            head.fields = self._fields  # requests of a client often have the same fields, which share one object
        elif len(head.fields) <= MAX_REMEMBERED:
            self._fields = head.fields
        self._open(H2Exchange(self, stream_id, head, self.last_received, end_stream))
        if factory.ends_http2 or (factory.goaway_chance and factory.random() < factory.goaway_chance):
            self.go_away()

    def _tell_of_limit(self, limit: int) -> None:
        client = self._client_name()
        if self._factory.log_once.allows(("streams", client), self.seconds()):
            log.warn(
                "a client exceeds the limit of streams on a connection: more requests are refused",
                event="streams_limit_reached",
                listener=self._factory.name,
                client=client,
                limit=limit,
                key="limits.streams",
                todo="see what the client is: it does not keep to what it was told; or raise limits.streams",
            )

    def _open(self, exchange: H2Exchange) -> None:
        self.streams[exchange.stream_id] = exchange
        self._new.append(exchange)
        if not exchange.remote_closed:
            exchange.set_deadline()

    def read_done(self) -> None:
        new = self._new
        if new:
            self._new = []
            handle = self._factory.handle
            for exchange in new:
                if not exchange.ended:
                    handle(exchange)

    def log_stream_error(self, cause: str) -> None:
        """Log that a stream was reset because of an error of the client."""
        log.info(
            "a request is refused: it violates the protocol",
            event="request_malformed",
            client=self._client_name(),
            cause=cause,
        )

    def _client_name(self) -> str:
        return str(getattr(self.client, "host", UNIX))

    def reject(self, exchange: H2Exchange, problem: ProtocolError) -> None:
        """Respond to a request that is or has become invalid, and cancel its handler."""
        responded = exchange.responded
        if not responded:
            exchange.status = problem.status
        exchange.cancel()
        if responded:
            self.table.reset_stream(exchange, ErrorCode.CANCEL)
            return
        fields, body = self._factory.refusal(self, problem)
        exchange.add_head(self.encoder.response(problem.status, fields) + content_length(len(body)))
        if body and exchange.head.method != b"HEAD":
            exchange.add(body)
        self.sender.finish(exchange)

    def stream_removed(self, stream: H2Exchange) -> None:
        if stream.watched:
            self.deadlines.remove(stream)
        if not self.streams:
            if self._final_id is not None:
                self.shut("the connection was drained")
                return
            now = self._idle_since = self.seconds()
            idle_timeout = self.limits.idle_timeout
            if idle_timeout and now + idle_timeout < self.deadline:
                self.deadline = now + idle_timeout

    def sender_backlogged(self) -> None:
        self._resources.unread_responses.note(self)

    # -- resets -------------------------------------------------------------------------------------------------

    def reset_by_peer(self, stream: H2Exchange) -> None:
        # The end of an old watch is no rapid reset, nor is the end of a body whose response was sent.
        if self.last_received - stream.started_at < RESET_PERIOD and not stream.send_closed:
            self._reset_count.stream_reset(self.last_received)

    def reset_because_of_peer(self, stream_id: int) -> None:
        self._reset_count.stream_reset(self.last_received)

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> int:
        """A number that changes when the client has read any bytes."""
        return self.sender.sent + self.transport.sent_from_queue

    def times_checked(self, now: float) -> None:
        if now >= self._final_at:
            self._go_away_finally()
            return
        self.deadline = min(self.deadline, self._final_at)
        idle_timeout = self.limits.idle_timeout
        if idle_timeout and not self.streams:
            due = self._idle_since + idle_timeout
            if now >= due:
                self.close(ErrorCode.NO_ERROR, "idle")
            else:
                self.deadline = min(self.deadline, due)

    # -- GOAWAY -------------------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Make the client open no more streams; streams that arrive before the second GOAWAY are served."""
        if self._final_at == NEVER and self._final_id is None and not self.closed:
            self.sender.write_frames(goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self._final_at = self.seconds() + GOAWAY_STEP
            self.deadline = min(self.deadline, self._final_at)

    def _go_away_finally(self) -> None:
        self._final_id = last = self.last_peer_stream()
        self._final_at = NEVER
        self.sender.write_frames(goaway(last, ErrorCode.NO_ERROR))
        if not self.streams:
            self.shut("the connection was drained")

    def before_close(self) -> None:
        """Send GOAWAY before the listener closes this idle connection, so that unserved requests can be repeated."""
        self.sender.write_frames(goaway(self.last_peer_stream(), ErrorCode.NO_ERROR))
        self.sender.flush_coalesced()

    def drain(self, *, unused: bool) -> None:
        """Close after the open streams and those in transit. `unused` is ignored: GOAWAY suits new connections too."""
        self.go_away()


class H2DistantConnection(H2ServerConnection):
    """A connection that a listener has dialled: its client, a hub, is often far away.

    With the windows of a client that is near, an upload of 3 MB would take 5 s at a round trip of 100 ms.
    """

    __slots__ = ()

    connection_window: ClassVar[int] = 4 * 1024 * 1024
    held_limit: ClassVar[int] = 4 * 1024 * 1024
    stream_window: ClassVar[int] = 1024 * 1024


def _refused_head(fields: DecodedFields, end_stream: bool) -> RequestHead:
    """Return the parts of an invalid head that the response depends on."""
    head = RequestHead()
    head.method = fields.special[METHOD] or b""
    head.length = 0 if end_stream else CHUNKED
    return head


# Counts the refused floods, and writes one log line for each period and kind.

_FLOOD_TODO = "find out what runs at this address; status counts what was refused (protection)"
_FLOOD_TODOS = {  # by kind of flood, for kinds that a harmless client can cause
    "large_header_block": f"{_FLOOD_TODO}; if it needs such heads, raise limits.headBytes",
}


class Floods:
    """The floods of one listener. `counts`: the number of ended connections by kind of flood, since the start."""

    __slots__ = ("_once", "counts")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._once = LogOnce()

    def refused(self, kind: str, client: str, cause: str, now: float) -> None:
        """Count a connection that was ended because of a flood."""
        self.counts[kind] += 1
        suppressed = self._once.suppressed(kind)
        if self._once.allows(kind, now):
            log.warn(
                "an HTTP/2 connection was closed because of a flood",
                event="http2_flood",
                kind=kind,
                client=client,
                cause=cause,
                connections=suppressed + 1,
                todo=_FLOOD_TODOS.get(kind, _FLOOD_TODO),
            )
