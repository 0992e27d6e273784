"""One call whose result is shared by everything that requested it before it began.

It is no singleflight (`identity.singleflight`), whose waiters may join a call that runs already: a probe or a read of
discovery must not be answered with a state from before it was requested.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


class CoalescedCall(Generic[T]):
    """One call at a time. What is requested while it runs gets the result of the next call.

    A waiter may be cancelled; the call continues for the others.
    """

    def __init__(self, call: Callable[[], Coroutine[Deferred[Any], Any, T]]) -> None:
        self._call = call
        self._running: Deferred[T] | None = None
        self._served: list[Deferred[T]] = []  # they get the result of the call that runs
        self._waiting: list[Deferred[T]] = []  # they get that of the next one

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._running is not None

    def join(self) -> Deferred[T]:
        """Return the result of a call that begins now or later; fails as the call does."""
        waiter: Deferred[T] = Deferred(self._left)
        self._waiting.append(waiter)
        if self._running is None:
            self._begin()
        return waiter

    def share(self) -> Deferred[T]:
        """Return the result of the call that runs, if one does, else as `join`: it may be a little older."""
        if self._running is None:
            return self.join()
        waiter: Deferred[T] = Deferred(self._left)
        self._served.append(waiter)
        return waiter

    def stop(self) -> None:
        """Cancel the call, and all waiters."""
        for waiter in (*self._waiting, *self._served):
            waiter.cancel()
        if self._running is not None:
            self._running.cancel()

    def _left(self, waiter: Deferred[T]) -> None:
        for waiters in (self._served, self._waiting):
            if waiter in waiters:
                waiters.remove(waiter)

    def _begin(self) -> None:
        self._served, self._waiting = self._waiting, []
        running = self._running = Deferred.fromCoroutine(self._call())
        running.addBoth(self._finished)

    def _finished(self, result: T | Failure) -> None:
        served, self._served = self._served, []
        for waiter in served:
            if not waiter.called:  # one that is called may cancel another
                waiter.callback(result)  # a Failure given to `callback` fails it
        self._running = None
        if self._waiting:
            self._begin()
