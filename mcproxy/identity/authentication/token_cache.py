"""The cache for results of bearer tokens: the lifetime of an acceptance, and its key.

The key is a keyed hash of the token; tokens themselves are never kept. A cache is bounded by number and by size.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from mcproxy.identity.authentication.token_authenticator import CacheTimes

V = TypeVar("V")

_KEY_BYTES = 16


def cached_until(
    now: float, times: CacheTimes, token_expires: float | None, wall_seconds: Callable[[], float]
) -> float:
    """Return the end of an acceptance's caching by the clock of `now`; it is never after the token's own expiry.

    `token_expires` is in seconds since 1970, as `wall_seconds()` is; None: unknown.
    """
    until = now + times.success
    return until if token_expires is None else min(until, now + token_expires - wall_seconds())


class TokenHash:
    """BLAKE2b with a key that only this process knows, so that stored hashes reveal no token."""

    __slots__ = ("_keyed",)

    def __init__(self, secret: bytes) -> None:
        """`secret` has 16 to 64 random bytes."""
        self._keyed = hashlib.blake2b(key=secret, digest_size=_KEY_BYTES)

    def __call__(self, token: bytes) -> bytes:
        state = self._keyed.copy()
        state.update(token)
        return state.digest()


class _Entry(NamedTuple, Generic[V]):
    value: V
    until: float
    size: int


class TokenCache(Generic[V]):
    """Cached values by the hash of a token, each with an expiry."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._entries: OrderedDict[bytes, _Entry[V]] = OrderedDict()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now: float) -> V | None:
        """Return the value, None if it is missing or expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.until:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: bytes, value: V, until: float, size: int) -> None:
        """Store a value of about `size` bytes, unless it is too large for the cache."""
        self.drop(key)
        if size > self._max_bytes:
            return
        self._entries[key] = _Entry(value, until, size)
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= self._entries.popitem(last=False)[1].size

    def drop(self, key: bytes) -> None:
        """Remove the value."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
