"""The table of a watch's states."""

from __future__ import annotations

import pytest

from mcproxy.aggregate.watch.watch_state import (
    RUNNING,
    TRANSITIONS,
    UP_TO_DATE,
    IllegalTransition,
    Trigger,
    WatchState,
    next_state,
)


def test_every_state_has_a_row_is_reached_and_can_end() -> None:
    assert set(TRANSITIONS) == set(WatchState)
    reached = {WatchState.OPENING}
    for _ in WatchState:
        reached |= {after for state in reached for after in TRANSITIONS[state].values()}
    assert reached == set(WatchState)
    assert {trigger for row in TRANSITIONS.values() for trigger in row} == set(Trigger)
    for state in set(WatchState) - {WatchState.ENDED}:
        assert next_state(state, Trigger.CLOSED) is WatchState.ENDED
    assert not TRANSITIONS[WatchState.ENDED]


def test_what_cannot_happen_in_a_state_is_a_bug() -> None:
    with pytest.raises(IllegalTransition, match="JOINED in state CATCHING_UP"):
        next_state(WatchState.CATCHING_UP, Trigger.JOINED)
    with pytest.raises(IllegalTransition):
        next_state(WatchState.ENDED, Trigger.CLOSED)


def test_a_bookmark_never_precedes_lines_that_are_being_sent() -> None:
    assert RUNNING - {WatchState.CATCHING_UP} == UP_TO_DATE
    assert set(WatchState) - {WatchState.OPENING, WatchState.ENDED} == RUNNING
