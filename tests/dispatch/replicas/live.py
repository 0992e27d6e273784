"""Replicas in real time: real agents, real tables and a real Redis, with a load that is offered to each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.limiter import InFlightLimiter, TokenBucketLimiter
from mcproxy.dispatch.replicas.agent import LeaseAgent
from mcproxy.dispatch.replicas.engine_thread import EngineThread
from mcproxy.dispatch.replicas.leases import LeasedLimit
from mcproxy.dispatch.replicas.redis_client import RedisEngine
from mcproxy.dispatch.tables.limit_shares import LimitId

_TURN = 0.01  # seconds between two looks at what is due


def bucket(qps: float, burst: int, per: Per = Per.ALL) -> model.FlowControl:
    """Return a shared token bucket."""
    return model.FlowControl(name="bulk", type=FlowControlType.TOKEN_BUCKET, qps=qps, burst=burst, per=per, shared=True)


def in_flight(maximum: int, per: Per = Per.ALL) -> model.FlowControl:
    """Return a shared maximum of requests in flight."""
    return model.FlowControl(
        name="interactive", type=FlowControlType.MAX_REQUESTS_INFLIGHT, max=maximum, per=per, shared=True
    )


class LiveReplica:
    """One replica: table, agent, and a count of what it admits."""

    def __init__(
        self,
        reactor: Any,
        name: str,
        control: model.FlowControl,
        redis: model.RedisConfig,
        *,
        lasts: float,
        period: float,
        make_engine: Callable[[model.RedisConfig], Any] = RedisEngine,
    ) -> None:
        self.tables = LimitTables.of_one_process(reactor)
        self.limiter: TokenBucketLimiter | InFlightLimiter
        if control.type is FlowControlType.TOKEN_BUCKET:
            self.limiter = self.tables.token_bucket(control, reactor)
        else:
            self.limiter = self.tables.in_flight(control, reactor, long_running=False)
        self.agent = LeaseAgent(
            reactor,
            self.tables.owned(),
            name,
            connect=lambda config: EngineThread(reactor, config, make_engine),
            lasts=lasts,
            period=period,
        )
        self.configure(control, redis)
        self.admitted = self.refused = 0
        self._reactor = reactor
        self._random = random.Random(name)
        self._due = 0.0  # when the next request comes
        self.rate = 0.0  # requests a second, at random moments
        self.key = ""
        self._load = LoopingCall(self._offer)
        self._load.start(_TURN)

    def configure(self, control: model.FlowControl, redis: model.RedisConfig) -> None:
        """Apply a flow control, and where it is shared."""
        if control.type is FlowControlType.TOKEN_BUCKET:
            limit = LeasedLimit(LimitId(control.name, "bucket", control.per), control.qps, control.burst)
        else:
            limit = LeasedLimit(LimitId(control.name, "short", control.per), control.max or 0)
        self.agent.configure(redis, [limit])

    def load(self, rate: float, key: str = "") -> None:
        """Offer `rate` requests a second for a key from now on."""
        self.rate, self.key = rate, key
        self._due = self._reactor.seconds()

    def take(self, key: str = "") -> bool:
        """Offer one request."""
        admitted = self.limiter.take(key)
        if admitted:
            self.admitted += 1
        else:
            self.refused += 1
        return admitted

    def tokens(self, key: str = "") -> float:
        """Return how many tokens a key has here."""
        assert isinstance(self.limiter, TokenBucketLimiter)
        return self.limiter.tokens(key)

    def stop_clock(self) -> None:
        """Let no token come to any bucket from now on."""
        assert isinstance(self.limiter, TokenBucketLimiter)
        now = self._reactor.seconds()
        self.limiter._seconds = lambda: now

    def _offer(self) -> None:
        now = self._reactor.seconds()
        while self.rate and self._due <= now:
            self.take(self.key)
            self._due += self._random.expovariate(self.rate)

    def end(self) -> Deferred[None]:
        """Stop the load, and leave."""
        self._load.stop()
        return self.agent.stop()


async def run(reactor: Any, replicas: Sequence[LiveReplica], rates: Sequence[float], seconds: float) -> list[int]:
    """Offer a rate to each for some seconds; return how much each has admitted in them."""
    before = [replica.admitted for replica in replicas]
    for replica, rate in zip(replicas, rates, strict=True):
        replica.load(rate)
    await deferLater(reactor, seconds)
    for replica in replicas:
        replica.load(0)
    return [replica.admitted - old for replica, old in zip(replicas, before, strict=True)]
