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
        self._waiting: dict[K, list[Deferred[V]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, key: K, ask: Callable[[], Coroutine[Deferred[Any], Any, V]]) -> Awaitable[V]:
        """Return the answer to `key`, by `ask` unless that question is under way; fails as `ask` does, or `TooLate`."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            return _waiter(waiting)
        waiting = self._waiting[key] = []
        waiter = _waiter(waiting)

        async def turn() -> V:
            if not waiting:
                raise TooLate("nobody waits for it any more")
            return await ask()

        def too_late(_: object, seconds: float) -> None:
            raise TooLate(f"no answer within {seconds:g} s")

        asking: Deferred[Any] = self._turns.run(turn)
        asking.addTimeout(self._timeout, self._clock, too_late)
        asking.addBoth(self._land, key)
        return waiter

    def _land(self, result: V | Failure, key: K) -> None:
        waiting = self._waiting.pop(key)
        while waiting:  # one that is called may cancel another
            waiting.pop(0).callback(result)  # a Failure given to `callback` fails it


def _waiter(waiting: list[Deferred[V]]) -> Deferred[V]:
    """Return one more Deferred in a list, which it leaves when it is cancelled."""

    def leave(gone: Deferred[V]) -> None:
        if gone in waiting:
            waiting.remove(gone)

    waiter: Deferred[V] = Deferred(leave)
    waiting.append(waiter)
    return waiter
