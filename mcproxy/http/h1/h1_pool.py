"""The pool of HTTP/1.1 connections to one upstream: one request at a time on each, kept alive between requests.

The pool keeps as many connections as were in use at the same time within the last minute. It takes the newest idle one
first, so that the oldest ones are the surplus, which closes when the high-water mark falls or after the idle timeout.

A request that is sent while the upstream closes the idle connection fails, and a write cannot be repeated. So an idle
connection is kept for less time than the upstream announces (Keep-Alive: timeout) or was observed to keep one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h1.h1_client import MAX_HEAD, H1ClientConnection
from mcproxy.http.high_water_mark import HighWaterMark

Connect = Callable[[H1ClientConnection], "Deferred[None]"]


SHARE: Final = 0.9
"""The fraction of the upstream's idle time for which a connection is kept. Unless the idle time is short, the kept time
is at least _MARGIN less than the idle time.
"""
_MARGIN: Final = 1.0  # seconds that a request may take to reach the upstream
_LEAST_SEEN: Final = 1.0  # seconds; a connection that is closed sooner was not closed for its idleness
_REMEMBERED: Final = 600.0  # seconds for which an observation counts: the upstream's restart closes all connections


class H1Pool:
    """The HTTP/1.1 connections of a pool (`http/connection_pool.py`).

    `connect(protocol)` opens a connection and fires when the protocol is connected. At most `max_idle` idle connections
    are kept, whatever the load was, each for `idle_timeout` seconds (0: no limit). `max_connections` limits all
    connections (0: no limit); further requests wait in order for a free one. `most_head` limits a response's head
    (bytes).
    """

    def __init__(
        self,
        connect: Connect,
        deadlines: Deadlines,
        *,
        max_idle: int,
        max_connections: int,
        idle_timeout: float,
        most_head: int = MAX_HEAD,
    ) -> None:
        self._connect = connect
        self._deadlines = deadlines
        self._max_idle = max_idle
        self._max_connections = max_connections
        self._idle_timeout = idle_timeout
        self._most_head = most_head
        self._idle: list[H1ClientConnection] = []
        self._used = HighWaterMark(deadlines.seconds())  # the highest number of connections in use
        self._waiting: deque[Deferred[H1ClientConnection]] = deque()
        self._closed = False
        self._seen_idle = 0.0  # idle seconds after which the upstream closed a connection; 0: not seen
        self._seen_at = 0.0
        self._opening = False  # whether `_connection_gone` is opening connections for waiting requests
        self.connections = 0  # number of connections, open or being opened, without tunnels (they leave the pool)

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    @property
    def is_limited(self) -> bool:
        """Whether `max_connections` limits the connections."""
        return self._max_connections > 0

    @property
    def is_full(self) -> bool:
        """Whether `max_connections` is reached."""
        return 0 < self._max_connections <= self.connections

    def take(self) -> H1ClientConnection | None:
        """Return an idle connection, or None if there is none."""
        if not self._idle:
            return None
        now = self._deadlines.seconds()
        while self._idle[-1].deadline <= now:  # the sweep of the deadlines may be late
            self._idle[-1].retire()
            if not self._idle:
                return None
        connection = self._idle.pop()
        connection.deadline = NEVER
        connection.reused_after = now - connection.idle_since
        self._used.note(self.connections - len(self._idle))
        return connection

    def open(self) -> Deferred[H1ClientConnection]:
        """Return a new connection, or the next free one if `max_connections` are open.

        Fails with `net.connect_errors.ConnectError`. Cancel it if the request is cancelled.
        """
        if self.is_full and self._idle:
            self._idle[0].retire()  # makes room, because the caller wants a new connection
        if self.is_full:
            waiter: Deferred[H1ClientConnection] = Deferred(self._cancel_wait)
            self._waiting.append(waiter)
            return waiter
        return self._open()

    def _open(self) -> Deferred[H1ClientConnection]:
        self.connections += 1
        self._used.note(self.connections - len(self._idle))
        connection = self._new()

        def failed(reason: Failure) -> Failure:
            self._connection_gone()
            return reason

        return self._connect(connection).addCallbacks(lambda _: connection, failed)

    def adopt(self) -> H1ClientConnection:
        """Return an engine for a connection opened elsewhere; when it is connected, call `connection_idle`."""
        now = self._deadlines.seconds()
        if now >= self._used.due:
            self._close_surplus(now)
        self.connections += 1
        self._used.note(self.connections - len(self._idle))  # counted as used: its request takes it at once
        return self._new()

    def _new(self) -> H1ClientConnection:
        return H1ClientConnection(self, self._deadlines, self._most_head)

    def _open_for(self, waiter: Deferred[H1ClientConnection]) -> None:
        """Open a connection for a waiting request; if the request is cancelled meanwhile, the connection is kept."""

        def opened(connection: H1ClientConnection) -> None:
            if waiter.called:
                self.connection_idle(connection)
            else:
                waiter.callback(connection)

        def failed(reason: Failure) -> None:
            if not waiter.called:
                waiter.errback(reason)

        self._open().addCallbacks(opened, failed)

    def _cancel_wait(self, waiter: Deferred[H1ClientConnection]) -> None:
        if waiter in self._waiting:  # otherwise a connection is being opened for this request
            self._waiting.remove(waiter)

    # -- H1ConnectionOwner --------------------------------------------------------------------------------------

    def connection_idle(self, connection: H1ClientConnection) -> None:
        if self._waiting:
            self._waiting.popleft().callback(connection)
        elif self._closed or len(self._idle) >= self._max_idle:
            connection.retire()
        else:
            self._idle.append(connection)
            now = self._deadlines.seconds()
            connection.idle_since = now
            connection.deadline = now + self._idle_timeout if self._idle_timeout else NEVER
            if connection.announced_idle:
                connection.deadline = min(connection.deadline, now + shorter_idle_time(connection.announced_idle))
            if self._seen_idle:
                if now >= self._seen_at + _REMEMBERED:
                    self._seen_idle = 0.0
                else:
                    connection.deadline = min(connection.deadline, now + shorter_idle_time(self._seen_idle))
            if now >= self._used.due:
                self._close_surplus(now)

    def _close_surplus(self, now: float) -> None:
        """Close the idle connections beyond those that the last minute needed, the oldest first."""
        self._used.advance(now, self.connections - len(self._idle))
        for connection in self._idle[: max(0, self.connections - self._used.value)]:
            connection.retire()

    def closed_after_idleness(self, seconds: float) -> None:
        """Keep other connections for less than `seconds`, because the upstream has closed one that was idle so long."""
        if seconds >= _LEAST_SEEN and (not self._seen_idle or seconds < self._seen_idle):
            self._seen_idle = seconds
            self._seen_at = self._deadlines.seconds()
            for each in self._idle:
                each.deadline = min(each.deadline, each.idle_since + shorter_idle_time(seconds))

    def connection_closed(self, connection: H1ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._connection_gone()

    def _connection_gone(self) -> None:
        """Open connections for waiting requests, after a connection was closed or could not be opened."""
        self.connections -= 1
        if self._opening:  # an attempt of the loop below has failed at once: do not recurse
            return
        self._opening = True
        try:
            while self._waiting and self.connections < self._max_connections:
                self._open_for(self._waiting.popleft())
        finally:
            self._opening = False

    def close(self) -> None:
        """Close idle connections at once, and busy ones when their requests are done."""
        self._closed = True
        self.renew()

    def renew(self) -> None:
        """Close the idle connections, because their peer may be gone."""
        while self._idle:
            self._idle[-1].retire()


def shorter_idle_time(seconds: float) -> float:
    """Return for how many seconds to keep an idle connection that the upstream closes after `seconds`."""
    return max(min(seconds * SHARE, seconds - _MARGIN), seconds / 2)
