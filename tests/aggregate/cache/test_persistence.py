"""Saved stores: read as they were, whole or not at all, and never with secrets that were not to be kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate import state_file
from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.persistence import StoreFiles, state_of
from mcproxy.aggregate.cache.store import Store
from mcproxy.kube.resource import APIResource, GroupVersionResource
from tests.aggregate.cache.objects import PODS, VERBS, WIDGETS, cached, recorded
from tests.support.clock import Clock
from tests.support.logged import captured_logs

SECRETS = APIResource(GroupVersionResource("", "v1", "secrets"), "Secret", "secret", True, VERBS)


def filled(resource: APIResource = PODS, count: int = 1200, member: str = "east", **options: Any) -> Store:
    store = Store(Clock(), member, resource, **options)
    replacement = store.replace()
    replacement.columns = b'[{"name":"Name"}]'
    for number in range(count):
        item = cached(f"n{number:05d}", number + 1, labels={"app": f"a{number % 3}"})
        replacement.add(msgspec.structs.replace(item, cells=b'["n"]', printed=12.5, created=99.25))
    replacement.commit(count + 10)
    return store


def new(resource: APIResource = PODS, member: str = "east", **options: Any) -> Store:
    return Store(Clock(), member, resource, **options)


async def test_a_saved_store_is_restored_with_everything(tmp_path: Path) -> None:
    files, store = StoreFiles(tmp_path / "caches"), filled()
    assert await files.save(store, "uid-1")
    path = files.path_of(store)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    restored = new()
    assert await files.load(restored) == "uid-1"
    assert list(restored.snapshot()) == list(store.snapshot())
    assert (restored.synced, restored.version, restored.columns) == (True, 1210, b'[{"name":"Name"}]')
    restored.apply(EventType.DELETED, cached("n00007", 1211))
    assert len(restored) == 1199
    labels = {id(item.labels) for item in restored.snapshot()}
    assert len(labels) == 3  # shared again


async def test_a_restored_store_writes_types_as_before(tmp_path: Path) -> None:
    store = new(WIDGETS)
    page = store.decoder.decode_page(recorded("list/east/widgets-all.json")["body"].encode(), 1.0)
    replacement = store.replace()
    for item in page:
        assert isinstance(item, CachedObject)
        replacement.add(item)
    replacement.commit(page.version)
    files = StoreFiles(tmp_path)
    assert await files.save(store, "")
    restored = new(WIDGETS)
    assert await files.load(restored) == ""
    assert (restored.type_prefix, restored.items_typed, restored.list_kind) == (
        store.type_prefix,
        store.items_typed,
        store.list_kind,
    )
    assert list(restored.snapshot()) == list(store.snapshot())


async def test_labels_that_are_restored_do_not_spoil_those_that_are_decoded_later(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    await files.save(filled(count=3), "")
    restored = new()
    await files.load(restored)
    text = b'{"metadata":{"name":"x","namespace":"demo","resourceVersion":"7","labels":%s}}' % msgspec.json.encode(
        next(iter(restored.snapshot())).labels
    )
    item = restored.decoder.decode_item(text, 1.0)
    assert isinstance(item, CachedObject)
    assert msgspec.json.decode(item.json(b"", b"7"))["metadata"]["labels"] == item.labels


async def test_a_store_without_a_list_is_not_saved_and_one_with_a_list_not_restored(
    tmp_path: Path,
) -> None:
    files = StoreFiles(tmp_path)
    assert not await files.save(new(), "u")
    assert os.listdir(tmp_path) == []
    assert await files.load(new()) is None
    await files.save(filled(count=5), "u")
    store = filled(count=7)
    assert await files.load(store) is None
    assert len(store) == 7


async def test_a_save_is_of_the_state_when_it_was_asked_for(tmp_path: Path) -> None:
    files, store = StoreFiles(tmp_path), filled(count=600)
    saving = Deferred.fromCoroutine(files.save(store, "u"))
    for number in range(0, 600, 2):
        store.apply(EventType.DELETED, cached(f"n{number:05d}", 700 + number))
    assert await saving
    restored = new()
    await files.load(restored)
    assert (len(restored), restored.version) == (600, 610)


@pytest.mark.parametrize(
    ("resource", "member", "options"),
    [
        (PODS, "west", {}),
        (PODS, "east", {"namespace": "demo"}),
        (PODS, "east", {"drop_managed_fields": True}),
        (WIDGETS, "east", {}),
        (APIResource(GroupVersionResource("", "v2", "pods"), "Pod", "pod", True, VERBS), "east", {}),
        (APIResource(GroupVersionResource("x", "v1", "pods"), "Pod", "pod", True, VERBS), "east", {}),
    ],
)
async def test_a_store_gets_no_other_stores_state(
    resource: APIResource, member: str, options: dict[str, Any], tmp_path: Path
) -> None:
    files = StoreFiles(tmp_path)
    await files.save(filled(count=5), "u")
    store = new(resource, member, **options)
    assert await files.load(store) is None
    assert not store.synced


async def test_a_file_that_was_copied_over_another_is_not_taken(tmp_path: Path) -> None:
    files, west = StoreFiles(tmp_path), new(member="west")
    await files.save(filled(count=5), "u")
    os.replace(files.path_of(filled(count=0)), files.path_of(west))
    assert await files.load(west) is None


def test_names_of_a_member_make_no_path() -> None:
    files = StoreFiles(Path("/state"))
    for resource in ("../../etc/passwd", "..", "a/b", "x" * 500, "\0"):
        gvr = GroupVersionResource("../..", "..", resource)
        path = files.path_of(new(APIResource(gvr, "K", "k", True, VERBS), namespace="../x"))
        assert path.parent == Path("/state")
        assert len(path.name) < 200
        assert set(path.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
        assert path.name not in (".", "..")


async def test_secrets_are_kept_only_where_that_was_asked_for(tmp_path: Path) -> None:
    files, store = StoreFiles(tmp_path), filled(SECRETS, 5)
    assert not await files.save(store, "u")
    assert os.listdir(tmp_path) == []
    assert await files.save(store, "u", secrets=True)
    assert await files.load(new(SECRETS), secrets=True) == "u"
    # The setting was taken back: what was written goes, whether by a load or a save.
    assert await files.load(new(SECRETS)) is None
    assert os.listdir(tmp_path) == []
    await files.save(store, "u", secrets=True)
    assert not await files.save(store, "u")
    assert os.listdir(tmp_path) == []
    other = APIResource(GroupVersionResource("example.com", "v1", "secrets"), "Secret", "secret", True, VERBS)
    assert await files.save(filled(other, 5), "u")  # not the core ones


def damaged_at(place: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: content + b"x",
        damaged_at(20),
        damaged_at(170),
        damaged_at(1000),
        damaged_at(-1 - 3),
    ],
)
async def test_a_broken_file_is_put_aside_with_one_log_line(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    await files.save(filled(count=50), "u")
    path = files.path_of(new())
    path.write_bytes(damage(path.read_bytes()))
    store = new()
    with captured_logs() as events:
        assert await files.load(store) is None
    assert os.listdir(tmp_path) == [path.name + ".broken"]
    assert not store.synced
    assert len(events) == 1
    assert events[0]["cause"]
    assert events[0]["todo"]


def frames(*records: Any) -> list[bytes]:
    found: list[bytes] = []
    for record in records:
        data = record if isinstance(record, bytes) else msgspec.msgpack.encode(record)
        found += [len(data).to_bytes(4, "big"), data]
    return found


@pytest.mark.parametrize(
    "payload",
    [
        [b""],
        [b"\0"],
        frames(b""),
        frames([1, 2]),
        frames(state_of(new(), ""), b"\xff"),
        frames(state_of(new(), ""), [["a"]]),
        frames(state_of(new(), ""), [cached("b"), cached("a")]),
        frames(state_of(new(), ""), [cached("a"), cached("a")]),
        [*frames(state_of(new(), "")), b"\xff\xff\xff\xff", b"x"],
        [*frames(state_of(new(), "")), b"\0\0"],
    ],
)
async def test_contents_of_another_form_are_put_aside(payload: list[bytes], tmp_path: Path) -> None:
    files, store = StoreFiles(tmp_path), new()
    path = files.path_of(store)
    state_file.write_pieces(path, "store", 1, payload)
    with captured_logs() as events:
        assert await files.load(store) is None
    assert os.listdir(tmp_path) == [path.name + ".broken"]
    assert len(events) == 1


async def test_a_folder_that_cannot_be_written_is_one_log_line_until_it_can(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    files, store = StoreFiles(taken), filled(count=5)
    with captured_logs() as events:
        assert not await files.save(store, "u")
        assert not await files.save(store, "u")
    assert [bool(event["cause"] and event["todo"]) for event in events] == [True]
    taken.unlink()
    assert await files.save(store, "u")
    assert await files.load(new()) == "u"


async def test_a_save_that_fails_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, store = StoreFiles(tmp_path), filled(count=5)
    assert await files.save(store, "u")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    store.apply(EventType.DELETED, cached("n00001", 100))
    with captured_logs():
        assert not await files.save(store, "u")
    monkeypatch.undo()
    restored = new()
    assert await files.load(restored) == "u"
    assert len(restored) == 5
    assert os.listdir(tmp_path) == [files.path_of(store).name]


async def test_stores_with_and_without_managed_fields_have_files_of_their_own(tmp_path: Path) -> None:
    files, whole, dropped = StoreFiles(tmp_path), filled(count=5), filled(count=7, drop_managed_fields=True)
    await files.save(whole, "u")
    await files.save(dropped, "u")
    for restored, count in ((new(), 5), (new(drop_managed_fields=True), 7)):
        assert await files.load(restored) == "u"
        assert len(restored) == count


async def test_files_of_stores_that_are_gone_are_removed(tmp_path: Path) -> None:
    files, stays, goes = StoreFiles(tmp_path), filled(count=5), filled(count=5, member="west")
    for store in (stays, goes):
        await files.save(store, "u")
    (tmp_path / "other").write_text("")
    files.prune([stays])
    assert sorted(os.listdir(tmp_path)) == sorted([files.path_of(stays).name, "other"])
    StoreFiles(tmp_path / "missing").prune([])
