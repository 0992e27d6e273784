"""The open connections of a listener by client; chooses the connection to close in favour of a new one. Pure.

If several processes have connections of one listener, each has its own table and closes its own connections. The
limits count the connections of all processes (`Places`).

A client is an IPv4 address, the /64 network of an IPv6 address, or all clients of a unix socket together. A host can
use all addresses of its /64, so a limit for single addresses would be ineffective.
"""

from __future__ import annotations

import heapq
from ipaddress import IPv6Address, ip_address
from typing import Generic, Protocol, TypeVar

from twisted.internet.interfaces import IAddress

UNIX = "unix:"
UNKNOWN = ""  # the client of a connection whose PROXY header is not read yet
ALL = "*"
_UNLIMITED = frozenset({UNIX, UNKNOWN})  # exempt from `limits.connectionsPerClient`

_CLIENTS_TRIED = 16  # number of clients whose connections are searched for an idle one
_CANDIDATES = 32  # limit of the idle connections kept from one search
_RETRY_DELAY = 0.25  # seconds without a search after a search without result


class CountedConnection(Protocol):
    """An open connection."""

    @property
    def idle_since(self) -> float | None:
        """The time (reactor's clock, seconds) since which no request is in progress; None during a request."""


C = TypeVar("C", bound=CountedConnection)


class ClientTable(Generic[C]):
    """Counts connections by client. Adding and removing takes constant time."""

    __slots__ = ("_by_count", "_candidates", "_candidates_of", "_clients", "_retry_at", "_size")

    def __init__(self) -> None:
        self._clients: dict[str, set[C]] = {}
        self._by_count: dict[int, dict[str, None]] = {}  # number of connections -> clients with that number
        self._size = 0
        self._candidates: list[tuple[float, C]] = []  # idle connections of the last search, the longest idle last
        self._candidates_of = UNKNOWN
        self._retry_at = 0.0

    def __len__(self) -> int:
        return self._size

    def count(self, client: str) -> int:
        """Return the number of connections of a client."""
        return len(self._clients.get(client, ()))

    def add(self, client: str, connection: C) -> None:
        connections = self._clients.setdefault(client, set())
        self._uncount(client, len(connections))
        connections.add(connection)
        self._by_count.setdefault(len(connections), {})[client] = None
        self._size += 1

    def remove(self, client: str, connection: C) -> None:
        connections = self._clients[client]
        self._uncount(client, len(connections))
        connections.remove(connection)
        if connections:
            self._by_count.setdefault(len(connections), {})[client] = None
        else:
            del self._clients[client]
        self._size -= 1

    def move(self, client: str, connection: C, to_client: str, to: C) -> None:
        """Replace a connection by its next object `to`, or change the client of a connection (same `to`)."""
        self.remove(client, connection)
        self.add(to_client, to)

    def is_full(self, limit: int) -> bool:
        """Whether the number of connections has reached `limit`. If not, the caller adds a connection."""
        return self._size >= limit

    def is_full_for(self, client: str, limit: int) -> bool:
        """Whether a client's number of connections has reached `limit`. If not, the caller adds a connection."""
        return self.count(client) >= limit

    def not_added(self) -> None:
        """Cancel the announced addition of a connection."""

    def _uncount(self, client: str, count: int) -> None:
        if count:
            clients = self._by_count[count]
            del clients[client]
            if not clients:
                del self._by_count[count]

    def longest_idle(self, now: float) -> tuple[str, C] | None:
        """Return the longest idle connection of the client with most connections among those with idle ones."""
        if now < self._retry_at:
            return None
        tried = 0
        for count in sorted(self._by_count, reverse=True):
            for client in self._by_count[count]:
                connection = self.longest_idle_of(client)
                if connection is not None:
                    return client, connection
                tried += 1
                if tried == _CLIENTS_TRIED:
                    self._retry_at = now + _RETRY_DELAY
                    return None
        self._retry_at = now + _RETRY_DELAY
        return None

    def longest_idle_of(self, client: str) -> C | None:
        """Return the longest idle connection of a client, or None.

        A search keeps several candidates. Under a flood each new connection needs one, and the time of a search is
        proportional to the client's connections.
        """
        connections = self._clients.get(client, set())
        if self._candidates_of == client:
            while self._candidates:
                since, connection = self._candidates.pop()
                if connection in connections and connection.idle_since == since:
                    return connection
        idle = [
            (idle_since, id(connection), connection)
            for connection in connections
            if (idle_since := connection.idle_since) is not None
        ]
        if not idle:
            return None
        longest = heapq.nsmallest(_CANDIDATES, idle)
        self._candidates_of = client
        self._candidates = [(since, connection) for since, _, connection in reversed(longest)]
        return self._candidates.pop()[1]


class Places(Protocol):
    """Counts connections over all processes by client. The client ALL counts the connections of all clients."""

    def take(self, client: str, limit: int) -> bool:
        """Count a connection unless the count has reached `limit`; return whether it was counted."""

    def take_beyond(self, client: str) -> None:
        """Count a connection, regardless of the limit."""

    def release(self, client: str) -> None:
        """Decrease the count by one connection."""


class ClientTableOfProcess(ClientTable[C]):
    """The connections of one of several processes. Limits apply to all processes, so a check already counts the
    announced connection."""

    __slots__ = ("_ahead", "_places")

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self._ahead: list[str] = []  # clients for which the announced connection is already counted

    def add(self, client: str, connection: C) -> None:
        super().add(client, connection)
        self._take(ALL)
        self._take(client)

    def remove(self, client: str, connection: C) -> None:
        super().remove(client, connection)
        self._places.release(ALL)
        self._release(client)

    def move(self, client: str, connection: C, to_client: str, to: C) -> None:
        super().remove(client, connection)
        super().add(to_client, to)
        if to_client != client:
            self._take(to_client)
            self._release(client)

    def is_full(self, limit: int) -> bool:
        return not self._take_ahead(ALL, limit)

    def is_full_for(self, client: str, limit: int) -> bool:
        return not self._take_ahead(client, limit)

    def not_added(self) -> None:
        ahead, self._ahead = self._ahead, []
        for client in ahead:
            self._places.release(client)

    def _take_ahead(self, client: str, limit: int) -> bool:
        if not self._places.take(client, limit):
            return False
        self._ahead.append(client)
        return True

    def _take(self, client: str) -> None:
        if client in self._ahead:
            self._ahead.remove(client)
        elif client not in _UNLIMITED:
            self._places.take_beyond(client)

    def _release(self, client: str) -> None:
        if client not in _UNLIMITED:
            self._places.release(client)


def client_of(address: IAddress) -> str:
    """Return the client of a connection from `address`."""
    return network(getattr(address, "host", UNIX))


def network(address: str) -> str:
    """Return the network whose addresses count as one client; other text is returned unchanged."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
