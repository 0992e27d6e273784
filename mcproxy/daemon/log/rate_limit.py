"""Limits the log lines that a client can cause, by kind of line and client address. Pure, with an injected clock.

The kind of a line is its event; a line of a library has its format instead. Without a known client, the subject of the
line (`log_subject`) replaces it.

The first lines of a kind are written; the rest of the period becomes one summary line. So a client that sends thousands
of bad requests neither fills the disk nor hides the lines of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.logger import LogEvent

from mcproxy.net.client_table import network

BURST = 10
"""Lines of a kind and address that are written in a period."""
PERIOD = 60.0
"""Seconds."""
MAX_KEYS = 1024
"""The most keys of a kind and an address; further addresses share one key per kind."""

_OTHERS = "other clients"
_Key = tuple[str, str, str]  # kind, subject, address


@dataclass(slots=True)
class _Count:
    until: float
    lines: int = 0
    suppressed: int = 0
    last: LogEvent | None = None  # the last suppressed event


class LogLimiter:
    """Counts the lines of each key. An event is limited if it has a field `client`: an address, or "" if unknown."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._counts: dict[_Key, _Count] = {}

    def admit(self, event: LogEvent) -> bool:
        """Return whether to write the event now; if not, it is counted for a summary."""
        client = event.get("client")
        if client is None:
            return True
        kind = event.get("event") or f"{event.get('log_namespace', '')} {event.get('log_format', '')}"
        count = self._count(str(kind), "" if client else str(event.get("log_subject", "")), str(client))
        if count.lines < BURST:
            count.lines += 1
            return True
        count.suppressed += 1
        count.last = event
        return False

    def summaries(self, *, now: bool = False) -> list[LogEvent]:
        """Return an event for each key whose period has ended with suppressed lines; with `now`, for all keys."""
        seconds = self._seconds()
        ended = [(key, count) for key, count in self._counts.items() if now or count.until <= seconds]
        events = []
        for key, count in ended:
            del self._counts[key]
            if count.last is not None:
                summary = {**count.last, "suppressed": count.suppressed}
                if key[2] == _OTHERS:
                    summary["client"] = _OTHERS
                events.append(summary)
        return events

    def _count(self, kind: str, subject: str, client: str) -> _Count:
        key = (kind, subject, network(client))
        count = self._counts.get(key)
        if count is None and len(self._counts) >= MAX_KEYS:
            key = (kind, subject, _OTHERS)
            count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _Count(self._seconds() + PERIOD)
        elif count.until <= self._seconds() and not count.suppressed:
            count.until, count.lines = self._seconds() + PERIOD, 0
        return count
