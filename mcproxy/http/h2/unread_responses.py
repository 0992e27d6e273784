"""Bounds what the clients of a listener have asked for and do not read, all connections together.

Each connection has its own bounds (`frame_sender`), but 250 streams that begin at once can still have 64 KiB each
waiting, for that much was on its way when they were paused. One connection alone may: a client behind a slow network
lists a lot at its start. Many of them could take all memory; so above MOST_WAITING the client with the most loses its
connection with the most.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from mcproxy.http.deadlines import NEVER, RESOLUTION, Deadlines
from mcproxy.http.h2.h2_errors import Flood, HTTP2ConnectionError
from mcproxy.net.client_table import client_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from mcproxy.http.h2.frame_sender import FrameSender

MOST_WAITING: Final = 256 * 1024 * 1024
"""Bytes, of the connections of a listener that have more than `frame_sender.CONNECTION_HIGH` waiting."""


class Connection(Protocol):
    """A client connection (`h2_server.H2ServerConnection`)."""

    @property
    def client(self) -> IAddress | None: ...
    @property
    def sender(self) -> FrameSender: ...
    def fail(self, error: HTTP2ConnectionError) -> None: ...


class UnreadResponses:
    """Of one listener. Nothing is done while no connection has much waiting, else a look four times a second."""

    __slots__ = ("_connections", "_deadlines", "_most", "deadline")

    def __init__(self, deadlines: Deadlines, most: int = MOST_WAITING) -> None:
        self._deadlines = deadlines
        self._most = most
        self._connections: set[Connection] = set()
        self.deadline = NEVER

    def note(self, connection: Connection) -> None:
        """Much waits on a connection."""
        if not self._connections:
            self.deadline = self._deadlines.after(RESOLUTION)
            self._deadlines.add(self)
        self._connections.add(connection)

    def expired(self) -> None:
        """Look at all connections on which much waits."""
        waiting = {each: each.sender.queued for each in self._connections if _is_backlogged(each.sender)}
        self._connections = set(waiting)
        if not waiting:
            self._deadlines.remove(self)
            return
        self.deadline = self._deadlines.after(RESOLUTION)
        excess = sum(waiting.values()) - self._most
        if excess > 0:
            self._end_largest(waiting, excess)

    def _end_largest(self, waiting: dict[Connection, int], excess: int) -> None:
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


def _client(connection: Connection) -> str:
    return "" if connection.client is None else client_of(connection.client)
