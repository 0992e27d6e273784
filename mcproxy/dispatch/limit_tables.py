"""Where flow controls count: in the process itself, or in memory that several processes share.

Chosen once, when the process is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.limiter import InFlightCounts, InFlightLimiter, TokenBucketLimiter
from mcproxy.dispatch.token_bucket import TokenBuckets

if TYPE_CHECKING:
    from mcproxy.dispatch.shared_memory import SharedMemory, SharedTables


class LimitTables(Protocol):
    """Makes the limiters of flow controls, each with the table that it counts in."""

    def token_bucket(self, config: model.FlowControl, clock: IReactorTime) -> TokenBucketLimiter:
        """Return the limiter of a flow control of type TokenBucket."""

    def in_flight(self, config: model.FlowControl, clock: IReactorTime, *, long_running: bool) -> InFlightLimiter:
        """Return the limiter of one of the two budgets of a flow control of type MaxRequestsInflight."""


class LocalTables:
    """The tables of a process that counts for itself alone."""

    def token_bucket(self, config: model.FlowControl, clock: IReactorTime) -> TokenBucketLimiter:
        """Return a limiter of full buckets."""
        return TokenBucketLimiter(TokenBuckets(config.qps, config.burst, clock.seconds()), config.queue, clock)

    def in_flight(self, config: model.FlowControl, clock: IReactorTime, *, long_running: bool) -> InFlightLimiter:
        """Return a limiter with nothing in flight."""
        maximum = config.max_long_running if long_running else config.max
        return InFlightLimiter(InFlightCounts(maximum), config.queue, clock)


class OneProcessTables:
    """The tables of a daemon of one process: `LocalTables`, and shared memory for limits over replicas alone.

    A limit over replicas has a share for each key, which its agent sets (`shared_memory.limit_shares`). Shared memory
    is imported only for such limits.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._local = LocalTables()
        self._memory: SharedMemory | None = None
        self._shared: SharedTables | None = None

    @property
    def memory(self) -> SharedMemory:
        """The memory with the shares; made when it is first asked for. Raises OSError."""
        if self._memory is None:
            from mcproxy.dispatch.shared_memory import SharedMemory

            self._memory = SharedMemory.create()
        return self._memory

    def token_bucket(self, config: model.FlowControl, clock: IReactorTime) -> TokenBucketLimiter:
        """Return a limiter of full buckets; of its share, if the limit is over replicas."""
        return (self._tables if config.shared else self._local).token_bucket(config, clock)

    def in_flight(self, config: model.FlowControl, clock: IReactorTime, *, long_running: bool) -> InFlightLimiter:
        """Return a limiter with nothing in flight; of its share, if the limit is over replicas."""
        return (self._tables if config.shared else self._local).in_flight(config, clock, long_running=long_running)

    def close(self) -> None:
        """Close the descriptors of the memory, if there is any."""
        if self._shared is not None:
            self._shared.close()
        if self._memory is not None:
            self._memory.close()
        self._memory = self._shared = None

    @property
    def _tables(self) -> SharedTables:
        if self._shared is None:
            from mcproxy.dispatch.shared_memory import SharedTables

            memory = self.memory
            self._shared = SharedTables(memory.memory, column=0, wakers=memory.wakers, reactor=self._reactor)
        return self._shared
