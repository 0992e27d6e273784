"""Decides which log lines are written: one when the state of its subject changes, and a repeated one once a period.

A subject is what a line is about (an endpoint, a client and a kind of misuse). Lines without a state repeat each other
if they have the same subject. Pure: the caller gives the time, and writes the line.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Set
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Final

PERIOD: Final = 60.0
"""Seconds."""
MOST: Final = 256
"""Subjects that are remembered at the same time."""


@dataclass(slots=True)
class _Said:
    state: Hashable
    by: str
    since: float
    lines: int = 1
    suppressed: int = 0


class LogOnce:
    """What the log has of each subject. With the period `inf` a line comes again only after its state has changed."""

    __slots__ = ("_burst", "_most", "_period", "_said")

    def __init__(self, period: float = PERIOD, *, burst: int = 1, most: int | None = None) -> None:
        """At most `burst` lines for the same subject and state are written in each `period` (seconds).

        `most` bounds the subjects that are remembered: further ones count as one, or, where the period is `inf`, take
        the place of the oldest. By default those of the period `inf` are not bounded: their owner ends or keeps them.
        """
        self._period = period
        self._burst = burst
        self._most = most or (sys.maxsize if period == inf else MOST)
        self._said: dict[Hashable, _Said] = {}  # in the order of time

    def allows(
        self,
        subject: Hashable = None,
        now: float = 0.0,
        *,
        state: Hashable = None,
        by: str = "",
        period: float | None = None,
    ) -> bool:
        """Return whether to write that `subject` is in `state` now, which counts as written; `now` is monotonic.

        A process `by` which it was said last may say it again, for it has rules of its own. `period` is that of this
        line, where it is not that of all.
        """
        if period is None:
            period = self._period
        if subject not in self._said and len(self._said) >= self._most:
            self.forget(now)
            if len(self._said) >= self._most:
                if self._period == inf:
                    del self._said[next(iter(self._said))]
                else:
                    subject = None
        said = self._said.get(subject)
        repeated = said is not None and said.state == state and now - said.since < period
        if said is not None and repeated and not (by and by == said.by):
            if said.lines < self._burst:
                said.lines += 1
                return True
            said.suppressed += 1
            return False
        self._said.pop(subject, None)
        self._said[subject] = _Said(state, by, now)
        return True

    def suppressed(self, subject: Hashable = None) -> int:
        """Return how many lines were not written since the last one that was."""
        said = self._said.get(subject)
        return 0 if said is None else said.suppressed

    def ends(self, subject: Hashable = None) -> bool:
        """Forget the state of a subject; return whether it was written, so that its end is news."""
        return self._said.pop(subject, None) is not None

    def keep(self, subjects: Set[Hashable]) -> None:
        """Forget all other subjects."""
        for subject in self._said.keys() - subjects:
            del self._said[subject]

    def forget(self, now: float) -> list[Hashable]:
        """Forget the subjects whose period is over at `now`; return these."""
        forgotten = list(takewhile(lambda subject: now - self._said[subject].since >= self._period, self._said))
        for subject in forgotten:
            del self._said[subject]
        return forgotten

    def __contains__(self, subject: Hashable) -> bool:
        return subject in self._said

    def __len__(self) -> int:
        return len(self._said)
