"""The times between attempts that fail: client-go's for its reflectors."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

_FIRST, _MAX = 0.8, 30.0  # seconds; client-go, tools/cache `NewReflectorWithOptions`


class Backoff:
    """Doubles with each failure, from 0.8 to 30 s, with a jitter so that many do not come at once."""

    __slots__ = ("_next", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` returns a float in [0, 1)."""
        self._random = random
        self._next = _FIRST

    def failed(self) -> float:
        """Return the seconds until the next attempt."""
        delay = min(self._next * (1 + self._random()), _MAX)
        self._next = min(2 * self._next, _MAX)
        return delay

    def worked(self) -> None:
        """Begin again with short times."""
        self._next = _FIRST


class InterruptibleSleep:
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
