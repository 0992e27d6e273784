"""A client that sends exactly the given headers over HTTP/1.1 or HTTP/2, for replaying recordings."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.simulated_cluster.http2_client import HTTP2Client


@dataclass
class Answer:
    """A response; `body` is decoded from chunks but not from gzip."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    reader: asyncio.StreamReader | None = field(default=None, repr=False)
    writer: asyncio.StreamWriter | None = field(default=None, repr=False)
    connection: HTTP2Client | None = field(default=None, repr=False)
    """The connection of an answer over HTTP/2."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def text(self) -> str:
        body = gzip.decompress(self.body) if self.header("Content-Encoding") == "gzip" else self.body
        return body.decode()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        if self.connection is not None:
            self.connection.close()


@dataclass(frozen=True)
class Target:
    """A server: a port of the loopback and the TLS context (with or without a client certificate)."""

    port: int
    context: ssl.SSLContext
    http2: bool = False
    """Whether the context offers h2, and HTTP/2 is to be spoken."""


async def open_request(
    target: Target, method: str, path: str, headers: list[tuple[str, str]], body: bytes | None
) -> Answer:
    """Send a request and read the head of the response; the body is left on `reader`."""
    if target.http2:
        client = await HTTP2Client.connect(target.port, target.context)
        reply = await client.request(method, path, headers, body).begun()
        return Answer(reply.status, "", reply.headers, b"", reply.received, connection=client)
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=target.context, limit=1 << 22)
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{target.port}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None and not any(name.lower() == "content-length" for name, _ in headers):
        lines.append(f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    _, status, reason = (head[0] + " ").split(" ", 2)
    parsed = [(line.partition(":")[0], line.partition(":")[2].strip()) for line in head[1:] if line]
    return Answer(int(status), reason.strip(), parsed, b"", reader, writer)


async def chunks(answer: Answer) -> AsyncIterator[bytes]:
    """Yield the chunks of the body."""
    assert answer.reader is not None
    if answer.connection is not None:
        while part := await answer.reader.read(1 << 16):
            yield part
    elif answer.header("Transfer-Encoding") == "chunked":
        while True:
            size = int(await answer.reader.readline(), 16)
            data = await answer.reader.readexactly(size + 2)
            if not size:
                return
            yield data[:-2]
    elif answer.status not in (204, 304):
        length = int(answer.header("Content-Length") or 0)
        if length:
            yield await answer.reader.readexactly(length)


async def fetch(
    target: Target, method: str, path: str, headers: list[tuple[str, str]] | None = None, body: bytes | None = None
) -> Answer:
    """Send a request; return the whole response."""
    answer = await open_request(target, method, path, headers or [], body)
    try:
        if method != "HEAD":
            answer.body = b"".join([chunk async for chunk in chunks(answer)])
    finally:
        answer.close()
    return answer


def body_of(request: dict[str, object]) -> bytes | None:
    """Return the body of a recorded request."""
    if "body_base64" in request:
        return base64.b64decode(str(request["body_base64"]))
    if request.get("body") is None:
        return None
    body = request["body"]
    if isinstance(body, str):
        return body.encode()
    return json.dumps(body).encode()
