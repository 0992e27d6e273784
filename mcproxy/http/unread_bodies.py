"""Bounds what the clients of a listener have sent of bodies that nobody reads yet, all connections together.

A body is not read before its request is authenticated, allowed and admitted, which may wait for others (a review, a
queue). What has arrived until then is bounded on each connection: one read of HTTP/1.1, the windows of HTTP/2. Many
connections can still hold much; so there is a bound for all of them, above which a request that sends more of its body
is refused. A client that holds a lot is refused from half of that on: the rest is for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mcproxy.http.messages import ProtocolError
from mcproxy.net.client_table import client_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

MOST_UNREAD: Final = 64 * 1024 * 1024
"""Bytes, of all connections of a listener."""
_SHARES: Final = 8  # a client's share is that part of them


class UnreadBodies:
    """Of one listener. Where a method has `client`, it is the address of the connection, None if that has none."""

    __slots__ = ("_by_client", "_most", "size")

    def __init__(self, most: int = MOST_UNREAD) -> None:
        self._most = most
        self._by_client: dict[str, int] = {}
        self.size = 0
        """Bytes that are held."""

    def add(self, client: IAddress | None, data: bytes) -> None:
        """Hold a piece that has arrived. Raises ProtocolError (503) if there is no room; then it is not held."""
        size, name = len(data), _name(client)
        after, own = self.size + size, self._by_client.get(name, 0) + size
        if after > self._most or (2 * after > self._most and _SHARES * own > self._most):
            raise ProtocolError(503, "too many bodies of requests wait to be read, please try again later")
        self.size, self._by_client[name] = after, own

    def take_back(self, client: IAddress | None, pieces: Iterable[bytes]) -> None:
        """Hold what a handler gave back, which is in memory anyway."""
        size, name = sum(map(len, pieces)), _name(client)
        self.size += size
        self._by_client[name] = self._by_client.get(name, 0) + size

    def remove(self, client: IAddress | None, pieces: Iterable[bytes]) -> None:
        """The pieces are held no longer."""
        size, name = sum(map(len, pieces)), _name(client)
        self.size -= size
        left = self._by_client.pop(name, 0) - size
        if left > 0:
            self._by_client[name] = left


def _name(client: IAddress | None) -> str:
    return "" if client is None else client_of(client)
