"""The listening ports of a simulated pod: HTTP on 80 and 8080, echo on the others, nothing on 9."""

from __future__ import annotations

import json

from kubesim.container.containers import Container
from kubesim.container.shell_io import Input, LineReader, Output

__all__ = ["CLOSED_PORT", "HTTP_PORTS", "serve_port"]

HTTP_PORTS = frozenset({80, 8080})
CLOSED_PORT = 9
MAX_HEAD_LINES = 200


async def serve_port(container: Container, port: int, source: Input, output: Output) -> None:
    """Serve one connection until the client half-closes it."""
    if port in HTTP_PORTS:
        await _http(container, port, source, output)
        return
    while data := await source.read():
        await output.write(data)


async def _http(container: Container, port: int, source: Input, output: Output) -> None:
    reader = LineReader(source)
    while request_line := (await reader.readline()).decode("latin-1").strip():
        headers: list[list[str]] = []
        while len(headers) < MAX_HEAD_LINES and (line := (await reader.readline()).decode("latin-1").strip()):
            name, _, value = line.partition(":")
            headers.append([name, value.strip()])
        fields = {name.lower(): value for name, value in headers}
        method, _, rest = request_line.partition(" ")
        body = await _body(reader, int(fields.get("content-length", "0") or 0))
        page = _page(container, port, method, rest.rpartition(" ")[0], headers, body)
        close = fields.get("connection", "").lower() == "close" or rest.endswith("HTTP/1.0")
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(page)}\r\n"
            f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
        )
        await output.write(head.encode() + (b"" if method == "HEAD" else page))
        if close:
            return


async def _body(reader: LineReader, size: int) -> bytes:
    body = bytearray()
    while len(body) < size and (data := await reader.read()):
        body += data
    return bytes(body[:size])


def _page(container: Container, port: int, method: str, path: str, headers: list[list[str]], body: bytes) -> bytes:
    page = {
        "cluster": container.cluster.name,
        "namespace": container.namespace,
        "pod": container.pod_name,
        "port": port,
        "method": method,
        "path": path,
        "headers": headers,
        "body": body.decode("utf-8", "replace"),
    }
    return json.dumps(page).encode() + b"\n"
