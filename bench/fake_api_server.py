"""Many kube-apiservers with empty collections, in one process: ``fake_api_server.py PORT CERTIFICATE KEY RESOURCES``.

Each path prefix (/c000, /c001, …) is a cluster of its own. It answers health checks, discovery (with ETag and 304), the
namespace kube-system, lists, WatchLists and watches; a watch gets a bookmark each minute and ends after its
timeoutSeconds, as a kube-apiserver's does. Nothing ever changes.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from urllib.parse import parse_qs, urlsplit

GROUP = "bench.example.com"
_BOOKMARK_SECONDS = 60.0
_ETAG = '"0123456789ABCDEF"'
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def resource_name(number: int) -> str:
    return f"things{number:02d}"


def discovery(resources: int) -> bytes:
    """Return the aggregated document of /apis."""
    entries = [
        {
            "resource": resource_name(number),
            "responseKind": {"group": "", "version": "", "kind": f"Thing{number:02d}"},
            "scope": "Namespaced",
            "singularResource": f"thing{number:02d}",
            "verbs": ["get", "list", "watch"],
        }
        for number in range(resources)
    ]
    versions = [{"version": "v1", "resources": entries, "freshness": "Current"}]
    groups = [{"metadata": {"name": GROUP}, "versions": versions}]
    return _document("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2", items=groups)


def _document(kind: str, api_version: str, **more: object) -> bytes:
    return json.dumps({"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": "7"}, **more}).encode()


def _answer(body: bytes, status: str = "200 OK", kind: str = "application/json", fields: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class FakeServer:
    """Answers every connection until it is closed."""

    def __init__(self, resources: int) -> None:
        self._apis = discovery(resources)
        self._api = _document("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2", items=[])

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                await self._serve(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, head: str, writer: asyncio.StreamWriter) -> None:
        _, target, _ = head.split(" ", 2)
        url = urlsplit(target)
        query = parse_qs(url.query)
        cluster, _, path = url.path.removeprefix("/").partition("/")
        if "watch" in query:
            seconds = float(query["timeoutSeconds"][0])
            await _watch(writer, path.rpartition("/")[2], seconds, initial="sendInitialEvents" in query)
        elif path in ("api", "apis"):
            fields = f"ETag: {_ETAG}\r\n"
            if _ETAG in head:
                writer.write(f"HTTP/1.1 304 Not Modified\r\n{fields}\r\n".encode())
            else:
                writer.write(_answer(self._api if path == "api" else self._apis, kind=_DISCOVERY, fields=fields))
        elif path == "readyz":
            writer.write(_answer(b"ok", kind="text/plain"))
        elif path == "api/v1/namespaces/kube-system":
            uid = f"00000000-0000-0000-0000-{cluster:>012}"
            writer.write(_answer(json.dumps({"kind": "Namespace", "metadata": {"uid": uid}}).encode()))
        else:
            writer.write(_answer(_document(f"{_kind(path.rpartition('/')[2])}List", f"{GROUP}/v1", items=[])))


async def _watch(writer: asyncio.StreamWriter, resource: str, seconds: float, *, initial: bool) -> None:
    """Send bookmarks until the watch's time is over."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    if initial:
        writer.write(_chunk(_bookmark(resource, {"k8s.io/initial-events-end": "true"})))
    while seconds > _BOOKMARK_SECONDS:
        await asyncio.sleep(_BOOKMARK_SECONDS)
        seconds -= _BOOKMARK_SECONDS
        writer.write(_chunk(_bookmark(resource)))
    await asyncio.sleep(seconds)
    writer.write(b"0\r\n\r\n")


def _bookmark(resource: str, annotations: dict[str, str] | None = None) -> bytes:
    metadata = {"resourceVersion": "7", **({"annotations": annotations} if annotations else {})}
    item = {"kind": _kind(resource), "apiVersion": f"{GROUP}/v1", "metadata": metadata}
    return json.dumps({"type": "BOOKMARK", "object": item}).encode() + b"\n"


def _kind(resource: str) -> str:
    return f"Thing{resource[-2:]}"


async def main(port: int, certificate: str, key: str, resources: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(
        FakeServer(resources).connection, "127.0.0.1", port, ssl=context, backlog=4096, ssl_handshake_timeout=60.0
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
