"""The HTTP/2 connections to one upstream, and which of them a request gets.

A request waits only while no connection has room for it: what is waiting shares the connections that are being opened,
and only as many are opened as the peer's MAX_CONCURRENT_STREAMS makes necessary.

Long-running streams are spread, so that the loss or stall of one connection takes few: at most LASTING on each, until
there are SPREAD connections; from then on they fill these up to the peer's limit before another is opened. With
kube-apiserver's limit of 250, 10,000 watches have 40 connections.

Short requests go to a connection without stalled streams, which is chosen again after some requests, with few streams
among those in use; an idle one is taken only when these have many, so that the surplus closes.
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

#: Streams of a connection before the peer's first SETTINGS (RFC 9113 6.5.2 recommends no limit below).
FIRST_LIMIT: Final = 100
#: Long-running streams of a connection while there are less than SPREAD connections.
LASTING: Final = 100
SPREAD: Final = 32
#: Streams of a connection from which on one with fewer is preferred even if it is idle.
_MANY: Final = 50
#: Short requests between two choices of their connection.
_TAKES: Final = 32


class H2Pool:
    """The HTTP/2 connections of a pool (`http/connection_pool.py`).

    `dial()` opens a connection and fires with its engine. `max_idle`, `max_connections` and `idle_timeout` as for
    `H1Pool`; a connection that the peer takes out of service with GOAWAY no longer counts. `first_limit`: streams of a
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
        self._used = HighWaterMark(seconds())  # of connections with streams
        self._dials: set[Deferred[H2ClientConnection]] = set()  # connections that are being opened
        self._waiting: dict[Deferred[H2ClientStream], bool] = {}  # in order; whether the response lasts
        self._current: H2ClientConnection | None = None  # for short requests
        self._takes = 0
        self._serving = False
        self._closed = False
        self._awaits_settings = first_limit < FIRST_LIMIT
        self._announced_limit = FIRST_LIMIT  # by the upstream's last SETTINGS
        self.presumed_limit = first_limit  # streams of a connection before the upstream's SETTINGS
        #: Those that take new streams, the oldest first.
        self.connections: list[H2ClientConnection] = []
        #: Those that take none any more, and are not closed yet: GOAWAY lets them finish the streams that they have.
        self.retired: set[H2ClientConnection] = set()

    @property
    def idle(self) -> int:
        """The number of connections without streams."""
        return sum(not connection.streams for connection in self.connections)

    @property
    def is_full(self) -> bool:
        """Whether no further connection may be opened."""
        return 0 < self._max_connections <= len(self.connections) + len(self._dials)

    # -- requests -----------------------------------------------------------------------------------------------

    def take(self, lasting: bool) -> H2ClientStream | None:
        """Return a stream on a connection that is open, or None if there is none with room.

        It is to be used at once: only `send_head` makes it count.
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
                return None  # another connection is being opened, or is to be
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
                    connection.retire()  # the caller wants a new connection, not this one
                    break
        self._open_for_waiting(opens=True)
        if not self._dials:  # there may be no more: the next with room may have some already
            self._serve()
        return waiter

    def _cancel_wait(self, waiter: Deferred[H2ClientStream]) -> None:
        self._waiting.pop(waiter, None)
        if not self._waiting:
            for dial in list(self._dials):
                dial.cancel()

    def _open_for_waiting(self, *, opens: bool = False) -> None:
        """Open the connections that the waiting requests need, as far as `max_connections` permits.

        `opens`: at least one, even if others have room.
        """
        while True:
            count = len(self.connections) + len(self._dials)
            share = limit = self._announced_limit
            if count < SPREAD:
                share = min(limit, LASTING)
            room = len(self._dials) * share
            if self._awaits_settings:  # those whose SETTINGS are on their way will have more room
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
                    return  # it has failed at once: those that wait get what others that are being opened give
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
        """Take a connection that was opened elsewhere; return its first stream, for a short request.

        It is to be used at once. Raises `net.connect_errors.ConnectFailed` if the connection was closed already.
        """
        if not connection.usable:
            raise ConnectFailed("the connection was closed at once")
        self.connections.append(connection)
        self._note_use(connection)
        return connection.new_request(lasting=False)

    def _failed(self, reason: Failure) -> None:
        """A connection was not opened: those that wait get what there is or fail, unless another is on its way."""
        if self._dials:
            return
        self.release_waiting(reason)

    def release_waiting(self, reason: Failure) -> None:
        """Give waiting requests the streams that there are; the others fail with `reason`."""
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
        """Give streams to those that wait, in their order."""
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
        """A connection has room again; called if it has no stream any more, or if a request waits."""
        if self._waiting:
            self._serve()
        if not connection.streams and connection.usable:
            self._connection_idle(connection)

    def limit_announced(self, connection: H2ClientConnection) -> None:
        """The peer has announced how many streams a connection may have; `limit` is set."""
        limit = connection.limit
        self._announced_limit = max(limit, 1)
        self.presumed_limit = min(self._announced_limit, FIRST_LIMIT)
        if not limit and not connection.streams:
            connection.retire()
        elif self._waiting:
            self._serve()

    def connection_unusable(self, connection: H2ClientConnection) -> None:
        """A connection takes no further stream: it is closed, or will be after those that it has. Called once."""
        if connection in self.connections:
            self.connections.remove(connection)
        self.retired.add(connection)
        if connection is self._current:
            self._current = None
        if self._waiting:
            self._serve()

    def connection_ended(self, connection: H2ClientConnection) -> None:
        """A connection is closed."""
        self.retired.discard(connection)

    # -- idle connections ---------------------------------------------------------------------------------------

    def _note_use(self, connection: H2ClientConnection) -> None:
        """A connection without streams gets one."""
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
        """Give no further request to the connections of now: their peer may be gone."""
        for connection in self.connections[:]:
            connection.retire()

    def close(self) -> None:
        """Close the idle connections, and the others when their streams have ended. What waits is still served."""
        self._closed = True
        self.renew()
