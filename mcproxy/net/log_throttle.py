"""Limits repeated log lines: one line of a kind in a period, so that many clients at a limit write one line. Pure."""

from __future__ import annotations

from collections.abc import Hashable

PERIOD = 60.0
"""Seconds."""
MOST = 256
"""Kinds that are remembered at the same time; all further ones count as one kind."""


class LogThrottle:
    """Remembers, for each kind of line, when one was written last."""

    __slots__ = ("_logged", "_most", "_period")

    def __init__(self, period: float = PERIOD, most: int = MOST) -> None:
        """`period` is in seconds, `most` bounds the kinds that are remembered."""
        self._period = period
        self._most = most
        self._logged: dict[Hashable, float] = {}  # in the order of time

    def allows(self, kind: Hashable, now: float) -> bool:
        """Return whether to write a line of `kind` now, which counts as written; `now` in seconds, monotonic."""
        if kind not in self._logged and len(self._logged) >= self._most:
            self._forget(now)
            if len(self._logged) >= self._most:
                kind = None
        last = self._logged.get(kind)
        if last is not None and now - last < self._period:
            return False
        self._logged.pop(kind, None)
        self._logged[kind] = now
        return True

    def _forget(self, now: float) -> None:
        while self._logged and now - next(iter(self._logged.values())) >= self._period:
            del self._logged[next(iter(self._logged))]
