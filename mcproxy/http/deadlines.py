"""Many coarse timeouts at the cost of one timer.

A reactor timer for each request would cost more than parsing the request. Here each connection has its own deadline,
and setting it is one attribute; a sweep, four times a second, finds what is late. So a timeout fires up to 0.25 s after
its time, never before it.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

RESOLUTION = 0.25

#: The deadline of what may take for ever.
NEVER = float("inf")


class Expiring(Protocol):
    """Something that can be late."""

    deadline: float  # seconds, on the clock of the Deadlines that watch it; its owner sets it at will

    def expired(self) -> None:
        """Called when the deadline has passed, once: the deadline is NEVER then, until its owner sets another."""


class Deadlines:
    """The items that may be late. The timer runs only while there are any."""

    __slots__ = ("_clock", "_items", "_timer", "seconds")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._items: set[Expiring] = set()
        self._timer: IDelayedCall | None = None
        self.seconds = clock.seconds  # the clock that deadlines are measured by

    def add(self, item: Expiring) -> None:
        """Begin to look at `item.deadline`."""
        self._items.add(item)
        if self._timer is None:
            self._timer = self._clock.callLater(RESOLUTION, self._sweep)

    def remove(self, item: Expiring) -> None:
        """Look no more; an item that is not looked at does no harm."""
        self._items.discard(item)

    def after(self, timeout: float) -> float:
        """Return the deadline that lies `timeout` seconds from now; 0 is no limit."""
        return self._clock.seconds() + timeout if timeout else NEVER

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        late = [item for item in self._items if item.deadline <= now]
        try:
            for item in late:
                if item.deadline <= now:  # one that expired before may have moved it
                    item.deadline = NEVER
                    item.expired()
        finally:
            if self._items and self._timer is None:
                self._timer = self._clock.callLater(RESOLUTION, self._sweep)

    def stop(self) -> None:
        """Forget everything, so that no timer is left behind."""
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
