"""Helpers for the proxy's own calls to members: errors, back-off, one call for several callers.

A `CoalescedCall` differs from a singleflight (`identity.singleflight`), where callers can join a running call. A probe
or a read of discovery must not return a state from before it was requested.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from mcproxy.net.causes import Cause, code_of

_MAX_CAUSE = 500


class MemberError(Exception):
    """A member gave no usable answer.

    `cause` is a sentence for operators, in one line. `status` is the HTTP status of the answer, 0 without an answer;
    `retry_after` is the member's Retry-After in seconds.
    """

    def __init__(self, cause: str, *, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(cause)
        shown = cause.encode("unicode_escape").decode("ascii")[:_MAX_CAUSE]  # it can quote the member's answer
        self.cause = Cause(shown, code_of(cause))
        self.status = status
        self.retry_after = retry_after


class MemberSlow(MemberError):
    """The member did not answer in time."""


class MemberUnreachable(MemberError):
    """None of the member's endpoints is ready or accepts a connection."""


_FIRST_DELAY, _MAX_DELAY = 0.8, 30.0  # seconds; client-go, tools/cache `NewReflectorWithOptions`


class Backoff:
    """A delay that doubles with each failure, from 0.8 to 30 s, with a jitter so that retries are spread."""

    __slots__ = ("_next", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` returns a float in [0, 1)."""
        self._random = random
        self._next = _FIRST_DELAY

    def failed(self) -> float:
        """Record a failure; return the seconds until the next attempt."""
        delay = min(self._next * (1 + self._random()), _MAX_DELAY)
        self._next = min(2 * self._next, _MAX_DELAY)
        return delay

    def worked(self) -> None:
        """Reset the delay."""
        self._next = _FIRST_DELAY


class InterruptibleSleep:
    """Timers that `wake` fires early."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: dict[Deferred[None], IDelayedCall] = {}

    def sleep(self, seconds: float) -> Deferred[None]:
        """Return a Deferred that fires after `seconds`, or at `wake`. It can be cancelled."""

        def cancelled(sleeper: Deferred[None]) -> None:
            self._waiting.pop(sleeper).cancel()

        def over() -> None:
            del self._waiting[sleeper]
            sleeper.callback(None)

        sleeper: Deferred[None] = Deferred(cancelled)
        self._waiting[sleeper] = self._clock.callLater(seconds, over)
        return sleeper

    def wake(self) -> None:
        """Fire all present timers."""
        for sleeper in tuple(self._waiting):
            timer = self._waiting.pop(sleeper, None)
            if timer is not None:  # otherwise an earlier callback of this loop has cancelled it
                timer.cancel()
                sleeper.callback(None)


T = TypeVar("T")


class CoalescedCall(Generic[T]):
    """Runs one call at a time. Callers that arrive while it runs get the result of the next call.

    A waiter can be cancelled; the call continues for the others.
    """

    def __init__(self, call: Callable[[], Coroutine[Deferred[Any], Any, T]]) -> None:
        self._call = call
        self._running: Deferred[T] | None = None
        self._served: list[Deferred[T]] = []  # waiters for the result of the running call
        self._waiting: list[Deferred[T]] = []  # waiters for the result of the next call

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._running is not None

    def join(self) -> Deferred[T]:
        """Return the result of a call that begins after this request for it; the Deferred fails if the call fails."""
        waiter: Deferred[T] = Deferred(self._left)
        self._waiting.append(waiter)
        if self._running is None:
            self._begin()
        return waiter

    def share(self) -> Deferred[T]:
        """Return the result of the running call, which can be slightly older. Without a running call, act as `join`."""
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
            if not waiter.called:  # calling one waiter can cancel another
                waiter.callback(result)  # a Failure given to `callback` fails it
        self._running = None
        if self._waiting:
            self._begin()
