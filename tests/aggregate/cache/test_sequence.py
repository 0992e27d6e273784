"""The persistent sorted sequence, against a plain dictionary."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.sequence import CHUNK, ObjectSequence, key_of
from tests.aggregate.cache.objects import cached

NAMESPACES = st.sampled_from(["", "a", "a-b", "a.b", "ab", "b"])
NAMES = st.sampled_from(["a", "a-b", "a.b", "b", "z"])
LABELS = [{"app": "a"}, {"app": "b"}]


def replica(item: CachedObject, number: int) -> CachedObject:
    """Return the object with labels that others share; some have their own."""
    labels = LABELS[number // 10] if number // 10 < len(LABELS) else item.labels
    return msgspec.structs.replace(item, labels=labels)


def labels_of(sequence: ObjectSequence) -> list[dict[str, str]]:
    """Return the labels of each object, as `label_runs` tells them."""
    found: list[dict[str, str]] = []
    for index in range(len(sequence.chunks)):
        start, runs = 0, sequence.label_runs(index)
        for labels, end in zip(runs.labels, runs.ends, strict=True):
            found += [labels] * (end - start)
            start = end
    return found


class SequenceModel(RuleBasedStateMachine):
    """Every sequence ever made keeps what it had, and each is what a sorted dictionary would be."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = ObjectSequence()
        self.model: dict[str, CachedObject] = {}
        self.earlier: list[tuple[ObjectSequence, list[CachedObject]]] = []
        self.version = 0

    @rule(namespace=NAMESPACES, name=NAMES, number=st.integers(0, 400))
    def put(self, namespace: str, name: str, number: int) -> None:
        self.keep()
        item = replica(cached(f"{name}{number}", namespace=namespace, version=self.version), number)
        self.version += 1
        self.sequence = self.sequence.put(item)
        self.model[key_of(item)] = item

    @rule(namespace=NAMESPACES, count=st.integers(1, 1500))
    def put_many(self, namespace: str, count: int) -> None:
        self.keep()
        changes: dict[str, CachedObject | None] = {}
        for number in range(count):
            item = replica(cached(f"n{number}", namespace=namespace, version=self.version), number % 40)
            changes[key_of(item)] = item
        self.version += 1
        self.sequence = self.sequence.changed(changes)
        self.model.update({key: item for key, item in changes.items() if item is not None})

    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.model))) if self.model else "x/y"
        self.keep()
        self.sequence = self.sequence.remove(key)
        self.model.pop(key, None)

    @rule(number=st.integers(0, 5), field=st.sampled_from("abcdef"))
    def read_a_field(self, number: int, field: str) -> None:
        for sequence in (self.sequence, *(earlier for earlier, _ in self.earlier[-2:])):
            if number < len(sequence.chunks):
                values = sequence.field_values(number, field, lambda item: f"{field} {item.version}")
                assert values == [f"{field} {item.version}" for item in sequence.chunks[number]]

    @rule(start=st.integers(0, 3000), count=st.integers(1, 1500))
    def remove_many(self, start: int, count: int) -> None:
        self.keep()
        keys = sorted(self.model)[start : start + count]
        self.sequence = self.sequence.changed(dict.fromkeys(keys))
        for key in keys:
            del self.model[key]

    @rule(start=st.integers(0, 3000), count=st.integers(1, 600))
    def remove_one_by_one(self, start: int, count: int) -> None:
        self.keep()
        for key in sorted(self.model)[start : start + count]:
            self.sequence = self.sequence.remove(key)
            del self.model[key]

    @rule(key=st.builds("{}/{}".format, NAMESPACES, NAMES), end=st.builds("{}/{}".format, NAMESPACES, NAMES))
    def read(self, key: str, end: str) -> None:
        keys = sorted(self.model)
        assert self.sequence.get(key) is self.model.get(key)
        assert self.sequence.rank(key) == sum(other < key for other in keys)
        assert [key_of(item) for item in self.sequence.between(key)] == [other for other in keys if other >= key]
        between = [other for other in keys if key <= other < end]
        assert [key_of(item) for item in self.sequence.between(key, end)] == between
        for other in keys[:: max(1, len(keys) // 10)]:
            assert self.sequence.get(other) is self.model[other]

    def keep(self) -> None:
        self.earlier = [*self.earlier[-3:], (self.sequence, list(self.sequence))]

    @invariant()
    def the_fingerprint_is_that_of_the_objects(self) -> None:
        assert self.sequence.fingerprint == ObjectSequence.from_sorted(list(self.sequence)).fingerprint

    @invariant()
    def same_as_the_model(self) -> None:
        assert [(key_of(item), item) for item in self.sequence] == sorted(self.model.items())
        assert len(self.sequence) == len(self.model)
        assert all(0 < len(chunk) <= CHUNK for chunk in self.sequence.chunks)
        for earlier, items in self.earlier:
            assert list(earlier) == items

    @rule()
    def select_by_label(self) -> None:
        for sequence in (self.sequence, *(earlier for earlier, _ in self.earlier)):
            found = labels_of(sequence)
            assert len(found) == len(sequence)
            assert all(labels is item.labels for labels, item in zip(found, sequence, strict=True))


TestSequenceModel = SequenceModel.TestCase
TestSequenceModel.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@given(st.lists(st.tuples(NAMESPACES, NAMES), unique=True))
def test_a_list_that_is_in_order_is_taken_as_it_is(names: list[tuple[str, str]]) -> None:
    items = sorted((cached(name, namespace=namespace) for namespace, name in names), key=key_of)
    assert list(ObjectSequence.from_sorted(items)) == items


def test_a_change_copies_one_chunk() -> None:
    items = [cached(f"n{number:05d}") for number in range(10 * CHUNK)]
    before = ObjectSequence.from_sorted(items)
    after = before.put(cached("n02000", version=7))
    shared = set(map(id, before.chunks)) & set(map(id, after.chunks))
    assert len(shared) == len(before.chunks) - 1


def test_labels_that_replicas_share_are_looked_at_once_also_after_a_change() -> None:
    items = [replica(cached(f"n{number:05d}"), number // 100) for number in range(2 * CHUNK)]
    before = ObjectSequence.from_sorted(items)
    runs = [before.label_runs(0), before.label_runs(1)]
    assert len(runs[0].labels) == 1, "512 replicas of a"
    after = before.put(cached("n01023", version=7))
    assert after.label_runs(0) is runs[0]
    assert [item.labels for item in after] == labels_of(after)
    assert before.label_runs(1) is runs[1]


def test_values_that_are_not_used_are_dropped_and_read_again() -> None:
    read: list[str] = []

    def value(item: CachedObject) -> str:
        read.append(item.name)
        return str(item.version)

    sequence = ObjectSequence.from_sorted([cached(f"n{number}", version=1) for number in range(8)])
    assert sequence.field_values(0, "field", value) == ["1"] * 8
    for version in range(2, 11):
        sequence = sequence.put(cached("n3", version=version))
    assert len(read) == 8 + 8, "each change read one, until there had been as many as objects"
    assert sequence.field_values(0, "field", value) == ["1", "1", "1", "10", "1", "1", "1", "1"]
    assert len(read) == 8 + 8 + 8


def test_removals_do_not_leave_ever_smaller_chunks() -> None:
    items = [cached(f"n{number:05d}") for number in range(10 * CHUNK)]
    objects = ObjectSequence.from_sorted(items)
    for number in range(len(items)):
        if number % 100:
            objects = objects.remove(f"demo/n{number:05d}")
    assert len(objects) == 10 * CHUNK // 100 + 1
    assert len(objects.chunks) < 4


def test_the_order_is_that_of_etcd_keys() -> None:
    objects = ObjectSequence()
    for namespace in ("kube-system", "kube", "kube0", "a"):
        objects = objects.put(cached("x", namespace=namespace))
    # "-" stands before "/" in ASCII, so a kube-apiserver lists kube-system before kube.
    assert [item.namespace for item in objects] == ["a", "kube-system", "kube", "kube0"]


def test_a_chunk_is_not_tracked_by_the_garbage_collector() -> None:

    objects = ObjectSequence.from_sorted([cached(f"n{number}") for number in range(9)])
    gc.collect()
    assert not any(gc.is_tracked(chunk) for chunk in objects.chunks)
    assert not any(gc.is_tracked(item) for item in objects)


def test_the_fingerprint_is_of_the_objects_alone_whatever_led_to_them() -> None:
    items = [cached(f"p{number:04}", version=number + 1, uid=f"u{number}") for number in range(2000)]
    whole = ObjectSequence.from_sorted(items)
    grown = ObjectSequence()
    assert grown.fingerprint == 0
    for item in reversed(items):
        grown = grown.put(item)
    changed = whole.changed({key_of(items[3]): None, "demo/new": cached("new", version=9)})
    assert changed.changed({key_of(items[3]): items[3], "demo/new": None}).fingerprint == whole.fingerprint
    assert grown.fingerprint == whole.fingerprint == 4296525174320212
    put = whole.put(cached("p0007", version=5000, uid="u7"))
    assert put.put(items[7]).fingerprint == whole.fingerprint
    assert whole.remove("demo/p0007").put(items[7]).fingerprint == whole.fingerprint
    others = [
        put,
        whole.remove("demo/p0007"),
        changed,
        whole.put(cached("p0007", version=8, uid="another")),
        ObjectSequence.from_sorted(items[1:]),
        ObjectSequence.from_sorted([*items[:-2], *items[-1:]]),
    ]
    assert len({whole.fingerprint, *(each.fingerprint for each in others)}) == len(others) + 1
