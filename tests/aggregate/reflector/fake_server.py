"""A member on a plain port that answers lists and watches of one collection as a test says, well or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import Factory, Protocol

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.config import model
from tests.aggregate.reflector.harness import CONFIG_MAPS, Site
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


def follow(site: Site, server: FakeServer) -> Store:
    endpoint = model.EndpointConfig(name="a", scheme="http", host="127.0.0.1", port=server.port)
    cluster = site.cluster(cluster_config(endpoint))
    site.reflectors.update({"east": cluster})
    return site.reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions())


def refuse(target: str) -> bytes:
    return plain(b"{}", 422)
