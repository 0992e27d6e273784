"""How a limit is divided: the parts add up to it, and nobody has less than its fair part."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.dispatch.replicas.leases import bucket_share, equal_part, fair_part, idle_part, unknown_part

LIMITS = st.floats(1e-3, 1e6)
WANTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 64))
def test_equal_parts_of_whole_numbers_add_up_and_differ_by_one_at_most(limit: int, members: int) -> None:
    parts = [equal_part(limit, members, rank, whole=True) for rank in range(members)]
    assert sum(parts) == limit
    assert max(parts) - min(parts) <= 1


@settings(max_examples=20)
@given(LIMITS, WANTS, st.floats(0, 1))
def test_fair_parts_add_up_to_the_limit(limit: float, wants: list[float], least: float) -> None:
    parts = [fair_part(limit, wants, me, least, whole=False) for me in range(len(wants))]
    assert math.fsum(parts) == pytest.approx(limit)
    assert min(parts) >= 0


@settings(max_examples=20)
@given(st.integers(0, 10_000), WANTS, st.integers(0, 3))
def test_fair_parts_of_whole_numbers_add_up_exactly(limit: int, wants: list[float], least: int) -> None:
    parts = [fair_part(limit, wants, me, least, whole=True) for me in range(len(wants))]
    assert sum(parts) == limit
    assert all(part >= 0 and part == int(part) for part in parts)


@settings(max_examples=20)
@given(st.integers(1, 1000), WANTS)
def test_of_whole_numbers_nobody_who_wants_more_has_less_than_another_has(limit: int, wants: list[float]) -> None:
    parts = [fair_part(limit, wants, me, 0.0, whole=True) for me in range(len(wants))]
    for want, part in zip(wants, parts, strict=True):
        if part < math.floor(want * (1 - 1e-9)):
            assert part >= max(parts) - 1


@settings(max_examples=20)
@given(LIMITS, WANTS)
def test_a_rate_that_more_want_is_divided_as_one_bucket_would_admit_it(limit: float, wants: list[float]) -> None:
    offered = math.fsum(wants)
    for me, want in enumerate(wants):
        part = fair_part(limit, wants, me, 0.0, whole=False)
        if offered <= limit:
            assert part >= want * (1 - 1e-9)
        else:
            assert part == pytest.approx(limit * want / offered)


def test_the_one_that_is_loaded_has_nearly_all() -> None:
    least = idle_part(100, 4, whole=False)
    assert fair_part(100, [200, 0, 0, 0], 0, least, whole=False) > 99
    assert fair_part(100, [200, 0, 0, 0], 1, least, whole=False) > 0.1
    assert [fair_part(20, [30, 2, 0, 0], me, 0, whole=True) for me in range(4)] == [18, 2, 0, 0]


def test_a_replica_with_nothing_to_do_keeps_one_of_a_limit_that_is_large_enough() -> None:
    assert [idle_part(limit, 4, whole=True) for limit in (79, 80, 800)] == [0, 1, 2]


def test_a_replica_that_knows_no_other_admits_a_little() -> None:
    assert unknown_part(50, whole=False) == 2.5
    assert [unknown_part(limit, whole=True) for limit in (1, 10, 100)] == [1, 1, 5]


@settings(max_examples=20)
@given(st.integers(1, 500), st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_bursts_add_up_to_the_burst_or_one_for_each(burst: int, weights: list[float]) -> None:
    members, all_weights = len(weights), sum(weights) or 1.0
    shares = [bucket_share(50 * weight / all_weights, 50, burst, members) for weight in weights]
    assert sum(share.burst for share in shares) <= max(burst, members) * (1 + 1e-9)
    assert all(share.burst >= 1 for share in shares)


def test_the_only_replica_has_the_whole_burst() -> None:
    assert bucket_share(50, 50, 100, 1).burst == 100
    assert bucket_share(25, 50, 100, 0, known=False).burst == 100  # it has seen nobody


@pytest.mark.parametrize("members", [1, 2, 3, 8, 200])
def test_replicas_that_do_not_know_each_other_yet_have_equal_parts_of_the_burst(members: int) -> None:
    shares = [bucket_share(2.5, 50, 100, members, known=False) for _ in range(members)]
    assert sum(share.burst for share in shares) == pytest.approx(max(100, members))


def test_a_replica_with_a_little_of_the_rate_has_some_of_the_burst() -> None:
    assert [bucket_share(rate, 200, 20, 4).burst for rate in (170, 20, 10, 0)] == [9.8, 3.8, 3.4, 3.0]
