"""ConsistentHash: the same endpoint for a user everywhere, minimal movement, shares by weight."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.upstream.balancing.consistent_hash import ConsistentHash, ranking
from tests.upstream.fakes import names, some_endpoints

USERS = [f"user-{number}" for number in range(2000)]


def test_the_choice_is_the_same_in_every_process_and_version() -> None:
    """Computed once and written down: a changed hash would move all users at an update."""
    balancer = ConsistentHash(some_endpoints(4))
    users = ["ann", "bob", "system:serviceaccount:demo:builder", "", "Zoë", "x" * 1000, "\udcff"]
    assert names([balancer.pick((), user) for user in users]) == ["e2", "e0", "e0", "e2", "e1", "e3", "e0"]


@given(st.integers(2, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), st.text(max_size=20))
def test_only_users_of_the_endpoint_that_goes_out_move_and_they_come_back(case: tuple[int, int], user: str) -> None:
    count, out = case
    made = some_endpoints(count)
    balancer = ConsistentHash(made)
    users = [user, *USERS[:50]]
    before = {name: balancer.pick((), name) for name in users}
    for _ in range(3):
        made[out].record_check("down")
    during = {name: balancer.pick((), name) for name in users}
    assert all(during[name] is before[name] for name in users if before[name] is not made[out])
    assert made[out] not in during.values()
    made[out].record_check(None)
    assert {name: balancer.pick((), name) for name in users} == before


@given(st.integers(2, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_only_users_of_a_removed_endpoint_move_whatever_the_order(case: tuple[int, int]) -> None:
    count, gone = case
    made = some_endpoints(count)
    rest = tuple(reversed([endpoint for index, endpoint in enumerate(made) if index != gone]))
    before, after = ConsistentHash(made), ConsistentHash(rest)
    for user in USERS[:60]:
        chosen = before.pick((), user)
        assert chosen is made[gone] or after.pick((), user) is chosen


def test_the_users_of_an_endpoint_that_is_out_are_spread_over_the_others() -> None:
    made = some_endpoints(4, {1, 2, 3})
    balancer = ConsistentHash(made)
    everybody = ConsistentHash(some_endpoints(4))
    moved = [user for user in USERS if names([everybody.pick((), user)]) == ["e0"]]
    spread = Counter(names([balancer.pick((), user) for user in moved]))
    assert len(spread) == 3
    assert all(abs(count - len(moved) / 3) < 60 for count in spread.values())


def test_shares_are_in_proportion_to_weights() -> None:
    balancer = ConsistentHash(some_endpoints(3, weights=(1, 2, 5)))
    spread = Counter(names([balancer.pick((), user) for user in USERS]))
    assert abs(spread["e0"] - 250) < 60
    assert abs(spread["e1"] - 500) < 80
    assert abs(spread["e2"] - 1250) < 90


def test_a_greater_weight_only_draws_users() -> None:
    urls = ["https://a:6443", "https://b:6443", "https://c:6443"]
    for user in USERS[:300]:
        before, after = ranking(urls, (1, 1, 1), user)[0], ranking(urls, (1, 3, 1), user)[0]
        assert after in (before, 1)
