"""Members that answer what no kube-apiserver does: nothing of it ends a reflector, or fills the memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.aggregate.reflector import collection
from mcproxy.aggregate.reflector import reflector as module
from tests.aggregate.reflector.fake_server import (
    Answer,
    FakeServer,
    end,
    event,
    follow,
    item,
    page,
    plain,
    refuse,
    stream,
)
from tests.aggregate.reflector.harness import Site, names
from tests.support.logged import captured_logs


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def server(reactor: Any, site: Site) -> Iterator[FakeServer]:
    server = FakeServer(reactor)
    yield server
    server.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"x"},"items":[]}',
        b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"-1"},"items":[]}',
        b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"x"},"items":[]}',
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no\\r\\nX: y"}',
        page(item("a", 50), version="9"),
    ],
)
async def test_a_list_that_is_none_is_an_error_and_tried_again(site: Site, server: FakeServer, body: bytes) -> None:
    server.watch = lambda target: refuse(target) if "sendInitial" in target else stream()
    server.list = lambda target: plain(body)
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert "\n" not in store.unavailable_cause
    server.list = lambda target: plain(page(item("a")))
    assert await store.when_synced(60)
    assert names(store) == ["a"]


@pytest.mark.parametrize(
    "events",
    [
        [b"nonsense\n"],
        [b'{"type":"WHATEVER","object":{}}\n'],
        [event("ERROR", 7)],
        [event("ERROR", {"kind": "Status", "code": 500, "message": "x" * 100_000})],
        [event("BOOKMARK", {"metadata": {"resourceVersion": "soon"}})],
        [b"[" * 50_000 + b"\n"],
    ],
)
async def test_a_watch_of_garbage_is_resumed_from_the_last_good_version(
    site: Site, server: FakeServer, events: list[bytes]
) -> None:
    server.watch = lambda target: stream(event("ADDED", item("a")), end(), event("ADDED", item("b", 12)), *events)
    store = follow(site, server)
    assert await store.when_synced(60)
    await site.until(lambda: store.unavailable_since is not None)
    assert names(store) == ["a", "b"]
    server.watch = lambda target: stream(event("ADDED", item("c", 15)))
    await site.until(lambda: names(store) == ["a", "b", "c"])
    assert "resourceVersion=12" in server.asked[-1]


async def test_an_object_that_is_none_costs_only_itself(site: Site, server: FakeServer) -> None:
    bad = {**item("bad"), "metadata": {"name": "../x", "namespace": "default", "resourceVersion": "6"}}
    server.watch = lambda target: stream(event("ADDED", bad), event("ADDED", item("a")), event("ADDED", 7), end())
    store = follow(site, server)
    assert await store.when_synced(60)
    assert names(store) == ["a"]


async def test_a_line_without_end_is_given_up(site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection.LineSplitter.__init__, "__defaults__", (100_000,))
    server.watch = lambda target: stream(end(), b"x" * 200_000)
    store = follow(site, server)
    assert await store.when_synced(60)
    await site.until(lambda: store.unavailable_since is not None)
    assert "too long" in store.unavailable_cause


async def test_more_objects_than_a_store_may_have_are_an_error(
    site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "MAX_OBJECTS", 10)
    server.watch = lambda target: stream(*(event("ADDED", item(f"m{number}")) for number in range(20)), end())
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert "more than 10 objects" in store.unavailable_cause
    assert len(store) == 0


async def test_a_list_whose_pages_never_end_is_an_error(site: Site, server: FakeServer) -> None:
    server.watch = refuse
    server.list = lambda target: plain(page(item("a"), **{"continue": "again"}))
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert "does not go on" in store.unavailable_cause


async def test_a_server_that_ignores_the_parameters_of_a_watch_list_is_listed(
    site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALLED", 0.3)
    server.watch = lambda target: stream(event("ADDED", item("a")))
    server.list = lambda target: plain(page(item("a"), item("b")))
    store = follow(site, server)
    assert await store.when_synced(60)
    assert names(store) == ["a", "b"]
    assert ["watch=true" in query for query in server.asked][:2] == [True, False]


async def test_a_silent_watch_is_opened_anew(site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.3)
    server.watch = lambda target: stream(end()) if "sendInitial" in target else stream()
    store = follow(site, server)
    assert await store.when_synced(60)
    await site.until(lambda: len(server.asked) >= 2)
    assert "resourceVersion=9" in server.asked[1]


async def test_a_server_without_tables(site: Site, server: FakeServer) -> None:
    def answer(target: str) -> bytes:
        if "includeObject" in target:
            return plain(b"{}", 406)
        return stream() if "watch=true" in target else plain(page(item("a")))

    server.watch = lambda target: refuse(target) if "sendInitial" in target else answer(target)
    server.list = answer
    store = follow(site, server)
    assert await store.when_synced(60)
    assert names(store) == ["a"]
    assert store.columns is None


async def test_a_deletion_among_the_initial_events(site: Site, server: FakeServer) -> None:
    events = [event("ADDED", item("a")), event("ADDED", item("b", 6)), event("DELETED", item("a", 7)), end()]
    server.watch = lambda target: stream(*events)
    store = follow(site, server)
    assert await store.when_synced(60)
    assert names(store) == ["b"]


async def test_an_answer_in_the_past_is_another_cluster(site: Site, server: FakeServer) -> None:
    server.watch = lambda target: stream(event("ADDED", item("a")), end(), ended=True)
    store = follow(site, server)
    assert await store.when_synced(60)
    version = store.version
    server.answer_to = older(server)  # type: ignore[method-assign, assignment]
    await site.until(lambda: names(store) == ["z"])
    assert store.version < version


def older(server: FakeServer) -> Answer:
    def answer(target: str) -> bytes | None:
        if "/readyz" in target:
            return plain(b"ok")
        if "watch=true" in target:
            return stream(event("ADDED", item("z", 3)), end(4)) if "sendInitial" in target else stream()
        return plain(page(version="4")) if "configmaps" in target else plain(b"{}", 404)

    return answer


async def test_an_error_of_the_proxy_itself_does_not_end_a_reflector(
    site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.watch = lambda target: stream(event("ADDED", item("a")), end())
    with monkeypatch.context() as patch:
        patch.setattr(module.Reflector, "_initial_event", lambda *_: 1 / 0)
        store = follow(site, server)
        with captured_logs() as logged:
            await site.until(lambda: store.unavailable_since is not None)
        assert "internal_error" in [line.get("event") for line in logged]
    assert await store.when_synced(60)
    assert names(store) == ["a"]


def deep(name: str, version: int, levels: int) -> bytes:
    """An object whose deep part stands before its metadata, with somebody else's name in it."""
    other = b'{"metadata":{"name":"a","namespace":"default","resourceVersion":"5"},"b":['
    data = b'"a":%b%b,' % (other + b"[" * levels, b"]" * levels + b"]}")
    whole = json.dumps(item(name, version), separators=(",", ":")).encode()
    return whole.replace(b'"metadata"', data + b'"metadata"', 1)


def deep_event(kind: bytes, name: str, version: int, levels: int) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind, deep(name, version, levels))


LEVELS = [300, 1200, 100_000]


@pytest.mark.parametrize("levels", LEVELS)
async def test_an_object_that_is_nested_too_deeply_is_left_out_of_a_paged_list_alone(
    site: Site, server: FakeServer, levels: int
) -> None:
    """The page could not be decoded, and its collection was unavailable for everybody until the object was deleted."""
    server.watch = lambda target: refuse(target) if "sendInitial" in target else stream()
    body = page(item("a"), item("deep"), item("z"))
    body = body.replace(json.dumps(item("deep"), separators=(",", ":")).encode(), deep("deep", 5, levels))
    server.list = lambda target: plain(body)
    store = follow(site, server)
    assert await store.when_synced(60)
    assert names(store) == ["a", "z"]
    assert list(store.unreadable) == ["default/deep"]
    assert store.unavailable_since is None


@pytest.mark.parametrize("levels", LEVELS)
async def test_events_of_objects_that_cannot_be_taken_apart(site: Site, server: FakeServer, levels: int) -> None:
    """No old state of such an object is shown; the watch and the version go on, and what is mended is there again."""
    server.watch = lambda target: stream(
        event("ADDED", item("a")),
        event("ADDED", item("b")),
        deep_event(b"ADDED", "c", 6, levels),
        deep_event(b"ADDED", "d", 7, levels),
        end(),
        deep_event(b"MODIFIED", "b", 12, levels),
        deep_event(b"ADDED", "e", 13, levels),
        deep_event(b"DELETED", "d", 14, levels),
        event("MODIFIED", item("c", 15)),
        deep_event(b"MODIFIED", "f", 16, levels),
    )
    with captured_logs() as logs:
        store = follow(site, server)
        assert await store.when_synced(60)
        await site.until(lambda: store.version == 16)
    assert names(store) == ["a", "c"]
    assert list(store.unreadable) == ["default/b", "default/e", "default/f"]
    assert store.unavailable_since is None
    assert [entry["event"] for entry in logs if entry.get("event") == "object_left_out"] == ["object_left_out"]
    told = [(each.type.name, each.object.name, each.version) for each in store.events_after(9)]
    assert told == [("DELETED", "b", 12), ("ADDED", "c", 15)]
