"""Lets one log line of a kind through in a period: of a limit that a crowd reaches, the first one tells it. Pure."""

from __future__ import annotations

from collections.abc import Hashable

PERIOD = 60.0
"""Seconds."""
MOST = 256
"""Kinds that are remembered at the same time; while there are as many, further ones share one place."""


class Quiet:
    """Remembers when something was said last, for each kind of line."""

    __slots__ = ("_most", "_period", "_said")

    def __init__(self, period: float = PERIOD, most: int = MOST) -> None:
        self._period = period
        self._most = most
        self._said: dict[Hashable, float] = {}  # in the order of time

    def may_say(self, kind: Hashable, now: float) -> bool:
        """Return whether to write a line of `kind` now, which counts as written; `now` in seconds, monotonic."""
        if kind not in self._said and len(self._said) >= self._most:
            self._forget(now)
            if len(self._said) >= self._most:
                kind = None
        last = self._said.get(kind)
        if last is not None and now - last < self._period:
            return False
        self._said.pop(kind, None)
        self._said[kind] = now
        return True

    def _forget(self, now: float) -> None:
        while self._said and now - next(iter(self._said.values())) >= self._period:
            del self._said[next(iter(self._said))]
