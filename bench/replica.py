"""One replica of `bench replicas`: a real table and a real lease agent under a load at random moments.

usage: python -P replica.py NAME SOCKET QPS BURST BEGIN RATES

SOCKET is Redis'. From BEGIN on (seconds since the epoch) each of RATES (requests a second, with commas) is offered for
equal times of SECONDS in all; then the number of admitted requests of each second is printed as JSON. Before BEGIN the
first rate is offered for LEAD seconds, which uses up the bursts, and before that nothing.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from twisted.internet.task import LoopingCall

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.replicas.agent import LeaseAgent
from mcproxy.dispatch.replicas.engine_thread import EngineThread
from mcproxy.dispatch.replicas.leases import LeasedLimit
from mcproxy.dispatch.replicas.redis_client import RedisEngine
from mcproxy.dispatch.tables.limit_shares import LimitId
from mcproxy.net.reactor import install

SECONDS = 30
LEAD = 3
_TURN = 0.005


class Replica:
    """The table, its agent, and the load."""

    def __init__(self, reactor: Any, name: str, path: str, qps: float, burst: int) -> None:
        control = model.FlowControl(
            name="bench", type=FlowControlType.TOKEN_BUCKET, qps=qps, burst=burst, per=Per.ALL, shared=True
        )
        self._reactor = reactor
        self._tables = LimitTables.of_one_process(reactor)
        self._limiter = self._tables.token_bucket(control, reactor)
        self._agent = LeaseAgent(reactor, self._tables.owned(), name, connect=self._connect)
        limit = LeasedLimit(LimitId("bench", "bucket", Per.ALL), qps, burst)
        self._agent.configure(model.RedisConfig(url=f"unix://{path}", socket=path), [limit])
        self._random = random.Random(name)
        self.admitted = [0] * SECONDS

    def _connect(self, config: model.RedisConfig) -> EngineThread:
        return EngineThread(self._reactor, config, RedisEngine)

    def run(self, begin: float, rates: Sequence[float]) -> None:
        """Offer the load, and stop the reactor at its end."""
        due = begin - LEAD

        def turn() -> None:
            nonlocal due
            now = time.time()
            while due <= now:
                second = math.floor(due - begin)
                if second >= SECONDS:
                    load.stop()
                    self._agent.stop().addBoth(lambda _: self._reactor.stop())
                    return
                rate = rates[max(0, second) * len(rates) // SECONDS]
                if not rate:
                    due = begin + second + 1
                    continue
                admitted = self._limiter.take("")
                if second >= 0:
                    self.admitted[second] += admitted
                due += self._random.expovariate(rate)

        load = LoopingCall(turn)
        load.start(_TURN)


def main(name: str, path: str, qps: str, burst: str, begin: str, rates: str) -> None:
    """Run one replica to its end."""
    reactor: Any = install()
    replica = Replica(reactor, name, path, float(qps), int(burst))
    replica.run(float(begin), [float(rate) for rate in rates.split(",")])
    reactor.run()
    print(json.dumps(replica.admitted))


if __name__ == "__main__":
    main(*sys.argv[1:])
