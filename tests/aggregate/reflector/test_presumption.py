"""What a probe and a silence suggest of a watch."""

from __future__ import annotations

from typing import cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.progress import QUIET, Presumption
from tests.aggregate.reflector.fake_member import PODS
from tests.support.clock import Clock


class Stage:
    def __init__(self) -> None:
        self.clock = Clock()
        clock = cast(IReactorTime, self.clock)
        self.store = Store(clock, "east", PODS)
        self.store.replace().commit(10)
        self.presumption = Presumption(self.store, clock)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_an_answer_from_before_the_watch_suggests_nothing_and_who_waits_is_answered_by_another(stage: Stage) -> None:
    """It came over another connection: the events of the watch may be later than it."""
    asked: list[float] = []
    stage.presumption.ask = lambda: asked.append(stage.clock.seconds())
    stage.presumption.probed(12)
    stage.presumption.begin()
    assert asked == []
    stage.clock.advance(1)
    assert stage.store.presumed_version == 10
    stage.presumption.end()
    waiting = Deferred.fromCoroutine(stage.store.when_current(12, 3.0))
    stage.presumption.begin()
    assert asked == [stage.clock.seconds()]
    stage.presumption.probed(12)
    stage.clock.advance(QUIET / 2)
    assert not waiting.called
    stage.clock.advance(QUIET)
    assert waiting.called


def test_a_silence_counts_when_what_came_within_it_was_read(stage: Stage) -> None:
    """The process got no processor for as long: its timers come before the connections are read."""
    stage.presumption.begin()
    stage.presumption.probed(12)
    stage.clock.callLater(QUIET, stage.presumption.heard)  # what is read in the turn after that of the timer
    stage.clock.advance(QUIET)
    assert stage.store.presumed_version == 10
    stage.clock.advance(QUIET)
    assert stage.store.presumed_version == 12


def test_nothing_is_presumed_while_a_change_that_was_made_has_not_come(stage: Stage) -> None:
    stage.presumption.begin()
    stage.presumption.probed(12)
    stage.clock.advance(QUIET)
    stage.store.expect_version(14)
    assert stage.store.presumed_version == 12  # it is of before the change
    stage.presumption.probed(16)
    for _ in range(20):
        stage.clock.advance(QUIET)
    assert stage.store.presumed_version == 12
    stage.presumption.heard()
    stage.store.progress(15)
    stage.clock.advance(2 * QUIET)
    assert stage.store.presumed_version == 16


def test_a_change_that_comes_to_light_late_takes_back_what_was_presumed(stage: Stage) -> None:
    stage.presumption.begin()
    stage.presumption.probed(16)
    stage.clock.advance(QUIET)
    assert stage.store.presumed_version == 16
    stage.store.expect_version(14)
    assert stage.store.presumed_version == 10
    stage.store.progress(14)
    assert stage.store.presumed_version == 16


def test_a_version_that_the_member_has_not_reached_is_no_such_change(stage: Stage) -> None:
    """A member that was put back, or that answers a write with a false version, stops no reads."""
    stage.store.expect_version(2**63)
    stage.presumption.begin()
    stage.presumption.probed(12)
    stage.clock.advance(QUIET)
    assert stage.store.presumed_version == 12
