"""exec and attach over WebSocket and over SPDY/3.1.

WebSocket: each message begins with its channel: 0 stdin, 1 stdout, 2 stderr, 3 the final Status, 4 terminal sizes; v5
adds 255, by which the client closes a channel. The base64 protocols use text messages with the channel as a digit.
SPDY: one stream each for error, stdin, stdout, stderr and terminal sizes; the client opens the streams, the server
waits for all that the query requests.
Source: KEP-4006, k8s.io/streaming's remotecommand server and the recorded streams.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import Any

from kubesim.request.upgrade import ByteStream, Channel, close_websocket, websocket_messages
from kubesim.streaming.byte_streams import Empty, Input, Null, Output, Pipe
from kubesim.streaming.commands import Request, Streams, serve
from kubesim.streaming.spdy_connection import Carrier, SpdyConnection, SpdyStream

V5 = "v5.channel.k8s.io"
WEBSOCKET_PROTOCOLS = (V5, *(f"{name}channel.k8s.io" for name in ("v4.", "v4.base64.", "", "base64.")), "")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE_SIGNAL = 0, 1, 2, 3, 4, 255
GOODBYE_SECONDS = 2.0
START_SECONDS = 0.1
"""Seconds that an API server takes to reach a kubelet that starts a process.

Without this delay, messages may come before client-go up to 1.33 has created its streams, and be lost: "Unknown stream
id 1, discarding message" (kubernetes/kubernetes#131189)."""


async def run_websocket(stream: ByteStream, protocol: str, request: Request) -> None:
    """Serve one session to its end and close the connection."""
    text = "base64" in protocol
    session = _WebSocketExec(stream, protocol, text=text)
    streams = Streams(
        stdin=session.stdin,
        stdout=Channel(stream, STDOUT, text=text),
        stderr=Channel(stream, STDERR, text=text),
        size=session.size,
        resized=session.resized,
        closed=session.closed,
    )
    reader = asyncio.ensure_future(session.read())
    try:
        first = STDOUT if request.stdout else STDERR if request.stderr else ERROR
        await asyncio.sleep(START_SECONDS)
        await Channel(stream, first, text=text).write(b"")
        status = await serve(request, streams)
        if status is not None:
            session.stdin.abandon()
            await session.finish(status)
            await asyncio.wait((reader,), timeout=GOODBYE_SECONDS)
    finally:
        reader.cancel()
        stream.close()


class _WebSocketExec:
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
        gone = asyncio.ensure_future(self._gone())
        try:
            async for message in websocket_messages(self._stream):
                if self._text:
                    await self._channel(message[0] - ord("0"), base64.b64decode(message[1:]))
                else:
                    await self._channel(message[0], message[1:])
        except binascii.Error:
            pass  # as a close
        finally:
            gone.cancel()
            self.closed.set()

    async def _gone(self) -> None:
        """Detect a lost connection also while stdin is not read."""
        await self._stream.closed.wait()
        self.closed.set()

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
        error = Channel(self._stream, ERROR, text=self._text)
        if self._protocol == V5:
            await error.write(_compact(_as_apiserver(status)))
        elif self._protocol.startswith("v4."):
            await error.write(_compact(status))
        elif status["status"] != "Success":
            await error.write(status["message"].encode())
        await close_websocket(self._stream)


def _compact(status: dict[str, Any]) -> bytes:
    return json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode()


def _as_apiserver(status: dict[str, Any]) -> dict[str, Any]:
    """Return the Status of v5, which ends in the API server: it wraps the kubelet's message."""
    if status.get("reason") == "InternalError":
        text = status["message"]
        details = {"causes": [{"message": text}]}
        status = {**status, "message": f"Internal error occurred: {text}", "details": details}
    return {"metadata": {}, **status}


SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
STREAM_CREATION_SECONDS = 30.0


class _SpdyExec:
    def __init__(self, request: Request, protocol: str) -> None:
        self._wanted = {"error"}
        self._wanted |= {name for name in ("stdin", "stdout") if getattr(request, name)}
        if request.stderr and not request.tty:
            self._wanted.add("stderr")
        if request.tty and protocol in SPDY_PROTOCOLS[:2]:
            self._wanted.add("resize")
        self.streams: dict[str, SpdyStream] = {}
        self.complete = asyncio.Event()
        self.size = [80, 24]
        self.resized = asyncio.Event()

    async def on_stream(self, stream: SpdyStream) -> None:
        self.streams[stream.headers.get("streamtype", "")] = stream
        if self._wanted <= set(self.streams):
            self.complete.set()

    async def resizes(self) -> None:
        """Read the terminal sizes, a sequence of JSON objects."""
        stream = self.streams["resize"]
        decoder, text = json.JSONDecoder(), ""
        while data := await stream.read():
            text = (text + data.decode("utf-8", "replace")).lstrip()
            while text:
                try:
                    value, end = decoder.raw_decode(text)
                except ValueError:
                    break
                text = text[end:].lstrip()
                self.size[:] = int(value.get("Width", 80)), int(value.get("Height", 24))
                self.resized.set()


async def run_spdy(carrier: Carrier, protocol: str, request: Request) -> None:
    """Serve one session to its end and close the connection."""
    session = _SpdyExec(request, protocol)
    connection = SpdyConnection(carrier, session.on_stream)
    reader = asyncio.ensure_future(connection.run())
    jobs = [reader]
    try:
        await asyncio.wait_for(session.complete.wait(), STREAM_CREATION_SECONDS)
        if "resize" in session.streams:
            jobs.append(asyncio.ensure_future(session.resizes()))
        closed = asyncio.Event()
        reader.add_done_callback(lambda _: closed.set())
        carrier_gone = asyncio.ensure_future(_forward(carrier.closed, closed))
        jobs.append(carrier_gone)
        status = await serve(request, _spdy_streams(session, closed))
        if status is not None:
            await _finish_spdy(session, protocol, status)
            await connection.close()
            await asyncio.wait((reader,), timeout=GOODBYE_SECONDS)
    except TimeoutError:
        pass  # the client did not open the streams that its query announced
    finally:
        for job in jobs:
            job.cancel()
        carrier.close()


async def _forward(source: asyncio.Event, target: asyncio.Event) -> None:
    await source.wait()
    target.set()


def _spdy_streams(session: _SpdyExec, closed: asyncio.Event) -> Streams:
    def output(name: str) -> Output:
        return session.streams.get(name) or Null()

    stdin: Input = session.streams.get("stdin") or Empty()
    return Streams(stdin, output("stdout"), output("stderr"), session.size, session.resized, closed)


async def _finish_spdy(session: _SpdyExec, protocol: str, status: dict[str, Any]) -> None:
    for name in ("stdout", "stderr"):
        if name in session.streams:
            await session.streams[name].end()
    if "stdin" in session.streams:
        session.streams["stdin"].inbox.abandon()
    error = session.streams["error"]
    if protocol == SPDY_PROTOCOLS[0]:
        await error.write(json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode())
    elif status["status"] != "Success":
        await error.write(status["message"].encode())
    await error.end()
