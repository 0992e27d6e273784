"""Members that answer what no kube-apiserver does: nothing of it ends a reflector, or fills the memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import capturedLogs

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector import lines
from mcproxy.aggregate.reflector import reflector as module
from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.config import model
from tests.aggregate.reflector.harness import CONFIG_MAPS, Site, names
from tests.upstream.fakes import cluster_config

Answer = Callable[[str], bytes | None]


class _Connection(Protocol):
    """Answers each request by a function of its target; None leaves it open."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._received = b""

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            target = head.split(b" ")[1].decode()
            answer = self._server.answer_to(target)
            assert self.transport is not None
            if answer is not None:
                self.transport.write(answer)


class FakeServer:
    """A member on a plain port; `watch` and `list` decide about the collection, everything else is answered well."""

    def __init__(self, reactor: Any) -> None:
        factory = Factory()
        factory.buildProtocol = lambda _: _Connection(self)  # type: ignore[method-assign, assignment]
        self._port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.port: int = self._port.getHost().port
        self.watch: Answer = lambda target: stream()
        self.list: Answer = lambda target: plain(page())
        self.asked: list[str] = []

    def answer_to(self, target: str) -> bytes | None:
        path, _, query = target.partition("?")
        if path == "/readyz":
            return plain(b"ok")
        if path != CONFIG_MAPS.gvr.path():
            return plain(b"{}", 404)
        if query == "limit=1":
            return plain(page())
        self.asked.append(query)
        return self.watch(target) if "watch=true" in query else self.list(target)

    def close(self) -> None:
        self._port.stopListening()


def plain(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def stream(*events: bytes, ended: bool = False) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + (b"0\r\n\r\n" if ended else b"")


def item(name: str, version: int = 5) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}


def page(*objects: dict[str, Any], version: str = "9", **metadata: str) -> bytes:
    found = {"metadata": {"resourceVersion": version, **metadata}, "items": list(objects)}
    return json.dumps({"kind": "ConfigMapList", "apiVersion": "v1", **found}, separators=(",", ":")).encode()


def event(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"


def end(version: int = 9) -> bytes:
    annotations = {"k8s.io/initial-events-end": "true"}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


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


def follow(site: Site, server: FakeServer) -> Store:
    endpoint = model.Endpoint(name="a", scheme="http", host="127.0.0.1", port=server.port)
    cluster = site.cluster(cluster_config(endpoint))
    site.reflectors.update({"east": cluster})
    return site.reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions())


def refuse(target: str) -> bytes:
    return plain(b"{}", 422)


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
    assert await store.when_synced(10)
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
    assert await store.when_synced(10)
    await site.until(lambda: store.unavailable_since is not None)
    assert names(store) == ["a", "b"]
    server.watch = lambda target: stream(event("ADDED", item("c", 15)))
    await site.until(lambda: names(store) == ["a", "b", "c"])
    assert "resourceVersion=12" in server.asked[-1]


async def test_an_object_that_is_none_costs_only_itself(site: Site, server: FakeServer) -> None:
    bad = {**item("bad"), "metadata": {"name": "../x", "namespace": "default", "resourceVersion": "6"}}
    server.watch = lambda target: stream(event("ADDED", bad), event("ADDED", item("a")), event("ADDED", 7), end())
    store = follow(site, server)
    assert await store.when_synced(10)
    assert names(store) == ["a"]


async def test_a_line_without_end_is_given_up(site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines.LineSplitter.__init__, "__defaults__", (100_000,))
    server.watch = lambda target: stream(end(), b"x" * 200_000)
    store = follow(site, server)
    assert await store.when_synced(10)
    await site.until(lambda: store.unavailable_since is not None)
    assert "too long" in store.unavailable_cause


async def test_more_objects_than_a_store_may_have_are_an_error(
    site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OBJECTS", 10)
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
    assert await store.when_synced(10)
    assert names(store) == ["a", "b"]
    assert ["watch=true" in query for query in server.asked][:2] == [True, False]


async def test_a_silent_watch_is_opened_anew(site: Site, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.3)
    server.watch = lambda target: stream(end()) if "sendInitial" in target else stream()
    store = follow(site, server)
    assert await store.when_synced(10)
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
    assert await store.when_synced(10)
    assert names(store) == ["a"]
    assert store.columns is None


async def test_a_deletion_among_the_initial_events(site: Site, server: FakeServer) -> None:
    events = [event("ADDED", item("a")), event("ADDED", item("b", 6)), event("DELETED", item("a", 7)), end()]
    server.watch = lambda target: stream(*events)
    store = follow(site, server)
    assert await store.when_synced(10)
    assert names(store) == ["b"]


async def test_an_answer_in_the_past_is_another_cluster(site: Site, server: FakeServer) -> None:
    server.watch = lambda target: stream(event("ADDED", item("a")), end(), ended=True)
    store = follow(site, server)
    assert await store.when_synced(10)
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
        with capturedLogs() as logged:
            await site.until(lambda: store.unavailable_since is not None)
        assert "internal_error" in [line.get("event") for line in logged]
    assert await store.when_synced(10)
    assert names(store) == ["a"]
