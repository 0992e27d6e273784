"""Coarse timeouts of many connections with one timer.

A reactor timer for each request would cost more than parsing the request. Here each connection has a deadline, set by
assigning an attribute. A sweep, four times a second, finds the passed deadlines. So a timeout fires up to 0.25 s late,
never early.
"""

from __future__ import annotations

from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.net.wall_time import wall_clock

RESOLUTION: Final = 0.25

#: The value of a deadline that never passes.
NEVER: Final = float("inf")


class Expiring(Protocol):
    """An object with a deadline."""

    deadline: float  # seconds, on the clock of its Deadlines; may be assigned at any time

    def expired(self) -> None:
        """Called once when the deadline has passed; `deadline` is NEVER by then, until another one is set."""


class Deadlines:
    """Watches the deadlines of a set of items. The timer runs only while there are any."""

    __slots__ = ("_clock", "_items", "_timer", "seconds", "wall_seconds")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._items: set[Expiring] = set()
        self._timer: IDelayedCall | None = None
        self.seconds = clock.seconds  # the clock of all deadlines
        self.wall_seconds = wall_clock(clock)

    def add(self, item: Expiring) -> None:
        """Start watching `item.deadline`."""
        self._items.add(item)
        self._start()

    def remove(self, item: Expiring) -> None:
        """Stop watching; does nothing for an item that is not watched."""
        self._items.discard(item)

    def after(self, timeout: float) -> float:
        """Return the deadline `timeout` seconds from now; 0: no limit."""
        return self._clock.seconds() + timeout if timeout else NEVER

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        expired = [item for item in self._items if item.deadline <= now]
        try:
            for item in expired:
                if item.deadline <= now:  # another item's expired() may have changed the deadline
                    item.deadline = NEVER
                    item.expired()
        finally:
            if self._items:
                self._start()

    # A separate method, because an expired() can add an item, but mypy takes `_timer` for None all through `_sweep`.
    def _start(self) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(RESOLUTION, self._sweep)

    def stop(self) -> None:
        """Drop all items and the timer."""
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
