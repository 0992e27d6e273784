"""The state machine of health: thresholds, the first check, and connections of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.upstream.health_state import Health, HealthState

GOOD, BAD, REFUSED, OPENED = "good", "bad", "refused", "opened"
EVENTS = st.lists(st.sampled_from([GOOD, BAD, REFUSED, OPENED]), max_size=40)
THRESHOLD = st.integers(1, 5)


def feed(state: HealthState, event: str) -> bool:
    match event:
        case "good":
            return state.check_succeeded()
        case "bad":
            return state.check_failed("it is bad")
        case "refused":
            return state.connect_failed("it refused")
    state.connect_succeeded()
    return False


def machine(unhealthy_after: int = 3, healthy_after: int = 1) -> HealthState:
    return HealthState(unhealthy_after=unhealthy_after, healthy_after=healthy_after)


def test_nothing_is_known_before_the_first_check() -> None:
    assert machine().status is Health.UNCHECKED


def test_the_first_good_check_is_enough_whatever_the_threshold() -> None:
    state = machine(healthy_after=5)
    assert state.check_succeeded()
    assert state.status is Health.READY


def test_the_first_answered_failure_is_enough_for_an_endpoint_that_was_never_good() -> None:
    state = machine(unhealthy_after=5)
    assert state.check_failed("answered 500 on /readyz")
    assert state.status is Health.FAILED


def test_failures_without_an_answer_take_as_many_as_later_on_for_an_endpoint_that_was_never_good() -> None:
    state = machine(unhealthy_after=3)
    assert not state.check_failed("no answer", silent=True)
    assert not feed(state, REFUSED)
    assert (state.status, state.cause) == (Health.UNCHECKED, "it refused")
    assert state.check_failed("no answer", silent=True)
    assert state.status is Health.FAILED


def test_one_that_was_ready_may_serve_until_a_connection_to_it_fails() -> None:
    state = machine(unhealthy_after=1)
    state.check_failed("answered 500")
    assert state.record(0.0).may_serve is False  # it may just be starting
    state.check_succeeded()
    state.check_failed("late", silent=True)
    assert (state.status, state.may_serve) == (Health.FAILED, True)
    state.check_failed("it refused", silent=True, unconnected=True)
    state.connect_succeeded()
    assert state.record(0.0).may_serve is False
    state.check_succeeded()
    for failed in (state.connect_failed, state.failed_elsewhere):
        seen = [state.may_serve]
        failed("it refused")
        seen.append(state.may_serve)
        assert seen == [True, False]
        state.check_succeeded()


def test_one_that_was_ready_too_late_may_serve_as_well() -> None:
    state = machine(unhealthy_after=1)
    state.check_failed("late", silent=True)
    state.answered_late()
    assert (state.status, state.may_serve) == (Health.FAILED, True)
    state.connect_failed("it refused")
    state.answered_late()  # over an older connection
    assert state.may_serve is False


def test_refused_connections_and_failed_checks_add_up() -> None:
    state = machine(unhealthy_after=3)
    state.check_succeeded()
    assert [feed(state, event) for event in (REFUSED, BAD, REFUSED)] == [False, False, True]
    assert state.cause == "it refused"


def test_a_connection_that_opens_takes_back_refused_ones_but_no_failed_check() -> None:
    state = machine(unhealthy_after=3)
    state.check_succeeded()
    for event in (REFUSED, REFUSED, OPENED, BAD, OPENED, BAD, OPENED):
        feed(state, event)
    assert state.status is Health.READY
    assert state.check_failed("once more")


def test_a_connection_that_opens_brings_no_endpoint_back() -> None:
    state = machine()
    state.check_failed("dead")
    state.connect_succeeded()
    assert state.status is Health.FAILED


def test_a_new_threshold_applies_to_the_next_result() -> None:
    state = machine(unhealthy_after=5)
    state.check_succeeded()
    state.check_failed("x")
    state.set_thresholds(unhealthy_after=2, healthy_after=1)
    assert state.check_failed("x")


def after_last(event: str, events: list[str]) -> list[str]:
    return events[len(events) - events[::-1].index(event) :] if event in events else events


def expected(events: list[str], unhealthy_after: int, healthy_after: int) -> Health:
    """The documented meaning, computed from the whole history instead of from counters."""
    status = Health.UNCHECKED
    for end in range(1, len(events) + 1):
        past, last = events[:end], events[end - 1]
        since_good = after_last(GOOD, past)
        since_opened = after_last(OPENED, since_good)
        failures = since_good.count(BAD) + since_opened.count(REFUSED)
        good_run = 0
        for event in reversed(past):
            if event in (BAD, REFUSED):
                break
            good_run += event == GOOD
        if last == GOOD and (status is Health.UNCHECKED or good_run >= healthy_after):
            status = Health.READY
        elif last in (BAD, REFUSED) and (failures >= unhealthy_after or (last, status) == (BAD, Health.UNCHECKED)):
            status = Health.FAILED
    return status


@given(EVENTS, THRESHOLD, THRESHOLD)
def test_any_history_has_the_documented_outcome(events: list[str], unhealthy_after: int, healthy_after: int) -> None:
    state = machine(unhealthy_after, healthy_after)
    for event in events:
        before = state.status
        assert feed(state, event) == (state.status is not before)
    assert state.status is expected(events, unhealthy_after, healthy_after)
    assert (state.status is Health.FAILED) <= bool(state.cause)


def refuse(state: HealthState, *times: float) -> list[bool]:
    return [state.check_refused("answered 403 on /readyz", now) for now in times]


def test_refused_checks_decide_nothing_before_30_seconds_of_nothing_else() -> None:
    state = machine(unhealthy_after=1)
    assert refuse(state, 100.0, 110.0, 129.9) == [False, False, False]
    assert (state.status, state.cause) == (Health.UNCHECKED, "answered 403 on /readyz")
    assert refuse(state, 130.0) == [True]
    assert (state.status, state.cause) == (Health.READY, "")


@pytest.mark.parametrize("event", [BAD, REFUSED])
def test_anything_else_begins_the_30_seconds_anew(event: str) -> None:
    state = machine()
    refuse(state, 0.0, 20.0)
    feed(state, event)
    assert refuse(state, 29.0, 31.0, 58.9) == [False, False, False]
    assert state.status is not Health.READY
    assert refuse(state, 59.0) == [True]


def test_an_endpoint_that_answered_200_fails_by_being_refused_however_long() -> None:
    state = machine(unhealthy_after=2)
    state.check_succeeded()
    assert refuse(state, 0.0, 1.0, 1000.0) == [False, True, False]
    assert (state.status, state.cause) == (Health.FAILED, "answered 403 on /readyz")


def test_another_credential_has_not_been_answered_200_yet() -> None:
    state = machine(unhealthy_after=1)
    first, second = (b"Bearer a", None), (b"Bearer b", None)
    state.use_credential(first)
    state.check_succeeded()
    state.use_credential((b"Bearer a", None))
    assert refuse(state, 0.0) == [True]
    state.check_succeeded()
    state.use_credential(second)
    assert refuse(state, 0.0, 1.0) == [False, False]
    assert state.status is Health.READY


def test_one_that_lives_by_the_rule_of_30_seconds_needs_them_again_after_a_failure() -> None:
    state = machine(unhealthy_after=1)
    refuse(state, 0.0, 30.0)
    assert feed(state, BAD)
    assert refuse(state, 31.0, 60.0) == [False, False]
    assert refuse(state, 61.0) == [True]


@given(EVENTS, st.lists(st.floats(0, 29.9), max_size=20))
def test_no_number_of_refusals_within_30_seconds_changes_the_status(events: list[str], times: list[float]) -> None:
    state = machine()
    for event in events:
        if event != GOOD:
            feed(state, event)
    before = state.status
    refuse(state, *sorted(times))
    assert state.status is before
