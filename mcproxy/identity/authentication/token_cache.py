"""Answers about tokens, kept for a while under a keyed hash of the token: no token is ever kept itself.

Bounded by number and by size, the least recently used go first. Whoever sends made-up tokens fills the cache of
refusals, never that of the accepted: they are two.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")

_KEY_BYTES = 16


class TokenHash:
    """BLAKE2b with a key that only this process knows: its values tell nobody anything, not even in a core dump."""

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
    """Values by the hash of a token, each until its own time."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._entries: OrderedDict[bytes, _Entry[V]] = OrderedDict()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now: float) -> V | None:
        """Return the value, None if there is none or its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.until:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: bytes, value: V, until: float, size: int) -> None:
        """Keep a value of about `size` bytes, if that is not too much for the cache at all."""
        self.drop(key)
        if size > self._max_bytes:
            return
        self._entries[key] = _Entry(value, until, size)
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= self._entries.popitem(last=False)[1].size

    def drop(self, key: bytes) -> None:
        """Forget the value."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
