"""Replicas in virtual time: how much of a small bucket is admitted, with a Redis that is slow, and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from mcproxy.config.model import Per
from mcproxy.dispatch.replicas.agent import LASTS, PERIOD
from mcproxy.dispatch.replicas.leases import LeasedLimit
from mcproxy.dispatch.tables.limit_shares import LimitId
from tests.dispatch.replicas.virtual import VirtualRedis
from tests.dispatch.replicas.virtual_agents import VirtualSite
from tests.support.logged import captured_logs

QPS = 200
SMALL = LeasedLimit(LimitId("bulk", "bucket", Per.ALL), QPS, QPS // 10)  # a burst of a tenth of a second
NEARLY_ALL = (2, 0.1, 0.05, 0)

Make = Callable[..., VirtualSite]


@pytest.fixture
def site(virtual: VirtualRedis) -> Iterator[Make]:
    made: list[VirtualSite] = []

    def make(delay: float = 0.001) -> VirtualSite:
        made.append(VirtualSite(virtual, SMALL, 4, delay=delay))
        made[-1].run(2 * LASTS + 6 * delay)  # the state in Redis is new for as long as a lease lasts
        return made[-1]

    yield make
    for each in made:
        each.close()


def admitted(site: VirtualSite, seconds: float, offered: Sequence[float]) -> float:
    """Return what is admitted of the limit. `offered` is in limits."""
    return sum(site.run(seconds, [rate * QPS for rate in offered])) / (seconds * QPS)


@pytest.mark.parametrize("offered", [NEARLY_ALL, (0, 0.2, 0.5, 1.5), (0.9, 0.1, 0.1, 0.05)])
def test_a_small_burst_costs_nothing_of_the_rate(site: Make, offered: Sequence[float]) -> None:
    replicas = site()
    replicas.most = 0.0
    admitted(replicas, 3.0, offered)
    assert 0.95 < admitted(replicas, 12.0, offered) < 1.01
    assert replicas.most <= QPS * (1 + 1e-9)


def test_a_load_that_moves_twice_in_30_seconds(site: Make) -> None:
    replicas = site()
    replicas.most = 0.0
    admitted(replicas, 3.0, (2, 0.1, 0, 0))
    parts = [admitted(replicas, 10.0, offered) for offered in ((2, 0.1, 0, 0), (0.1, 2, 0, 0), (0.5, 0.5, 0.5, 0.5))]
    assert 0.96 < sum(parts) / 3 < 1.005
    assert replicas.most <= QPS * (1 + 1e-9)


@pytest.mark.parametrize("delay", [0.6, 1.5])
def test_a_redis_that_answers_late_changes_nothing(site: Make, delay: float) -> None:
    replicas = site(delay)
    replicas.most = 0.0
    with captured_logs() as events:
        admitted(replicas, 3.0 + 4 * delay, NEARLY_ALL)
        assert 0.96 < admitted(replicas, 12.0, NEARLY_ALL) < 1.01
        assert not any(agent.away for agent in replicas.agents)
    assert events == []
    assert replicas.most <= QPS * (1 + 1e-9)


def test_redis_may_be_away_for_nearly_as_long_as_a_lease_lasts(site: Make) -> None:
    replicas = site()
    admitted(replicas, 5.0, NEARLY_ALL)
    replicas.delay = None
    with captured_logs() as events:
        assert admitted(replicas, LASTS - 3 * PERIOD - 1.0, NEARLY_ALL) > 0.95
        replicas.delay = 0.001
        assert admitted(replicas, 3.0, NEARLY_ALL) > 0.95
    assert events == []


def test_the_part_of_a_replica_that_died_is_the_others_once_its_leases_have_ended(site: Make) -> None:
    replicas = site()
    admitted(replicas, 5.0, (2, 1, 0, 0))
    replicas.agents[0].abort()  # nothing tells Redis
    offered = (0, 1, 0.5, 0)
    assert 0.3 < admitted(replicas, LASTS, offered) < 0.7
    admitted(replicas, 1.0, offered)
    assert admitted(replicas, 5.0, offered) > 0.95


def test_shares_end_though_nobody_says_so(site: Make) -> None:
    replicas = site()
    admitted(replicas, 5.0, NEARLY_ALL)
    assert replicas.rates[0] > 0.8 * QPS
    replicas.agents[0].abort()  # its process has died, and others go on to count in its memory
    (first, *_) = replicas.run(LASTS + PERIOD, [2.0 * QPS, 0, 0, 0])
    assert first > 0.8 * QPS * (LASTS - 2 * PERIOD)
    (first, *_) = replicas.run(10.0, [2.0 * QPS, 0, 0, 0])
    assert first == pytest.approx(QPS / 4 * 10.0, rel=0.05)


def test_one_that_joins_has_its_part_as_soon_as_the_others_have_heard_of_it(site: Make) -> None:
    replicas = site()
    replicas.agents[3].stop()
    admitted(replicas, 2 * LASTS, (1, 1, 1))
    replicas.most = 0.0
    replicas.join(3)
    admitted(replicas, 5 * PERIOD, (1, 1, 1, 1))
    assert replicas.agents[3].established
    admitted(replicas, 2.0, (1, 1, 1, 1))
    assert replicas.rates[3] == pytest.approx(QPS / 4, rel=0.2)
    assert replicas.most <= QPS * 1.05 * (1 + 1e-9)


@pytest.mark.parametrize("idle", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("members", [1, 2, 4])
def test_the_burst_is_there_from_the_first_request_of_new_replicas(
    virtual: VirtualRedis, members: int, idle: float
) -> None:
    """Two that had just started granted 16, 4 and 6 in three seconds, of 50 a second and a burst of 100."""
    limit = LeasedLimit(LimitId("bulk", "bucket", Per.ALL), 50, 100)
    new = VirtualSite(virtual, limit, members)
    try:
        new.run(PERIOD + idle)
        seconds = [sum(new.run(1.0, [400 / members] * members)) for _ in range(3)]
        assert 95 <= seconds[0] <= 100 + 50
        assert sum(seconds) <= 100 + 3 * 50
        assert new.most <= 50 * (1 + 1e-9)
        new.run(LASTS, [400 / members] * members)
        assert sum(new.run(4.0, [400 / members] * members)) == pytest.approx(4 * 50, rel=0.1)
    finally:
        new.close()


def test_what_joins_adds_no_more_than_its_part_of_the_burst(virtual: VirtualRedis) -> None:
    limit = LeasedLimit(LimitId("bulk", "bucket", Per.ALL), 50, 100)
    site = VirtualSite(virtual, limit, 2)
    try:
        site.run(3 * LASTS, [200, 200])
        site.agents[1].stop()
        site.run(2 * LASTS, [400, 0])
        site.join(1)
        assert sum(site.run(2.0, [200, 200])) <= 2 * 50 + 100 / 2 + 10
    finally:
        site.close()
