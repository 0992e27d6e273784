"""exec and attach over WebSocket: the channel protocols of Kubernetes, v5, v4 and older ones.

Each message begins with its channel: 0 stdin, 1 stdout, 2 stderr, 3 the final Status, 4 terminal sizes; v5 adds 255,
by which the client closes a channel. The base64 protocols use text messages with the channel as a digit.
Source: KEP-4006 and the recorded streams.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import Any

from kubesim.container.byte_streams import Pipe
from kubesim.container.remote_command import Request, Streams, serve
from kubesim.request.upgrade import ByteStream
from mcproxy.kube.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameReader,
    Message,
    WebSocketError,
    frame,
)

__all__ = ["PROTOCOLS", "V5", "run_session"]

V5 = "v5.channel.k8s.io"
PROTOCOLS = (V5, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io", "")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE_SIGNAL = 0, 1, 2, 3, 4, 255
CLOSE_NORMAL = b"\x03\xe8"
CHUNK = 1 << 15
GOODBYE_SECONDS = 2.0
START_SECONDS = 0.1
"""What an API server takes to reach a kubelet that starts a process.

Without it messages may come before a client-go of up to 1.33 has made its streams, and be lost: "Unknown stream id 1,
discarding message" (kubernetes/kubernetes#131189)."""


class _Channel:
    """An output that writes messages of one channel."""

    def __init__(self, stream: ByteStream, number: int, *, text: bool) -> None:
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


async def run_session(stream: ByteStream, protocol: str, request: Request) -> None:
    """Serve one session to its end and close the connection."""
    text = "base64" in protocol
    session = _Session(stream, protocol, text=text)
    streams = Streams(
        stdin=session.stdin,
        stdout=_Channel(stream, STDOUT, text=text),
        stderr=_Channel(stream, STDERR, text=text),
        size=session.size,
        resized=session.resized,
        closed=session.closed,
    )
    reader = asyncio.ensure_future(session.read())
    try:
        first = STDOUT if request.stdout else STDERR if request.stderr else ERROR
        await asyncio.sleep(START_SECONDS)
        await _Channel(stream, first, text=text).write(b"")
        status = await serve(request, streams)
        if status is not None:
            session.stdin.abandon()
            await session.finish(status)
            await asyncio.wait((reader,), timeout=GOODBYE_SECONDS)
    finally:
        reader.cancel()
        stream.close()


class _Session:
    def __init__(self, stream: ByteStream, protocol: str, *, text: bool) -> None:
        self._stream = stream
        self._protocol = protocol
        self._text = text
        self.stdin = Pipe()
        self.size = [80, 24]
        self.resized = asyncio.Event()
        self.closed = asyncio.Event()

    async def read(self) -> None:
        """Read the client's messages until it closes."""
        frames = FrameReader()
        gone = asyncio.ensure_future(self._gone())
        try:
            while data := await self._stream.read():
                for message in frames.feed(data):
                    if not await self._message(message):
                        return
        except WebSocketError:
            self._stream.abort()
        finally:
            gone.cancel()
            self.closed.set()

    async def _gone(self) -> None:
        """Detect a lost connection also while stdin is not read."""
        await self._stream.closed.wait()
        self.closed.set()

    async def _message(self, message: Message) -> bool:
        if message.opcode == PING:
            await self._stream.write(frame(PONG, message.payload))
        elif message.opcode == CLOSE:
            return False
        elif message.opcode in (BINARY, TEXT) and message.payload:
            channel, data = message.payload[0], message.payload[1:]
            if self._text:
                try:
                    channel, data = channel - ord("0"), base64.b64decode(data)
                except binascii.Error:
                    return False
            await self._channel(channel, data)
        return True

    async def _channel(self, channel: int, data: bytes) -> None:
        if channel == STDIN and data:
            await self._to_stdin(data)
        elif channel == CLOSE_SIGNAL and self._protocol == V5 and data[:1] == bytes((STDIN,)):
            await self.stdin.close()
        elif channel == RESIZE:
            self._resize(data)

    async def _to_stdin(self, data: bytes) -> None:
        if not self.stdin.abandoned:
            await self.stdin.write(data)

    def _resize(self, data: bytes) -> None:
        try:
            wanted: dict[str, Any] = json.loads(data)
            self.size[:] = int(wanted["Width"]), int(wanted["Height"])
        except (ValueError, KeyError, TypeError):
            return
        self.resized.set()

    async def finish(self, status: dict[str, Any]) -> None:
        """Send the Status in the protocol version's form, and the close frame."""
        error = _Channel(self._stream, ERROR, text=self._text)
        if self._protocol == V5:
            await error.write(_compact(_as_apiserver(status)))
        elif self._protocol.startswith("v4."):
            await error.write(_compact(status))
        elif status["status"] != "Success":
            await error.write(status["message"].encode())
        await self._stream.write(frame(CLOSE, CLOSE_NORMAL))


def _compact(status: dict[str, Any]) -> bytes:
    return json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode()


def _as_apiserver(status: dict[str, Any]) -> dict[str, Any]:
    """Return the Status of v5, which ends in the API server: it wraps the kubelet's message."""
    if status.get("reason") == "InternalError":
        text = status["message"]
        details = {"causes": [{"message": text}]}
        status = {**status, "message": f"Internal error occurred: {text}", "details": details}
    return {"metadata": {}, **status}
