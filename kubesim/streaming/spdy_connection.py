"""The streams of one SPDY/3.1 connection, over TCP or inside a WebSocket tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from kubesim.request.upgrade import ByteStream, websocket_messages
from kubesim.streaming.byte_streams import Pipe
from mcproxy.kube.spdy_frames import Data, GoAway, Ping, RstStream, SpdyError, SpdySession, SynStream
from mcproxy.kube.websocket_frames import BINARY, CLOSE, frame

CHUNK = 1 << 15


class Carrier(Protocol):
    """The connection that carries SPDY frames."""

    closed: asyncio.Event

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class WebSocketTunnel:
    """SPDY inside binary WebSocket messages (KEP-4006, `SPDY/3.1+portforward.k8s.io`)."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._messages = websocket_messages(stream)
        self.closed = stream.closed

    async def read(self) -> bytes:
        return await anext(self._messages, b"")

    async def write(self, data: bytes) -> None:
        await self._stream.write(frame(BINARY, data))

    def close(self) -> None:
        if not self._stream.closing:
            self._stream.transport.write(frame(CLOSE, b"\x03\xe8"))
        self._stream.close()


class SpdyStream:
    """One stream: an input (`read`) and an output (`write`, `end`)."""

    def __init__(self, connection: SpdyConnection, number: int, headers: dict[str, str]) -> None:
        self._connection = connection
        self.number = number
        self.headers = headers
        self.inbox = Pipe()
        self.reset = asyncio.Event()
        self._ended = False

    async def read(self) -> bytes:
        return await self.inbox.read()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), CHUNK):
            if self._ended or self.reset.is_set():
                return
            await self._connection.send(SpdySession.data(self.number, data[start : start + CHUNK]))

    async def end(self) -> None:
        """Half-close the stream from the server's side."""
        if not self._ended and not self.reset.is_set():
            self._ended = True
            await self._connection.send(SpdySession.data(self.number, b"", fin=True))


class SpdyConnection:
    """Reads frames, answers pings and passes new streams to `on_stream`."""

    def __init__(self, carrier: Carrier, on_stream: Callable[[SpdyStream], Awaitable[None]]) -> None:
        self._carrier = carrier
        self._session = SpdySession()
        self._on_stream = on_stream
        self._streams: dict[int, SpdyStream] = {}
        self._last = 0

    async def send(self, data: bytes) -> None:
        await self._carrier.write(data)

    async def run(self) -> None:
        """Serve until the client disconnects or violates the protocol; the input of every stream then ends."""
        try:
            while data := await self._carrier.read():
                for event in self._session.feed(data):
                    if isinstance(event, GoAway):
                        return
                    await self._event(event)
        except SpdyError:
            return
        finally:
            for stream in self._streams.values():
                stream.reset.set()
                stream.inbox.end()

    async def _event(self, event: object) -> None:
        if isinstance(event, SynStream):
            stream = self._streams[event.stream] = SpdyStream(self, event.stream, event.headers)
            self._last = event.stream
            await self.send(self._session.syn_reply(event.stream))
            if event.fin:
                await stream.inbox.close()
            await self._on_stream(stream)
        elif isinstance(event, Ping):
            await self.send(SpdySession.ping(event.ident))
        elif isinstance(event, Data) and event.stream in self._streams:
            await self._data(self._streams[event.stream], event)
        elif isinstance(event, RstStream) and event.stream in self._streams:
            stream = self._streams.pop(event.stream)
            stream.reset.set()
            stream.inbox.end()

    async def _data(self, stream: SpdyStream, event: Data) -> None:
        if event.payload and not stream.inbox.abandoned:
            await stream.inbox.write(event.payload)
        if event.fin:
            await stream.inbox.close()

    def forget(self, stream: SpdyStream) -> None:
        """Remove a stream that is closed on both sides."""
        self._streams.pop(stream.number, None)

    async def close(self) -> None:
        """Send GOAWAY and close."""
        await self.send(SpdySession.go_away(self._last))
        self._carrier.close()
