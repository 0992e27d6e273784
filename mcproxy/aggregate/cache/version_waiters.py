"""The requests that wait until a store has reached a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime


class _Waiter(NamedTuple):
    version: int
    proven: bool
    reached: Deferred[bool]


class VersionWaiters:
    """The waiting requests of one store. Some need a proven version; a presumed version is enough for others.

    `notify`, if set, is called whenever a wait for a proven version above 0 begins.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.notify: Callable[[], None] | None = None
        self._clock = clock
        self._waiting: dict[int, _Waiter] = {}
        self._next_number = 1
        self._least = 0  # no waiter's version is less

    @property
    def newest(self) -> int:
        """The number of the last waiter for a proven version above 0; 0 if there is none. Numbers only grow."""
        numbers = (number for number, waiter in self._waiting.items() if waiter.proven and waiter.version)
        return max(numbers, default=0)

    @property
    def waits_for_present(self) -> bool:
        """Whether a request is waiting that accepts a presumed version."""
        return any(not waiter.proven for waiter in self._waiting.values())

    async def wait(self, version: int, timeout: float, *, proven: bool = True) -> bool:
        """Wait at most `timeout` seconds for `reached` with this or a later version; return whether it was called."""
        number = self._next_number
        self._next_number += 1
        reached: Deferred[bool] = Deferred()
        self._least = min(self._least, version) if self._waiting else version
        self._waiting[number] = _Waiter(version, proven, reached)
        call = self._clock.callLater(timeout, self._give_up, number)
        if proven and version and self.notify is not None:
            self.notify()
        try:
            return await reached
        finally:
            self._waiting.pop(number, None)
            if call.active():
                call.cancel()

    def reached(self, proven: int, presumed: int) -> None:
        """End the waits for these versions and earlier versions."""
        if not self._waiting or max(proven, presumed) < self._least:
            return
        done = [
            number
            for number, waiter in self._waiting.items()
            if waiter.version <= (proven if waiter.proven else max(proven, presumed))
        ]
        going = [self._waiting.pop(number) for number in done]
        self._least = min((waiter.version for waiter in self._waiting.values()), default=0)
        for waiter in going:
            waiter.reached.callback(True)

    def _give_up(self, number: int) -> None:
        self._waiting.pop(number).reached.callback(False)
