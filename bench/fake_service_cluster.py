"""A kube-apiserver with Services whose pods are on this machine: ``fake_service_cluster.py PORT NAME=ADDRESS:PORT...``.

It answers health checks, discovery, lists, WatchLists and watches of Services and EndpointSlices of the namespace
bench, each Service NAME with the port 80 and one pod. Nothing ever changes. Without TLS, on
loopback: it is no part of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from urllib.parse import parse_qs, urlsplit

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_LISTS = {
    "services": ("Service", "v1"),
    "endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
}


def objects(services: dict[str, tuple[str, int]]) -> dict[str, list[dict[str, object]]]:
    """Return the objects by resource."""

    def metadata(name: str, **more: object) -> dict[str, object]:
        return {"name": name, "namespace": "bench", "uid": f"uid-{name}", "resourceVersion": "7", **more}

    ports = {"name": "http", "protocol": "TCP"}
    return {
        "services": [
            {
                "metadata": metadata(name),
                "spec": {"clusterIP": "10.0.0.1", "ports": [{**ports, "port": 80, "targetPort": port}]},
            }
            for name, (_, port) in services.items()
        ],
        "endpointslices": [
            {
                "metadata": metadata(f"{name}-1", labels={"kubernetes.io/service-name": name}),
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
                "ports": [{**ports, "port": port}],
            }
            for name, (address, port) in services.items()
        ],
    }


def discovery(group: str) -> bytes:
    """Return the aggregated document of /api (the group "") or /apis."""
    resource = "services" if not group else "endpointslices"
    kind, version = _LISTS[resource]
    entry = {
        "resource": resource,
        "responseKind": {"group": group, "version": version.rpartition("/")[2], "kind": kind},
        "scope": "Namespaced",
        "singularResource": kind.lower(),
        "verbs": ["get", "list", "watch"],
    }
    versions = [{"version": "v1", "resources": [entry], "freshness": "Current"}]
    items = [{"metadata": {"name": group}, "versions": versions}]
    return json.dumps(
        {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}
    ).encode()


def _answer(body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Cluster:
    """Answers every connection until it is closed."""

    def __init__(self, services: dict[str, tuple[str, int]]) -> None:
        self._objects = objects(services)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                url = urlsplit(head.split(" ", 2)[1])
                await self._serve(url.path, parse_qs(url.query), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, path: str, query: dict[str, list[str]], writer: asyncio.StreamWriter) -> None:
        resource = path.rpartition("/")[2]
        if path in ("/api", "/apis"):
            writer.write(_answer(discovery("" if path == "/api" else "discovery.k8s.io"), _DISCOVERY))
        elif resource not in _LISTS:
            writer.write(_answer(json.dumps({"kind": "Namespace", "metadata": {"uid": "uid-1"}}).encode()))
        elif "watch" in query:
            await self._watch(resource, "sendInitialEvents" in query, float(query["timeoutSeconds"][0]), writer)
        else:
            kind, version = _LISTS[resource]
            about = {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "7"}}
            writer.write(_answer(json.dumps({**about, "items": self._objects[resource]}).encode()))

    async def _watch(self, resource: str, initial: bool, seconds: float, writer: asyncio.StreamWriter) -> None:
        kind, version = _LISTS[resource]
        about = {"kind": kind, "apiVersion": version}
        events = [{"type": "ADDED", "object": {**about, **item}} for item in self._objects[resource]] if initial else []
        ends = {"annotations": {"k8s.io/initial-events-end": "true"}} if initial else {}
        bookmark = {"type": "BOOKMARK", "object": {**about, "metadata": {"resourceVersion": "7", **ends}}}
        body = b"".join(json.dumps(event).encode() + b"\n" for event in [*events, bookmark])
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n" % (len(body), body)
        )
        await asyncio.sleep(seconds)
        writer.write(b"0\r\n\r\n")


async def main(port: int, services: dict[str, tuple[str, int]]) -> None:
    server = await asyncio.start_server(Cluster(services).connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    pods = {}
    for argument in sys.argv[2:]:
        name, _, where = argument.partition("=")
        address, _, number = where.rpartition(":")
        pods[name] = (address, int(number))
    asyncio.run(main(int(sys.argv[1]), pods))
