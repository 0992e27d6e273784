"""The states that are held for further pages of a list: how many, how long, and until when at the latest."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reads.snapshot import HeldSnapshots
from mcproxy.aggregate.resource_version.reader import Expired
from tests.aggregate.watch.room import CONFIGMAPS


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
