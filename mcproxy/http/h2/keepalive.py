"""Detects a peer that is gone: PING after some silence, and a limit for the answer. Pure: the times are arguments."""

from __future__ import annotations

PING_AFTER = 30.0
"""Seconds of silence, with streams open, after which the peer is asked."""
PING_TIMEOUT = 15.0
"""Seconds that it then has to send anything."""

ALIVE, PING_DUE, DEAD = range(3)


class KeepAlive:
    """The keepalive of one connection."""

    __slots__ = ("_asked_at",)

    def __init__(self) -> None:
        self._asked_at = 0.0  # when the unanswered PING was sent; 0: there is none

    def ask(self, now: float) -> float:
        """A PING is sent now; return when to check. If one is under way already, its time counts."""
        if not self._asked_at:
            self._asked_at = now
        return self._asked_at + PING_TIMEOUT

    def check(self, now: float, last_received: float) -> tuple[int, float]:
        """Return ALIVE, DEAD, or PING_DUE if a PING is to be sent now; and when to check again."""
        if self._asked_at:
            due = self._asked_at + PING_TIMEOUT
            if last_received < self._asked_at:
                return (DEAD if now >= due else ALIVE), due
            self._asked_at = 0.0
        due = last_received + PING_AFTER
        if now < due:
            return ALIVE, due
        self._asked_at = now
        return PING_DUE, now + PING_TIMEOUT
