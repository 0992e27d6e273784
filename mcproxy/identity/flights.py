"""Questions to a server, each asked once at a time however many wait for its answer.

A client that leaves takes only itself out: others may wait for the same answer, and the next one will want it anyway.
Only a question that has not had its turn yet, and for which nobody is left, is never asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TooLate(Exception):
    """A question had no answer in time."""


class Flights(Generic[K, V]):
    """The questions under way. `at_once` of them are asked of the server, the others wait their turn."""

    def __init__(self, clock: IReactorTime, *, at_once: int, timeout: float) -> None:
        """`timeout` is in seconds, the wait for a turn included."""
        self._clock = clock
        self._timeout = timeout
        self._turns = DeferredSemaphore(at_once)
        self._flights: dict[K, _Flight[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, key: K, ask: Callable[[], Coroutine[Deferred[Any], Any, V]]) -> Awaitable[V]:
        """Return the answer to `key`, by `ask` unless that question is under way; fails as `ask` does, or `TooLate`."""
        flight = self._flights.get(key)
        if flight is not None:
            return flight.waiter()
        flight = self._flights[key] = _Flight()
        waiter = flight.waiter()

        async def turn() -> V:
            flight.begun = True
            return await ask()

        def too_late(_: object, seconds: float) -> None:
            raise TooLate(f"no answer within {seconds:g} s")

        flight.asking = self._turns.run(turn)
        flight.asking.addTimeout(self._timeout, self._clock, too_late)
        flight.asking.addBoth(self._land, key)
        return waiter

    def _land(self, result: V | Failure, key: K) -> None:
        waiting = self._flights.pop(key).waiting
        while waiting:  # one that is called may cancel another
            waiting.pop(0).callback(result)  # a Failure given to `callback` fails it


class _Flight(Generic[V]):
    """One question: who waits for it, and whether it has had its turn."""

    __slots__ = ("asking", "begun", "waiting")

    asking: Deferred[Any]

    def __init__(self) -> None:
        self.waiting: list[Deferred[V]] = []
        self.begun = False

    def waiter(self) -> Deferred[V]:
        """Return one more Deferred that waits; it leaves when it is cancelled."""
        waiter: Deferred[V] = Deferred(self._leave)
        self.waiting.append(waiter)
        return waiter

    def _leave(self, gone: Deferred[V]) -> None:
        if gone in self.waiting:
            self.waiting.remove(gone)
            if not self.waiting and not self.begun:
                self.asking.cancel()
