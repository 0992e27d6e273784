"""Limits over processes, and the queues of one of them: the differences to `limiter`.

Other processes signal a free place (counts); a token becomes available by time (buckets). Both are also polled: a
process that was stopped may have lost its turn, and a share of a limit over replicas may change.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.limiter import InFlightLimiter, TokenBucketLimiter
from mcproxy.dispatch.shared_memory.buckets import SharedBuckets
from mcproxy.dispatch.shared_memory.counts import SharedCounts

# Seconds; a timer that is due sooner would only wake the process more often.
_TICK = 0.001
#: Seconds between two polls for waiting requests.
LOOK_EVERY = 0.1
# Keys in each poll: they take a few milliseconds.
_LOOKS = 1000


class SharedInFlightLimiter(InFlightLimiter):
    """No more than a maximum at a time, in all processes together."""

    __slots__ = ("_counts", "_timer", "_waiting", "_with_queues")

    def __init__(
        self,
        counts: SharedCounts,
        queue: model.Queue | None,
        clock: IReactorTime,
        with_queues: set[SharedInFlightLimiter],
    ) -> None:
        """While anything waits the limiter is in `with_queues`; `was_told` is called for those."""
        super().__init__(counts, queue, clock)
        self._take = counts.take_in_turn  # for waiting requests; an arriving one uses `take`
        self._counts = counts
        self._waiting: dict[str, None] = {}  # keys whose bit of this process is set; the next one to poll first
        self._with_queues = with_queues
        self._timer: IDelayedCall | None = None

    def take(self, key: str) -> bool:
        """Admit a request; False if it is over the limit, or other requests are waiting."""
        if self._queues and self._is_queued(key):
            self._counts.note_refused(key)
            return False
        return self._counts.take(key)

    def was_told(self) -> None:
        """Another process has handed a place over to this one."""
        for key in list(self._waiting):
            if self._counts.was_given(key):
                self.wake(key)

    def _schedule_wake(self, key: str) -> None:
        if key in self._queues:
            if key not in self._waiting:
                self._waiting[key] = None
                self._with_queues.add(self)
                if self._timer is None:
                    self._timer = self._clock.callLater(LOOK_EVERY, self._look)
                self.wake(key)  # a place may have become free since the refusal
        elif key in self._waiting:
            del self._waiting[key]
            if not self._waiting:
                self._with_queues.discard(self)
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            self._counts.leave(key)

    def _look(self) -> None:
        self._timer = self._clock.callLater(LOOK_EVERY, self._look)
        for _ in range(min(_LOOKS, len(self._waiting))):
            key = next(iter(self._waiting))
            self._waiting[key] = self._waiting.pop(key)  # the next poll begins with the keys after it
            self.wake(key)
            if not self._waiting:
                break


class SharedTokenBucketLimiter(TokenBucketLimiter):
    """No more than a burst at once and a rate in the long run, in all processes together."""

    __slots__ = ("_shared_buckets", "_waiting")

    def __init__(
        self,
        buckets: SharedBuckets,
        queue: model.Queue | None,
        clock: IReactorTime,
        seconds: Callable[[], float],
    ) -> None:
        """`seconds` is one clock of all processes, which the buckets count by."""
        super().__init__(buckets, queue, clock)
        self._seconds = seconds
        self._shared_buckets = buckets
        self._waiting: set[str] = set()  # keys for which a token was taken in advance, or could not be

    def change(self, qps: float, burst: int, queue: model.Queue | None) -> None:
        """Apply another limit; buckets keep their tokens, and it applies to those that wait."""
        self.queue = queue
        self._buckets.resize(qps, burst, self._seconds())  # also if they are what they were here: see `FlowControls`
        self.wake_all()

    def take(self, key: str) -> bool:
        """Admit a request; False if it is over the limit, or other requests are waiting."""
        if self._queues and self._is_queued(key):
            self._shared_buckets.note_refused(key)
            return False
        return self._shared_buckets.take(key, self._seconds())

    def _take_token(self, key: str) -> bool:
        return self._shared_buckets.take_in_turn(key, self._seconds())

    def _schedule_wake(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None and timer.active():
            timer.cancel()
        if key not in self._queues:
            self._waiting.discard(key)
            self._shared_buckets.leave(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self.wake(key)  # takes the next token in advance
        elif not self.blocked:
            delay = min(LOOK_EVERY, max(_TICK, self._buckets.wait(key, self._seconds())))
            self._timers[key] = self._clock.callLater(delay, self.wake, key)
