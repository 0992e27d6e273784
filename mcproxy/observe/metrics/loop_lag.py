"""Durations of the turns of the event loop: a histogram, and the longest of the last minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mcproxy.observe.metrics.counts import Counts
from mcproxy.observe.metrics.families import LOOP_LAG

WINDOW = 30.0
"""Seconds; the longest turn is that of the previous and the current window."""


class Turns(Protocol):
    """The reactor's own figures (`net.reactor.LeanEpollReactor`)."""

    short_turns: int
    short_turn_seconds: float
    long_turn: Callable[[float], None]

    def seconds(self) -> float:
        """Return the time."""


class LoopLag:
    """Counts the turns of a reactor. Short ones are added up by the reactor; they are in the first bucket."""

    def __init__(self, counts: Counts, process: str, turns: Turns) -> None:
        self._turns = turns
        self._counts = counts
        self._labels = (process,)
        self._longest = self._longest_before = 0.0
        self._begun_at = turns.seconds()
        turns.long_turn = self._long
        turns.short_turns, turns.short_turn_seconds = 0, 0.0

    def flush(self) -> None:
        """Bring the counts up to date."""
        turns = self._turns
        series = self._counts.series(LOOP_LAG, self._labels)
        series[0] += turns.short_turns
        series[-1] += turns.short_turn_seconds
        turns.short_turns, turns.short_turn_seconds = 0, 0.0

    def longest(self) -> float:
        """Return the longest turn of the last 30 to 60 seconds; 0.0 if none took over a millisecond."""
        self._advance()
        return max(self._longest, self._longest_before)

    def _long(self, seconds: float) -> None:
        self._counts.observe(LOOP_LAG, self._labels, seconds)
        self._advance()
        self._longest = max(self._longest, seconds)

    def _advance(self) -> None:
        passed = self._turns.seconds() - self._begun_at
        if passed >= WINDOW:
            self._longest_before = self._longest if passed < 2 * WINDOW else 0.0
            self._longest = 0.0
            self._begun_at += passed - passed % WINDOW
