"""Candidates that fight for one Lease: clocks that show different times, run at different rates, are set and frozen;
requests and answers that are late or lost. Never do two write at one time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from mcproxy.services.leader_election import Election, LeaderElector
from mcproxy.services.lease import Lease, LeaseConflictError, LeaseLock, LeaseUnavailableError, Record
from tests.services.fake_lease import FakeCluster
from tests.support.clock import DATE, Clock

STEP = 0.1
"""Seconds of true time."""


class World:
    """True time, the cluster, and what is on the way to and from it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cluster = FakeCluster()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), work))

    def step(self) -> None:
        self.now += STEP
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()


class Candidate(LeaseLock):
    """A process on a machine of its own, which is also the way to the cluster."""

    def __init__(self, world: World, name: str, rate: float, date: float, seed: int) -> None:
        self.world = world
        self.rate = rate
        self.clock = Clock(DATE + date)
        self.frozen = False
        self.network = 0.0
        """Which part of all requests and answers is lost or late."""
        self._random = random.Random(seed)
        self.elector = self._elector(name)

    def _elector(self, name: str) -> LeaderElector:
        election = Election(name, self.clock.seconds)
        return LeaderElector("east", self, election, self.clock, self._random.random, lambda leads: None)

    def step(self) -> None:
        if self.frozen:
            self.clock.rightNow += STEP * self.rate  # the clock goes on, nothing runs
        else:
            self.clock.advance(STEP * self.rate)

    def restart(self, name: str) -> None:
        """The process dies; another one with another identity is started there."""
        self.elector.stop()
        self.elector = self._elector(name)
        self.elector.start()

    async def get(self, timeout: float) -> Lease | None:
        found: Lease | None = await self._call(lambda: self.world.cluster.lease, timeout)
        return found

    async def create(self, record: Record, timeout: float) -> Lease:
        lease: Lease = await self._call(lambda: self.world.cluster.create(record), timeout)
        return lease

    async def update(self, lease: Lease, record: Record, timeout: float) -> Lease:
        written: Lease = await self._call(lambda: self.world.cluster.update(lease, record), timeout)
        return written

    def _delay(self) -> float | None:
        """Seconds on the way; None: lost."""
        if self._random.random() >= self.network:
            return self._random.random() * 0.2
        return None if self._random.random() < 0.4 else self._random.random() * 40

    async def _call(self, work: Callable[[], Any], timeout: float) -> Any:
        answer: Deferred[Any] = Deferred()

        def arrived() -> None:
            try:
                result = work()
            except LeaseConflictError:
                self._later(lambda: answer.errback(LeaseConflictError()), answer)
            else:
                self._later(lambda: answer.callback(result), answer)

        there = self._delay()
        if there is not None:
            self.world.at(there, arrived)  # whether anybody still waits for it or not

        def late(_: object, seconds: float) -> Any:
            raise LeaseUnavailableError(f"no answer within {seconds} s", "see")

        return await answer.addTimeout(timeout, self.clock, late)

    def _later(self, work: Callable[[], None], answer: Deferred[Any]) -> None:
        back = self._delay()

        def told() -> None:
            if self.frozen:
                self.world.at(STEP, told)
            elif not answer.called:
                work()

        if back is not None:
            self.world.at(back, told)


EVENTS = st.tuples(
    st.sampled_from(["freeze", "network", "restart", "stop", "set clock", "remove lease", "wait"]),
    st.integers(0, 2),
    st.floats(0, 20),
    st.floats(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.85, 1.15), st.floats(-1e6, 1e6)), min_size=2, max_size=3),
    st.lists(EVENTS, max_size=12),
    st.integers(0, 2**32),
)
def test_never_do_two_write_at_one_time_and_in_the_end_one_does(
    machines: list[tuple[float, float]], events: list[tuple[str, int, float, float]], seed: int
) -> None:
    world = World()
    candidates = [Candidate(world, f"c{n}", rate, date, seed + n) for n, (rate, date) in enumerate(machines)]
    for each in candidates:
        each.elector.start()
    lives = itertools.count()

    def run(seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            world.step()
            for each in candidates:
                each.step()
            assert sum(each.elector.leads for each in candidates) <= 1

    run(5)
    for what, which, seconds, how in events:
        candidate = candidates[which % len(candidates)]
        if what == "freeze":
            candidate.frozen = True
            run(seconds)
            candidate.frozen = False
        elif what == "network":
            candidate.network = how
            run(seconds)
        elif what == "restart":
            candidate.restart(f"life{next(lives)}")
        elif what == "stop":
            candidate.elector.stop()
            Deferred.fromCoroutine(candidate.elector.release())
            run(seconds)
            candidate.restart(f"life{next(lives)}")
        elif what == "set clock":
            candidate.clock.jumped += (how - 0.5) * 1e6
        elif what == "remove lease" and not any(each.elector.leads for each in candidates):
            world.cluster.lease = None
        run(seconds)
    for candidate in candidates:
        candidate.network = 0
    run(90)  # what is late still arrives, and a Lease of a dead one runs out
    assert sum(each.elector.leads for each in candidates) == 1
    for candidate in candidates:
        candidate.elector.stop()
