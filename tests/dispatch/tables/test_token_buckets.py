"""Token buckets: exact figures over time, forgotten only when full, and in several processes as in one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config.model import Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables import slot_table as slots_module
from mcproxy.dispatch.tables.limit_shares import LimitId
from mcproxy.dispatch.tables.token_buckets import TokenBuckets
from tests.dispatch.tables.machine import machine
from tests.support.clock import Clock

BULK = LimitId("bulk", "bucket", Per.USER)

NOON = 1_763_700_000.0  # a wall clock's time: large numbers, where floats are coarse


def one_process(qps: float, burst: int, time: float = NOON) -> TokenBuckets:
    """The buckets of a daemon of one process."""
    clock = Clock()
    clock.rightNow = time
    return LimitTables.of_one_process(clock).buckets(BULK, qps, burst)


def taken(buckets: TokenBuckets, key: str, times: list[float]) -> list[bool]:
    return [buckets.take(key, time) for time in times]


def test_starts_full_and_gains_a_token_every_interval() -> None:
    buckets = one_process(2, 3)
    assert taken(buckets, "a", [NOON] * 4) == [True, True, True, False]
    assert taken(buckets, "a", [NOON + 0.4, NOON + 0.5, NOON + 0.5, NOON + 1.0]) == [False, True, False, True]


def test_never_holds_more_than_the_burst() -> None:
    buckets = one_process(2, 3)
    assert buckets.take("a", NOON)
    assert sum(taken(buckets, "a", [NOON + 1000] * 10)) == 3


def test_fractions_of_a_request_per_second() -> None:
    buckets = one_process(0.1, 1)
    assert taken(buckets, "a", [NOON, NOON + 9.9, NOON + 10]) == [True, False, True]


def test_a_burst_of_nothing_refuses_all() -> None:
    buckets = one_process(50, 0)
    assert not any(taken(buckets, "a", [NOON, NOON + 1, NOON + 1000]))


def test_a_rate_of_nothing_gives_the_burst_once() -> None:
    buckets = one_process(0, 3)
    assert sum(taken(buckets, "a", [NOON + n for n in range(0, 100_000, 1000)])) == 3


def test_keys_have_buckets_of_their_own() -> None:
    buckets = one_process(1, 1)
    assert [buckets.take(key, NOON) for key in "aabb"] == [True, False, True, False]


def test_a_refunded_token_can_be_taken_again_and_a_full_bucket_stays_full() -> None:
    buckets = one_process(1, 2)
    assert taken(buckets, "a", [NOON] * 3) == [True, True, False]
    buckets.refund("a")
    assert taken(buckets, "a", [NOON] * 2) == [True, False]
    later = NOON + 100
    assert buckets.take("a", later)
    for _ in range(5):
        buckets.refund("a")
    assert sum(taken(buckets, "a", [later] * 5)) == 2


def test_time_until_the_next_token() -> None:
    buckets = one_process(4, 1)
    assert buckets.wait("a", NOON) == 0
    assert buckets.take("a", NOON)
    assert buckets.wait("a", NOON) == pytest.approx(0.25)
    assert buckets.wait("a", NOON + 0.2) == pytest.approx(0.05)


@pytest.mark.parametrize(("qps", "burst"), [(50, 100), (0.5, 3), (1000, 2), (3.7, 11), (333, 50)])
@pytest.mark.parametrize("offered", [0.5, 0.999, 1.0, 1.001, 3.0])
def test_thirty_seconds_admit_exactly_rate_and_burst(qps: float, burst: int, offered: float) -> None:
    """A steady load of `offered` times the rate, after a first surge of twice the burst, by a wall clock."""
    buckets = one_process(qps, burst)
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
    buckets = one_process(qps, 1)
    assert all(buckets.take("a", NOON + n / qps) for n in range(20_000))


@settings(max_examples=150, deadline=None)
@given(
    qps=st.sampled_from([0.25, 1.0, 7.0, 50.0, 1000.0]),
    burst=st.integers(1, 20),
    gaps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 5, 10, 250, 1000, 30_000]), max_size=200),
)
def test_decides_as_exact_arithmetic_does(qps: float, burst: int, gaps: list[int]) -> None:
    """The oracle keeps tokens as fractions. Gaps are in milliseconds."""
    buckets = one_process(qps, burst, 0.0)
    tokens, millis = Fraction(burst), 0
    for gap in gaps:
        millis += gap
        tokens = min(Fraction(burst), tokens + Fraction(gap, 1000) * Fraction(qps))
        admitted = buckets.take("a", millis / 1000)
        assert admitted == (tokens >= 1)
        tokens -= admitted


def test_a_smaller_burst_cuts_the_fill_and_a_larger_one_keeps_it() -> None:
    buckets = one_process(1, 10)
    assert sum(taken(buckets, "half", [NOON] * 5)) == 5
    buckets.resize(1, 20, NOON)
    assert buckets.fill("half", NOON) == pytest.approx(5)
    assert buckets.fill("unused", NOON) == pytest.approx(10)
    buckets.resize(1, 3, NOON)
    assert buckets.fill("half", NOON) == pytest.approx(3)
    assert sum(taken(buckets, "unused", [NOON] * 5)) == 3


def test_a_changed_rate_keeps_the_fill() -> None:
    buckets = one_process(1, 10)
    assert sum(taken(buckets, "a", [NOON] * 8)) == 8
    buckets.resize(100, 10, NOON)
    assert buckets.fill("a", NOON) == pytest.approx(2)
    assert buckets.fill("a", NOON + 0.05) == pytest.approx(7)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.5, 2.0]),
            st.one_of(st.none(), st.tuples(st.sampled_from([0.5, 2.0, 10.0]), st.integers(0, 8))),
        ),
        max_size=60,
    ),
)
def test_the_fill_survives_any_reloads(steps: list[tuple[float, tuple[float, int] | None]]) -> None:
    buckets, now = one_process(2.0, 4, 0.0), 0.0
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


# -- several processes -----------------------------------------------------------------------------------------

takes = st.tuples(st.just("take"), st.integers(0, 2), st.sampled_from("abc"))
refunds = st.tuples(st.just("refund"), st.integers(0, 2), st.sampled_from("abc"))
pauses = st.tuples(st.just("pause"), st.just(0), st.sampled_from([0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 3.0, 60.0]))
changes = st.tuples(
    st.just("resize"),
    st.integers(0, 2),
    st.tuples(st.sampled_from([0.0, 0.5, 2.0, 50.0]), st.sampled_from([0, 1, 4, 9])),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(takes, takes, takes, pauses, refunds, changes), max_size=120))
def test_three_processes_decide_as_one_table(steps: list[tuple[str, int, object]]) -> None:
    with machine() as processes:
        clock = processes.clock
        shared = [processes.tables(column).buckets(BULK, 2.0, 4) for column in range(3)]
        model = one_process(2.0, 4, clock.seconds())
        taken = {"a": 0, "b": 0, "c": 0}
        for what, column, value in steps:
            now = clock.seconds()
            if what == "take":
                assert isinstance(value, str)
                admitted = model.take(value, now)
                assert shared[column].take(value, now) is admitted
                taken[value] += admitted
            elif what == "refund":
                assert isinstance(value, str)
                if taken[value]:  # only what was taken is given back
                    taken[value] -= 1
                    model.refund(value)
                    shared[column].refund(value)
            elif what == "resize":
                assert isinstance(value, tuple)
                qps, burst = value
                taken = dict.fromkeys(taken, 0)  # a token is given back at once; one that was cut meanwhile may be lost
                model.resize(qps, burst, now)
                for buckets in shared:  # one process after the other comes to the reload
                    buckets.resize(qps, burst, now)
            else:
                assert isinstance(value, float)
                clock.advance(value)
            for key in "abc":
                assert shared[0].fill(key, clock.seconds()) == pytest.approx(model.fill(key, clock.seconds()), abs=1e-4)


def test_a_changed_limit_holds_for_all_as_soon_as_one_has_it() -> None:
    with machine() as processes:
        one, other = (processes.tables(column).buckets(BULK, 1.0, 2) for column in range(2))
        now = processes.clock.seconds()
        assert one.take("a", now)
        one.resize(1.0, 5, now)
        assert other.burst == 2  # its own reload is still to come
        assert [other.take("a", now), other.take("a", now)] == [True, False]  # what was added is not given at once
        assert other.take("new", now)
        assert other.fill("new", now) == pytest.approx(1.0)


def test_a_process_that_comes_later_takes_the_limit_as_it_is() -> None:
    with machine() as processes:
        now = processes.clock.seconds()
        old = processes.tables(0).buckets(BULK, 1.0, 2)
        assert old.take("a", now)
        successor = processes.tables(1).buckets(BULK, 1.0, 2)
        assert [successor.take("a", now), successor.take("a", now)] == [True, False]


def test_limits_of_other_names_kinds_and_keys_are_others() -> None:
    with machine() as processes:
        tables, now = processes.tables(0), processes.clock.seconds()
        first = tables.buckets(BULK, 1.0, 1)
        assert first.take("a", now)
        for limit in (LimitId("bulk", "bucket", Per.ALL), LimitId("bulk2", "bucket", Per.USER)):
            assert tables.buckets(limit, 1.0, 1).take("a", now)
        assert tables.buckets(BULK, 1.0, 1, shared=True).take("a", now)
        assert not first.take("a", now)


# -- who waits -------------------------------------------------------------------------------------------------


def test_who_waits_gets_the_next_token_before_what_arrives_elsewhere() -> None:
    with machine() as processes:
        one, other = (processes.tables(column).buckets(BULK, 1.0, 1) for column in range(2))
        clock = processes.clock
        assert one.take("a", clock.seconds())
        assert not one.take_in_turn("a", clock.seconds())
        assert one.wait("a", clock.seconds()) == pytest.approx(1.0)
        clock.advance(0.999)
        assert not one.take_in_turn("a", clock.seconds())
        clock.advance(0.001)
        assert not other.take("a", clock.seconds())  # it is not first here
        assert not other.take_in_turn("a", clock.seconds())
        assert other.wait("a", clock.seconds()) == pytest.approx(1.0)
        assert one.take_in_turn("a", clock.seconds())
        clock.advance(1.0)
        assert other.take_in_turn("a", clock.seconds())


def test_who_leaves_gives_the_token_back() -> None:
    with machine() as processes:
        one, other = (processes.tables(column).buckets(BULK, 1.0, 1) for column in range(2))
        now = processes.clock.seconds()
        assert one.take("a", now)
        assert not one.take_in_turn("a", now)
        one.leave("a")
        one.leave("a")
        processes.clock.advance(1.0)
        assert other.take("a", processes.clock.seconds())


def test_a_rate_that_rises_shortens_the_wait() -> None:
    with machine() as processes:
        one, other = (processes.tables(column).buckets(BULK, 0.1, 1) for column in range(2))
        clock = processes.clock
        assert one.take("a", clock.seconds())
        assert not one.take_in_turn("a", clock.seconds())
        other.resize(10.0, 1, clock.seconds())
        assert one.wait("a", clock.seconds()) == pytest.approx(0.1)
        clock.advance(0.1)
        assert one.take_in_turn("a", clock.seconds())


# -- room ------------------------------------------------------------------------------------------------------


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One window of 32 slots for all keys."""
    monkeypatch.setattr(slots_module.SlotTable, "_where", lambda table, tag: (0, 0))


def test_without_room_further_keys_share_one_bucket_until_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    with machine() as processes:
        clock = processes.clock
        one, other = (processes.tables(column).buckets(BULK, 1.0, 2) for column in range(2))
        names = [str(number) for number in range(layout.WINDOW)]
        assert all(one.take(name, clock.seconds()) for name in names)
        assert [one.take("x", clock.seconds()), other.take("y", clock.seconds()), one.take("z", clock.seconds())] == (
            [True, True, False]
        )
        # Nobody was forgotten for their sake.
        assert all(other.fill(name, clock.seconds()) == pytest.approx(1.0) for name in names)
        clock.advance(10.0)
        assert [one.take("x", clock.seconds()) for _ in range(3)] == [True, True, False]
        assert [one.take("y", clock.seconds()) for _ in range(3)] == [True, True, False]


def test_a_key_whose_slot_went_to_another_begins_full_again(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    with machine() as processes:
        clock = processes.clock
        one, other = (processes.tables(column).buckets(BULK, 1.0, 2) for column in range(2))
        assert [one.take("a", clock.seconds()) for _ in range(3)] == [True, True, False]
        clock.advance(10.0)  # full
        assert all(other.take(str(number), clock.seconds()) for number in range(layout.WINDOW))
        assert all(other.fill(str(number), clock.seconds()) == pytest.approx(1.0) for number in range(layout.WINDOW))
        assert [one.take("a", clock.seconds()) for _ in range(3)] == [True, True, False]  # of the common bucket


def test_many_names_reset_no_limit() -> None:
    """More names than the table has slots, all within the time in which a bucket is not full."""
    with machine() as processes:
        buckets = processes.tables(0).buckets(BULK, 0.001, 2)
        now = processes.clock.seconds()
        assert [buckets.take("victim", now) for _ in range(3)] == [True, True, False]
        for number in range(20_000):
            buckets.take(str(number), now)
        assert not buckets.take("victim", now)
