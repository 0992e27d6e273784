"""Buckets of several processes: they decide as those of one do, whoever asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config.model import Per
from mcproxy.dispatch.shared_memory import LimitId, layout
from mcproxy.dispatch.shared_memory import slot_table as slots_module
from mcproxy.dispatch.token_bucket import TokenBuckets
from tests.dispatch.shared_memory.machine import machine

BULK = LimitId("bulk", "bucket", Per.USER)

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
        model = TokenBuckets(2.0, 4, clock.seconds())
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
