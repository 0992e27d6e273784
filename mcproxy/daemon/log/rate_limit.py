"""Limits the log lines that a client can cause, by kind of line and client address. Pure, with an injected clock.

The kind of a line is its event; a line of a library has its format instead. Without a known client, the subject of the
line (`log_subject`) replaces it.

The first lines of a kind are written; the rest of the period becomes one summary line. So a client that sends thousands
of bad requests neither fills the disk nor hides the lines of others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf

from twisted.logger import LogEvent

from mcproxy.log_once import LogOnce
from mcproxy.net.client_table import network

BURST = 10
"""Lines of a kind and address that are written in a period."""
MAX_KEYS = 1024
"""The most keys of a kind and an address; further addresses share one key per kind."""

_OTHERS = "other clients"


class LogLimiter:
    """Counts the lines of each key. An event is limited if it has a field `client`: an address, or "" if unknown."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._once = LogOnce(burst=BURST, most=2 * MAX_KEYS)
        self._suppressed: dict[Hashable, tuple[int, LogEvent]] = {}  # how many, and the last one

    def admit(self, event: LogEvent) -> bool:
        """Return whether to write the event now; if not, it is counted for a summary."""
        client = event.get("client")
        if client is None:
            return True
        kind = str(event.get("event") or f"{event.get('log_namespace', '')} {event.get('log_format', '')}")
        subject = "" if client else str(event.get("log_subject", ""))
        key = (kind, subject, network(str(client)))
        if key not in self._once and len(self._once) >= MAX_KEYS:
            key = (kind, subject, _OTHERS)
        if key not in self._suppressed and self._once.allows(key, self._seconds()):
            return True
        count, _ = self._suppressed.get(key, (0, None))
        last = {**event, "client": _OTHERS} if key[2] == _OTHERS else event
        self._suppressed[key] = count + 1, last
        return False

    def summaries(self, *, now: bool = False) -> list[LogEvent]:
        """Return an event for each key whose period has ended with suppressed lines; with `now`, for all keys."""
        ended = self._once.forget(inf if now else self._seconds())
        held = [self._suppressed.pop(key) for key in ended if key in self._suppressed]
        return [{**last, "suppressed": count} for count, last in held]
