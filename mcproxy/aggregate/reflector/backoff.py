"""The times between attempts that fail: client-go's for its reflectors."""

from __future__ import annotations

from collections.abc import Callable

_FIRST, _MAX = 0.8, 30.0  # seconds; client-go, tools/cache `NewReflectorWithOptions`


class Backoff:
    """Doubles with each failure, from 0.8 to 30 s, with a jitter so that many do not come at once."""

    __slots__ = ("_next", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` returns a float in [0, 1)."""
        self._random = random
        self._next = _FIRST

    def failed(self) -> float:
        """Return the seconds until the next attempt."""
        delay = min(self._next * (1 + self._random()), _MAX)
        self._next = min(2 * self._next, _MAX)
        return delay

    def worked(self) -> None:
        """Begin again with short times."""
        self._next = _FIRST
