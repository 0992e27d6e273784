"""The tables of one of several processes, for limits that all of them share. See `limit_tables.LimitTables`.

And the differences to `limiter` of the limiters over them: other processes signal a free place (counts); a token
becomes available by time (buckets). Both are also polled: a process that was stopped may have lost its turn, and a
share of a limit over replicas may change.
"""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config import model
from mcproxy.config.model import Per
from mcproxy.dispatch.limiter import InFlightLimiter, TokenBucketLimiter
from mcproxy.dispatch.shared_memory import layout
from mcproxy.dispatch.shared_memory.buckets import SharedBuckets
from mcproxy.dispatch.shared_memory.counts import SharedCounts
from mcproxy.dispatch.shared_memory.directory import Directory, DirectoryFullError
from mcproxy.dispatch.shared_memory.limit_shares import LimitId, Share
from mcproxy.dispatch.shared_memory.memory import Memory
from mcproxy.dispatch.shared_memory.slot_table import BucketSlots, CountSlots

log = Logger(__name__)

# Seconds; a timer that is due sooner would only wake the process more often.
_TICK = 0.001
#: Seconds between two polls for waiting requests.
LOOK_EVERY = 0.1
# Keys in each poll: they take a few milliseconds.
_LOOKS = 1000
#: The part of a limit over replicas that this machine admits before its agent sets shares; for a bucket, of its rate:
#: the whole burst is available from the first request on, and is cut to a part when the agent knows other replicas.
_FIRST_SHARE = 0.05


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


class SharedTables:
    """Makes limiters that count in shared memory. For the reactor's thread only."""

    def __init__(
        self,
        memory: Memory,
        *,
        column: int,
        wakers: Sequence[int],
        reactor: Any,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wakers` are the eventfds of all columns. `seconds` is one clock of all processes."""
        self._memory = memory
        self._column = column
        self._seconds = seconds
        self._directory = Directory(memory)
        self._buckets, self._counts = BucketSlots(memory), CountSlots(memory)
        self._with_queues: set[SharedInFlightLimiter] = set()
        self._wakers = wakers
        self._told = _WakeUpReader(wakers[column], self._was_told)
        self._reactor = reactor
        reactor.addReader(self._told)
        #: The number of tables that count by a record; this process is a user of a record with any.
        self._users: dict[int, int] = {}
        #: Records of collected tables. The garbage collector runs at any moment, in any thread: also while this process
        #: holds the mutex that is needed to close a record.
        self._closing: deque[int] = deque()

    @classmethod
    def of_process(cls, descriptors: Mapping[str, int], column: int, reactor: Any) -> SharedTables:
        """Return the tables of the process of a column, over the memory of another (`SharedMemory.descriptors`).

        Raises MemoryMismatch, OSError.
        """
        memory = Memory.attach(descriptors["limits"], column)
        wakers = [descriptors[f"wake-{number}"] for number in range(layout.COLUMNS)]
        return cls(memory, column=column, wakers=wakers, reactor=reactor)

    def token_bucket(self, config: model.FlowControl, clock: IReactorTime) -> TokenBucketLimiter:
        """Return a limiter; its buckets are those of the other processes."""
        limit = LimitId(config.name, "bucket", config.per)
        buckets = self.buckets(limit, config.qps, config.burst, shared=config.shared)
        return SharedTokenBucketLimiter(buckets, config.queue, clock, self._seconds)

    def in_flight(self, config: model.FlowControl, clock: IReactorTime, *, long_running: bool) -> InFlightLimiter:
        """Return a limiter; what other processes have in flight counts."""
        limit = LimitId(config.name, "long" if long_running else "short", config.per)
        counts = self.counts(limit, config.max_long_running if long_running else config.max, shared=config.shared)
        return SharedInFlightLimiter(counts, config.queue, clock, self._with_queues)

    def buckets(self, limit: LimitId, qps: float, burst: int, *, shared: bool = False) -> SharedBuckets:
        """Return the buckets of a limit. Raises DirectoryFullError."""
        share = Share(qps, burst)
        if shared and burst:
            share = Share(qps * _FIRST_SHARE, burst)
        record = self._open(limit, share, shared)
        buckets = SharedBuckets(self._memory, self._buckets, self._directory, record, limit, qps, burst)
        weakref.finalize(buckets, self._closing.append, record).atexit = False
        return buckets

    def counts(self, limit: LimitId, maximum: int | None, *, shared: bool = False) -> SharedCounts:
        """Return the counts of a limit. Raises DirectoryFullError."""
        first = max(1, int(maximum * _FIRST_SHARE)) if shared and maximum else maximum
        record = self._open(limit, Share(maximum=first), shared)
        counts = SharedCounts(
            self._memory,
            self._counts,
            self._directory,
            record,
            limit,
            maximum,
            column=self._column,
            seconds=self._seconds,
            wake=self._tell,
        )
        weakref.finalize(counts, self._closing.append, record).atexit = False
        return counts

    def connections(self, address: str) -> ConnectionCounts:
        """Return the counts of the connections of the listener of an address. Raises DirectoryFullError."""
        return ConnectionCounts(self.counts(LimitId(address, "connections", Per.USER), None))

    def close(self) -> None:
        """Listen no longer to what other processes tell."""
        self._reactor.removeReader(self._told)

    def _open(self, limit: LimitId, share: Share, shared: bool) -> int:
        self._close_unused()
        try:
            record = self._directory.open(limit, share, self._seconds(), shared=shared, column=self._column)
        except DirectoryFullError:
            gc.collect()  # limits of former configurations, which only the garbage collector finds
            self._close_unused()
            record = self._directory.open(limit, share, self._seconds(), shared=shared, column=self._column)
        self._users[record] = self._users.get(record, 0) + 1
        return record

    def _close_unused(self) -> None:
        while self._closing:
            record = self._closing.popleft()
            self._users[record] -= 1
            if not self._users[record]:
                del self._users[record]
                self._directory.close(record, self._column)

    def _tell(self, columns: int) -> None:
        tell(self._wakers, columns)

    def _was_told(self) -> None:
        self._close_unused()
        for limiter in list(self._with_queues):
            limiter.was_told()


def tell(wakers: Sequence[int], columns: int) -> None:
    """Wake the processes of the columns whose bits are set."""
    while columns:
        bit = columns & -columns
        columns ^= bit
        try:
            os.eventfd_write(wakers[bit.bit_length() - 1], 1)
        except BlockingIOError:
            pass  # the counter of the eventfd is full: it was woken 2^64 times without a read


@implementer(IReadDescriptor)
class _WakeUpReader:
    """The eventfd of this process, for the reactor."""

    def __init__(self, fd: int, told: Callable[[], None]) -> None:
        self._fd = fd
        self._on_told = told

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "limits"

    def doRead(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
        self._on_told()

    def connectionLost(self, reason: Failure) -> None:
        """Called by the reactor when `doRead` raised, which it has logged: what waits looks at intervals."""


class ConnectionCounts:
    """The connections of one listener by client, counted over several processes: `net.client_table.Places`.

    The connections of a process that died are subtracted.
    """

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts

    def take(self, client: str, limit: int) -> bool:
        """Count one more unless the count has reached `limit`; return whether it was counted."""
        return self._counts.take_below(client, limit)

    def take_beyond(self, client: str) -> None:
        """Count one more, whatever their number."""
        self._counts.take(client)  # its own maximum is none

    def release(self, client: str) -> None:
        """Count one less."""
        self._counts.release(client)
