"""What is kept under stateDir: layouts, members, caches and decisions, and when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from mcproxy.aggregate.cache.cached_object import EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.member_caches import MemberCaches, SavedState
from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.discovery import APIGroupDiscovery, ObjectMeta
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.user import UserInfo
from tests.support.clock import Clock
from tests.support.logged import captured_logs

MAPS = APIResource(
    GroupVersionResource("", "v1", "configmaps"), "ConfigMap", "configmap", namespaced=True, verbs=frozenset()
)
SECRETS = APIResource(GroupVersionResource("", "v1", "secrets"), "Secret", "secret", namespaced=True, verbs=frozenset())
ITEM = b'{"type":"ADDED","object":{"kind":"%b","apiVersion":"v1","metadata":%b,"data":{"a":"b"}}}'
METADATA = b'{"name":"a","namespace":"demo","uid":"u","resourceVersion":"5","creationTimestamp":"2026-11-22T03:00:00Z"}'
ALICE = UserInfo("alice")
READ = Attributes("list", resource="pods")


class FakeMember:
    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = ""
        self.discovery = self
        self.groups: tuple[APIGroupDiscovery, ...] = ()

    def restore(self, uid: str, groups: tuple[APIGroupDiscovery, ...]) -> None:
        self.uid, self.groups = uid, groups


class Live(MemberCaches):
    """What there is to save."""

    members: dict[str, Any] = {}
    stores: list[tuple[Store, StoreOptions]] = []
    histories: dict[str, LayoutHistory] = {}
    complete = True

    def __init__(self) -> None:
        self.members, self.stores, self.histories = {}, [], {}


class Bench:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.clock.advance(1_000_000)
        self.folder = folder
        self.live = Live()
        self.written: list[Any] = []
        self.state = SavedState(self.live, cast(Any, self.clock), self.in_thread, self.clock.seconds)

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        self.written.append(arguments[0] if arguments else function)
        return maybeDeferred(function, *arguments)

    def use(self) -> None:
        self.state.use(str(self.folder), 3600.0)

    def save(self, interval: float = 0.0) -> None:
        done: list[Any] = []
        Deferred.fromCoroutine(self.state.save(interval)).addBoth(done.append)
        assert done == [None]

    def again(self) -> Bench:
        """Return another process's."""
        other = Bench(self.folder)
        other.use()
        return other

    def store(self, resource: APIResource = MAPS, *, persist: bool = True, filled: bool = True) -> Store:
        store = Store(cast(Any, self.clock), "east", resource)
        if filled:
            replacement = store.replace()
            replacement.commit(4)
            event = store.decoder.decode_event(ITEM % (resource.kind.encode(), METADATA), 0.0)
            store.apply(EventType.ADDED, cast(Any, event).object)
        self.live.stores.append((store, StoreOptions(persist=persist)))
        return store

    def restored(self, store: Store) -> str:
        result: list[Any] = []
        options = self.live.stores[-1][1]
        Deferred.fromCoroutine(self.state.restore_store(store, options)).addBoth(result.append)
        return str(result[0])

    @property
    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "state")
    yield bench
    bench.state.stop()


def member(name: str = "east") -> FakeMember:
    found = FakeMember(name)
    found.uid = "u-east"
    found.groups = (APIGroupDiscovery(ObjectMeta("apps"), ()),)
    return found


def test_everything_comes_back(bench: Bench) -> None:
    bench.use()
    bench.live.members["east"] = member()
    bench.live.histories["fleet"] = LayoutHistory(Layout(["east", "west"]), [Layout(["east"])])
    bench.store()
    bench.state.decisions.record("east", "u-east", ALICE, READ, allowed=True)
    bench.save()
    other = bench.again()
    assert other.state.history("fleet") == bench.live.histories["fleet"]
    assert other.state.history("another") is None
    found = FakeMember("east")
    other.state.restore_member(cast(Any, found))
    assert (found.uid, found.groups) == ("u-east", member().groups)
    store = other.store(filled=False)
    assert other.restored(store) == "u-east"
    assert (store.synced, store.version, len(store)) == (True, 5, 1)
    assert other.state.decisions.find("east", "", ALICE, READ, 60) is True


def test_without_a_folder_nothing_is_read_or_written(bench: Bench) -> None:
    bench.live.members["east"] = member()
    store = bench.store()
    bench.save()
    assert bench.written == []
    assert bench.restored(store) == ""
    assert bench.state.history("fleet") is None
    bench.state.use(None, 3600.0)
    assert bench.clock.getDelayedCalls() == []


def test_only_what_has_changed_is_written(bench: Bench) -> None:
    bench.use()
    bench.live.members["east"] = member()
    bench.live.histories["fleet"] = LayoutHistory(Layout(["east"]))
    store = bench.store()
    bench.save()
    count = len(bench.written)
    bench.save()
    assert len(bench.written) == count
    store.progress(9)
    bench.save()
    assert len(bench.written) == count + 1
    bench.live.members["east"].uid = "another"
    bench.save()
    assert len(bench.written) == count + 2


def test_a_cache_is_written_every_five_minutes_at_most(bench: Bench) -> None:
    bench.use()
    store = bench.store()
    bench.clock.advance(60)
    assert len(bench.written) == 1
    for _ in range(4):
        store.progress(store.version + 1)
        bench.clock.advance(60)
    assert len(bench.written) == 1
    bench.clock.advance(60)
    assert len(bench.written) == 2


def test_secrets_are_kept_only_where_told_to_be(bench: Bench) -> None:
    bench.use()
    bench.store(SECRETS, persist=False)
    bench.save()
    assert bench.files == []
    bench.live.stores.clear()
    bench.store(SECRETS, persist=True)
    bench.save()
    assert len(bench.files) == 1
    bench.live.stores.clear()
    bench.store(SECRETS, persist=False)
    bench.save()
    assert bench.files == []


def test_files_of_what_is_cached_no_longer_are_removed_once_every_member_is_known(bench: Bench) -> None:
    bench.use()
    bench.live.members["east"] = member()
    bench.live.histories["fleet"] = LayoutHistory(Layout(["east"]))
    bench.store()
    bench.save()
    assert len(bench.files) == 3
    bench.live.stores.clear()
    bench.live.members.clear()
    bench.live.histories.clear()
    bench.live.complete = False
    bench.save()
    assert len(bench.files) == 3
    bench.live.complete = True
    bench.save()
    assert bench.files == []


def test_a_file_that_cannot_be_removed_is_one_log_line(bench: Bench) -> None:
    bench.use()
    bench.live.members["east"] = member()
    bench.save()
    file = bench.folder / "members" / "east"
    file.unlink()
    file.mkdir()  # what cannot be unlinked, even by root
    bench.live.members.clear()
    with captured_logs() as events:
        bench.save()
    assert [(event["file"], event["log_level"].name) for event in events] == [(str(file), "warn")]


@pytest.mark.parametrize("content", [b"", b"nothing of ours"])
def test_broken_files_are_put_aside(bench: Bench, content: bytes) -> None:
    bench.use()
    bench.live.members["east"] = member()
    bench.live.histories["fleet"] = LayoutHistory(Layout(["east"]))
    bench.save()
    for path in [path for path in bench.folder.rglob("*") if path.is_file()]:
        path.write_bytes(content)
    other = bench.again()
    found = FakeMember("east")
    with captured_logs() as events:
        assert other.state.history("fleet") is None
        other.state.restore_member(cast(Any, found))
    assert (found.uid, found.groups) == ("", ())
    assert len(events) == 2
    assert all(name.endswith(".broken") for name in other.files)


def test_a_disk_that_is_full_is_one_line_until_it_works_again(bench: Bench) -> None:
    bench.folder.parent.mkdir(exist_ok=True)
    bench.folder.write_text("in the way")
    bench.use()
    bench.live.members["east"] = member()
    with captured_logs() as events:
        bench.save()
        bench.save()
        assert len(events) == 1
        bench.folder.unlink()
        bench.save()
        assert len(events) == 1
    assert bench.files == ["members/east"]
