"""Takes a connection over from aiohttp after an HTTP/1.1 upgrade, as a stream of bytes.

aiohttp supports only WebSocket upgrades, and hides their frames; exec, attach and port-forward also come as SPDY/3.1 by
POST, and tests need control over each byte. So the transport gets a new protocol and the 101 is written here. aiohttp's
own protocol object still gets connection_lost, so that its count of open connections is right.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from kubesim.audit import RECORD
from mcproxy.kube.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    WebSocketError,
    WebSocketFrameReader,
    accept_key,
    frame,
)

BEARER_PROTOCOL = "base64url.bearer.authorization.k8s.io."
"""The prefix of the WebSocket subprotocol by which browsers send a bearer token."""
CHUNK = 1 << 15
READ_HIGH_WATER = 1 << 18  # unread bytes at which reading from the socket pauses


class ByteStream(asyncio.Protocol):
    """An upgraded connection: read() and write() with back-pressure both ways."""

    def __init__(self, transport: asyncio.Transport, former: Any, early: bytes) -> None:
        self.transport = transport
        self._former = former
        self._tls = transport.get_extra_info("sslcontext") is not None  # asyncio has no half close on TLS
        self._buffer = bytearray(early)
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = False
        self.closed = asyncio.Event()
        """Set when the connection is lost."""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= READ_HIGH_WATER and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return not self._tls

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self.closed.set()
        self._writable.set()
        self._wake()
        self._former.connection_lost(exc)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> bytes:
        """Return some bytes; b"" when the peer has ended its side or the connection is lost."""
        while not self._buffer and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Queue data and wait while the peer reads too slowly; data for a lost connection is dropped."""
        if self.transport.is_closing():
            return
        self.transport.write(data)
        await self._writable.wait()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    @property
    def closing(self) -> bool:
        return self.transport.is_closing()


class Hijacked(web.StreamResponse):
    """The response of a handler that has taken the connection over: aiohttp writes nothing and closes it."""

    def __init__(self, status: int = 101) -> None:
        super().__init__(status=status)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


class KubeletAnswer(web.Response):
    """A response of a kubelet, passed on without the headers that the apiserver adds to its own."""


def response_head(status: str, headers: list[tuple[str, str]]) -> bytes:
    """Return the bytes of `HTTP/1.1 {status}` and the headers, in the given order."""
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def take_over(request: web.BaseRequest, data: bytes) -> ByteStream:
    """Take the connection of a request over, and write `data` (usually a response head).

    Raises ConnectionResetError when the connection is lost. Bytes that the client sent after the head are kept.
    """
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client is gone")
    former: Any = request.protocol
    early, former._message_tail = former._message_tail, b""
    stream = ByteStream(transport, former, early)
    transport.set_protocol(stream)
    transport.resume_reading()
    if data:
        transport.write(data)
    record = request.get(RECORD)
    if record is not None and data.startswith(b"HTTP/1.1 101"):
        record.note_upgrade(request.headers.get("Upgrade", ""))
    return stream


def is_websocket(request: web.BaseRequest) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def offered_protocols(request: web.BaseRequest) -> list[str]:
    """Return the subprotocols that the client offers, without a bearer token."""
    values = request.headers.getall("Sec-WebSocket-Protocol", ())
    offered = [item.strip() for value in values for item in value.split(",")]
    return [item for item in offered if not item.startswith(BEARER_PROTOCOL)]


def websocket_head(request: web.BaseRequest, protocol: str | None) -> bytes:
    """Return the 101; an empty `protocol` gives an empty header, as in a real apiserver, None no header."""
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept_key(request.headers.get("Sec-WebSocket-Key", ""))),
    ]
    if protocol is not None:
        headers.append(("Sec-WebSocket-Protocol", protocol))
    return response_head("101 Switching Protocols", headers)


async def websocket_messages(stream: ByteStream) -> AsyncIterator[bytes]:
    """Yield the messages that are not empty, until the client closes; pings are answered, an invalid frame aborts."""
    frames = WebSocketFrameReader()
    try:
        while data := await stream.read():
            for message in frames.feed(data):
                if message.opcode == CLOSE:
                    return
                if message.opcode == PING:
                    await stream.write(frame(PONG, message.payload))
                elif message.opcode != PONG and message.payload:
                    yield message.payload
    except WebSocketError:
        stream.abort()


async def close_websocket(stream: ByteStream) -> None:
    """Send a normal close frame."""
    await stream.write(frame(CLOSE, b"\x03\xe8"))


class Channel:
    """An output that writes messages of one channel: its number and data, or a digit and base64 as `text`."""

    def __init__(self, stream: ByteStream, number: int, *, text: bool = False) -> None:
        self._stream = stream
        self._number = number
        self._text = text

    async def write(self, data: bytes) -> None:
        for start in range(0, max(1, len(data)), CHUNK):
            part = data[start : start + CHUNK]
            if self._text:
                await self._stream.write(frame(TEXT, str(self._number).encode() + base64.b64encode(part)))
            else:
                await self._stream.write(frame(BINARY, bytes((self._number,)) + part))
