"""Counts the floods that were refused, and writes one log line a period and kind."""

from __future__ import annotations

from collections import Counter

from twisted.logger import Logger

from mcproxy.log_once import LogOnce

log = Logger(__name__)

_TODO = "find out what runs at this address; status counts what was refused (protection)"
_TODOS = {  # by kind, where it may have been a client that means no harm
    "large_header_block": f"{_TODO}; if it needs such heads, raise limits.headBytes",
}


class Floods:
    """Of one listener. `counts` has the connections that were ended, by kind of flood, since the start."""

    __slots__ = ("_once", "counts")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._once = LogOnce()

    def refused(self, kind: str, client: str, cause: str, now: float) -> None:
        """Count a connection that was ended because of a flood."""
        self.counts[kind] += 1
        suppressed = self._once.suppressed(kind)
        if self._once.allows(kind, now):
            log.warn(
                "an HTTP/2 connection was closed because of a flood",
                event="http2_flood",
                kind=kind,
                client=client,
                cause=cause,
                connections=suppressed + 1,
                todo=_TODOS.get(kind, _TODO),
            )
