"""Leases of several replicas on one limit, in virtual time with the real script: sums, convergence, losses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcproxy.dispatch.replicas.leases import MAX_KEYS, LeasedLimit, Leases
from mcproxy.dispatch.tables.limit_shares import Demand, Share
from tests.dispatch.replicas.virtual import BUCKET, LASTS, PERIOD, SHORT, Replica, Site, VirtualRedis

HUNDRED = LeasedLimit(BUCKET, 100.0, 40)
TWENTY = LeasedLimit(SHORT, 20)


def site(virtual: VirtualRedis, limit: LeasedLimit, members: int = 4) -> Site:
    """Return replicas that have known each other for long."""
    made = Site(virtual, limit, members)
    made.run(3 * LASTS, [])
    return made


def rate(made: Site, seconds: float, offered: Sequence[float], key: int = 7) -> float:
    """Return what is admitted, in limits."""
    made.admitted = 0.0
    made.run(seconds, offered, key)
    return made.admitted / seconds / made.limit.amount


def test_a_replica_that_knows_no_other_admits_a_twentieth(virtual: VirtualRedis) -> None:
    alone = Replica(virtual, HUNDRED, "a")
    assert alone.default == Share(rate=5.0, burst=40)  # but the burst is there from the first request on
    assert Replica(virtual, TWENTY, "a").default == Share(maximum=1)


def test_the_only_replica_admits_the_whole_limit_as_soon_as_that_is_sure(virtual: VirtualRedis) -> None:
    first = Site(virtual, HUNDRED, 1)
    first.run(LASTS - PERIOD, [])
    assert first.parts() == 5
    first.run(2 * PERIOD, [])
    assert first.replicas[0].default == Share(rate=100.0, burst=40)
    first.replicas[0].redis.leave(HUNDRED, "replica-0")
    # The state is old by now: who starts after it has the limit at once.
    restarted = Site(virtual, HUNDRED, 1)
    restarted.run(PERIOD, [])
    assert restarted.parts() == 100


def test_without_load_all_have_equal_parts_and_no_leases(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED)
    assert [replica.share(7) for replica in made.replicas] == [Share(rate=25.0, burst=10.0)] * 4
    made.run(4.0, [5, 5, 0, 0])
    assert [replica.shares for replica in made.replicas] == [{}, {}, {}, {}]
    assert [replica.default.maximum for replica in site(virtual, LeasedLimit(SHORT, 10)).replicas] == [3, 3, 2, 2]


@pytest.mark.parametrize(
    "offered",
    [[200, 0, 0, 0], [0, 0, 0, 300], [300, 10, 10, 5], [40, 30, 20, 30], [55, 55, 0, 0], [100, 100, 100, 100]],
)
def test_an_uneven_rate_is_admitted_up_to_the_limit(virtual: VirtualRedis, offered: list[float]) -> None:
    made = site(virtual, HUNDRED)
    made.run(2.0, offered)
    assert 0.97 < rate(made, 10.0, offered) <= 1.0 + 1e-9


@pytest.mark.parametrize("offered", [[30, 0, 0, 0], [0, 0, 0, 40], [30, 2, 2, 0], [5, 5, 5, 5], [20, 20, 0, 0]])
def test_an_uneven_number_in_flight_reaches_the_maximum(virtual: VirtualRedis, offered: list[float]) -> None:
    made = site(virtual, TWENTY)
    made.run(2.0, offered)
    assert rate(made, 5.0, offered) == pytest.approx(1.0)


def test_a_load_that_moves_is_followed_within_a_second_or_two(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED)
    made.run(5.0, [400, 0, 0, 0])
    assert rate(made, 3.0, [0, 0, 0, 400]) > 0.75
    assert rate(made, 3.0, [0, 0, 0, 400]) > 0.97


def test_a_first_request_is_admitted_while_another_replica_has_the_limit(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED)
    made.run(5.0, [400, 0, 0, 0])
    assert all(replica.share(7).burst >= 1 for replica in made.replicas)
    large = site(virtual, LeasedLimit(SHORT, 200))
    large.run(5.0, [400, 0, 0, 0])
    assert [replica.share(7).maximum for replica in large.replicas] == [197, 1, 1, 1]


def test_leases_are_given_back_when_the_load_ends(virtual: VirtualRedis) -> None:
    for limit in (HUNDRED, TWENTY, LeasedLimit(SHORT, 3)):
        made = site(virtual, limit)
        before = [replica.default for replica in made.replicas]
        made.run(5.0, [400, 0, 3, 0])
        made.run(20.0, [])
        assert [replica.shares for replica in made.replicas] == [{}] * 4
        assert [replica.default for replica in made.replicas] == before


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([0, 0, 3, 30, 300]), min_size=4, max_size=4), st.integers(1, 8)), max_size=8
    ),
    st.sampled_from([HUNDRED, TWENTY, LeasedLimit(SHORT, 3), LeasedLimit(BUCKET, 0.5, 1)]),
)
def test_whatever_the_load_does_the_parts_never_add_up_to_more_than_the_limit(
    virtual: VirtualRedis, loads: list[tuple[list[float], int]], limit: LeasedLimit
) -> None:
    virtual.client.flushall()
    made = site(virtual, limit)
    made.most = 0.0
    for offered, periods in loads:
        made.run(periods * PERIOD, offered)
    assert made.most <= limit.amount * (1 + 1e-9)


def test_a_replica_that_ends_is_replaced_by_the_others_within_a_lease(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED)
    made.run(3.0, [100, 100, 100, 100])
    made.replicas.pop()
    made.run(2 * LASTS + 1, [100, 100, 100])
    assert rate(made, 3.0, [100, 100, 100]) > 0.97


def test_one_that_joins_is_small_until_the_others_know_it(virtual: VirtualRedis) -> None:
    made = site(virtual, TWENTY, 2)
    made.replicas.append(Replica(virtual, TWENTY, "replica-2"))
    made.run(PERIOD, [])
    made.most = 0.0
    assert [replica.part(7) for replica in made.replicas] == [10, 10, 1]
    made.run(PERIOD, [])
    assert [replica.part(7) for replica in made.replicas] == [7, 7, 1]
    made.run(2 * PERIOD, [])
    assert [replica.part(7) for replica in made.replicas] == [7, 7, 6]
    assert made.most <= 20


def test_without_redis_the_limit_is_divided_equally_by_those_last_seen(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED)
    made.run(3.0, [400, 0, 0, 0])
    everyone = range(4)
    made.run(LASTS, [400, 0, 0, 0], away=everyone)
    assert made.replicas[0].part(7) > 95  # leases last
    made.run(2 * PERIOD, [400, 0, 0, 0], away=everyone)
    assert [replica.part(7) for replica in made.replicas] == [25, 25, 25, 25]
    assert [replica.shares for replica in made.replicas] == [{}] * 4


def test_without_redis_from_the_start_the_limit_holds_for_each(virtual: VirtualRedis) -> None:
    replica = Replica(virtual, HUNDRED, "a")
    replica.leases.lost(virtual.now)
    assert replica.leases.changes().default == Share(rate=100.0, burst=40)


@pytest.mark.parametrize("limit", [HUNDRED, TWENTY])
def test_a_redis_that_was_emptied_gives_no_more_than_the_limit(virtual: VirtualRedis, limit: LeasedLimit) -> None:
    made = site(virtual, limit)
    made.run(3.0, [400, 0, 0, 0])
    virtual.client.flushall()
    made.most = 0.0
    for _ in range(20):
        made.run(PERIOD, [400, 0, 0, 0])
        assert made.replicas[0].part(7) > 0.9 * limit.amount
    assert made.most <= limit.amount * (1 + 1e-9)


def test_another_limit_by_a_reload_holds_from_the_next_answer_on(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED)
    made.run(3.0, [400, 0, 0, 0])
    smaller = LeasedLimit(BUCKET, 40.0, 8)
    for replica in made.replicas:
        replica.limit = smaller
        replica.leases.change(smaller, virtual.now)
    made.run(2 * PERIOD, [400, 0, 0, 0])
    made.most = 0.0
    made.run(3.0, [400, 0, 0, 0])
    assert 39 < made.replicas[0].part(7) < 40
    assert made.most <= 40 * (1 + 1e-9)


def test_while_replicas_have_different_limits_the_lower_one_holds(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED, 2)
    smaller = LeasedLimit(BUCKET, 40.0, 8)
    made.replicas[1].limit = smaller
    made.replicas[1].leases.change(smaller, virtual.now)
    made.run(8.0, [400, 400])
    assert [replica.part(7) for replica in made.replicas] == pytest.approx([20, 20], rel=0.05)
    assert made.replicas[0].leases.differing == "replica-1 qps 40, burst 8"


def test_keys_are_bounded_and_those_beyond_have_equal_parts(virtual: VirtualRedis) -> None:
    made = site(virtual, HUNDRED, 2)
    demands = [Demand(key, 10, 50, 0) for key in range(MAX_KEYS + 100)]
    made.redis.now += PERIOD
    made.replicas[0].step(demands)
    made.redis.now += PERIOD
    made.replicas[1].step([])
    assert [len(replica.shares) for replica in made.replicas] == [MAX_KEYS, 0]
    assert made.replicas[0].part(MAX_KEYS + 50) == 50


def test_what_is_to_become_less_is_less_before_it_is_asked_for() -> None:
    leases = Leases(HUNDRED, LASTS)
    leases.members = 2
    leases.lost(0.0)
    leases.demanded([Demand(7, 0, 1, 0)], 1.0, 0.0)
    (ask,) = leases.asks(0.0)
    assert ask.ask == 50
    assert leases.changes().keys == {7: Share(rate=50.0, burst=20.0)}
