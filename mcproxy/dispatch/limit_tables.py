"""Where flow controls count: in the process itself, or in memory that several processes share.

Chosen once, when the process is made.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.dispatch.in_flight import InFlightCounts
from mcproxy.dispatch.limiter import InFlightLimiter, TokenBucketLimiter
from mcproxy.dispatch.token_bucket import TokenBuckets


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
