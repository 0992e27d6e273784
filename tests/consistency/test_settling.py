"""When the informers were right after the last fault: by the times of what they saw, not by when it was judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.consistency.checker import Checker
from tests.consistency.records import Marked
from tests.consistency.run import Settling


class FakeChecker:
    """Says what is lacking until records of some number were taken."""

    def __init__(self, needed: int, last_change: float) -> None:
        present = SimpleNamespace(changes=[SimpleNamespace(at=last_change)])
        self.members = {"east": SimpleNamespace(present=present)}
        self.taken = 0
        self._needed = needed

    def behind(self) -> dict[str, str]:
        return {} if self.taken >= self._needed else {"list": f"{self._needed - self.taken} more"}


def settled(needed: int, *, last_change: float = 90.0, ends: float = 115.0) -> Settling:
    """One informer hears each second from 101 on; all is checked in one go, at `ends`."""
    checker = FakeChecker(needed, last_change)
    settling = Settling(cast(Checker, checker), 100.0)
    for second in range(1, 15):
        checker.taken = second
        settling.take(Marked("list", 100.0 + second, "1"))
    settling.look(ends)
    return settling


@pytest.mark.parametrize("needed", [1, 3, 12])
def test_a_checker_that_is_late_does_not_make_informers_late(needed: int) -> None:
    found = settled(needed)
    assert not found.behind
    assert found.taken == float(needed)


def test_what_they_lacked_last_is_known() -> None:
    assert settled(12).late == {"list": "1 more"}


def test_a_change_after_the_last_fault_begins_the_time_anew() -> None:
    assert settled(12, last_change=110.0).taken == 2.0


def test_they_are_late_as_long_as_nothing_was_seen_that_makes_them_right() -> None:
    found = settled(20)
    assert found.behind == {"list": "6 more"}
    assert found.seen == 115.0
    last: Any = found.late
    assert last == found.behind


def test_informers_that_are_right_and_then_are_not_are_late() -> None:
    checker = FakeChecker(1, 90.0)
    settling = Settling(cast(Checker, checker), 100.0)
    for at, taken in ((101.0, 1), (104.0, 0), (113.0, 1)):
        checker.taken = taken
        settling.take(Marked("list", at, "1"))
    assert settling.taken == 13.0
