"""The states that are held for further pages of a list: how many, how long, and until when at the latest."""

from __future__ import annotations

import pytest

from mcproxy.aggregate.cache.cached_object import EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reads.list_state import HeldSnapshots
from mcproxy.aggregate.resource_version.reader import Expired
from tests.aggregate.watch.room import CONFIGMAPS, make_object
from tests.support.clock import Clock


def synced(clock: Clock, version: int) -> Store:
    store = Store(clock, "east", CONFIGMAPS)
    store.replace().commit(version)
    return store


def test_a_state_is_held_for_its_time_after_the_last_use() -> None:
    clock = Clock()
    held, store = HeldSnapshots(clock, seconds=10), synced(clock, 5)
    snapshot = store.snapshot()
    held.hold([snapshot])
    store.clear()
    store.replace().commit(9)
    assert len(held) == 1
    clock.advance(9)
    held.hold([snapshot])
    clock.advance(9)
    assert len(held) == 1
    clock.advance(1)
    assert len(held) == 0
    assert clock.getDelayedCalls() == []


def test_of_too_many_the_oldest_goes() -> None:
    clock = Clock()
    held, stores = HeldSnapshots(clock, number=2), [synced(clock, version) for version in (1, 2, 3)]
    held.hold([store.snapshot() for store in stores])
    assert len(held) == 2


def test_what_was_held_of_another_cluster_is_not_shown() -> None:
    clock = Clock()
    held, store = HeldSnapshots(clock), synced(clock, 5)
    held.hold([store.snapshot()])
    assert held.at(store, 5).version == 5
    store.clear()
    with pytest.raises(Expired):
        held.at(store, 5)


def test_nothing_is_left_when_the_aggregate_ends() -> None:
    clock = Clock()
    held, store = HeldSnapshots(clock), synced(clock, 5)
    held.hold([store.snapshot()])
    held.clear()
    assert len(held) == 0
    assert clock.getDelayedCalls() == []
    held.clear()


def test_what_is_held_keeps_so_many_bytes_of_changed_objects_at_most() -> None:
    """Pages of a list of objects that all change each second: the oldest of the busiest store go."""
    clock = Clock()
    held = HeldSnapshots(clock, number=10_000, size=100_000)
    busy, quiet = synced(clock, 1), synced(clock, 1)
    for store in (busy, quiet):
        store.apply(EventType.ADDED, make_object(store, "a", 2))
    size = busy.size
    held.hold([quiet.snapshot()])
    quiet.apply(EventType.MODIFIED, make_object(quiet, "a", 3))
    for version in range(3, 1003):
        held.hold([busy.snapshot()])
        busy.apply(EventType.MODIFIED, make_object(busy, "a", version))
        if version % 10 == 0:
            clock.advance(1)
            assert held.size <= 100_000
    assert held.size > 100_000 - 12 * size
    assert len(held) > 50
    assert held.at(quiet, 2).version == 2
    held.clear()


def test_a_state_that_was_made_from_events_counts_with_what_these_hold() -> None:
    clock = Clock()
    held, store = HeldSnapshots(clock), synced(clock, 1)
    store.apply(EventType.ADDED, make_object(store, "a", 2))
    store.apply(EventType.MODIFIED, make_object(store, "a", 3))
    held.hold([store.snapshot_at(2)])
    assert held.size == store.events_size > 0
    held.clear()
