"""Tracks the highest level of the last minute, with one comparison for each change of the level. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

STEPS: Final = 6
STEP: Final = 10.0
"""Length of a step in seconds; a level counts for STEPS to STEPS + 1 steps."""


class HighWaterMark:
    """`value` is the highest level that was noted within the last minute (up to 70 s). Times are the caller's clock."""

    __slots__ = ("_highest", "_history", "due", "value")

    def __init__(self, now: float) -> None:
        self.value = 0
        self.due = now + STEP
        """The time from which on `advance` has to be called again."""
        self._highest = 0  # the highest level of the current step
        self._history: deque[int] = deque(maxlen=STEPS)

    def note(self, level: int) -> None:
        """Record a level; needed only if the level has risen."""
        if level > self._highest:
            self._highest = level
            if level > self.value:
                self.value = level

    def advance(self, now: float, level: int) -> None:
        """Forget levels older than a minute; `level` is the level since the last change."""
        steps = 0
        while self.due <= now and steps <= STEPS:
            self._history.append(self._highest)
            self._highest = level
            self.due += STEP
            steps += 1
        if self.due <= now:
            self.due = now + STEP
        self.value = max((self._highest, *self._history))
