"""Waiting for a time that may end early: a back-off ends when the member can be reached again."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Sleepers:
    """Those who wait, and a way to wake them all."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: dict[Deferred[None], IDelayedCall] = {}

    def sleep(self, seconds: float) -> Deferred[None]:
        """Return a Deferred that fires after `seconds`, or when all are woken. It may be cancelled."""

        def cancelled(sleeper: Deferred[None]) -> None:
            self._waiting.pop(sleeper).cancel()

        def over() -> None:
            del self._waiting[sleeper]
            sleeper.callback(None)

        sleeper: Deferred[None] = Deferred(cancelled)
        self._waiting[sleeper] = self._clock.callLater(seconds, over)
        return sleeper

    def wake(self) -> None:
        """End the waiting of all who wait now."""
        for sleeper in tuple(self._waiting):
            timer = self._waiting.pop(sleeper, None)
            if timer is not None:  # else one that woke before has cancelled it
                timer.cancel()
                sleeper.callback(None)
