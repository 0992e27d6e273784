"""Many coarse timeouts at the cost of one timer.

A reactor timer for each request would cost more than parsing the request. Here an item carries its own deadline and one
sweep, four times a second, finds what is late. So a timeout fires up to 0.25 s after its time, never before it.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

RESOLUTION = 0.25


class Expiring(Protocol):
    """Something that can be late."""

    deadline: float  # seconds, on the clock of the Deadlines that watch it

    def expired(self) -> None:
        """Called once, after the item was taken off the watch list."""


class Deadlines:
    """The items that are being waited for. The timer runs only while there are any."""

    __slots__ = ("_clock", "_items", "_timer")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._items: set[Expiring] = set()
        self._timer: IDelayedCall | None = None

    def watch(self, item: Expiring, seconds: float) -> None:
        """Call `item.expired()` when `seconds` have passed, unless it is watched anew or forgotten before. 0: never."""
        if not seconds:
            self._items.discard(item)
            return
        item.deadline = self._clock.seconds() + seconds
        self._items.add(item)
        if self._timer is None:
            self._timer = self._clock.callLater(RESOLUTION, self._sweep)

    def forget(self, item: Expiring) -> None:
        self._items.discard(item)

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        late = [item for item in self._items if item.deadline <= now]
        self._items.difference_update(late)
        if self._items:
            self._timer = self._clock.callLater(RESOLUTION, self._sweep)
        for item in late:
            item.expired()

    def stop(self) -> None:
        """Forget everything, so that no timer is left behind."""
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
