"""Detects a dead peer of an HTTP/2 connection, by a PING after some silence. Pure: the times are arguments."""

from __future__ import annotations

PING_AFTER = 30.0
"""Seconds without received bytes, while streams are open, after which a PING is sent."""
PING_TIMEOUT = 15.0
"""Seconds in which the peer then has to send any bytes."""

ALIVE, PING_DUE, DEAD = range(3)


class KeepAlive:
    """The keepalive of one connection."""

    __slots__ = ("_after", "_asked_at", "_timeout")

    def __init__(self, after: float = 0.0, timeout: float = 0.0) -> None:
        """`after`, `timeout`: seconds, as PING_AFTER and PING_TIMEOUT, which 0 stands for."""
        self._after = after or PING_AFTER
        self._timeout = timeout or PING_TIMEOUT
        self._asked_at = 0.0  # time of the unanswered PING; 0: there is none

    def ask(self, now: float) -> float:
        """Note that a PING is sent now; return when to check. If one is unanswered already, its time counts."""
        if not self._asked_at:
            self._asked_at = now
        return self._asked_at + self._timeout

    def check(self, now: float, last_received: float) -> tuple[int, float]:
        """Return the state and when to check again; the state is ALIVE, DEAD, or PING_DUE: send a PING now."""
        if self._asked_at:
            due = self._asked_at + self._timeout
            if last_received < self._asked_at:
                return (DEAD if now >= due else ALIVE), due
            self._asked_at = 0.0
        due = last_received + self._after
        if now < due:
            return ALIVE, due
        self._asked_at = now
        return PING_DUE, now + self._timeout
