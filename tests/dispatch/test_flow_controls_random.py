"""Random requests and reloads: no permit leaks, no maximum is exceeded, no request waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.config.model import FlowControl, Per, Queue
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.flow_controller import FlowController, InFlightController
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.limiter import InFlightLimiter, Limiter
from mcproxy.dispatch.request_limits import Permit, RequestLimits
from mcproxy.kube.status import StatusError
from tests.dispatch.flow_controls import bucket, inflight
from tests.dispatch.permits import at_once, deferred
from tests.support.clock import Clock

NAMES = ("a", "b", "t")
USERS = ("noisy", "noisy", "noisy", "quiet", "other")


@dataclass(eq=False)
class Request:
    """One request. It holds what `permit` stands for; `outcome` is set once."""

    user: str
    long_running: bool
    names: tuple[str, ...]
    controls: tuple[FlowController, ...]
    ends_at_once: bool  # its upstream fails in the moment in which it is let through
    permit: Permit | None = None
    waiting: Deferred[None] | None = None
    outcomes: list[str] = field(default_factory=list)


class RandomTraffic:
    """A daemon under random load and random reloads, and the invariants after each step."""

    def __init__(self, random: Random, clock: Clock | None = None, tables: LimitTables | None = None) -> None:
        self.random = random
        self.clock = clock or Clock()
        self.tables = tables
        self.flows = FlowControls.build(self.config(), self.clock, tables=tables)
        self.runtimes = [self.flows]  # requests that are between a Runtime and its successor use the former
        self.ever: set[FlowController] = set(self.flows.controls.values())
        self.requests: list[Request] = []
        self.before: Counter[tuple[InFlightLimiter, str]] = Counter()

    def config(self) -> list[FlowControl]:
        pick = self.random.choice
        queue = [None, Queue(size=0, timeout=1.0), Queue(size=2, timeout=1.0), Queue(size=9, timeout=3.0)]
        return [
            inflight("a", pick([0, 1, 2, 4, None]), max_long_running=pick([0, 1, 3, None]), queue=pick(queue)),
            inflight("b", pick([1, 2, 3]), per=pick([Per.USER, Per.USER, Per.CLUSTER]), queue=pick(queue)),
            bucket("t", pick([0.5, 2, 20]), pick([0, 1, 2, 10]), queue=pick(queue), per=pick([Per.ALL, Per.USER])),
        ]

    def arrive(self) -> None:
        flows = self.random.choice(self.runtimes)
        names = tuple(self.random.sample(NAMES, self.random.randint(1, 3)))
        request = Request(
            self.random.choice(USERS),
            self.random.random() < 0.3,
            names,
            tuple(flows.controls[name] for name in names),
            self.random.random() < 0.2,
        )
        self.requests.append(request)
        limits = flows.limits_for(names, "east")
        try:
            permit = at_once(limits.acquire(request.user, request.long_running))
        except StatusError:
            request.outcomes.append("refused")
            return
        if permit is None:
            self._wait(request, limits)
        else:
            self._begin(request, permit)

    def end(self) -> None:
        running = [request for request in self.requests if request.permit is not None]
        if running:
            self._end(self.random.choice(running))

    def go_away(self) -> None:
        waiting = [request for request in self.requests if not request.outcomes and request.waiting is not None]
        if waiting:
            request = self.random.choice(waiting)
            assert request.waiting is not None
            request.waiting.cancel()
            assert request.outcomes == ["CancelledError"]

    def reload(self) -> None:
        new = FlowControls.build(self.config(), self.clock, self.flows, self.tables)
        if self.random.random() < 0.2:
            return  # a socket could not be bound: it never comes into force
        new.activate()
        self.flows = new
        self.runtimes = [self.runtimes[-1], new]
        self.ever.update(new.controls.values())

    def pass_time(self) -> None:
        self.clock.advance(self.random.choice([0.01, 0.05, 0.3, 1.5]))

    def step(self) -> None:
        steps = [self.arrive, self.end, self.go_away, self.reload, self.pass_time]
        self.random.choices(steps, weights=[10, 6, 1, 1, 4])[0]()
        self.check()

    def check(self) -> None:
        """Nobody is admitted beyond a maximum; those under an earlier, larger one only become fewer."""
        held = self._held()
        counts: Counter[tuple[InFlightLimiter, str]] = Counter()
        for control in self._in_flight():
            for limiter in (control.short, control.long):
                for key in {*USERS, "", "east"}:
                    count = counts[limiter, key] = limiter.requests.count(key)
                    maximum = limiter.requests.max
                    if maximum is not None and count > maximum:
                        # A new limiter of shared memory begins with what its predecessor has in flight.
                        assert count <= self.before.get((limiter, key), count)
                # A request that waits for its second limit holds the first, and has no permit yet.
                assert held[limiter] <= limiter.in_use <= held[limiter] + self._undecided()
        self.before = counts

    def finish(self) -> None:
        """Let everything end; nothing may be left."""
        while any(request.permit is not None for request in self.requests) or self._undecided():
            for request in list(self.requests):
                if request.permit is not None:
                    self._end(request)
            self.clock.advance(1.0)
        assert all(len(request.outcomes) == 1 for request in self.requests)
        assert [(control.in_use, control.in_use_long_running, control.waiting) for control in self.ever] == (
            [(0, 0, 0)] * len(self.ever)
        )
        assert self.clock.getDelayedCalls() == []

    def outcomes(self) -> Counter[str]:
        return Counter(outcome for request in self.requests for outcome in request.outcomes)

    def _wait(self, request: Request, limits: RequestLimits) -> None:
        waiting = deferred(limits, request.user, request.long_running)

        def failed(failure: Failure) -> None:
            error = failure.value
            request.outcomes.append("timed out" if isinstance(error, StatusError) else type(error).__name__)

        request.waiting = waiting.addCallbacks(lambda permit: self._begin(request, permit), failed)

    def _begin(self, request: Request, permit: Permit) -> None:
        assert not request.outcomes
        request.outcomes.append("waited" if request.waiting is not None else "at once")
        request.permit = permit
        if request.ends_at_once:
            self._end(request)

    def _end(self, request: Request) -> None:
        assert request.permit is not None
        permit, request.permit = request.permit, None
        for _ in range(self.random.choice([1, 2, 3])):
            permit.release()

    def _undecided(self) -> int:
        return sum(not request.outcomes for request in self.requests)

    def _in_flight(self) -> list[InFlightController]:
        return [control for control in self.ever if isinstance(control, InFlightController)]

    def _held(self) -> Counter[Limiter]:
        """How many permits there are of each limiter."""
        return Counter(
            control.long if request.long_running else control.short
            for request in self.requests
            if request.permit is not None
            for control in request.controls
        )


def run(seeds: Sequence[int], steps: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        traffic = RandomTraffic(Random(seed))
        for _ in range(steps):
            traffic.step()
        traffic.finish()
        outcomes += traffic.outcomes()
    return outcomes


@pytest.mark.parametrize("batch", range(6))
def test_counts_end_at_zero_and_maxima_hold(batch: int) -> None:
    outcomes = run(range(batch * 20, batch * 20 + 20), steps=250)
    # Every outcome occurs, or the test would prove little.
    assert set(outcomes) == {"at once", "waited", "refused", "timed out", "CancelledError"}
