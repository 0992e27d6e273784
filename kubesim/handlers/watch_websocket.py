"""A watch over WebSocket: every event is one text frame in any subprotocol; a client must send an Origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from kubesim.request.call import Call
from kubesim.request.upgrade import ByteStream, Hijacked, response_head, take_over
from kubesim.streaming.websocket_handshake import offered_protocols, websocket_head
from mcproxy.kube.websocket_frames import CLOSE, PING, PONG, TEXT, FrameReader, WebSocketError, frame

__all__ = ["serve"]

PROTOCOLS = ("", "binary.k8s.io", "base64.binary.k8s.io")
CLOSE_NORMAL = b"\x03\xe8"


async def serve(call: Call, lines: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send the lines until they end or the client disconnects."""
    offered = offered_protocols(call.request)
    protocol = next((item for item in offered if item in PROTOCOLS), None)
    if "Origin" not in call.request.headers or (offered and protocol is None):
        take_over(call.request, response_head("403 Forbidden", [])).close()
        return Hijacked(403)
    stream = take_over(call.request, websocket_head(call.request, protocol))
    jobs = [asyncio.ensure_future(_send(stream, lines)), asyncio.ensure_future(_receive(stream))]
    try:
        await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        stream.close()
    return Hijacked()


async def _send(stream: ByteStream, lines: AsyncIterator[bytes]) -> None:
    async for line in lines:
        await stream.write(frame(TEXT, line))
    await stream.write(frame(CLOSE, CLOSE_NORMAL))


async def _receive(stream: ByteStream) -> None:
    """Answer pings; return when the client closes."""
    frames = FrameReader()
    try:
        while data := await stream.read():
            for message in frames.feed(data):
                if message.opcode == PING:
                    await stream.write(frame(PONG, message.payload))
                elif message.opcode == CLOSE:
                    await stream.write(frame(CLOSE, message.payload))
                    return
    except WebSocketError:
        stream.abort()
