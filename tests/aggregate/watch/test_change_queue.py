"""What the queues of changes keep: bounded for each view, and over all of them."""

from __future__ import annotations

from typing import Any, cast

from mcproxy.aggregate.cache.cached_object import Event, EventType
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.watch import changes as module
from mcproxy.aggregate.watch.changes import Change, ChangeQueue
from tests.aggregate.watch.room import CONFIGMAPS, Room, make_object
from tests.support.clock import Clock


def change(store: Store, version: int) -> Change:
    event = Event(EventType.MODIFIED, version, make_object(store, "a", version), None)
    return Change(store, event, version - 1, version, {}, cast(Any, None), 0.0)


def queue_of(budget: MemoryBudget | None = None) -> ChangeQueue:
    return ChangeQueue(cast(Any, None), budget)


def test_the_queues_of_all_views_have_one_bound_and_the_newest_of_each_stays() -> None:
    store = Store(Clock(), "east", CONFIGMAPS)
    size = change(store, 1).size
    budget = MemoryBudget(20 * size + 100)
    busy, quiet = queue_of(budget), queue_of(budget)
    quiet.append(change(store, 1))
    for version in range(1, 100):
        busy.append(change(store, version))
        assert budget.held == busy.size + quiet.size <= budget.limit
    assert len(quiet) == 1
    assert len(busy) >= 18
    assert busy.start == 99 - len(busy), "positions stay"
    tiny = MemoryBudget(1)
    alone = queue_of(tiny)
    alone.append(change(store, 1))
    alone.append(change(store, 2))
    assert len(alone) == 1, "what watches are about to get stays"
    busy.clear()
    quiet.drop_before(1)
    assert budget.held == 0
    assert busy.end == busy.start == 99


def test_lines_are_kept_for_a_while_and_only_so_many(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 1000)
    store = Store(Clock(), "east", CONFIGMAPS)
    queue = queue_of()
    changes = [change(store, version) for version in range(1, 10)]
    for each in changes:
        queue.append(each)
        for key in range(3):
            queue.keep_line(each, key, b"x" * 100)
    assert queue.lines_size == sum(len(line) for each in changes for line in each.lines.values()) == 1000
    queue.forget_lines()
    assert queue.lines_size == 1000, "who is just behind still finds them"
    queue.forget_lines()
    assert queue.lines_size == 0
    assert [each.lines for each in changes] == [{}] * 9


def test_lines_are_forgotten_though_nothing_more_happens() -> None:
    room = Room("east")
    room.sync("east", 10, ("a", 3))
    room.watch()
    fan_out = next(iter(room.watches._fan_outs.values()))
    room.put("east", "b", 11)
    room.run(0.1)
    assert fan_out.queue.lines_size > 0
    room.run(3)
    assert fan_out.queue.lines_size == len(fan_out.queue) == 0
