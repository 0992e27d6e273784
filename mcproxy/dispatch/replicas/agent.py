"""The lease agent: requests leases from Redis in the background, and sets this replica's shares in the table of limits.

It runs in the process that owns the memory of the limits: the only process of a daemon, or its supervisor. A separate
thread calls Redis, one exchange at a time. The reactor only hands over calls and receives their results; requests only
read the table. If Redis has not responded for the lifetime of a lease, the limits are divided equally between the
replicas that were last seen. The begin and the end of this state are logged once each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.dispatch.replicas.leases import LeasedLimit, Leases
from mcproxy.dispatch.replicas.script import Ask, Call, leaving, parse, renewal
from mcproxy.dispatch.tables.limit_shares import LimitId
from mcproxy.dispatch.tables.shared_memory import SharedMemory

log = Logger(__name__)

PERIOD = 0.2
"""Seconds between two exchanges."""
LASTS = 5.0
"""Lifetime of a lease in seconds.

A shorter outage of Redis has no effect, and two successive responses can take nearly half of this time each. The part
of a dead replica is unused for this time.
"""
_RETRY = 5  # number of periods between two attempts while Redis is unavailable
_REPORT_AGAIN = 60.0  # seconds between two log lines about one limit that differs between replicas
_LEAVE = 0.5  # maximum of seconds for which a stop waits for Redis

TODO_DIFFERENT = "give all replicas the same flow control; until then the lower limit holds at all of them"


class RedisConnection(Protocol):
    """The connection to one Redis (`engine_thread.EngineThread`)."""

    @property
    def config(self) -> model.RedisConfig:
        """The configuration of the connection to Redis."""

    def call(self, calls: Sequence[Call], done: Callable[[list[Any] | Exception], None]) -> None:
        """Make the calls, then call `done` in the reactor with the responses or the error."""

    def end(self) -> None:
        """Close the connection after the pending calls."""


class _LateAnswerError(Exception):
    """The leases had expired when the response arrived."""

    todo = "see that Redis, and this machine, are not overloaded"


class _Exchange:
    """One exchange: the requests for each limit, and their time."""

    __slots__ = ("asks", "calls", "engine", "sent")

    def __init__(self, engine: RedisConnection, sent: float, asks: dict[LimitId, list[Ask]], calls: list[Call]) -> None:
        self.engine, self.sent, self.asks, self.calls = engine, sent, asks, calls


class LeaseAgent:
    """The agent of one replica. `configure` starts it, and applies every later configuration."""

    def __init__(
        self,
        reactor: Any,
        table: SharedMemory,
        member: str,
        *,
        connect: Callable[[model.RedisConfig], RedisConnection],
        seconds: Callable[[], float] = time.monotonic,
        period: float = PERIOD,
        lasts: float = LASTS,
    ) -> None:
        """`member`: the name of this replica, which no other replica may ever have had or get later.

        `seconds`: a monotonic clock, by which leases expire.
        """
        self._reactor = reactor
        self._seconds = seconds
        self._table = table
        self._member = member
        self._connect = connect
        self._period, self._lasts = period, lasts
        self._engine: RedisConnection | None = None
        self._limits: dict[LimitId, Leases] = {}
        self._under_way: _Exchange | None = None
        self._tick_call: IDelayedCall | None = None
        self._collected = 0.0  # time of the last collection of demands
        self._renewed = 0.0  # time at which the last successful exchange was sent
        self._next_try = 0.0
        self._failure: Exception | None = None  # the failure of the last exchange
        self._away = False  # whether the leases have expired
        self._said_away = False  # whether their expiry was logged
        self._away_since = self._back_since = 0.0
        self._reported: dict[LimitId, tuple[str, float]] = {}  # logged limits that differ between replicas
        self._stopped = False

    @property
    def replicas(self) -> int:
        """The number of replicas in the last response; 0 if there was no response."""
        return max((leases.members for leases in self._limits.values()), default=0)

    @property
    def limits(self) -> int:
        """The number of limits over replicas."""
        return len(self._limits)

    @property
    def established(self) -> bool:
        """Whether the other replicas know this one, so that it has its part of all limits."""
        return all(leases.established for leases in self._limits.values())

    @property
    def away(self) -> bool:
        """Whether the limits are divided equally because Redis is unavailable."""
        return self._away

    def configure(self, redis: model.RedisConfig | None, limits: Iterable[LeasedLimit]) -> None:
        """Apply a configuration: the connection to Redis, and the limits. Without limits no connection is kept."""
        now = self._seconds()
        wanted = {limit.id: limit for limit in limits} if redis is not None else {}
        self._change_engine(redis if wanted else None, now)
        gone = [id for id in self._limits if id not in wanted]
        if gone and self._engine is not None:
            self._leave(self._engine, gone, lambda _: None)
        for id in gone:
            del self._limits[id]
            self._reported.pop(id, None)
            self._table.forget(id)
        for id, limit in wanted.items():
            if id not in self._limits:
                self._limits[id] = Leases(limit, self._lasts)
            elif self._limits[id].limit != limit:
                self._limits[id].change(limit, now)
                self._reported.pop(id, None)
            if self._away:
                self._limits[id].lost(now)
            self._apply(id)
        if self._limits and self._tick_call is None:
            self._collected = self._renewed = now
            self._tick_call = self._reactor.callLater(0, self._tick)
        elif not self._limits and self._tick_call is not None:
            self._tick_call.cancel()
            self._tick_call = None

    def abort(self) -> None:
        """Stop at once, and let the leases expire."""
        self._stopped = True
        if self._tick_call is not None:
            self._tick_call.cancel()
            self._tick_call = None
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.end()

    def stop(self) -> Deferred[None]:
        """Leave, so that other replicas get this one's part at once; fires after Redis' response, or after `_LEAVE`."""
        left: Deferred[None] = Deferred()
        if self._engine is None or self._away:
            self.abort()
            left.callback(None)
            return left
        timeout = self._reactor.callLater(_LEAVE, left.callback, None)

        def done(_: object) -> None:
            if timeout.active():
                timeout.cancel()
                left.callback(None)

        self._leave(self._engine, list(self._limits), done)
        self.abort()
        return left

    def _change_engine(self, redis: model.RedisConfig | None, now: float) -> None:
        """Use another Redis, which has no leases; until its first response every key has an equal part."""
        before = self._engine
        if before is not None and before.config == redis:
            return
        if before is not None:
            self._leave(before, list(self._limits), lambda _: None)
            before.end()
            self._expire(now)
        self._under_way = self._failure = None
        self._renewed, self._next_try = now, 0.0
        if redis is None:
            self._away = self._said_away = False
        self._engine = self._connect(redis) if redis is not None else None

    def _leave(self, engine: RedisConnection, limits: Iterable[LimitId], done: Callable[[object], None]) -> None:
        engine.call([leaving(engine.config.prefix, id, self._member) for id in limits], done)

    def _tick(self) -> None:
        self._tick_call = self._reactor.callLater(self._period, self._tick)
        now = self._seconds()
        seconds, self._collected = max(now - self._collected, 1e-3), now
        for id, leases in self._limits.items():
            leases.demanded(self._table.demands(id), seconds, now)
        if not self._away and now - self._renewed >= self._lasts:
            if self._failure is None and (self._under_way is None or now - self._under_way.sent <= self._lasts):
                self._expire(now)  # this process was stopped
            else:
                self._lose(now)
        if self._under_way is None and now >= self._next_try:
            self._exchange(now)

    def _exchange(self, now: float) -> None:
        engine = self._engine
        assert engine is not None
        asks = {id: leases.asks(now) for id, leases in self._limits.items()}
        for id in asks:
            self._apply(id)
        calls = [
            renewal(
                engine.config.prefix,
                id,
                self._member,
                self._lasts,
                leases.limit.amount,
                leases.limit.label,
                asks[id],
                whole=leases.limit.whole,
                known=leases.established,
                seen=leases.seen,
            )
            for id, leases in self._limits.items()
        ]
        exchange = self._under_way = _Exchange(engine, now, asks, calls)
        engine.call(calls, lambda outcome: self._answered(exchange, outcome))

    def _answered(self, exchange: _Exchange, outcome: list[Any] | Exception) -> None:
        if self._stopped or exchange is not self._under_way:
            return  # another Redis is used meanwhile
        self._under_way = None
        now = self._seconds()
        if not isinstance(outcome, Exception):
            try:
                answers = [parse(reply, asks) for reply, asks in zip(outcome, exchange.asks.values(), strict=True)]
            except ValueError as error:
                outcome = error
        if not isinstance(outcome, Exception) and now - exchange.sent >= self._lasts:
            outcome = _LateAnswerError(f"the answer came after {now - exchange.sent:.1f} s")
        if isinstance(outcome, Exception):
            self._failed(outcome, now)
            return
        self._failure = None
        if self._away:
            self._away, self._back_since = False, now
        elif now - self._renewed >= self._lasts:
            self._expire(now)  # this process was stopped, and the table has ended the shares already
        self._renewed = exchange.sent
        for (id, asks), answer in zip(exchange.asks.items(), answers, strict=True):
            leases = self._limits.get(id)
            if leases is None:
                continue  # a reload has removed the limit meanwhile
            leases.answered(asks, answer, now)
            self._report_difference(leases, now)
            self._table.leases_end(id, self._renewed + self._lasts)
            self._apply(id)
        self._report_return(now)
        if now - exchange.sent >= self._period and self._tick_call is not None:
            self._tick_call.reset(0)  # after a slow response, send the next call at once

    def _report_return(self, now: float) -> None:
        """Log the recovery of Redis when it is stable, so that a flapping Redis counts as a single outage."""
        if self._said_away and now - self._back_since >= self._lasts:
            self._said_away = False
            log.info(
                "the shared state is available again",
                event="shared_state_back",
                seconds=round(now - self._away_since, 1),
                replicas=self.replicas,
            )

    def _failed(self, error: Exception, now: float) -> None:
        self._failure = error
        self._next_try = now + self._period * (_RETRY if self._away else 1)
        if self.replicas == 0:
            self._lose(now)  # this replica holds no lease

    def _lose(self, now: float) -> None:
        if self._away:
            return
        self._away = True
        self._expire(now)
        if self._said_away:
            return
        self._said_away, self._away_since = True, self._renewed
        error = self._failure
        replicas = self.replicas
        log.error(
            "the shared state is unavailable: limits over replicas are divided equally"
            if replicas
            else "the shared state is unavailable, no other replica is known: limits hold for this one alone",
            event="shared_state_away",
            replicas=replicas or 1,
            cause=str(error) if error is not None else f"no answer within {self._lasts:g} s",
            todo=getattr(error, "todo", "see that Redis runs and answers"),
        )

    def _expire(self, now: float) -> None:
        for id, leases in self._limits.items():
            leases.lost(now)
            self._apply(id)

    def _report_difference(self, leases: Leases, now: float) -> None:
        id, other = leases.limit.id, leases.differing
        said, at = self._reported.get(id, ("", -_REPORT_AGAIN))
        if not other or said == other or now - at < _REPORT_AGAIN:  # `other` can alternate between several replicas
            return
        self._reported[id] = (other, now)
        member, _, label = other.partition(" ")
        log.warn(
            "replicas have different limits",
            event="replica_limits_differ",
            flowControl=id.name,
            cause=f"{member} has {label}, this one {leases.limit.label}",
            todo=TODO_DIFFERENT,
        )

    def _apply(self, id: LimitId) -> None:
        changes = self._limits[id].changes()
        if changes.default is not None:
            self._table.default_share(id, changes.default)
        for key, share in changes.keys.items():
            self._table.grant(id, key, share)
