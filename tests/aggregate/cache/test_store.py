"""The store: changes, relists, waiting, listeners, and clients that resume."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.event_log import EventLogLimits
from mcproxy.aggregate.cache.sequence import ObjectSequence
from mcproxy.aggregate.cache.store import OutOfOrder, Store
from mcproxy.aggregate.resource_version.reader import Expired
from tests.aggregate.cache.objects import PODS, cached
from tests.support.clock import DATE, START, Clock

ADDED, MODIFIED, DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


_LIMITS = EventLogLimits()


def new_store(limits: EventLogLimits = _LIMITS) -> tuple[Store, Clock]:
    clock = Clock()
    return Store(clock, "east", PODS, limits=limits), clock


def relist(store: Store, version: int, *items: CachedObject) -> None:
    replacement = store.replace()
    for item in items:
        replacement.add(item)
    replacement.commit(version)


def synced_store(*items: CachedObject, version: int = 10) -> tuple[Store, Clock]:
    store, clock = new_store()
    relist(store, version, *items)
    return store, clock


def names(store: Store) -> list[tuple[str, int]]:
    return [(item.name, item.version) for item in store.snapshot()]


def told(events: Any) -> list[tuple[str, str, int, int | None]]:
    return [
        (event.type.value, event.object.name, event.version, event.previous.version if event.previous else None)
        for event in events
    ]


def result_of(waiting: Coroutine[Any, Any, bool]) -> list[bool]:
    results: list[bool] = []
    Deferred.fromCoroutine(waiting).addCallback(results.append)
    return results


class Listener:
    def __init__(self, store: Store) -> None:
        self.events: list[Event] = []
        self.versions: list[int] = []  # of the store, as each event was told
        self.progress = 0
        self.unsubscribe = store.subscribe(self)

    def store_event(self, store: Store, event: Event) -> None:
        self.events.append(event)
        self.versions.append(store.version)

    def store_progress(self, store: Store) -> None:
        self.progress += 1


def test_a_store_without_a_list_serves_nothing_and_resumes_nothing() -> None:
    store, _ = new_store()
    assert (store.synced, store.version, len(store), store.get("demo", "a")) == (False, 0, 0, None)
    for version in (0, 1, 2**64 - 1):
        with pytest.raises(Expired):
            store.events_after(version)
        with pytest.raises(Expired):
            store.snapshot_at(version)
    with pytest.raises(OutOfOrder):
        store.apply(ADDED, cached("a", 5))


def test_the_first_list() -> None:
    store, clock = new_store()
    clock.advance(7)
    listener = Listener(store)
    relist(store, 10, cached("a", 3), cached("b", 2))
    assert (store.synced, store.version, store.last_sign) == (True, 10, START + 7.0)
    assert names(store) == [("a", 3), ("b", 2)]
    assert (listener.events, listener.progress) == ([], 1)  # the snapshot tells, however many they are
    assert store.events_after(10) == []
    with pytest.raises(Expired):
        store.events_after(9)  # what came before is not known


def test_events_of_the_watch() -> None:
    store, _ = synced_store(cached("a", 3))
    listener = Listener(store)
    store.apply(ADDED, cached("b", 11))
    store.apply(MODIFIED, cached("a", 12))
    store.apply(DELETED, cached("b", 13))
    assert told(listener.events) == [("ADDED", "b", 11, None), ("MODIFIED", "a", 12, 3), ("DELETED", "b", 13, 11)]
    assert listener.versions == [11, 12, 13]
    assert names(store) == [("a", 12)]
    assert told(store.events_after(11)) == told(listener.events)[1:]
    assert store.events_after(13) == []
    assert [item.name for item in store.snapshot_at(11)] == ["a", "b"]
    assert names(store) == [("a", 12)]


def test_what_an_event_is_follows_from_what_the_store_holds() -> None:
    store, _ = synced_store()
    store.apply(MODIFIED, cached("a", 11))
    store.apply(ADDED, cached("a", 12))
    store.apply(DELETED, cached("unknown", 13))
    assert told(store.events_after(10)) == [("ADDED", "a", 11, None), ("MODIFIED", "a", 12, 11)]
    assert store.version == 13


def test_what_the_store_has_seen_is_ignored() -> None:
    store, _ = synced_store(cached("a", 3))
    store.apply(MODIFIED, cached("a", 11))
    store.apply(DELETED, cached("b", 12))
    listener = Listener(store)
    store.apply(MODIFIED, cached("a", 11))
    store.apply(ADDED, cached("a", 3))
    store.apply(DELETED, cached("b", 12))
    store.apply(DELETED, cached("a", 9))  # of an older state: the present one came later
    assert listener.events == []
    assert (names(store), store.version) == ([("a", 11)], 12)


def test_an_event_older_than_the_store_is_an_error_that_changes_nothing() -> None:
    store, _ = synced_store(cached("a", 3))
    for event_type, item in ((ADDED, cached("b", 9)), (MODIFIED, cached("a", 9)), (DELETED, cached("a", 9))):
        with pytest.raises(OutOfOrder):
            store.apply(event_type, item)
    assert (names(store), store.version) == ([("a", 3)], 10)


def test_another_object_of_the_same_name_is_a_deletion_and_an_addition() -> None:
    store, _ = synced_store(cached("a", 3, uid="one"))
    store.apply(ADDED, cached("a", 12, uid="two"))
    events = store.events_after(10)
    assert told(events) == [("DELETED", "a", 10, 3), ("ADDED", "a", 12, None)]
    assert [event.object.uid for event in events] == ["one", "two"]
    # Who resumes between the two gets both again, rather than losing one.
    assert told(store.events_after(events[0].version)) == told(events)


def test_a_bookmark_moves_the_version() -> None:
    store, clock = synced_store()
    listener = Listener(store)
    clock.advance(3)
    store.progress(15)
    store.progress(12)
    assert (store.version, listener.progress, store.last_sign) == (15, 1, START + 3.0)
    assert store.events_after(15) == []


def test_a_relist_tells_the_difference_first_what_is_gone_then_the_changes_by_version() -> None:
    store, _ = synced_store(
        cached("a", 1), cached("b", 2, uid="one"), cached("c", 3), cached("d", 4), cached("e", 5), version=10
    )
    listener = Listener(store)
    relist(store, 30, cached("a", 1), cached("b", 25, uid="two"), cached("d", 21), cached("f", 11), cached("g", 29))
    assert told(listener.events) == [
        ("DELETED", "b", 10, 2),
        ("DELETED", "c", 10, 3),
        ("DELETED", "e", 10, 5),
        ("ADDED", "f", 11, None),
        ("MODIFIED", "d", 21, 4),
        ("ADDED", "b", 25, None),
        ("ADDED", "g", 29, None),
    ]
    assert listener.versions == [10, 10, 10, 11, 21, 25, 29]
    assert (listener.progress, store.version) == (1, 30)
    assert names(store) == [("a", 1), ("b", 25), ("d", 21), ("f", 11), ("g", 29)]
    assert told(store.events_after(10)) == told(listener.events)
    assert [item.name for item in store.snapshot_at(10)] == ["a", "b", "c", "d", "e"]


def test_versions_within_a_break_cannot_be_resumed_from() -> None:
    # Another replica may have given them to a client with objects that came and went meanwhile, unseen here.
    store, _ = synced_store(cached("a", 1), version=10)
    relist(store, 20, cached("a", 1))
    for version in (11, 15, 19):
        with pytest.raises(Expired):
            store.events_after(version)
        with pytest.raises(Expired):
            store.snapshot_at(version)
    assert store.events_after(10) == store.events_after(20) == []
    assert len(store.snapshot_at(10)) == 1


def test_an_unchanged_object_of_a_relist_is_not_kept_twice() -> None:
    first, second = cached("a", 1), cached("a", 1)
    store, _ = synced_store(first)
    relist(store, 20, second)
    assert store.get("demo", "a") is first


def test_other_columns_replace_objects_without_an_event() -> None:
    first, second = cached("a", 1), cached("a", 1)
    store, _ = synced_store(first)
    listener = Listener(store)
    replacement = store.replace()
    replacement.columns = b'[{"name":"Name"}]'
    replacement.add(second)
    replacement.commit(20)
    assert store.get("demo", "a") is second
    assert (store.columns, listener.events) == (b'[{"name":"Name"}]', [])


def test_a_list_in_another_order_and_with_an_object_twice() -> None:
    store, _ = synced_store(cached("a", 1), cached("b", 2), cached("c", 3))
    listener = Listener(store)
    relist(store, 30, cached("d", 12), cached("b", 2), cached("a", 11), cached("d", 13))
    assert names(store) == [("a", 11), ("b", 2), ("d", 13)]
    assert told(listener.events) == [("DELETED", "c", 10, 3), ("MODIFIED", "a", 11, 1), ("ADDED", "d", 13, None)]


def test_an_object_that_is_deleted_amid_a_list() -> None:
    store, _ = synced_store(cached("a", 3), cached("b", 4), cached("c", 5))
    listener = Listener(store)
    replacement = store.replace()
    for item in (cached("a", 3), cached("b", 4), cached("c", 11)):
        replacement.add(item)
    replacement.remove("demo/b")
    replacement.remove("demo/c")
    replacement.add(cached("c", 14, uid="new"))
    replacement.remove("demo/d")
    replacement.commit(20)
    assert names(store) == [("a", 3), ("c", 14)]
    changes = [(event[0], event[1]) for event in told(listener.events)]
    assert changes == [("DELETED", "b"), ("DELETED", "c"), ("ADDED", "c")]


def test_a_list_older_than_the_store_is_refused() -> None:
    store, _ = synced_store(cached("a", 3))
    with pytest.raises(OutOfOrder):
        relist(store, 9)
    with pytest.raises(OutOfOrder):
        relist(store, 20, cached("b", 21))
    assert (names(store), store.version) == ([("a", 3)], 10)


def test_two_states_of_one_version_cannot_be_told_apart_by_it() -> None:
    store, _ = synced_store(cached("a", 3))
    relist(store, 10, cached("b", 4))
    with pytest.raises(Expired):
        store.events_after(10)
    assert names(store) == [("b", 4)]


def test_a_list_that_was_overtaken_or_given_up_changes_nothing() -> None:
    store, _ = synced_store(cached("a", 3))
    overtaken, given_up = store.replace(), store.replace()
    given_up.abort()
    for replacement in (overtaken, given_up):
        with pytest.raises(OutOfOrder):
            replacement.commit(20)
    replacement = store.replace()
    store.apply(ADDED, cached("b", 11))
    with pytest.raises(OutOfOrder):
        replacement.commit(20)
    assert names(store) == [("a", 3), ("b", 11)]


def test_clear_deletes_everything_and_ends_all_resuming() -> None:
    store, _ = synced_store(cached("a", 3), cached("b", 4))
    listener = Listener(store)
    replacement = store.replace()
    store.clear()
    assert told(listener.events) == [("DELETED", "a", 10, 3), ("DELETED", "b", 10, 4)]
    assert (len(store), store.version, store.synced, store.columns) == (0, 0, False, None)
    with pytest.raises(Expired):
        store.events_after(10)
    with pytest.raises(OutOfOrder):
        replacement.commit(5)
    relist(store, 5, cached("x", 2))  # another cluster, whose versions are lower
    assert (names(store), store.version) == ([("x", 2)], 5)
    with pytest.raises(Expired):
        store.events_after(4)


def test_availability_is_told_once() -> None:
    store, clock = synced_store()
    listener = Listener(store)
    clock.advance(5)
    store.unavailable("connection refused")
    clock.advance(5)
    store.unavailable("connection refused")
    assert (store.unavailable_since, store.unavailable_cause, listener.progress) == (
        DATE + 5.0,
        "connection refused",
        1,
    )
    store.unavailable("timed out")
    assert (store.unavailable_since, store.unavailable_cause) == (DATE + 5.0, "timed out"), "the newest counts"
    store.available()
    store.available()
    assert (store.unavailable_since, store.unavailable_cause, listener.progress) == (None, "", 3)


def test_a_listener_that_has_left_is_told_nothing_more() -> None:
    store, _ = synced_store()
    listener = Listener(store)
    listener.unsubscribe()
    listener.unsubscribe()
    store.apply(ADDED, cached("a", 11))
    store.progress(12)
    assert (listener.events, listener.progress) == ([], 0)


class LeavesAndBrings:
    """Leaves at the first event, and subscribes another listener."""

    def __init__(self, store: Store) -> None:
        self.events: list[Event] = []
        self.other: Listener | None = None
        self.unsubscribe = store.subscribe(self)

    def store_event(self, store: Store, event: Event) -> None:
        self.events.append(event)
        self.unsubscribe()
        self.other = Listener(store)
        assert len(store.snapshot()) == 2

    def store_progress(self, store: Store) -> None:
        pass


def test_a_listener_that_comes_amid_a_difference_has_it_in_its_snapshot() -> None:
    store, _ = synced_store()
    listener = LeavesAndBrings(store)
    relist(store, 20, cached("a", 11), cached("b", 12))
    assert told(listener.events) == [("ADDED", "a", 11, None)]
    assert listener.other is not None
    assert listener.other.events == []
    store.apply(ADDED, cached("c", 21))
    assert told(listener.other.events) == [("ADDED", "c", 21, None)]


def test_a_snapshot_taken_amid_a_difference_has_the_lists_version() -> None:
    store, _ = synced_store()
    seen: list[int] = []

    class Taker:
        def store_event(self, store: Store, event: Event) -> None:
            seen.append(store.snapshot().version)

        def store_progress(self, store: Store) -> None:
            pass

    store.subscribe(Taker())
    relist(store, 20, cached("a", 11))
    assert seen == [20]


def test_waiting_for_a_version() -> None:
    store, clock = synced_store()
    assert result_of(store.when_version(10, 3)) == [True]
    by_event, by_bookmark, never = (result_of(store.when_version(version, 3)) for version in (11, 12, 20))
    store.apply(ADDED, cached("a", 11))
    assert (by_event, by_bookmark, never) == ([True], [], [])
    store.progress(12)
    assert (by_bookmark, never) == ([True], [])
    clock.advance(3)
    assert never == [False]
    assert clock.getDelayedCalls() == []


def test_waiting_for_the_first_list() -> None:
    store, clock = new_store()
    first, version, late = (
        result_of(store.when_synced(10)),
        result_of(store.when_version(8, 10)),
        result_of(store.when_version(11, 10)),
    )
    relist(store, 10)
    assert (first, version, late) == ([True], [True], [])
    assert result_of(store.when_synced(10)) == [True]
    clock.advance(10)
    assert late == [False]
    store, clock = new_store()
    never = result_of(store.when_synced(10))
    clock.advance(10)
    assert never == [False]


def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    store, clock = synced_store()
    waiting = Deferred.fromCoroutine(store.when_version(20, 3))
    waiting.addErrback(lambda failure: None)
    waiting.cancel()
    assert clock.getDelayedCalls() == []
    store.progress(20)


def test_the_log_is_bounded_by_count() -> None:
    store, _ = new_store(EventLogLimits(events=5))
    relist(store, 10)
    for version in range(11, 31):
        store.apply(ADDED, cached(f"n{version}", version))
    assert [event.version for event in store.events_after(25)] == [26, 27, 28, 29, 30]
    with pytest.raises(Expired):
        store.events_after(24)
    with pytest.raises(Expired):
        store.snapshot_at(24)


def test_the_log_is_bounded_by_the_bytes_that_only_it_holds() -> None:
    size = cached("a", 11).size
    store, _ = new_store(EventLogLimits(size=10 * size))
    relist(store, 10, cached("a", 9))
    for version in range(11, 50):
        store.apply(MODIFIED, cached("a", version))
    with pytest.raises(Expired):
        store.events_after(38)
    kept = store.events_after(40)
    assert len(kept) == 9
    assert sum(event.previous.size for event in kept if event.previous) <= 10 * size


def test_old_events_are_forgotten_but_for_the_last() -> None:
    store, clock = new_store(EventLogLimits(age=60, min_events=3))
    relist(store, 10)
    for version in range(11, 21):
        store.apply(ADDED, cached(f"n{version}", version))
        clock.advance(1)
    clock.advance(55)  # the first ones are 65 seconds old, the last 56
    assert len(store.events_after(10)) == 10  # nothing came, so nothing was dropped
    store.progress(21)
    assert [event.version for event in store.events_after(15)] == [16, 17, 18, 19, 20]
    with pytest.raises(Expired):
        store.events_after(14)
    clock.advance(600)
    store.apply(ADDED, cached("n22", 22))
    assert [event.version for event in store.events_after(18)] == [19, 20, 22]


def test_a_relist_larger_than_the_log_expires_what_was_before() -> None:
    store, _ = new_store(EventLogLimits(events=5))
    relist(store, 10, *(cached(f"n{number}", 1) for number in range(9)))
    relist(store, 20)
    with pytest.raises(Expired):
        store.events_after(10)  # some of what has gone is no longer known
    assert store.events_after(20) == []


def test_the_number_of_breaks_is_bounded() -> None:
    store, _ = new_store(EventLogLimits(gaps=3))
    for version in range(10, 100, 10):
        relist(store, version)
    with pytest.raises(Expired):
        store.events_after(50)
    assert store.events_after(60) == []


def test_a_listener_that_fails_costs_the_others_nothing() -> None:
    store, _ = synced_store()

    class Failing:
        def store_event(self, store: Store, event: Event) -> None:
            raise RuntimeError

        store_progress = None

    store.subscribe(Failing())  # type: ignore[arg-type]
    listener = Listener(store)
    store.apply(ADDED, cached("a", 11))
    store.progress(12)
    assert (told(listener.events), listener.progress) == ([("ADDED", "a", 11, None)], 1)


def test_a_saved_state_is_restored_and_continued() -> None:
    objects = ObjectSequence.from_sorted([cached("a", 3), cached("b", 4)])
    store, _ = new_store()
    listener = Listener(store)
    assert store.restore(objects, 10, b"[]")
    assert (listener.events, listener.progress) == ([], 1)
    assert (store.synced, store.version, store.columns, names(store)) == (True, 10, b"[]", [("a", 3), ("b", 4)])
    store.apply(DELETED, cached("b", 11))
    assert told(store.events_after(10)) == [("DELETED", "b", 11, 4)]
    assert not store.restore(objects, 30, None)
    assert (store.version, names(store)) == (11, [("a", 3)])


def test_columns_are_taken_where_nothing_was_printed_for_others() -> None:
    store = Store(Clock(), "east", PODS)
    assert store.take_columns(b"[1]")
    replacement = store.replace()
    replacement.add(cached("a"))
    replacement.commit(5)
    snapshot = store.snapshot()
    assert store.take_columns(b"[1]")
    assert not store.take_columns(b"[2]")
    assert store.columns == b"[1]"
    store.apply(EventType.DELETED, cached("a", 6))
    assert store.take_columns(b"[2]")
    assert (snapshot.columns, store.snapshot().columns) == (b"[1]", b"[2]")
