"""Counts of requests in flight by key; pure.

Only keys with a request in flight use memory, so the table is bounded by the number of client connections.
"""

from __future__ import annotations


class InFlightCounts:
    """Counts against one maximum. Without one (None) it counts too: a reload may set one for requests in flight."""

    __slots__ = ("_counts", "in_use", "max")

    def __init__(self, maximum: int | None) -> None:
        self.max = maximum  # for each key; may be changed at any time, also to less than what is in flight
        self.in_use = 0  # of all keys together
        self._counts: dict[str, int] = {}

    def take(self, key: str) -> bool:
        """Count one more; False if the maximum is reached."""
        count = self._counts.get(key, 0)
        if self.max is not None and count >= self.max:
            return False
        self._counts[key] = count + 1
        self.in_use += 1
        return True

    def release(self, key: str) -> None:
        """Count one less. Raises KeyError if none is in flight."""
        count = self._counts[key] - 1
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]
        self.in_use -= 1

    def count(self, key: str) -> int:
        """Return how many are in flight for a key."""
        return self._counts.get(key, 0)

    def __len__(self) -> int:
        """Return for how many keys something is in flight."""
        return len(self._counts)
