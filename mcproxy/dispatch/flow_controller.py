"""A configured flow control at run time: its limiters, its counts, and the text of its refusals.

Source of the text: reference "dispatch", Flow control; MaxRequestsInflight follows the form of TokenBucket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.limiter import InFlightLimiter, Limiter, TokenBucketLimiter
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.observe.metrics.families import FLOW_CONTROL_REFUSED, FLOW_CONTROL_WAIT
from mcproxy.observe.metrics.metrics import Metrics

# Retry-After in seconds for all limits. client-go waits exactly this long, and retries ten times.
_RETRY_AFTER = 1


class FlowController(ABC):
    """One named limit. It stays the same object across a reload unless its type or `per` changes."""

    def __init__(self, config: model.FlowControl, short: Limiter, long: Limiter, metrics: Metrics) -> None:
        """`short` and `long` limit short and long-running requests; they may be the same object."""
        self._counts = metrics.counts
        self.config = config  # the settings in force
        self.short, self.long = short, long
        self._limiters = {short, long}

    @property
    def in_use(self) -> int:
        """Short requests in flight; always 0 for a token bucket."""
        return self.short.in_use if isinstance(self.short, InFlightLimiter) else 0

    @property
    def in_use_long_running(self) -> int:
        """Long-running requests in flight; always 0 for a token bucket."""
        return self.long.in_use if isinstance(self.long, InFlightLimiter) else 0

    @property
    def waiting(self) -> int:
        """The number of requests in the queues."""
        return sum(limiter.waiting for limiter in self._limiters)

    @property
    def refused(self) -> int:
        """The number of requests refused since the start."""
        return sum(limiter.refused for limiter in self._limiters)

    @property
    def tokens(self) -> float | None:
        """The tokens in the only bucket, which all requests share; None if there are several buckets, or none."""
        return None

    @abstractmethod
    def change(self, config: model.FlowControl) -> None:
        """Apply another configuration of the same type and `per`, from the next request on."""

    def key(self, cluster_name: str) -> str | None:
        """Return the key under which a request to a cluster counts; None means its user's name."""
        per = self.config.per
        return None if per is Per.USER else cluster_name if per is Per.CLUSTER else ""

    def too_many_requests(self, cluster_name: str, resource: str, waited: float | None = None) -> StatusError:
        """Return the 429 error. `waited`: the seconds spent in the queue, None if the request did not wait.

        A 429 for events has no Retry-After, with which recorders would retry instead of dropping the event.
        """
        self._counts.increase(FLOW_CONTROL_REFUSED, (self.config.name,))
        limits = [*self._limits(), *(["over all replicas"] if self.config.shared else [])]
        message = (
            f'too many requests for cluster "{cluster_name}", limited by flow control "{self.config.name}"'
            f" ({', '.join(limits)})"
        )
        if waited is not None:
            message += f"; waited {_number(waited)} s in its queue"
        if resource == "events":
            return StatusError(429, message)
        return retry_after(429, message, _RETRY_AFTER)

    def waited(self, seconds: float, result: str) -> None:
        """Count a request that has left the queue. `result`: admitted, refused, left (the client went away)."""
        self._counts.observe(FLOW_CONTROL_WAIT, (self.config.name, result), seconds)

    @abstractmethod
    def _limits(self) -> list[str]:
        """Return the type and the figures of the limit, for the text of refusals."""


class InFlightController(FlowController):
    """MaxRequestsInflight: long-running requests have their own budget and queues."""

    short: InFlightLimiter
    long: InFlightLimiter

    def __init__(self, config: model.FlowControl, clock: IReactorTime, tables: LimitTables, metrics: Metrics) -> None:
        super().__init__(
            config,
            tables.in_flight(config, clock, long_running=False),
            tables.in_flight(config, clock, long_running=True),
            metrics,
        )

    def change(self, config: model.FlowControl) -> None:
        self.config = config
        self.short.change(config.max, config.queue)
        self.long.change(config.max_long_running, config.queue)

    def _limits(self) -> list[str]:
        limits = [str(FlowControlType.MAX_REQUESTS_INFLIGHT)]
        if self.config.max is not None:
            limits.append(f"max {self.config.max}")
        if self.config.max_long_running is not None:
            limits.append(f"max long-running {self.config.max_long_running}")
        return limits


class TokenBucketController(FlowController):
    """TokenBucket: every request takes a token, however long it runs."""

    short: TokenBucketLimiter

    def __init__(self, config: model.FlowControl, clock: IReactorTime, tables: LimitTables, metrics: Metrics) -> None:
        limiter = tables.token_bucket(config, clock)
        super().__init__(config, limiter, limiter, metrics)

    @property
    def tokens(self) -> float | None:
        of_all = self.config.per is Per.ALL and not self.config.shared
        return self.short.tokens("") if of_all else None

    def change(self, config: model.FlowControl) -> None:
        self.config = config
        self.short.change(config.qps, config.burst, config.queue)

    def _limits(self) -> list[str]:
        return [str(FlowControlType.TOKEN_BUCKET), f"qps {_number(self.config.qps)}", f"burst {self.config.burst}"]


def make_controller(
    config: model.FlowControl, clock: IReactorTime, tables: LimitTables, metrics: Metrics
) -> FlowController | None:
    """Return the controller of a flow control; None if it has no limit."""
    if config.type is FlowControlType.EXEMPT:
        return None
    if config.type is FlowControlType.TOKEN_BUCKET:
        return TokenBucketController(config, clock, tables, metrics)
    return InFlightController(config, clock, tables, metrics)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
