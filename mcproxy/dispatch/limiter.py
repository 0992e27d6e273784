"""Admits requests up to a limit, and has queues for the requests that wait.

A limiter admits as many requests for each key as its limit allows, and has a queue for each key over the limit. A
waiting request is admitted when another one ends, or when there is a token again. Waiting ends at the latest with the
queue's timeout. While a request waits for a key, later requests for that key must wait too. A full queue makes room by
refusing the newest request of the user with the most requests in it (`fair_queue`).

Only keys with requests in flight have a count, so the number of client connections bounds the table.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from enum import Enum, auto

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.fair_queue import FairQueue
from mcproxy.dispatch.tables.in_flight_counts import InFlightCounts
from mcproxy.dispatch.tables.token_buckets import TokenBuckets

# Minimum delay of a timer in seconds; a shorter one would only wake the process more often.
_TICK = 0.001
#: Seconds between two polls for waiting requests.
POLL_INTERVAL = 0.1
# Maximum of keys in each poll, which then takes a few milliseconds.
_MAX_CHECKED = 1000


class WaitResult(Enum):
    """How waiting ended."""

    ADMITTED = auto()
    TIMED_OUT = auto()
    DISPLACED = auto()  # the request made room for another user's request


class _Waiter:
    __slots__ = ("key", "result", "timer", "user")

    def __init__(self, key: str, user: str, result: Deferred[WaitResult], timer: IDelayedCall) -> None:
        self.key, self.user, self.result, self.timer = key, user, result, timer


class Limiter(metaclass=ABCMeta):
    """The common part of all kinds of limits: the queues."""

    __slots__ = ("_clock", "_queues", "_waking", "queue", "refused", "seconds", "waiting")

    #: Whether a request holds its place until its end.
    holds = False

    def __init__(self, queue: model.Queue | None, clock: IReactorTime) -> None:
        self.queue = queue  # settings for later requests; the size is for each key
        self.waiting = 0  # number of waiting requests of all keys
        self.refused = 0  # number of refused requests since the start
        self._clock = clock
        self.seconds: Callable[[], float] = clock.seconds
        self._queues: dict[str, FairQueue[_Waiter]] = {}  # by key; no queue is empty
        self._waking: set[str] = set()

    @abstractmethod
    def take(self, key: str) -> bool:
        """Admit a request; return False if it exceeds the limit, or if other requests are waiting."""

    @abstractmethod
    def release(self, key: str) -> None:
        """Undo a `take`, or end the admitted request."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether the limit admits no request, however long it waits."""

    def may_wait(self, key: str, user: str) -> bool:
        """Return whether the queue has or can make room for one more request of `user`."""
        settings = self.queue
        if settings is None or self.blocked:
            return False
        queue = self._queues.get(key)
        if queue is None:
            return settings.size > 0
        return len(queue) < settings.size or queue.can_make_room_for(user)

    def wait(self, key: str, user: str) -> Deferred[WaitResult]:
        """Wait in the queue; call this only if `may_wait` is true. Only the result ADMITTED takes a place.

        Cancelling the Deferred removes the request from the queue.
        """
        assert self.queue is not None
        result: Deferred[WaitResult] = Deferred(lambda _: self._leave(waiter))
        timer = self._clock.callLater(self.queue.timeout, lambda: self._refuse(waiter, WaitResult.TIMED_OUT))
        waiter = _Waiter(key, user, result, timer)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = FairQueue()
        full = len(queue) >= self.queue.size
        queue.push(user, waiter)
        self.waiting += 1
        if full:
            displaced = queue.pop_newest_of_fullest()
            self._removed(displaced, queue)
            self._end(displaced, WaitResult.DISPLACED)
        self._schedule_wake(key)
        return result

    def wake(self, key: str) -> None:
        """Admit as many of the waiting requests as the limit allows."""
        if key in self._waking:
            return  # called from the loop below, by an admitted request that has ended already; the loop continues
        self._waking.add(key)
        try:
            while (queue := self._queues.get(key)) is not None and self._take_in_turn(key):
                waiter = queue.pop()
                self._removed(waiter, queue)
                waiter.timer.cancel()
                waiter.result.callback(WaitResult.ADMITTED)
        finally:
            self._waking.discard(key)
        self._schedule_wake(key)

    def wake_all(self) -> None:
        """Admit as many waiting requests as a changed limit allows."""
        for key in list(self._queues):
            self.wake(key)

    @abstractmethod
    def _take_in_turn(self, key: str) -> bool:
        """Take a place for the first request in a queue; return False if it has to wait further."""

    @abstractmethod
    def _schedule_wake(self, key: str) -> None:
        """Schedule a call of `wake` for the time when there is room, if no release will call it."""

    def _still_queued(self, key: str) -> bool:
        """Admit the requests for which there is room now; return whether a request still waits for `key`."""
        if key in self._queues:
            self.wake(key)
        return key in self._queues

    def _refuse(self, waiter: _Waiter, why: WaitResult) -> None:
        queue = self._queues[waiter.key]
        queue.remove(waiter.user, waiter)
        self._removed(waiter, queue)
        self._end(waiter, why)

    def _end(self, waiter: _Waiter, why: WaitResult) -> None:
        if waiter.timer.active():
            waiter.timer.cancel()
        self.refused += 1
        waiter.result.callback(why)

    def _leave(self, waiter: _Waiter) -> None:
        waiter.timer.cancel()
        queue = self._queues[waiter.key]
        queue.remove(waiter.user, waiter)
        self._removed(waiter, queue)

    def _removed(self, waiter: _Waiter, queue: FairQueue[_Waiter]) -> None:
        self.waiting -= 1
        if not queue:
            del self._queues[waiter.key]
            self._schedule_wake(waiter.key)


class InFlightLimiter(Limiter):
    """Limits the requests in flight in all processes together.

    Another process signals a place that it hands over. Waiting keys are also polled, because a stopped process can have
    lost its turn, and the share of a limit over replicas can change.
    """

    __slots__ = ("_timer", "_waiting", "_with_queues", "requests")

    holds = True

    def __init__(
        self,
        requests: InFlightCounts,
        queue: model.Queue | None,
        clock: IReactorTime,
        with_queues: set[InFlightLimiter],
    ) -> None:
        """While a request waits, the limiter is in `with_queues`, for whose members `on_handed_over` is called."""
        super().__init__(queue, clock)
        self.requests = requests
        self._waiting: dict[str, None] = {}  # keys for which this process's bit is set, in the order of polling
        self._with_queues = with_queues
        self._timer: IDelayedCall | None = None

    @property
    def in_use(self) -> int:
        """The number of requests in flight in this process, of all keys."""
        return self.requests.in_use

    @property
    def blocked(self) -> bool:
        return self.requests.max == 0

    def change(self, maximum: int | None, queue: model.Queue | None) -> None:
        """Apply another limit, also to waiting requests; requests in flight continue to count."""
        self.queue = queue
        self.requests.max = maximum
        self.wake_all()

    def take(self, key: str) -> bool:
        if self._queues and self._still_queued(key):
            self.requests.note_refused(key)
            return False
        return self.requests.take(key)

    def release(self, key: str) -> None:
        self.requests.release(key)
        if self._queues:
            self.wake(key)

    def on_handed_over(self) -> None:
        """Admit a waiting request, because another process has handed a place over to this one."""
        for key in list(self._waiting):
            if self.requests.was_given(key):
                self.wake(key)

    def _take_in_turn(self, key: str) -> bool:
        return self.requests.take_in_turn(key)

    def _schedule_wake(self, key: str) -> None:
        if key in self._queues:
            if key not in self._waiting:
                self._waiting[key] = None
                self._with_queues.add(self)
                if self._timer is None:
                    self._timer = self._clock.callLater(POLL_INTERVAL, self._poll)
                self.wake(key)  # a place can have become free since the refusal
        elif key in self._waiting:
            del self._waiting[key]
            if not self._waiting:
                self._with_queues.discard(self)
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            self.requests.leave(key)

    def _poll(self) -> None:
        self._timer = self._clock.callLater(POLL_INTERVAL, self._poll)
        for _ in range(min(_MAX_CHECKED, len(self._waiting))):
            key = next(iter(self._waiting))
            self._waiting[key] = self._waiting.pop(key)  # moves the key to the end of the order of polling
            self.wake(key)
            if not self._waiting:
                break


class TokenBucketLimiter(Limiter):
    """Limits the rate of requests in all processes together, with a burst.

    A waiting request takes its token in advance, and is admitted when the token is due.
    """

    __slots__ = ("_buckets", "_seconds", "_timers", "_waiting")

    def __init__(
        self, buckets: TokenBuckets, queue: model.Queue | None, clock: IReactorTime, seconds: Callable[[], float]
    ) -> None:
        """`seconds`: a clock that all processes share, used by the buckets."""
        super().__init__(queue, clock)
        self._seconds = seconds
        self._buckets = buckets
        self._timers: dict[str, IDelayedCall] = {}  # by key, for keys with a queue
        self._waiting: set[str] = set()  # keys for which a token was taken in advance, or was refused

    @property
    def blocked(self) -> bool:
        return self._buckets.burst == 0

    def tokens(self, key: str) -> float:
        """Return how many tokens the bucket of a key has."""
        return self._buckets.fill(key, self._seconds())

    def change(self, qps: float, burst: int, queue: model.Queue | None) -> None:
        """Apply another limit, also to waiting requests; buckets keep their tokens."""
        self.queue = queue
        self._buckets.resize(qps, burst, self._seconds())
        self.wake_all()

    def take(self, key: str) -> bool:
        if self._queues and self._still_queued(key):
            self._buckets.note_refused(key)
            return False
        return self._buckets.take(key, self._seconds())

    def release(self, key: str) -> None:
        self._buckets.refund(key)
        if self._queues:
            self.wake(key)

    def _take_in_turn(self, key: str) -> bool:
        return self._buckets.take_in_turn(key, self._seconds())

    def _schedule_wake(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None and timer.active():
            timer.cancel()
        if key not in self._queues:
            self._waiting.discard(key)
            self._buckets.leave(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self.wake(key)  # takes the next token in advance
        elif not self.blocked:
            delay = min(POLL_INTERVAL, max(_TICK, self._buckets.wait(key, self._seconds())))
            self._timers[key] = self._clock.callLater(delay, self.wake, key)
