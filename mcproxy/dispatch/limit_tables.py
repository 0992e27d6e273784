"""Access of one process to the shared tables in which flow controls count; makes the limiters that use them."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config import model
from mcproxy.config.model import Per
from mcproxy.dispatch.limiter import InFlightLimiter, TokenBucketLimiter
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.directory import Directory, DirectoryFullError, RecordUse
from mcproxy.dispatch.tables.in_flight_counts import InFlightCounts
from mcproxy.dispatch.tables.limit_shares import LimitId, Share
from mcproxy.dispatch.tables.memory import Memory, wake
from mcproxy.dispatch.tables.slot_table import BucketSlots, CountSlots
from mcproxy.dispatch.tables.token_buckets import TokenBuckets

if TYPE_CHECKING:
    from mcproxy.dispatch.tables.shared_memory import SharedMemory

#: The fraction of a limit over replicas that this machine admits before its agent sets shares. For a bucket it applies
#: to the rate; the whole burst is available from the first request on, until the agent knows other replicas.
_FIRST_SHARE = 0.05


class LimitTables:
    """Makes limiters that count in the memory of the limits. Use it only in the reactor's thread."""

    def __init__(
        self,
        memory: Memory,
        *,
        column: int,
        wake: Callable[[int], None],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake(columns)` wakes the processes whose bits are set. `seconds`: a clock that all processes share."""
        self.memory = memory
        self.wake = wake
        self.seconds = seconds
        self._column = column
        self._directory = Directory(memory)
        self._buckets, self._counts = BucketSlots(memory), CountSlots(memory)
        self._with_queues: set[InFlightLimiter] = set()
        #: The number of tables that use each record; this process is a user of all records with a table.
        self._users: dict[int, int] = {}
        #: Records of garbage-collected tables, closed later: the garbage collector runs at any time, in any thread, and
        #: also while this process holds the mutex that is needed to close a record.
        self._closing: deque[int] = deque()

    @classmethod
    def of_process(cls, descriptors: Mapping[str, int], column: int, reactor: Any) -> LimitTables:
        """Return the tables of the process with a column, in another process's memory (`SharedMemory.descriptors`).

        Raises MemoryMismatch, OSError.
        """
        memory = Memory.attach(descriptors["limits"], column)
        wakers = [descriptors[f"wake-{number}"] for number in range(layout.COLUMNS)]
        tables = cls(memory, column=column, wake=partial(wake, wakers))
        reactor.addReader(WakeUpReader(wakers[column], tables.on_handed_over))
        return tables

    @classmethod
    def of_one_process(cls, clock: IReactorTime) -> LimitTables:
        """Return tables in memory of only this process."""

        def wake(columns: int) -> None:
            if columns:
                clock.callLater(0, tables.on_handed_over)

        tables = cls(Memory.private(), column=0, wake=wake, seconds=clock.seconds)
        return tables

    def owned(self) -> SharedMemory:
        """Return the memory with its owner's methods, to set shares of limits over replicas; only in one process."""
        from mcproxy.dispatch.tables.shared_memory import SharedMemory

        return SharedMemory(self.memory, self.wake, self.seconds)

    def token_bucket(self, config: model.FlowControl, clock: IReactorTime) -> TokenBucketLimiter:
        """Return a limiter whose buckets all processes share."""
        limit = LimitId(config.name, "bucket", config.per)
        buckets = self.buckets(limit, config.qps, config.burst, shared=config.shared)
        return TokenBucketLimiter(buckets, config.queue, clock, self.seconds)

    def in_flight(self, config: model.FlowControl, clock: IReactorTime, *, long_running: bool) -> InFlightLimiter:
        """Return a limiter that counts requests in flight in all processes."""
        limit = LimitId(config.name, "long" if long_running else "short", config.per)
        counts = self.counts(limit, config.max_long_running if long_running else config.max, shared=config.shared)
        return InFlightLimiter(counts, config.queue, clock, self._with_queues)

    def buckets(self, limit: LimitId, qps: float, burst: int, *, shared: bool = False) -> TokenBuckets:
        """Return the buckets of a limit. Raises DirectoryFullError."""
        share = Share(qps, burst)
        if shared and burst:
            share = Share(qps * _FIRST_SHARE, burst)
        use = self._open(limit, share, shared)
        return TokenBuckets(self.memory, self._buckets, self._directory, use, limit, qps, burst)

    def counts(self, limit: LimitId, maximum: int | None, *, shared: bool = False) -> InFlightCounts:
        """Return the counts of a limit. Raises DirectoryFullError."""
        first = max(1, int(maximum * _FIRST_SHARE)) if shared and maximum else maximum
        return InFlightCounts(
            self.memory,
            self._counts,
            self._directory,
            self._open(limit, Share(maximum=first), shared),
            limit,
            maximum,
            column=self._column,
            seconds=self.seconds,
            wake=self.wake,
        )

    def connections(self, address: str) -> ConnectionCounts:
        """Return the counts of a listener's connections, by its address. Raises DirectoryFullError."""
        return ConnectionCounts(self.counts(LimitId(address, "connections", Per.USER), None))

    def _open(self, limit: LimitId, share: Share, shared: bool) -> RecordUse:
        self._close_unused()
        try:
            record = self._directory.open(limit, share, self.seconds(), shared=shared, column=self._column)
        except DirectoryFullError:
            gc.collect()  # frees limits of former configurations, which are in reference cycles
            self._close_unused()
            record = self._directory.open(limit, share, self.seconds(), shared=shared, column=self._column)
        self._users[record] = self._users.get(record, 0) + 1
        use = RecordUse(record)
        weakref.finalize(use, self._closing.append, record).atexit = False
        return use

    def _close_unused(self) -> None:
        while self._closing:
            record = self._closing.popleft()
            self._users[record] -= 1
            if not self._users[record]:
                del self._users[record]
                self._directory.close(record, self._column)

    def on_handed_over(self) -> None:
        """Wake limiters, because other processes have handed places over to this one."""
        self._close_unused()
        for limiter in list(self._with_queues):
            limiter.on_handed_over()


@implementer(IReadDescriptor)
class WakeUpReader:
    """The eventfd of this process, for the reactor."""

    def __init__(self, fd: int, on_wake_up: Callable[[], None]) -> None:
        self._fd = fd
        self._on_wake_up = on_wake_up

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "limits"

    def doRead(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
        self._on_wake_up()

    def connectionLost(self, reason: Failure) -> None:
        """Do nothing after an exception of `doRead`, which the reactor has logged: waiting requests are polled."""


class ConnectionCounts:
    """Counts the connections of one listener by client over several processes (`net.client_table.Places`).

    The connections of a dead process are subtracted.
    """

    def __init__(self, counts: InFlightCounts) -> None:
        self._counts = counts

    def take(self, client: str, limit: int) -> bool:
        """Count one more connection unless the count has reached `limit`; return whether it was counted."""
        return self._counts.take_below(client, limit)

    def take_beyond(self, client: str) -> None:
        """Count one more connection, regardless of the limit."""
        self._counts.take(client)  # always succeeds, because the limit of these counts has no maximum

    def release(self, client: str) -> None:
        """Count one connection less."""
        self._counts.release(client)
