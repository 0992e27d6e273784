"""Singleflight: one call for each key at a time, whose result is shared by all who wait for it.

A waiter that is cancelled (its client is gone) takes only itself out. A call that has not begun, and for which nobody
waits any more, is never made; one that has begun goes on, because its result is kept for the next request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightTimeoutError(Exception):
    """A call had no result in time."""


class SingleFlight(Generic[K, V]):
    """Calls by key. At most `at_once` of them run, the others wait for a place."""

    def __init__(self, clock: IReactorTime, *, at_once: int, timeout: float) -> None:
        """`timeout` is in seconds, the wait for a place included."""
        self._clock = clock
        self._timeout = timeout
        self._places = DeferredSemaphore(at_once)
        self._calls: dict[K, _Call[V]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def join(self, key: K, function: Callable[[], Coroutine[Deferred[Any], Any, V]]) -> Awaitable[V]:
        """Return the result for `key`: of the call that is under way, else of a new call of `function`.

        Raises what `function` raises, and `SingleFlightTimeoutError`.
        """
        call = self._calls.get(key)
        if call is not None:
            return call.waiter()
        call = self._calls[key] = _Call()
        waiter = call.waiter()

        async def run() -> V:
            call.begun = True
            return await function()

        def timed_out(_: object, seconds: float) -> None:
            raise SingleFlightTimeoutError(f"no answer within {seconds:g} s")

        call.running = self._places.run(run)
        call.running.addTimeout(self._timeout, self._clock, timed_out)
        call.running.addBoth(self._finish, key)
        return waiter

    def _finish(self, result: V | Failure, key: K) -> None:
        waiting = self._calls.pop(key).waiting
        while waiting:  # one that is called may cancel another
            waiting.pop(0).callback(result)  # a Failure given to `callback` fails it


class _Call(Generic[V]):
    """One call: who waits for its result, and whether it has begun."""

    __slots__ = ("begun", "running", "waiting")

    running: Deferred[Any]

    def __init__(self) -> None:
        self.waiting: list[Deferred[V]] = []
        self.begun = False

    def waiter(self) -> Deferred[V]:
        """Return one more Deferred that waits for the result; cancelling it takes it out."""
        waiter: Deferred[V] = Deferred(self._leave)
        self.waiting.append(waiter)
        return waiter

    def _leave(self, gone: Deferred[V]) -> None:
        if gone in self.waiting:
            self.waiting.remove(gone)
            if not self.waiting and not self.begun:
                self.running.cancel()
