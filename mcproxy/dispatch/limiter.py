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

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.fair_queue import FairQueue
from mcproxy.dispatch.tables.in_flight_counts import InFlightCounts
from mcproxy.dispatch.tables.token_buckets import TokenBuckets

# Seconds; a timer that is due sooner would only wake the process more often.
_TICK = 0.001
#: Seconds between two polls for waiting requests.
POLL_INTERVAL = 0.1
# Keys in each poll: they take a few milliseconds.
_MAX_CHECKED = 1000


class WaitResult(Enum):
    """How waiting ended."""

    ADMITTED = auto()
    TIMED_OUT = auto()
    DISPLACED = auto()  # it made room for another user's request


class _Waiter:
    __slots__ = ("key", "result", "timer", "user")

    def __init__(self, key: str, user: str, result: Deferred[WaitResult], timer: IDelayedCall) -> None:
        self.key, self.user, self.result, self.timer = key, user, result, timer


class Limiter(metaclass=ABCMeta):
    """The common part of all kinds of limits: the queues."""

    __slots__ = ("_clock", "_queues", "_waking", "queue", "refused", "seconds", "waiting")

    #: True if what was taken is held until the request has ended.
    holds = False

    def __init__(self, queue: model.Queue | None, clock: IReactorTime) -> None:
        self.queue = queue  # applies to later requests; the size is for each key
        self.waiting = 0  # of all keys together
        self.refused = 0  # since the start
        self._clock = clock
        self.seconds: Callable[[], float] = clock.seconds
        self._queues: dict[str, FairQueue[_Waiter]] = {}  # by key; none is empty
        self._waking: set[str] = set()

    @abstractmethod
    def take(self, key: str) -> bool:
        """Admit a request; False if it is over the limit, or other requests are waiting."""

    @abstractmethod
    def release(self, key: str) -> None:
        """Undo a `take`, or end the admitted request."""

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
            while (queue := self._queues.get(key)) is not None and self._take_in_turn(key):
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

    @abstractmethod
    def _take_in_turn(self, key: str) -> bool:
        """Take from the limit for the first request in a queue; False: it waits on."""

    @abstractmethod
    def _schedule_wake(self, key: str) -> None:
        """Make sure that `wake` is called when there will be room, if no release will call it."""

    def _still_queued(self, key: str) -> bool:
        """Admit the requests that can be admitted now; return whether one still waits for `key`."""
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
    """No more than a maximum at a time, in all processes together.

    Another process signals a place that it hands over. Waiting keys are polled as well: a process that was stopped may
    have lost its turn, and the share of a limit over replicas may change.
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
        """While anything waits the limiter is in `with_queues`; `was_given_places` is called for those."""
        super().__init__(queue, clock)
        self.requests = requests
        self._waiting: dict[str, None] = {}  # keys whose bit of this process is set; the next one to poll first
        self._with_queues = with_queues
        self._timer: IDelayedCall | None = None

    @property
    def in_use(self) -> int:
        """Requests in flight in this process, of all keys together."""
        return self.requests.in_use

    @property
    def blocked(self) -> bool:
        return self.requests.max == 0

    def change(self, maximum: int | None, queue: model.Queue | None) -> None:
        """Apply another limit; those in flight go on counting, and it applies to those that wait."""
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

    def was_given_places(self) -> None:
        """Another process has handed a place over to this one."""
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
                self.wake(key)  # a place may have become free since the refusal
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
            self._waiting[key] = self._waiting.pop(key)  # the next poll begins with the keys after it
            self.wake(key)
            if not self._waiting:
                break


class TokenBucketLimiter(Limiter):
    """No more than a burst at once and a rate in the long run, in all processes together.

    A request that waits takes its token in advance, and is admitted when it is due.
    """

    __slots__ = ("_buckets", "_seconds", "_timers", "_waiting")

    def __init__(
        self, buckets: TokenBuckets, queue: model.Queue | None, clock: IReactorTime, seconds: Callable[[], float]
    ) -> None:
        """`seconds` is one clock of all processes, which the buckets count by."""
        super().__init__(queue, clock)
        self._seconds = seconds
        self._buckets = buckets
        self._timers: dict[str, IDelayedCall] = {}  # by key, for those that have a queue
        self._waiting: set[str] = set()  # keys for which a token was taken in advance, or could not be

    @property
    def blocked(self) -> bool:
        return self._buckets.burst == 0

    def tokens(self, key: str) -> float:
        """Return how many tokens the bucket of a key has."""
        return self._buckets.fill(key, self._seconds())

    def change(self, qps: float, burst: int, queue: model.Queue | None) -> None:
        """Apply another limit; buckets keep their tokens, and it applies to those that wait."""
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
