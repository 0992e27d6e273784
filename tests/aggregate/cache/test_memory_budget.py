"""What all event logs hold together is bounded, and who keeps little keeps it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.event_log import EVENTS_BUDGET, EventLogLimits, MemoryBudget
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.resource_version.reader import Expired
from tests.aggregate.cache.objects import PODS
from tests.support.clock import Clock

SIZE = 500 * 1024


class Kept:
    """A holder of items of given sizes, which may refuse to forget its last one."""

    def __init__(self, budget: MemoryBudget, keeps: int = 0) -> None:
        self.items: list[int] = []
        self.forgot = 0
        self._budget = budget
        self._keeps = keeps

    def add(self, size: int) -> None:
        self.items.append(size)
        self._budget.changed(self, sum(self.items))

    def give_way(self) -> bool:
        if len(self.items) <= self._keeps:
            return False
        self.items.pop(0)
        self.forgot += 1
        self._budget.changed(self, sum(self.items))
        return True


def test_the_largest_gives_way_and_the_small_keep_what_they_have() -> None:
    budget = MemoryBudget(1000)
    small = [Kept(budget) for _ in range(5)]
    for holder in small:
        holder.add(20)
    busy = Kept(budget)
    for _ in range(500):
        busy.add(50)
        assert budget.held <= 1000
    assert sum(busy.items) == 900
    assert [holder.items for holder in small] == [[20]] * 5


def test_the_busy_share_what_there_is() -> None:
    budget = MemoryBudget(10_000)
    busy = [Kept(budget) for _ in range(4)]
    for number in range(2000):
        busy[number % 4].add(10)
    sizes = [sum(holder.items) for holder in busy]
    assert sum(sizes) == budget.held <= 10_000
    assert min(sizes) >= 1000
    assert max(sizes) <= 2 * 2500


def test_those_that_cannot_forget_are_left_out_and_more_than_the_limit_is_held_rather_than_all_lost() -> None:
    budget = MemoryBudget(100)
    fixed = [Kept(budget, keeps=1) for _ in range(40)]
    for holder in fixed:
        holder.add(10)
    assert budget.held == 400
    other = Kept(budget)
    other.add(1)
    assert other.items == []
    fixed[0].add(10)
    assert fixed[0].items == [10]


def test_what_is_forgotten_is_held_no_longer() -> None:
    budget = MemoryBudget(100)
    holder = Kept(budget)
    holder.add(60)
    budget.changed(holder, 0)
    assert budget.held == 0
    budget.changed(holder, 0)
    assert budget.held == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300)), max_size=200), st.integers(1, 2000))
def test_the_sum_is_right_and_within_the_limit(steps: list[tuple[int, int]], limit: int) -> None:
    budget = MemoryBudget(limit)
    holders = [Kept(budget) for _ in range(6)]
    for place, size in steps:
        holders[place].add(size)
        assert budget.held == sum(sum(holder.items) for holder in holders) <= limit


def big(store: Store, name: str, version: int) -> CachedObject:
    data = b"x" * SIZE
    text = b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"%b","namespace":"demo","uid":"%b",' % (
        name.encode(),
        name.encode(),
    )
    text += b'"resourceVersion":"%d"},"data":"%b"}' % (version, data)
    item = store.decoder.decode_item(text, 0.0)
    assert isinstance(item, CachedObject)
    return item


@pytest.mark.slow
def test_big_objects_that_change_for_200_seconds_reach_a_plateau() -> None:
    """Twenty stores, each with a change of 500 KB each second: 2 GB went through, and without a bound over all of them
    640 MB would be kept."""
    clock = Clock()
    budget = MemoryBudget(64 * 1024 * 1024)
    stores = [Store(clock, f"m{number}", PODS, budget=budget) for number in range(20)]
    quiet = Store(clock, "quiet", PODS, budget=budget)
    for store in (*stores, quiet):
        store.replace().commit(1)
    quiet.apply(EventType.ADDED, big(quiet, "q", 2))
    quiet.apply(EventType.MODIFIED, big(quiet, "q", 3))
    held = []
    for second in range(1, 201):
        for store in stores:
            store.apply(EventType.MODIFIED, big(store, "a", 1 + second))
        clock.advance(1)
        held.append(sum(store.events_size for store in stores))
    assert max(held) <= 64 * 1024 * 1024
    assert min(held[20:]) > 55 * 1024 * 1024, "less is kept than there is room for"
    assert max(held[20:]) - min(held[20:]) < 1024 * 1024, "no plateau"
    sizes = [store.events_size for store in stores]
    assert max(sizes) < 2 * min(sizes), "one has taken another's room"
    assert len(quiet.events_after(1)) == 2, "a quiet one has lost its history"
    for store in (*stores, quiet):
        store.forget_events()
    assert budget.held == 0


@pytest.mark.slow
def test_the_memory_of_the_process_is_level_once_the_logs_have_their_bound() -> None:
    command = [sys.executable, "-m", "tests.aggregate.cache.big_rewrites", "8", "70"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    resident, held = zip(*(map(int, line.split()) for line in output.splitlines()), strict=True)
    assert len(resident) == 11
    assert EVENTS_BUDGET - 2 * SIZE < held[-1] <= max(held) <= EVENTS_BUDGET
    level = resident[6:]  # behind the bound come 100 MB more
    assert max(level) - min(level) < 4 * 1024 * 1024, resident
    assert max(level) - resident[0] < EVENTS_BUDGET + 8 * 3 * SIZE + 32 * 1024 * 1024, resident


def test_one_log_has_its_own_bound_too() -> None:
    clock = Clock()
    budget = MemoryBudget(64 * 1024 * 1024)
    store = Store(clock, "east", PODS, limits=EventLogLimits(size=4 * 1024 * 1024), budget=budget)
    store.replace().commit(1)
    for version in range(2, 60):
        store.apply(EventType.MODIFIED, big(store, "a", version))
    assert store.events_size <= 4 * 1024 * 1024
    assert store.events_size <= budget.held <= store.events_size + 60 * 1024
    with pytest.raises(Expired):
        store.events_after(40)
