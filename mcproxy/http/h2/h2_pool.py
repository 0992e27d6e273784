"""The pool of HTTP/2 connections to one upstream: opens connections, and chooses one for each request.

A request waits only while no connection has room for it. Waiting requests share the connections being opened, and only
as many connections are opened as the peer's MAX_CONCURRENT_STREAMS requires.

Long-running streams are spread, so that the loss or stall of one connection affects few of them: at most LASTING on
each, until there are SPREAD connections. From then on, streams fill these up to the peer's limit before a further
connection is opened. With kube-apiserver's limit of 250, 10,000 watches have 40 connections.

Short requests use a connection without stalled streams and with few streams, chosen anew after some requests. An idle
connection is used only if all others have many streams, so that surplus connections close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.http.deadlines import NEVER
from mcproxy.http.high_water_mark import HighWaterMark
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.net.failures import failure

if TYPE_CHECKING:
    from mcproxy.http.h2.h2_client import H2ClientConnection
    from mcproxy.http.h2.h2_client_stream import H2ClientStream

#: Maximum of streams of a connection before the peer's first SETTINGS (RFC 9113 6.5.2 recommends no lower limit).
FIRST_LIMIT: Final = 100
#: Maximum of long-running streams of a connection while there are fewer than SPREAD connections.
LASTING: Final = 100
SPREAD: Final = 32
#: To a connection with this many streams, any connection with fewer streams is preferred, even an idle one.
_MANY: Final = 50
#: Short requests between two choices of their connection.
_TAKES: Final = 32


class H2Pool:
    """The HTTP/2 connections of a pool (`http/connection_pool.py`).

    `dial()` opens a connection and fires with its engine. `max_idle`, `max_connections` and `idle_timeout`: as in
    `H1Pool`, except that a connection does not count after the peer's GOAWAY. `first_limit`: maximum of streams of a
    connection before the first SETTINGS of this upstream.
    """

    __slots__ = (
        "_announced_limit",
        "_awaits_settings",
        "_closed",
        "_current",
        "_dial",
        "_dials",
        "_idle_timeout",
        "_max_connections",
        "_max_idle",
        "_seconds",
        "_serving",
        "_takes",
        "_used",
        "_waiting",
        "connections",
        "presumed_limit",
        "retired",
    )

    def __init__(
        self,
        dial: Callable[[], Deferred[H2ClientConnection]],
        seconds: Callable[[], float],
        *,
        max_idle: int,
        max_connections: int,
        idle_timeout: float,
        first_limit: int = FIRST_LIMIT,
    ) -> None:
        self._dial = dial
        self._seconds = seconds
        self._max_idle = max_idle
        self._max_connections = max_connections
        self._idle_timeout = idle_timeout
        self._used = HighWaterMark(seconds())  # the highest number of connections with streams
        self._dials: set[Deferred[H2ClientConnection]] = set()  # connections that are being opened
        self._waiting: dict[Deferred[H2ClientStream], bool] = {}  # waiting requests in order; True: the response lasts
        self._current: H2ClientConnection | None = None  # the connection for short requests
        self._takes = 0
        self._serving = False
        self._closed = False
        self._awaits_settings = first_limit < FIRST_LIMIT
        self._announced_limit = FIRST_LIMIT  # maximum of streams in the upstream's last SETTINGS
        self.presumed_limit = first_limit  # maximum of streams of a connection before the upstream's SETTINGS
        #: Connections that accept new streams, the oldest first.
        self.connections: list[H2ClientConnection] = []
        #: Connections that accept no new streams and are not closed yet, because GOAWAY lets open streams finish.
        self.retired: set[H2ClientConnection] = set()

    @property
    def idle(self) -> int:
        """The number of connections without streams."""
        return sum(not connection.streams for connection in self.connections)

    @property
    def is_full(self) -> bool:
        """Whether `max_connections` is reached."""
        return 0 < self._max_connections <= len(self.connections) + len(self._dials)

    # -- requests -----------------------------------------------------------------------------------------------

    def take(self, lasting: bool) -> H2ClientStream | None:
        """Return a stream on an open connection; None if no open connection has room.

        Use the stream at once, because it counts only from `send_head` on.
        """
        if lasting:
            chosen = self._choose_for_lasting()
        else:
            chosen = self._current
            if chosen is None or not self._takes or chosen.stalled or len(chosen.streams) >= chosen.limit:
                chosen = self._choose()
            self._takes -= 1
        if chosen is None:
            return None
        if not chosen.streams:
            self._note_use(chosen)
        return chosen.new_request(lasting)

    def _choose(self) -> H2ClientConnection | None:
        """Choose the connection of the next short requests."""
        best, lowest = None, (True, True, True, 0)
        for connection in self.connections:
            count = len(connection.streams)
            if count < connection.limit:
                rank = (connection.stalled > 0, count >= _MANY, not count, count)
                if best is None or rank < lowest:
                    best, lowest = connection, rank
        self._current = best
        self._takes = _TAKES
        return best

    def _choose_for_lasting(self, *, spread: bool = True) -> H2ClientConnection | None:
        best, lowest = None, (True, True, 0)
        for connection in self.connections:
            count = len(connection.streams)
            if count < connection.limit:
                rank = (connection.lasting >= LASTING, not count, connection.lasting)
                if best is None or rank < lowest:
                    best, lowest = connection, rank
        if spread and best is not None and best.lasting >= LASTING:
            count = len(self.connections)
            if self._dials or (count < SPREAD and (not self._max_connections or count < self._max_connections)):
                return None  # another connection is being opened, or has to be opened
        return best

    def open(self, lasting: bool) -> Deferred[H2ClientStream]:
        """Return a stream on a connection that is being opened, or on the next one with room.

        Fails with `net.connect_errors.ConnectError`. Cancel it if the request is cancelled.
        """
        waiter: Deferred[H2ClientStream] = Deferred(self._cancel_wait)
        self._waiting[waiter] = lasting
        if self._max_connections and len(self.connections) >= self._max_connections:
            for connection in self.connections:
                if not connection.streams:
                    connection.retire()  # makes room, because the caller wants a new connection
                    break
        self._open_for_waiting(opens=True)
        if not self._dials:  # no connection is being opened: an open one may have room already
            self._serve()
        return waiter

    def _cancel_wait(self, waiter: Deferred[H2ClientStream]) -> None:
        self._waiting.pop(waiter, None)
        if not self._waiting:
            for dial in list(self._dials):
                dial.cancel()

    def _open_for_waiting(self, *, opens: bool = False) -> None:
        """Open the connections that the waiting requests need, up to `max_connections`.

        `opens`: open at least one, even if other connections have room.
        """
        while True:
            count = len(self.connections) + len(self._dials)
            share = limit = self._announced_limit
            if count < SPREAD:
                share = min(limit, LASTING)
            room = len(self._dials) * share
            if self._awaits_settings:  # connections that await SETTINGS will have more room
                room += sum([share - len(each.streams) for each in self.connections if not each.settled])
            if count >= SPREAD:
                room += sum([limit - len(connection.streams) for connection in self.connections])
            if room >= len(self._waiting) and (self._dials or not opens):
                return
            if self._max_connections and count >= self._max_connections:
                return
            dial = self._dial()
            if dial.called:
                before = len(self._waiting)
                dial.addCallbacks(self._opened, self._failed)
                if len(self._waiting) == before:
                    return  # the attempt has failed at once: waiting requests use other connections being opened
            else:
                self._dials.add(dial)
                dial.addBoth(self._dialled, dial).addCallbacks(self._opened, self._failed)

    def _dialled(self, result: Any, dial: Deferred[H2ClientConnection]) -> Any:
        self._dials.discard(dial)
        return result

    def _opened(self, connection: H2ClientConnection) -> None:
        if not connection.usable:
            self._failed(failure(ConnectFailed("the connection was closed at once")))
            return
        self.connections.append(connection)
        self._serve()
        if not connection.streams and connection.usable:
            self._connection_idle(connection)

    def adopt(self, connection: H2ClientConnection) -> H2ClientStream:
        """Add a connection that was opened elsewhere; return its first stream, for a short request.

        Use the stream at once. Raises `net.connect_errors.ConnectFailed` if the connection was closed already.
        """
        if not connection.usable:
            raise ConnectFailed("the connection was closed at once")
        self.connections.append(connection)
        self._note_use(connection)
        return connection.new_request(lasting=False)

    def _failed(self, reason: Failure) -> None:
        """Serve or fail the waiting requests after a failed attempt to connect, unless another attempt is running."""
        if self._dials:
            return
        self.release_waiting(reason)

    def release_waiting(self, reason: Failure) -> None:
        """Give waiting requests the available streams; fail the remaining requests with `reason`."""
        waiting, self._waiting = self._waiting, {}
        for waiter, lasting in waiting.items():
            if waiter.called:
                continue
            chosen = self._choose_for_lasting(spread=False) if lasting else self._choose()
            if chosen is not None:
                waiter.callback(chosen.new_request(lasting))
            else:
                waiter.errback(reason)

    def _serve(self) -> None:
        """Give streams to the waiting requests, in order."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._waiting:
                waiter, lasting = next(iter(self._waiting.items()))
                stream = self.take(lasting)
                if stream is None:
                    break
                del self._waiting[waiter]
                waiter.callback(stream)
        finally:
            self._serving = False
        if self._waiting:
            self._open_for_waiting()

    # -- the connections' side ----------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether a request waits for a stream."""
        return bool(self._waiting)

    def room(self, connection: H2ClientConnection) -> None:
        """Give the room of a connection to waiting requests; called if its last stream has ended or a request waits."""
        if self._waiting:
            self._serve()
        if not connection.streams and connection.usable:
            self._connection_idle(connection)

    def limit_announced(self, connection: H2ClientConnection) -> None:
        """Apply the maximum of streams that the peer has announced; the connection's `limit` is set."""
        limit = connection.limit
        self._announced_limit = max(limit, 1)
        self.presumed_limit = min(self._announced_limit, FIRST_LIMIT)
        if not limit and not connection.streams:
            connection.retire()
        elif self._waiting:
            self._serve()

    def connection_unusable(self, connection: H2ClientConnection) -> None:
        """Remove a connection that is closed, or that will close after its present streams. Called once."""
        if connection in self.connections:
            self.connections.remove(connection)
        self.retired.add(connection)
        if connection is self._current:
            self._current = None
        if self._waiting:
            self._serve()

    def connection_ended(self, connection: H2ClientConnection) -> None:
        """Forget a closed connection."""
        self.retired.discard(connection)

    # -- idle connections ---------------------------------------------------------------------------------------

    def _note_use(self, connection: H2ClientConnection) -> None:
        """Note that a connection without streams gets one."""
        connection.idle_until = NEVER
        self._used.note(len(self.connections) - self.idle + 1)

    def _connection_idle(self, connection: H2ClientConnection) -> None:
        if self._closed or self.idle > self._max_idle:
            connection.retire()
            return
        now = self._seconds()
        connection.close_if_idle_until(now + self._idle_timeout if self._idle_timeout else NEVER)
        if now >= self._used.due:
            self._close_surplus(now)

    def _close_surplus(self, now: float) -> None:
        """Close the idle connections beyond those that the last minute needed, the newest first."""
        self._used.advance(now, len(self.connections) - self.idle)
        surplus = len(self.connections) - self._used.value
        for connection in reversed(self.connections[:]):
            if surplus > 0 and not connection.streams:
                surplus -= 1
                connection.retire()

    def renew(self) -> None:
        """Send no further request on the present connections, because their peer may be gone."""
        for connection in self.connections[:]:
            connection.retire()

    def close(self) -> None:
        """Close idle connections at once, and busy ones after their streams. Waiting requests are still served."""
        self._closed = True
        self.renew()
