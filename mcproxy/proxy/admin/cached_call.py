"""A cached call: concurrent callers share its result for a short time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

T = TypeVar("T")


class CachedCall(Generic[T]):
    """Calls `make` at most once at a time, and caches its result for `seconds`: a flood of requests costs one call.

    An error goes to all callers that waited for this call, and is not cached.
    """

    def __init__(
        self, make: Callable[[], Coroutine[Deferred[Any], Any, T]], clock: IReactorTime, seconds: float
    ) -> None:
        self._make = make
        self._clock = clock
        self._seconds = seconds
        self._known: tuple[float, T] | None = None  # end of validity, result
        self._waiting: list[Deferred[T]] | None = None  # callers that wait for the running call

    async def get(self) -> T:
        """Return the result of the last call, or of a new one."""
        if self._known is not None and self._clock.seconds() < self._known[0]:
            return self._known[1]
        if self._waiting is not None:
            result: Deferred[T] = Deferred()
            self._waiting.append(result)
            return await result
        self._waiting = []
        try:
            made = await self._make()
        except BaseException:
            failure = Failure()  # type: ignore[no-untyped-call]
            for each in self._take_waiting():
                each.errback(failure)
            raise
        self._known = self._clock.seconds() + self._seconds, made
        for each in self._take_waiting():
            each.callback(made)
        return made

    def _take_waiting(self) -> list[Deferred[T]]:
        waiting, self._waiting = self._waiting or [], None
        return waiting
