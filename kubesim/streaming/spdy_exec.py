"""exec and attach over SPDY/3.1: one stream each for error, stdin, stdout, stderr and terminal sizes.

Source: k8s.io/streaming's remotecommand server and the recorded streams. The client opens the streams, the server
waits for all that the query requests.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from kubesim.container.byte_streams import Empty, Input, Null, Output
from kubesim.container.remote_command import Request, Streams, serve
from kubesim.streaming.spdy_connection import Carrier, SpdyConnection, SpdyStream

__all__ = ["PROTOCOLS", "run_session"]

PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
STREAM_CREATION_SECONDS = 30.0
GOODBYE_SECONDS = 2.0


class _Session:
    def __init__(self, request: Request, protocol: str) -> None:
        self._wanted = {"error"}
        self._wanted |= {name for name in ("stdin", "stdout") if getattr(request, name)}
        if request.stderr and not request.tty:
            self._wanted.add("stderr")
        if request.tty and protocol in PROTOCOLS[:2]:
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


async def run_session(carrier: Carrier, protocol: str, request: Request) -> None:
    """Serve one session to its end and close the connection."""
    session = _Session(request, protocol)
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
        status = await serve(request, _streams(session, closed))
        if status is not None:
            await _finish(session, protocol, status)
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


def _streams(session: _Session, closed: asyncio.Event) -> Streams:
    def output(name: str) -> Output:
        return session.streams.get(name) or Null()

    stdin: Input = session.streams.get("stdin") or Empty()
    return Streams(stdin, output("stdout"), output("stderr"), session.size, session.resized, closed)


async def _finish(session: _Session, protocol: str, status: dict[str, Any]) -> None:
    for name in ("stdout", "stderr"):
        if name in session.streams:
            await session.streams[name].end()
    if "stdin" in session.streams:
        session.streams["stdin"].inbox.abandon()
    error = session.streams["error"]
    if protocol == PROTOCOLS[0]:
        await error.write(json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode())
    elif status["status"] != "Success":
        await error.write(status["message"].encode())
    await error.end()
