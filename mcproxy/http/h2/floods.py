"""Counts the floods that were refused, and writes one log line a period and kind."""

from __future__ import annotations

from collections import Counter
from typing import Final

from twisted.logger import Logger

log = Logger(__name__)

PERIOD: Final = 60.0
"""Seconds between two log lines of one kind."""

_TODO = "find out what runs at this address; status counts what was refused (protection)"
_TODOS = {  # by kind, where it may have been a client that means no harm
    "large_header_block": f"{_TODO}; if it needs such heads, raise limits.headBytes",
}


class Floods:
    """Of one listener. `counts` has the connections that were ended, by kind of flood, since the start."""

    __slots__ = ("_logged", "counts")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}  # by kind: when, and the count then

    def refused(self, kind: str, client: str, cause: str, now: float) -> None:
        """Count a connection that was ended because of a flood."""
        count = self.counts[kind] = self.counts[kind] + 1
        last, counted = self._logged.get(kind, (now - PERIOD, 0))
        if now - last >= PERIOD:
            self._logged[kind] = now, count
            log.warn(
                "an HTTP/2 connection was closed because of a flood",
                event="http2_flood",
                kind=kind,
                client=client,
                cause=cause,
                connections=count - counted,
                todo=_TODOS.get(kind, _TODO),
            )
