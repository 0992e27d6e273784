"""One limit, and the queues of requests that wait for it.

A limiter admits as many requests as its limit allows for each key, and has a queue for each key that is over it. A
waiting request is admitted when another one ends, or when there is a token again; waiting ends with the queue's timeout
at the latest. While a request waits for a key, later ones for that key must wait too. A full queue makes room by
refusing the newest request of the user with the most requests in it (`fair_queue`).

Counts of requests in flight have only keys with one, so the table is bounded by the number of client connections.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.fair_queue import FairQueue

# Seconds; a timer that is due sooner would only wake the process more often.
_TICK = 0.001


class WaitResult(Enum):
    """How waiting ended."""

    ADMITTED = auto()
    TIMED_OUT = auto()
    DISPLACED = auto()  # it made room for another user's request


class Counts(Protocol):
    """Requests in flight by key, against one maximum: `InFlightCounts`, or the same for several processes."""

    max: int | None

    @property
    def in_use(self) -> int: ...
    def take(self, key: str) -> bool: ...
    def release(self, key: str) -> None: ...
    def count(self, key: str) -> int: ...


class Buckets(Protocol):
    """Token buckets by key: `token_bucket.TokenBuckets`, or the same for several processes."""

    @property
    def qps(self) -> float: ...
    @property
    def burst(self) -> int: ...
    def take(self, key: str, time: float) -> bool: ...
    def refund(self, key: str) -> None: ...
    def fill(self, key: str, time: float) -> float: ...
    def wait(self, key: str, time: float) -> float: ...
    def resize(self, qps: float, burst: int, time: float) -> None: ...


class _Waiter:
    __slots__ = ("key", "result", "timer", "user")

    def __init__(self, key: str, user: str, result: Deferred[WaitResult], timer: IDelayedCall) -> None:
        self.key, self.user, self.result, self.timer = key, user, result, timer


@mypyc_attr(allow_interpreted_subclasses=True)  # those in shared memory
class Limiter(metaclass=ABCMeta):
    """The common part of all kinds of limits: the queues."""

    __slots__ = ("_clock", "_queues", "_take", "_waking", "queue", "refused", "seconds", "waiting")

    #: True if what was taken is held until the request has ended.
    holds = False

    def __init__(self, take: Callable[[str], bool], queue: model.Queue | None, clock: IReactorTime) -> None:
        """`take` takes from the limit for a key, or returns False; it does not look at the queue."""
        self.queue = queue  # applies to later requests; the size is for each key
        self.waiting = 0  # of all keys together
        self.refused = 0  # since the start
        self._take = take
        self._clock = clock
        self.seconds: Callable[[], float] = clock.seconds
        self._queues: dict[str, FairQueue[_Waiter]] = {}  # by key; none is empty
        self._waking: set[str] = set()

    def take(self, key: str) -> bool:
        """Admit a request; False if it is over the limit, or other requests are waiting."""
        if self._queues and self._is_queued(key):
            return False
        return self._take(key)

    @abstractmethod
    def release(self, key: str) -> None:
        """Undo a `take`, or end what it admitted."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """True if the limit admits nothing, however long a request waits."""

    def may_wait(self, key: str, user: str) -> bool:
        """Return whether the queue has room, or would make room, for one more request of `user`."""
        settings = self.queue
        if settings is None or self.blocked:
            return False
        queue = self._queues.get(key)
        if queue is None:
            return settings.size > 0
        return len(queue) < settings.size or queue.can_make_room_for(user)

    def wait(self, key: str, user: str) -> Deferred[WaitResult]:
        """Wait in the queue; only if `may_wait` is true. Unless it is ADMITTED, nothing has been taken.

        Cancelling leaves the queue.
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
            return  # the loop below admitted a request that has ended already: it continues by itself
        self._waking.add(key)
        try:
            while (queue := self._queues.get(key)) is not None and self._take(key):
                waiter = queue.pop()
                self._removed(waiter, queue)
                waiter.timer.cancel()
                waiter.result.callback(WaitResult.ADMITTED)
        finally:
            self._waking.discard(key)
        self._schedule_wake(key)

    def wake_all(self) -> None:
        """Admit as many as a changed limit allows."""
        for key in list(self._queues):
            self.wake(key)

    def _schedule_wake(self, key: str) -> None:
        """Make sure that `wake` is called when there will be room, if no release will call it."""
        return

    def _is_queued(self, key: str) -> bool:
        """Return whether a request waits for `key`, after those that can be admitted by now have been."""
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


@mypyc_attr(allow_interpreted_subclasses=True)  # those in shared memory
class InFlightLimiter(Limiter):
    """No more than a maximum at a time."""

    __slots__ = ("requests",)

    holds = True

    def __init__(self, requests: Counts, queue: model.Queue | None, clock: IReactorTime) -> None:
        self.requests = requests
        super().__init__(requests.take, queue, clock)

    @property
    def in_use(self) -> int:
        """Requests in flight, of all keys together."""
        return self.requests.in_use

    @property
    def blocked(self) -> bool:
        return self.requests.max == 0

    def change(self, maximum: int | None, queue: model.Queue | None) -> None:
        """Apply another limit; those in flight go on counting, and it applies to those that wait."""
        self.queue = queue
        self.requests.max = maximum
        self.wake_all()

    def release(self, key: str) -> None:
        self.requests.release(key)
        if self._queues:
            self.wake(key)


@mypyc_attr(allow_interpreted_subclasses=True)  # those in shared memory
class TokenBucketLimiter(Limiter):
    """No more than a burst at once and a rate in the long run."""

    __slots__ = ("_buckets", "_seconds", "_timers")

    def __init__(self, buckets: Buckets, queue: model.Queue | None, clock: IReactorTime) -> None:
        self._seconds = clock.seconds
        self._buckets = buckets
        self._timers: dict[str, IDelayedCall] = {}  # by key, for those that have a queue
        super().__init__(self._take_token, queue, clock)

    @property
    def blocked(self) -> bool:
        return self._buckets.burst == 0

    def tokens(self, key: str) -> float:
        """Return how many tokens the bucket of a key has."""
        return self._buckets.fill(key, self._seconds())

    def change(self, qps: float, burst: int, queue: model.Queue | None) -> None:
        """Apply another limit; buckets keep their tokens, and it applies to those that wait."""
        self.queue = queue
        if (qps, burst) != (self._buckets.qps, self._buckets.burst):
            self._buckets.resize(qps, burst, self._seconds())
        self.wake_all()

    def release(self, key: str) -> None:
        self._buckets.refund(key)
        if self._queues:
            self.wake(key)

    def take(self, key: str) -> bool:
        # As that of the base, with fewer calls: every request of a limited user calls this.
        if self._queues and self._is_queued(key):
            return False
        return self._buckets.take(key, self._seconds())

    def _take_token(self, key: str) -> bool:
        return self._buckets.take(key, self._seconds())

    def _schedule_wake(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None and timer.active():
            timer.cancel()
        if key in self._queues and not self.blocked:
            delay = max(_TICK, self._buckets.wait(key, self._seconds()))
            self._timers[key] = self._clock.callLater(delay, self.wake, key)


class InFlightCounts:
    """Counts against one maximum. Without one (None) it counts too: a reload may set one for requests in flight."""

    __slots__ = ("_counts", "in_use", "max")

    def __init__(self, maximum: int | None) -> None:
        self.max = maximum  # for each key; may be changed at any time, also to less than what is in flight
        self.in_use = 0  # of all keys together
        self._counts: dict[str, int] = {}

    def take(self, key: str) -> bool:
        """Count one more; False if the maximum is reached."""
        count = self._counts.get(key, 0)
        if self.max is not None and count >= self.max:
            return False
        self._counts[key] = count + 1
        self.in_use += 1
        return True

    def release(self, key: str) -> None:
        """Count one less. Raises KeyError if none is in flight."""
        count = self._counts[key] - 1
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]
        self.in_use -= 1

    def count(self, key: str) -> int:
        """Return how many are in flight for a key."""
        return self._counts.get(key, 0)

    def __len__(self) -> int:
        """Return for how many keys something is in flight."""
        return len(self._counts)
