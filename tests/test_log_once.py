"""One line of a subject in a period, or until its state changes, and never more subjects than fit."""

from math import inf

from mcproxy.log_once import LogOnce


def test_one_line_of_a_subject_in_a_period() -> None:
    once = LogOnce(60.0)
    assert [once.allows("a", now) for now in (0.0, 1.0, 59.9, 60.0, 61.0, 120.0)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert once.allows("b", 1.0)


def test_a_crowd_of_subjects_shares_one_place_until_others_are_old() -> None:
    once = LogOnce(60.0, most=3)
    assert [once.allows(subject, 0.0) for subject in "abcde"] == [True, True, True, True, False]
    assert not once.allows("a", 1.0)
    assert once.allows("f", 61.0)
    assert once.allows("g", 61.0)


def test_a_state_is_said_when_it_begins_or_changes_and_its_end_once() -> None:
    once = LogOnce(inf)
    assert [once.allows("a", state=state) for state in ("out", "out", "slow", "out")] == [True, False, True, True]
    assert once.ends("a")
    assert not once.ends("a")
    assert once.allows("a", state="out")


def test_of_too_many_states_the_oldest_is_forgotten() -> None:
    once = LogOnce(inf, most=2)
    assert [once.allows(subject, state="out") for subject in "abcca"] == [True, True, True, False, True]


def test_lines_that_were_not_written_are_counted() -> None:
    once = LogOnce(60.0, burst=2)
    assert [once.allows("a", now) for now in (0.0, 1.0, 2.0, 3.0)] == [True, True, False, False]
    assert once.suppressed("a") == 2
    assert once.allows("a", 60.0)
    assert once.suppressed("a") == 0
