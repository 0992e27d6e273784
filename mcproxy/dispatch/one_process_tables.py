"""The tables of a daemon of one process: its own, and shared memory for limits over replicas alone.

Those have a share for each key, which their agent sets; see `shared_memory.shares`. Shared memory is imported only for
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.limit_tables import LocalTables
from mcproxy.dispatch.limiter import InFlightLimiter, TokenBucketLimiter

if TYPE_CHECKING:
    from mcproxy.dispatch.shared_memory import SharedMemory, SharedTables


class OneProcessTables:
    """Makes limiters that count in this process, and those of limits over replicas in memory with shares."""

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
