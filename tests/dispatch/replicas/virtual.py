"""Replicas in virtual time: the real script in a real Redis whose clock is an argument, and the real arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from mcproxy.config.model import Per
from mcproxy.dispatch.replicas.leases import LeasedLimit, Leases
from mcproxy.dispatch.replicas.script import Ask, Call, LimitAnswer, leaving, parse, renewal, source
from mcproxy.dispatch.tables.limit_shares import Demand, LimitId, Share

LASTS = 2.0
PERIOD = 0.2
PREFIX = "mcproxy"
BUCKET = LimitId("bulk", "bucket", Per.USER)
SHORT = LimitId("interactive", "short", Per.USER)
FIFTY = LeasedLimit(BUCKET, 50.0, 10)


class VirtualRedis:
    """The script in a Redis whose clock stands at `now` (seconds)."""

    def __init__(self, client: Redis) -> None:
        client.flushall()
        self.client = client
        self.now = 1_000_000.0
        text = source()
        assert text.count("redis.call('TIME')") == 1
        clock = "{math.floor(ARGV[#ARGV] / 1000), (ARGV[#ARGV] % 1000) * 1000}"
        self._script = client.register_script(text.replace("redis.call('TIME')", clock))

    def renew(
        self, limit: LeasedLimit, member: str, asks: Sequence[Ask] = (), *, known: bool = True, seen: int = 0
    ) -> LimitAnswer:
        amount, label, whole = limit.amount, limit.label, limit.whole
        call = renewal(PREFIX, limit.id, member, LASTS, amount, label, asks, whole=whole, known=known, seen=seen)
        return parse(self.run(call), asks)

    def leave(self, limit: LeasedLimit, member: str) -> None:
        self.run(leaving(PREFIX, limit.id, member))

    def run(self, call: Call) -> Any:
        return self._script(keys=call.keys, args=[*call.arguments, round(self.now * 1000)])


class Replica:
    """One replica's leases on one limit, and the shares that its table has."""

    def __init__(self, redis: VirtualRedis, limit: LeasedLimit, member: str) -> None:
        self.redis, self.limit, self.member = redis, limit, member
        self.leases = Leases(limit, LASTS)
        self.default = Share()
        self.shares: dict[int, Share] = {}
        self._renewed = redis.now
        self._apply()

    def step(self, demands: Sequence[Demand], *, away: bool = False) -> None:
        """One period: `demands` since the last; with `away` Redis does not answer."""
        now = self.redis.now
        self.leases.demanded(demands, PERIOD, now)
        if not away:
            asks = self.leases.asks(now)
            known, seen = self.leases.established, self.leases.seen
            self.leases.answered(asks, self.redis.renew(self.limit, self.member, asks, known=known, seen=seen), now)
            self._renewed = now
        elif now - self._renewed > LASTS:
            self.leases.lost(now)
        self._apply()

    def _apply(self) -> None:
        changes = self.leases.changes()
        self.default = changes.default or self.default
        for key, share in changes.keys.items():
            if share is None:
                self.shares.pop(key)
            else:
                self.shares[key] = share

    def share(self, key: int) -> Share:
        return self.shares.get(key, self.default)

    def part(self, key: int) -> float:
        """How much of the limit it may use."""
        share = self.share(key)
        return share.rate if share.maximum is None else share.maximum


class Site:
    """Replicas that step in turn within each period, under a load that is offered to each."""

    def __init__(self, redis: VirtualRedis, limit: LeasedLimit, members: int) -> None:
        self.redis, self.limit = redis, limit
        self.replicas = [Replica(redis, limit, f"replica-{i}") for i in range(members)]
        self.admitted = 0.0
        self.most = 0.0  # the largest sum of parts of a key at any moment since it was reset

    def run(self, seconds: float, offered: Sequence[float], key: int = 7, away: Sequence[int] = ()) -> None:
        """Let time pass; `offered` are requests a second for a rate, and requests that would be in flight else."""
        for _ in range(round(seconds / PERIOD)):
            self.redis.now += PERIOD
            for i, replica in enumerate(self.replicas):
                part, load = replica.part(key), offered[i] if i < len(offered) else 0.0
                self.admitted += min(load, part) * PERIOD
                replica.step([self._demand(key, load, part)] if load else [], away=i in away)
                self.most = max(self.most, self.parts(key))

    def _demand(self, key: int, load: float, part: float) -> Demand:
        if self.limit.whole:
            return Demand(key, 0, max(0, round(load - part)), round(min(load, part)))
        taken = round(min(load, part) * PERIOD)
        return Demand(key, taken, max(0, round(load * PERIOD) - taken), 0)

    def parts(self, key: int = 7) -> float:
        return sum(replica.part(key) for replica in self.replicas)
