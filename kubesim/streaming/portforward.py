"""pods/portforward by SPDY/3.1, plain or in a WebSocket tunnel, and by the old WebSocket protocol.

The old protocol has two channels for each port. Source: k8s.io/streaming's portforward server, KEP-4006 and the
recorded streams.
"""

from __future__ import annotations

import asyncio
import struct

from kubesim.request.upgrade import ByteStream, Channel, close_websocket, websocket_messages
from kubesim.streaming.byte_streams import BrokenPipe, Pipe
from kubesim.streaming.containers import Container
from kubesim.streaming.pod_proxy import CLOSED_PORT, serve_port
from kubesim.streaming.spdy_connection import Carrier, SpdyConnection, SpdyStream

SPDY_PROTOCOL = "portforward.k8s.io"
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"


def _refusal(container: Container, port: int) -> bytes:
    text = (
        f"failed to connect to localhost:{port} inside namespace {container.pod_name!r}, "
        f"IPv4: dial tcp4 127.0.0.1:{port}: connect: connection refused"
    )
    return text.encode()


class _Forwarder:
    """Pairs the error and the data stream of each forwarded connection by their request id."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._waiting: dict[str, SpdyStream] = {}
        self.jobs: set[asyncio.Task[None]] = set()
        self.connection: SpdyConnection | None = None

    async def on_stream(self, stream: SpdyStream) -> None:
        ident = stream.headers.get("requestid", "")
        other = self._waiting.pop(ident, None)
        if other is None:
            self._waiting[ident] = stream
            return
        error, data = (other, stream) if other.headers.get("streamtype") == "error" else (stream, other)
        job = asyncio.ensure_future(self._forward(error, data))
        self.jobs.add(job)
        job.add_done_callback(self.jobs.discard)

    async def _forward(self, error: SpdyStream, data: SpdyStream) -> None:
        port = int(data.headers.get("port", "0"))
        if port == CLOSED_PORT:
            await error.write(_refusal(self._container, port))
        else:
            try:
                await serve_port(self._container, port, data, data)
            except BrokenPipe:
                pass
        data.inbox.abandon()
        await data.end()
        await error.end()
        if self.connection is not None:
            self.connection.forget(error)
            self.connection.forget(data)


async def run_spdy(carrier: Carrier, container: Container) -> None:
    """Serve a port-forward session until the client disconnects."""
    forwarder = _Forwarder(container)
    forwarder.connection = connection = SpdyConnection(carrier, forwarder.on_stream)
    reader = asyncio.ensure_future(connection.run())
    gone = asyncio.ensure_future(carrier.closed.wait())
    try:
        await asyncio.wait((reader, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for job in (reader, gone, *forwarder.jobs):
            job.cancel()
        carrier.close()


async def run_channels(stream: ByteStream, container: Container, ports: list[int]) -> None:
    """Serve `v4.channel.k8s.io`: channel 2i is the data of port i, 2i+1 its errors; each begins with the port."""
    pipes = [Pipe() for _ in ports]
    jobs: set[asyncio.Future[None]] = set()
    for index, port in enumerate(ports):
        for channel in (2 * index, 2 * index + 1):
            await Channel(stream, channel).write(struct.pack("<H", port))
        if port == CLOSED_PORT:
            await Channel(stream, 2 * index + 1).write(_refusal(container, port))
        else:
            jobs.add(asyncio.ensure_future(serve_port(container, port, pipes[index], Channel(stream, 2 * index))))
    jobs.add(asyncio.ensure_future(_discard_after(stream.closed, pipes)))
    try:
        await _read_channels(stream, pipes)
    finally:
        for job in jobs:
            job.cancel()
        stream.close()


async def _discard_after(closed: asyncio.Event, pipes: list[Pipe]) -> None:
    await closed.wait()
    for pipe in pipes:
        pipe.abandon()


async def _read_channels(stream: ByteStream, pipes: list[Pipe]) -> None:
    try:
        async for message in websocket_messages(stream):
            if message[0] % 2 == 0 and message[0] // 2 < len(pipes):
                await pipes[message[0] // 2].write(message[1:])
        await close_websocket(stream)
    except BrokenPipe:
        return
