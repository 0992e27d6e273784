"""One limit, and the requests that wait for it.

A limiter lets as many through as its limit allows for each key, and has a queue for each key that is over it. Whoever
waits is woken when a request ends, or when there is a token again; waiting ends with the queue's timeout at the latest.
Nobody overtakes: while somebody waits for a key, whoever comes for that key must wait too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.fair_queue import FairQueue
from mcproxy.dispatch.in_flight import InFlightCounts
from mcproxy.dispatch.token_bucket import TokenBuckets

# A timer that is due sooner than this would only wake the process more often.
_TICK = 0.001


class _Waiter:
    __slots__ = ("key", "timer", "turn", "user")

    def __init__(self, key: str, user: str, turn: Deferred[bool], timer: IDelayedCall) -> None:
        self.key, self.user, self.turn, self.timer = key, user, turn, timer


class Limiter(ABC):
    """What the limits have in common: the queues."""

    __slots__ = ("_clock", "_lines", "_waking", "queue", "refused", "waiting")

    #: True if what was taken is held until the request has ended.
    holds = False

    def __init__(self, queue: model.Queue | None, clock: IReactorTime) -> None:
        self.queue = queue  # what holds for those who come next; the size is for each key
        self.waiting = 0  # of all keys together
        self.refused = 0  # since the start
        self._clock = clock
        self._lines: dict[str, FairQueue[_Waiter]] = {}  # by key; none is empty
        self._waking: set[str] = set()

    @abstractmethod
    def take(self, key: str) -> bool:
        """Let a request through; False if it is over the limit, or others wait already."""

    @abstractmethod
    def release(self, key: str) -> None:
        """Undo a `take`, or end what it let through."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """True if the limit lets nothing through, however long one waits."""

    def has_room(self, key: str) -> bool:
        """Return True if one more may wait."""
        queue = self.queue
        if queue is None or self.blocked:
            return False
        line = self._lines.get(key)
        return (0 if line is None else len(line)) < queue.size

    def wait(self, key: str, user: str) -> Deferred[bool]:
        """Wait in the queue, which must have room: True if it has been taken, False after the timeout.

        Whoever cancels has left the queue and has taken nothing.
        """
        assert self.queue is not None
        turn: Deferred[bool] = Deferred(lambda _: self._leave(waiter))
        waiter = _Waiter(key, user, turn, self._clock.callLater(self.queue.timeout, lambda: self._time_out(waiter)))
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = FairQueue()
        line.push(user, waiter)
        self.waiting += 1
        self._schedule_wake(key)
        return turn

    def wake(self, key: str) -> None:
        """Let as many through as there is room for."""
        if key in self._waking:
            return  # what runs in the loop below has ended a request: the loop goes on by itself
        self._waking.add(key)
        try:
            while (line := self._lines.get(key)) is not None and self._take_for_next(key):
                waiter = line.pop()
                self._removed(waiter, line)
                waiter.timer.cancel()
                waiter.turn.callback(True)
        finally:
            self._waking.discard(key)
        self._schedule_wake(key)

    def wake_all(self) -> None:
        """Let as many through as a changed limit has room for."""
        for key in list(self._lines):
            self.wake(key)

    @abstractmethod
    def _take_for_next(self, key: str) -> bool:
        """Take for the next in the queue."""

    def _schedule_wake(self, key: str) -> None:
        """See to it that `wake` is called when there will be room, if nobody else does."""
        return

    def _nobody_before(self, key: str) -> bool:
        if key in self._lines:
            self.wake(key)
        return key not in self._lines

    def _time_out(self, waiter: _Waiter) -> None:
        line = self._lines[waiter.key]
        line.remove(waiter.user, waiter)
        self._removed(waiter, line)
        self.refused += 1
        waiter.turn.callback(False)

    def _leave(self, waiter: _Waiter) -> None:
        waiter.timer.cancel()
        line = self._lines[waiter.key]
        line.remove(waiter.user, waiter)
        self._removed(waiter, line)

    def _removed(self, waiter: _Waiter, line: FairQueue[_Waiter]) -> None:
        self.waiting -= 1
        if not line:
            del self._lines[waiter.key]
            self._schedule_wake(waiter.key)


class InFlightLimiter(Limiter):
    """No more than a maximum at a time."""

    __slots__ = ("requests",)

    holds = True

    def __init__(self, maximum: int | None, queue: model.Queue | None, clock: IReactorTime) -> None:
        super().__init__(queue, clock)
        self.requests = InFlightCounts(maximum)

    @property
    def in_use(self) -> int:
        return self.requests.in_use

    @property
    def blocked(self) -> bool:
        return self.requests.max == 0

    def change(self, maximum: int | None, queue: model.Queue | None) -> None:
        """Take on another limit; those under way go on counting, those who wait do so under the new one."""
        self.queue = queue
        self.requests.max = maximum
        self.wake_all()

    def take(self, key: str) -> bool:
        if self._lines and not self._nobody_before(key):
            return False
        return self.requests.take(key)

    def release(self, key: str) -> None:
        self.requests.release(key)
        if self._lines:
            self.wake(key)

    def _take_for_next(self, key: str) -> bool:
        return self.requests.take(key)


class TokenBucketLimiter(Limiter):
    """No more than a burst at once and a rate in the long run."""

    __slots__ = ("_buckets", "_seconds", "_timers")

    def __init__(self, qps: float, burst: int, queue: model.Queue | None, clock: IReactorTime) -> None:
        super().__init__(queue, clock)
        self._seconds = clock.seconds
        self._buckets = TokenBuckets(qps, burst, clock.seconds())
        self._timers: dict[str, IDelayedCall] = {}  # by key, for those that have a queue

    @property
    def blocked(self) -> bool:
        return self._buckets.burst == 0

    def change(self, qps: float, burst: int, queue: model.Queue | None) -> None:
        """Take on another limit; buckets keep their tokens, those who wait do so under the new one."""
        self.queue = queue
        if (qps, burst) != (self._buckets.qps, self._buckets.burst):
            self._buckets.resize(qps, burst, self._seconds())
        self.wake_all()

    def take(self, key: str) -> bool:
        if self._lines and not self._nobody_before(key):
            return False
        return self._buckets.take(key, self._seconds())

    def release(self, key: str) -> None:
        self._buckets.refund(key)
        if self._lines:
            self.wake(key)

    def _take_for_next(self, key: str) -> bool:
        return self._buckets.take(key, self._seconds())

    def _schedule_wake(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None and timer.active():
            timer.cancel()
        if key in self._lines and not self.blocked:
            delay = max(_TICK, self._buckets.wait(key, self._seconds()))
            self._timers[key] = self._clock.callLater(delay, self.wake, key)
