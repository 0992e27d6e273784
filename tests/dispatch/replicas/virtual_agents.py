"""Whole replicas in virtual time: real agents and tables, the real script, and a Redis that answers late."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from mcproxy.config import model
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.replicas.agent import PERIOD, LeaseAgent
from mcproxy.dispatch.replicas.leases import LeasedLimit
from mcproxy.dispatch.replicas.script import Call
from mcproxy.dispatch.tables.layout import P_RATE
from tests.dispatch.replicas.virtual import VirtualRedis
from tests.support.clock import MemoryReactorClock


class LateRedis:
    """A connection whose answers come `delay` seconds after the calls, which are made in between; None: never."""

    def __init__(self, site: VirtualSite, config: model.RedisConfig) -> None:
        self.config = config
        self._site = site

    def call(self, calls: Sequence[Call], done: Callable[[list[Any] | Exception], None]) -> None:
        clock, delay = self._site.clock, self._site.delay
        if delay is None:
            clock.callLater(1.0, done, ConnectionError("nobody listens"))
            return

        def carry_out() -> None:
            self._site.redis.now = self._site.began + clock.seconds()
            clock.callLater(delay / 2, done, [self._site.redis.run(call) for call in calls])

        clock.callLater(delay / 2, carry_out)

    def end(self) -> None:
        pass


class VirtualSite:
    """Replicas that share one token bucket, offered requests at random moments."""

    def __init__(
        self, redis: VirtualRedis, limit: LeasedLimit, members: int, *, delay: float = 0.001, seed: int = 1
    ) -> None:
        self.redis, self.limit = redis, limit
        self.began = redis.now
        self.delay: float | None = delay
        self.clock: Any = MemoryReactorClock()
        self._random = random.Random(seed)
        self.agents: list[LeaseAgent] = []
        self.most = 0.0  # the largest sum of the rates of all since it was reset
        self.buckets = []
        self._memories = []
        for number in range(members):
            tables = LimitTables.of_one_process(self.clock)
            self._memories.append(tables.owned())
            self.buckets.append(tables.buckets(limit.id, limit.amount, limit.burst, shared=True))
            self.agents.append(self._agent(number))
            self.clock.callLater(number * PERIOD / members, self._configure, number)

    def _agent(self, number: int) -> LeaseAgent:
        return LeaseAgent(
            self.clock,
            self._memories[number],
            f"replica-{number}-{self.clock.seconds()}",
            connect=lambda config: LateRedis(self, config),
            seconds=self.clock.seconds,
        )

    def _configure(self, number: int) -> None:
        self.agents[number].configure(model.RedisConfig(url=""), [self.limit])

    def join(self, number: int) -> None:
        """Let a replica whose agent has stopped begin anew."""
        self.agents[number] = self._agent(number)
        self._configure(number)

    def run(self, seconds: float, offered: Sequence[float] = ()) -> list[int]:
        """Offer requests a second to each for some time; return how many each has admitted."""
        begin = self.clock.seconds()
        admitted = [0] * len(self.agents)
        due = [(begin + self._random.expovariate(rate), i) for i, rate in enumerate(offered) if rate]
        heapq.heapify(due)
        while due and due[0][0] < begin + seconds:
            now, i = heapq.heappop(due)
            self._to(now)
            admitted[i] += self.buckets[i].take("", self.clock.seconds())
            heapq.heappush(due, (now + self._random.expovariate(offered[i]), i))
        self._to(begin + seconds)
        return admitted

    @property
    def rates(self) -> list[float]:
        """The rate that each may admit now."""
        return [self._rate(number) for number in range(len(self.agents))]

    def _rate(self, number: int) -> float:
        memory, buckets = self._memories[number], self.buckets[number]
        place = buckets._find("", self.clock.seconds())
        at = buckets._parameters_of(place)
        if self.clock.seconds() >= memory.memory.floats[buckets._leases_end]:
            at = memory.memory.words[buckets._parameters]
        return memory.memory.floats[at + P_RATE]

    def _to(self, time: float) -> None:
        # In steps: a clock that is advanced past several calls shows all of them the last time.
        while (calls := self.clock.getDelayedCalls()) and (next_at := min(c.getTime() for c in calls)) <= time:
            self.clock.advance(max(0.0, next_at - self.clock.seconds()))
            self.most = max(self.most, sum(self.rates))
        self.clock.advance(max(0.0, time - self.clock.seconds()))

    def close(self) -> None:
        for agent in self.agents:
            agent.abort()
