"""Requests in flight of several processes: never over the maximum, wherever they are, and nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config.model import Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables import slot_table as slots_module
from mcproxy.dispatch.tables.in_flight_counts import RESERVED_FOR, InFlightCounts
from mcproxy.dispatch.tables.limit_shares import LimitId
from tests.dispatch.tables.machine import Machine, machine
from tests.support.clock import Clock

SHORT = LimitId("interactive", "short", Per.USER)


def one_process(maximum: int | None) -> InFlightCounts:
    """The counts of a daemon of one process."""
    return LimitTables.of_one_process(Clock()).counts(SHORT, maximum)


def test_no_more_than_the_maximum_at_a_time_for_each_key() -> None:
    requests = one_process(2)
    assert [requests.take(key) for key in "aaab"] == [True, True, False, True]
    requests.release("a")
    assert requests.take("a")
    assert (requests.in_use, requests.count("a"), requests.count("b")) == (3, 2, 1)


def test_nothing_is_allowed_by_zero_and_everything_without_a_maximum() -> None:
    assert not one_process(0).take("a")
    unlimited = one_process(None)
    assert all(unlimited.take("a") for _ in range(1000))
    assert unlimited.in_use == 1000


def test_a_smaller_maximum_waits_for_those_under_way() -> None:
    requests = one_process(None)
    for _ in range(5):
        requests.take("a")
    requests.max = 2
    admitted = []
    for _ in range(5):
        admitted.append(requests.take("a"))
        requests.release("a")
    assert admitted == [False, False, False, False, True]


keys = st.sampled_from("abc")
columns = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("take"), columns, keys),
    st.tuples(st.just("take"), columns, keys),
    st.tuples(st.just("release"), columns, keys),
    st.tuples(st.just("max"), columns, st.sampled_from(["0", "1", "3", ""])),
    st.tuples(st.just("die"), columns, st.just("")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=120))
def test_three_processes_decide_as_one_table(steps: list[tuple[str, int, str]]) -> None:
    with machine() as processes:
        model = one_process(2)
        shared = [processes.tables(column).counts(SHORT, 2) for column in range(3)]
        held: list[list[str]] = [[], [], []]
        for what, column, value in steps:
            if what == "take":
                admitted = model.take(value)
                assert shared[column].take(value) is admitted
                held[column] += [value] * admitted
            elif what == "release" and value in held[column]:
                held[column].remove(value)
                model.release(value)
                shared[column].release(value)
            elif what == "max":
                model.max = int(value) if value else None
                for counts in shared:
                    counts.max = model.max
            elif what == "die":  # and its successor has its column
                for key in held[column]:
                    model.release(key)
                held[column] = []
                processes.memory.reclaim(column)
                shared[column] = processes.tables(column).counts(SHORT, model.max)
            for key in "abc":
                assert {counts.count(key) for counts in shared} == {model.count(key)}
            assert [counts.in_use for counts in shared] == [len(keys) for keys in held]


def three(processes: Machine, maximum: int | None = 1) -> tuple[InFlightCounts, InFlightCounts, InFlightCounts]:
    one, two, three = (processes.tables(column).counts(SHORT, maximum) for column in range(3))
    return one, two, three


def test_release_of_what_this_process_has_not_is_an_error_and_changes_nothing() -> None:
    with machine() as processes:
        one, two, _ = three(processes, 5)
        assert one.take("a")
        with pytest.raises(KeyError):
            two.release("a")
        assert (one.count("a"), two.in_use) == (1, 0)


# -- who waits -------------------------------------------------------------------------------------------------


def test_a_place_goes_to_who_waits_and_not_to_what_arrives_elsewhere() -> None:
    with machine() as processes:
        one, two, other = three(processes)
        assert one.take("a")
        assert not two.take_in_turn("a")
        assert not two.was_given("a")
        one.release("a")
        assert two.was_given("a")
        assert not other.take("a")
        assert not one.take("a")
        assert one.count("a") == 1
        assert two.take_in_turn("a")
        assert not two.was_given("a")
        two.leave("a")
        two.release("a")
        assert other.take("a")


def test_places_are_given_in_turn() -> None:
    with machine() as processes:
        one, two, other = three(processes)
        assert one.take("a")
        waiting = [one, two, other]
        for counts in waiting:
            assert not counts.take_in_turn("a")
        turns = []
        holder = one
        for _ in range(6):
            holder.release("a")
            given = [number for number, counts in enumerate(waiting) if counts.was_given("a")]
            assert len(given) == 1
            turns += given
            holder = waiting[given[0]]
            assert holder.take_in_turn("a")
        assert turns == [1, 2, 0, 1, 2, 0]


def test_who_leaves_passes_its_place_on() -> None:
    with machine() as processes:
        one, two, other = three(processes)
        assert one.take("a")
        assert not two.take_in_turn("a")
        assert not other.take_in_turn("a")
        one.release("a")
        assert two.was_given("a")
        two.leave("a")
        assert other.was_given("a")
        other.leave("a")
        assert one.count("a") == 0
        assert one.take("a")


def test_a_stopped_process_keeps_a_place_from_the_others_for_a_moment_only() -> None:
    with machine() as processes:
        one, stopped, other = three(processes)
        assert one.take("a")
        assert not stopped.take_in_turn("a")
        one.release("a")
        assert not other.take("a")
        processes.clock.advance(RESERVED_FOR)
        assert other.take("a")
        assert other.count("a") == 1
        other.release("a")  # it is given none, as long as it does not say again that it waits
        assert not stopped.was_given("a")
        assert other.take("a")
        assert not stopped.take_in_turn("a")  # it goes on
        other.release("a")
        assert stopped.take_in_turn("a")
        assert other.count("a") == 1


def test_a_process_that_takes_its_places_in_time_loses_none() -> None:
    with machine() as processes:
        one, two, other = three(processes)
        holder = one
        assert one.take("a")
        for _ in range(20):
            for counts in (one, two):
                if counts is not holder:
                    assert not counts.take_in_turn("a")
            holder.release("a")
            assert not other.take("a")
            processes.clock.advance(RESERVED_FOR * 0.9)
            assert not other.take("a")
            holder = one if one.was_given("a") else two
            assert holder.take_in_turn("a")


def test_a_dead_process_that_was_given_a_place_passes_it_on() -> None:
    with machine() as processes:
        one, _, other = three(processes)
        two = processes.tables(1).counts(SHORT, 1)
        assert one.take("a")
        assert not two.take_in_turn("a")
        assert not other.take_in_turn("a")
        one.release("a")
        assert two.was_given("a")
        processes.memory.reclaim(1)
        assert other.was_given("a")
        assert other.take_in_turn("a")
        assert one.count("a") == 1


def test_a_process_that_dies_while_it_passes_its_place_on_has_that_until_it_is_taken_off() -> None:
    with machine() as processes:
        one, dying, other = three(processes)
        assert one.take("a")
        assert not dying.take_in_turn("a")
        one.release("a")
        # What `leave` does first; then it dies.
        processes.memory.memory.words[dying._find("a").base + layout.C_WAITING] = 0
        assert not other.take("a")
        processes.clock.advance(RESERVED_FOR)
        assert other.take("a")
        assert other.count("a") == 1
        processes.memory.reclaim(1)
        assert other.count("a") == 1


def test_places_of_a_dead_process_are_given_to_those_that_wait() -> None:
    with machine() as processes:
        one, two, other = three(processes, 100)
        assert all(one.take("a") for _ in range(100))
        assert not two.take_in_turn("a")
        processes.memory.reclaim(0)
        assert two.was_given("a")
        assert other.count("a") == 1
        assert sum(other.take("a") for _ in range(200)) == 99


def test_a_raised_maximum_lets_those_in_that_ask_again() -> None:
    with machine() as processes:
        one, two, _ = three(processes)
        assert one.take("a")
        assert not two.take_in_turn("a")
        one.max = 2
        assert two.take_in_turn("a")


def test_without_a_place_below_a_lowered_maximum_nobody_is_given_any() -> None:
    with machine() as processes:
        one, two, _ = three(processes, 3)
        assert all(one.take("a") for _ in range(3))
        assert not two.take_in_turn("a")
        two.max = 1
        one.release("a")
        one.release("a")
        assert not two.was_given("a")
        one.release("a")
        assert two.was_given("a")


# -- connections -----------------------------------------------------------------------------------------------


def test_connections_are_counted_by_listener_and_client_and_end_with_their_process() -> None:
    with machine() as processes:
        one, other = (processes.tables(column).connections("0.0.0.0:6443") for column in range(2))
        elsewhere = processes.tables(1).connections("0.0.0.0:8080")
        assert [one.take("10.0.0.1", 2), other.take("10.0.0.1", 2), one.take("10.0.0.1", 2)] == [True, True, False]
        assert one.take("10.0.0.2", 2)
        assert elsewhere.take("10.0.0.1", 1)
        one.take_beyond("10.0.0.1")
        other.release("10.0.0.1")
        assert not other.take("10.0.0.1", 2)
        processes.memory.reclaim(0)
        assert [other.take("10.0.0.1", 2) for _ in range(3)] == [True, True, False]


# -- room ------------------------------------------------------------------------------------------------------


def test_without_room_further_keys_share_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module.SlotTable, "_where", lambda table, tag: (0, 0))
    with machine() as processes:
        one, two, _ = three(processes, 2)
        names = [str(number) for number in range(layout.WINDOW)]
        assert all(one.take(name) for name in names)
        assert [two.take("x"), one.take("y"), two.take("z")] == [True, True, False]
        one.release("0")
        processes.clock.advance(5.0)
        assert two.take("z")  # has the slot of "0" now
        assert not two.take("x")  # is still counted where it was
        two.release("x")
        one.release("y")
        assert [one.take("0"), two.take("0"), one.take("new")] == [True, True, False]
        processes.memory.reclaim(0)
        processes.memory.reclaim(1)
        assert sum(three(processes, 2)[2].take(name) for name in names) == len(names)


def test_the_bookkeeping_of_a_process_is_bounded_by_what_it_has_in_flight() -> None:
    with machine() as processes:
        one, _, _ = three(processes, 1)
        for number in range(5000):
            assert one.take(str(number))
            one.release(str(number))
        assert len(one) == 0
