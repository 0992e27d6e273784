"""Keep-alive connections to one upstream address under one identity, lent out one request at a time.

The newest idle connection is lent first: so a pool that needs few keeps few, and the others reach their idle timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.http.client import ClientConnection
from mcproxy.http.deadlines import NEVER, Deadlines

Connect = Callable[[ClientConnection], "Deferred[None]"]


class Pool:
    """The connections to one upstream.

    `connect(protocol)` opens a connection and fires when the protocol is connected. `max_idle` connections are kept at
    the most, each for `idle_timeout` seconds; `max_connections` bounds all of them (0: no bound), and requests beyond
    it wait for a free one, first come, first served.
    """

    def __init__(
        self, connect: Connect, deadlines: Deadlines, *, max_idle: int, max_connections: int, idle_timeout: float
    ) -> None:
        self._connect = connect
        self._deadlines = deadlines
        self._max_idle = max_idle
        self._max_connections = max_connections
        self._idle_timeout = idle_timeout
        self._idle: list[ClientConnection] = []
        self._waiting: deque[Deferred[ClientConnection]] = deque()
        self._closed = False
        self._opening = False  # for those who wait
        self.connections = 0  # open or being opened, without tunnels' (they leave the pool)

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    def take(self) -> ClientConnection | None:
        """Return an idle connection, or None if there is none."""
        if not self._idle:
            return None
        connection = self._idle.pop()
        connection.deadline = NEVER
        return connection

    def open(self) -> Deferred[ClientConnection]:
        """Return a new connection, or one that comes free while `max_connections` are open.

        Fails with `net.errors.ConnectError`. Cancel it if the request is gone.
        """
        if self._max_connections and self.connections >= self._max_connections and self._idle:
            self._idle[0].retire()  # a new one was asked for although this one is free
        if self._max_connections and self.connections >= self._max_connections:
            waiter: Deferred[ClientConnection] = Deferred(self._forget)
            self._waiting.append(waiter)
            return waiter
        return self._open()

    def _open(self) -> Deferred[ClientConnection]:
        self.connections += 1
        connection = ClientConnection(self, self._deadlines)

        def failed(reason: Failure) -> Failure:
            self._left()
            return reason

        return self._connect(connection).addCallbacks(lambda _: connection, failed)

    def _open_for(self, waiter: Deferred[ClientConnection]) -> None:
        """Open a connection for one who waits; if he leaves meanwhile, it serves another."""

        def opened(connection: ClientConnection) -> None:
            if waiter.called:
                self.connection_idle(connection)
            else:
                waiter.callback(connection)

        def failed(reason: Failure) -> None:
            if not waiter.called:
                waiter.errback(reason)

        self._open().addCallbacks(opened, failed)

    def _forget(self, waiter: Deferred[ClientConnection]) -> None:
        if waiter in self._waiting:  # else a connection is being opened for it
            self._waiting.remove(waiter)

    # -- ConnectionOwner ----------------------------------------------------------------------------------------

    def connection_idle(self, connection: ClientConnection) -> None:
        if self._waiting:
            self._waiting.popleft().callback(connection)
        elif self._closed or len(self._idle) >= self._max_idle:
            connection.retire()
        else:
            self._idle.append(connection)
            connection.deadline = self._deadlines.after(self._idle_timeout)

    def connection_closed(self, connection: ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._left()

    def _left(self) -> None:
        """A connection is gone: whoever waits may open one in its place."""
        self.connections -= 1
        if self._opening:  # one that failed at once, below: thousands of those would be as many calls within calls
            return
        self._opening = True
        try:
            while self._waiting and self.connections < self._max_connections:
                self._open_for(self._waiting.popleft())
        finally:
            self._opening = False

    def close(self) -> None:
        """Close the idle connections, and each other one when its request is over."""
        self._closed = True
        while self._idle:
            self._idle[-1].retire()
