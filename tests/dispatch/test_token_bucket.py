"""Token buckets: exact figures over time, forgotten only when full, small for many users."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.dispatch.token_bucket import LIMIT, TokenBuckets

NOON = 1_763_700_000.0  # a wall clock's time: large numbers, where floats are coarse


def taken(buckets: TokenBuckets, key: str, times: list[float]) -> list[bool]:
    return [buckets.take(key, time) for time in times]


def test_starts_full_and_gains_a_token_every_interval() -> None:
    buckets = TokenBuckets(qps=2, burst=3, time=NOON)
    assert taken(buckets, "a", [NOON] * 4) == [True, True, True, False]
    assert taken(buckets, "a", [NOON + 0.4, NOON + 0.5, NOON + 0.5, NOON + 1.0]) == [False, True, False, True]


def test_never_holds_more_than_the_burst() -> None:
    buckets = TokenBuckets(qps=2, burst=3, time=NOON)
    assert buckets.take("a", NOON)
    assert sum(taken(buckets, "a", [NOON + 1000] * 10)) == 3


def test_fractions_of_a_request_per_second() -> None:
    buckets = TokenBuckets(qps=0.1, burst=1, time=NOON)
    assert taken(buckets, "a", [NOON, NOON + 9.9, NOON + 10]) == [True, False, True]


def test_a_burst_of_nothing_refuses_all_and_takes_no_memory() -> None:
    buckets = TokenBuckets(qps=50, burst=0, time=NOON)
    assert not any(taken(buckets, "a", [NOON, NOON + 1, NOON + 1000]))
    assert len(buckets) == 0


def test_a_rate_of_nothing_gives_the_burst_once() -> None:
    buckets = TokenBuckets(qps=0, burst=3, time=NOON)
    assert sum(taken(buckets, "a", [NOON + n for n in range(0, 100_000, 1000)])) == 3


def test_keys_have_buckets_of_their_own() -> None:
    buckets = TokenBuckets(qps=1, burst=1, time=NOON)
    assert [buckets.take(key, NOON) for key in "aabb"] == [True, False, True, False]


def test_a_refunded_token_can_be_taken_again_and_a_full_bucket_stays_full() -> None:
    buckets = TokenBuckets(qps=1, burst=2, time=NOON)
    assert taken(buckets, "a", [NOON] * 3) == [True, True, False]
    buckets.refund("a")
    assert taken(buckets, "a", [NOON] * 2) == [True, False]
    later = NOON + 100
    assert buckets.take("a", later)
    for _ in range(5):
        buckets.refund("a")
    assert sum(taken(buckets, "a", [later] * 5)) == 2


def test_time_until_the_next_token() -> None:
    buckets = TokenBuckets(qps=4, burst=1, time=NOON)
    assert buckets.wait("a", NOON) == 0
    assert buckets.take("a", NOON)
    assert buckets.wait("a", NOON) == pytest.approx(0.25)
    assert buckets.wait("a", NOON + 0.2) == pytest.approx(0.05)


@pytest.mark.parametrize(("qps", "burst"), [(50, 100), (0.5, 3), (1000, 2), (3.7, 11), (333, 50)])
@pytest.mark.parametrize("offered", [0.5, 0.999, 1.0, 1.001, 3.0])
def test_thirty_seconds_admit_exactly_rate_and_burst(qps: float, burst: int, offered: float) -> None:
    """A steady load of `offered` times the rate, after a first surge of twice the burst, by a wall clock."""
    buckets = TokenBuckets(qps, burst, NOON)
    surge = sum(taken(buckets, "a", [NOON] * (2 * burst)))
    assert surge == burst
    step = 1 / (qps * offered)
    steady = 0
    for n in range(1, int(30 / step) + 1):
        steady += buckets.take("a", NOON + n * step)
        assert surge + steady <= burst + qps * (n * step) + 1e-3
    assert steady >= math.floor(min(offered, 1.0) * qps * 30) - 1


@pytest.mark.parametrize("qps", [0.3, 7, 50, 1000, 10_000])
def test_whoever_keeps_to_the_rate_is_never_refused_though_a_clock_be_coarse(qps: float) -> None:
    buckets = TokenBuckets(qps, 1, NOON)
    assert all(buckets.take("a", NOON + n / qps) for n in range(20_000))


@settings(max_examples=150, deadline=None)
@given(
    qps=st.sampled_from([0.25, 1.0, 7.0, 50.0, 1000.0]),
    burst=st.integers(1, 20),
    gaps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 5, 10, 250, 1000, 30_000]), max_size=200),
)
def test_decides_as_exact_arithmetic_does(qps: float, burst: int, gaps: list[int]) -> None:
    """The oracle keeps tokens as fractions. Gaps are in milliseconds."""
    buckets = TokenBuckets(qps, burst, 0.0)
    tokens, millis = Fraction(burst), 0
    for gap in gaps:
        millis += gap
        tokens = min(Fraction(burst), tokens + Fraction(gap, 1000) * Fraction(qps))
        admitted = buckets.take("a", millis / 1000)
        assert admitted == (tokens >= 1)
        tokens -= admitted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.5, 6.0])), max_size=150))
def test_forgetting_changes_nothing(visits: list[tuple[str, float]]) -> None:
    """Six keys in one table decide as six tables of one key do, which never drop what is in use."""
    together = TokenBuckets(qps=2, burst=4, time=NOON)
    apart = {key: TokenBuckets(qps=2, burst=4, time=NOON) for key in "abcdef"}
    now = NOON
    for key, gap in visits:
        now += gap
        assert together.take(key, now) == apart[key].take(key, now)


def test_idle_keys_are_dropped() -> None:
    buckets = TokenBuckets(qps=10, burst=20, time=NOON)
    for n in range(1000):
        buckets.take(f"user-{n}", NOON)
    assert len(buckets) == 1000
    buckets.take("another", NOON + 2.1)
    assert len(buckets) == 1001  # what was used in the generation before is still known
    buckets.take("another", NOON + 4.3)
    assert len(buckets) == 1


def test_many_names_do_not_push_out_a_limited_user() -> None:
    buckets = TokenBuckets(qps=0.01, burst=2, time=NOON, limit=100)
    assert taken(buckets, "mallory", [NOON] * 3) == [True, True, False]
    for n in range(1000):
        buckets.take(f"mallory-{n}", NOON)
    assert len(buckets) == 100
    assert not buckets.take("mallory", NOON)


def test_without_room_in_the_table_newcomers_share_one_bucket_until_there_is_room() -> None:
    buckets = TokenBuckets(qps=1, burst=5, time=NOON, limit=10)
    for n in range(10):
        assert buckets.take(f"early-{n}", NOON)
    assert sum(buckets.take(f"late-{n}", NOON) for n in range(100)) == 5
    assert buckets.wait("late-0", NOON) == pytest.approx(1)
    buckets.refund("late-0")
    assert [buckets.take(f"late-{n}", NOON) for n in range(2)] == [True, False]
    assert all(buckets.take(f"early-{n}", NOON) for n in range(10))
    later = NOON + 60
    assert sum(buckets.take("late-0", later) for _ in range(10)) == 5
    assert buckets.take("late-1", later)


def test_room_is_made_of_full_buckets_before_newcomers_have_to_share() -> None:
    """A generation is 1000 s here, but whoever sent one request is full again after 10 s."""
    buckets = TokenBuckets(qps=0.1, burst=100, time=NOON, limit=10)
    assert all(buckets.take("busy", NOON) for _ in range(100))
    for n in range(9):
        buckets.take(f"early-{n}", NOON)
    later = NOON + 11
    assert all(buckets.take(f"late-{n}", later) for n in range(9))
    assert len(buckets) == 10
    assert sum(buckets.take("late-0", later) for _ in range(200)) == 99
    assert sum(buckets.take("busy", later) for _ in range(200)) == 1


def test_a_clock_that_goes_back_stands_still() -> None:
    buckets = TokenBuckets(qps=1, burst=1, time=NOON)
    assert taken(buckets, "a", [NOON + 10, NOON - 3590, NOON - 3589.5, NOON - 3589]) == [True, False, False, True]


def test_a_smaller_burst_cuts_the_fill_and_a_larger_one_keeps_it() -> None:
    buckets = TokenBuckets(qps=1, burst=10, time=NOON)
    assert sum(taken(buckets, "half", [NOON] * 5)) == 5
    buckets.resize(1, 20, NOON)
    assert buckets.fill("half", NOON) == pytest.approx(5)
    assert buckets.fill("unused", NOON) == pytest.approx(10)
    buckets.resize(1, 3, NOON)
    assert buckets.fill("half", NOON) == pytest.approx(3)
    assert sum(taken(buckets, "unused", [NOON] * 5)) == 3


def test_the_bucket_that_newcomers_share_keeps_its_fill_too() -> None:
    buckets = TokenBuckets(qps=1, burst=10, time=NOON, limit=1)
    assert buckets.take("known", NOON + 100)
    assert sum(taken(buckets, "stranger", [NOON + 100] * 4)) == 4
    buckets.resize(4, 20, NOON + 100)
    assert buckets.fill("another", NOON + 100) == pytest.approx(6)
    assert sum(taken(buckets, "another", [NOON + 100] * 20)) == 6
    assert sum(taken(buckets, "another", [NOON + 101] * 20)) == 4


def test_a_changed_rate_keeps_the_fill() -> None:
    buckets = TokenBuckets(qps=1, burst=10, time=NOON)
    assert sum(taken(buckets, "a", [NOON] * 8)) == 8
    buckets.resize(100, 10, NOON)
    assert buckets.fill("a", NOON) == pytest.approx(2)
    assert buckets.fill("a", NOON + 0.05) == pytest.approx(7)


@settings(max_examples=200, deadline=None)
@given(
    limit=st.sampled_from([LIMIT, 0]),
    steps=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.5, 2.0]),
            st.one_of(st.none(), st.tuples(st.sampled_from([0.5, 2.0, 10.0]), st.integers(0, 8))),
        ),
        max_size=60,
    ),
)
def test_the_fill_survives_any_reloads(limit: int, steps: list[tuple[float, tuple[float, int] | None]]) -> None:
    """Also that of the bucket which keys share when the table has no room, as it never has with a limit of 0."""
    buckets, now = TokenBuckets(2.0, 4, 0.0, limit), 0.0
    qps, burst, tokens = 2.0, 4, 4.0
    for gap, change in steps:
        now += gap
        tokens = min(burst, tokens + gap * qps)
        if change is not None:
            qps, burst = change
            buckets.resize(qps, burst, now)
            tokens = min(burst, tokens)
        assert buckets.fill("a", now) == pytest.approx(tokens, abs=1e-6)
        if burst:
            tokens -= buckets.take("a", now)


@pytest.mark.slow
def test_a_hundred_thousand_users_take_less_than_30_megabytes() -> None:
    """Every name counted with it, and all buckets in use at the same time."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        buckets = TokenBuckets(qps=50, burst=100, time=NOON)
        for n in range(100_000):
            buckets.take(f"system:serviceaccount:team-{n % 100}:robot-{n:06d}", NOON)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(buckets) == 100_000
    assert peak < 30e6
