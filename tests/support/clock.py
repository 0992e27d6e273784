"""The clock that tests give to what takes a reactor's time; no test uses another (tests/test_project.py).

As in the daemon's reactor, its two times differ: `seconds()` counts from an arbitrary start, `wall_seconds()` is the
time of day. Twisted's Clock has one number for both: a duration that is written as a date looks right with it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import task
from twisted.internet.testing import MemoryReactor

from mcproxy.net.wall_time import WallSeconds

START = 1249.625
"""What `seconds()` of a new clock is."""
DATE = WallSeconds(1_790_000_000.0)
"""What `wall_seconds()` of a new clock is: 2026-09-21T14:13:20Z."""


class Clock(task.Clock):
    """Time passes when the test says so (`advance`); `jumped` is by how many seconds the time of day was set."""

    def __init__(self, date: float = DATE) -> None:
        """`date`: the time of day now, in seconds since 1970."""
        super().__init__()
        self.rightNow = START
        self.jumped = date - DATE
        assert self.wall_seconds() - self.rightNow > 86400, "a date that a duration could be taken for"

    @property
    def elapsed(self) -> float:
        """Seconds that have passed since the clock was made."""
        return self.rightNow - START

    def wall_seconds(self) -> WallSeconds:
        return WallSeconds(self.rightNow - START + DATE + self.jumped)


class MemoryReactorClock(MemoryReactor, Clock):
    """A reactor whose connections are recorded and whose time is a Clock's."""

    def __init__(self) -> None:
        MemoryReactor.__init__(self)  # type: ignore[no-untyped-call]
        Clock.__init__(self)

    def getDelayedCalls(self) -> Any:
        return Clock.getDelayedCalls(self)
