"""A bounded cache that keeps recurring values although most values occur only once."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

_OVERHEAD: Final = 200  # approximate bytes of an entry in addition to its key and value


class Remembered(Generic[Value]):
    """A cache of values by bytes, in two generations.

    When the younger generation is full, it replaces the older one. A value found in the older generation moves back to
    the younger one. So recurring values stay, although values that occur once (an id for each request) fill the cache
    again and again. At most twice `max_count` values and twice `max_bytes` are kept, and no key longer than `max_key`.
    """

    __slots__ = ("_bytes", "_max_bytes", "_max_count", "_max_key", "_older", "recent")

    def __init__(self, max_count: int, max_bytes: int, max_key: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._max_key = max_key
        self._bytes = 0  # approximate size of the younger generation
        self._older: dict[bytes, Value] = {}
        #: The younger generation; callers look here first, which usually suffices.
        self.recent: dict[bytes, Value] = {}

    def find_older(self, key: bytes) -> Value | None:
        """Return the value of a key that is not in `recent`."""
        value = self._older.get(key)
        if value is not None:
            self.add(key, value)
        return value

    def add(self, key: bytes, value: Value) -> None:
        size = len(key)
        if size > self._max_key:
            return
        self._bytes += 2 * size + _OVERHEAD
        if len(self.recent) >= self._max_count or self._bytes > self._max_bytes:
            self._older = self.recent
            self.recent = {}
            self._bytes = 2 * size + _OVERHEAD
        self.recent[key] = value

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)
