"""Work is divided over turns: live events first, and what catches up never starves."""

from __future__ import annotations

import pytest

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.selection import Selection
from mcproxy.aggregate.watch.scheduler import CATCH_UP_COST, TURN_COST, WatchScheduler
from tests.aggregate.watch.room import START, Room
from tests.support.clock import Clock


class Steps:
    """A job of so many steps; `log` has the name at each."""

    def __init__(self, name: str, count: int, cost: int, log: list[str]) -> None:
        self.name, self.count, self.cost, self.log = name, count, cost, log

    def step(self) -> int:
        if not self.count:
            return 0
        self.count -= 1
        self.log.append(self.name)
        return self.cost


def one_turn(turns: WatchScheduler, log: list[str]) -> list[str]:
    log.clear()
    turns._turn()
    return list(log)


def test_live_jobs_get_most_of_a_turn_and_others_always_some() -> None:
    log: list[str] = []
    turns = WatchScheduler(Clock())
    turns.add(Steps("live", 1000, 10, log), live=True)
    turns.add(Steps("catch up", 1000, 10, log), live=False)
    seen = one_turn(turns, log)
    assert seen.count("live") == (TURN_COST - CATCH_UP_COST) // 10
    assert seen.count("catch up") == CATCH_UP_COST // 10


def test_jobs_take_turns() -> None:
    log: list[str] = []
    turns = WatchScheduler(Clock())
    for name in "abc":
        turns.add(Steps(name, 2, 1, log), live=False)
    assert one_turn(turns, log) == list("abcabc")


def test_a_job_is_waiting_only_once_and_is_forgotten_when_it_has_nothing_to_do() -> None:
    log: list[str] = []
    clock = Clock()
    turns = WatchScheduler(clock)
    job = Steps("a", 3, 1, log)
    turns.add(job, live=True)
    turns.add(job, live=True)
    clock.advance(0)
    assert log == ["a"] * 3
    assert clock.getDelayedCalls() == []
    job.count = 1
    turns.add(job, live=True)
    clock.advance(0)
    assert log == ["a"] * 4


def test_a_turn_ends_when_it_has_taken_long() -> None:
    log: list[str] = []
    clock = Clock()
    turns = WatchScheduler(clock)

    class Slow(Steps):
        def step(self) -> int:
            clock.rightNow += 0.01
            return super().step()

    turns.add(Slow("slow", 100, 1, log), live=True)
    turns.add(Slow("other", 100, 1, log), live=False)
    assert one_turn(turns, log) == ["slow", "slow", "other"]


def test_a_job_that_fails_ends_alone() -> None:
    log: list[str] = []
    turns = WatchScheduler(Clock())

    class Broken(Steps):
        def step(self) -> int:
            raise RuntimeError("a bug")

    turns.add(Broken("broken", 1, 1, log), live=True)
    turns.add(Steps("good", 2, 1, log), live=True)
    assert one_turn(turns, log) == ["good", "good"]


def test_stop_forgets_everything() -> None:
    log: list[str] = []
    clock = Clock()
    turns = WatchScheduler(clock)
    turns.add(Steps("a", 3, 1, log), live=True)
    turns.stop()
    clock.advance(1)
    assert log == []
    assert clock.getDelayedCalls() == []


LONG = "fieldSelector=" + ",".join(f"metadata.annotations.a{number}!=x" for number in range(60))


@pytest.mark.slow
def test_a_long_selector_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients decide how long it is; matching 60 fields takes 0.3 ms, for 100,000 objects half a minute."""
    objects = 1500
    clock, turns = Clock(START), [0]
    matches, turn = Selection.matches, WatchScheduler._turn

    def slow(selection: Selection, obj: CachedObject) -> bool:
        turns[-1] += 1
        clock.rightNow += 0.0003
        return matches(selection, obj)

    def counted(self: WatchScheduler) -> None:
        turns.append(0)
        turn(self)

    monkeypatch.setattr(Selection, "matches", slow)
    monkeypatch.setattr(WatchScheduler, "_turn", counted)
    room = Room("east", clock=clock)
    room.sync("east", objects, *((f"n{number:05}", number + 1) for number in range(objects)))
    for query in (LONG, f"{LONG},metadata.name!=n"):
        watch = room.watch(query)
        assert len(watch.brief()) == objects
    for number in range(500):
        room.put("east", f"n{number:05}", objects + number + 1)
    room.run(1)
    assert len(watch.brief()) == objects + 500
    assert max(turns) * 0.0003 < 0.05  # seconds
