"""A distant site: a server that answers an upgrade with a stream of bytes, and a relay that delays.

usage: python -P tunnel_stream.py serve PORT CERTIFICATE KEY BYTES
       python -P tunnel_stream.py relay PORT TARGET SECONDS RATE

The server closes the connection after so many bytes. The relay passes everything on after so many seconds, in each
direction, so a round trip takes twice as long; and of each connection so many bytes a second.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import deque

CHUNK = 256 * 1024
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
_IN_FLIGHT = 64 * 1024 * 1024  # bytes that the distance holds: those of 5 Gbit/s and a round trip of 0.1 s


async def serve(port: int, certificate: str, key: str, size: int) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"\nupgrade:" not in head.lower():
                    writer.write(_OK)
                    continue
                writer.write(UPGRADED)
                chunk, left = bytes(CHUNK), size
                while left:
                    writer.write(chunk[: min(left, CHUNK)])
                    left -= min(left, CHUNK)
                    await writer.drain()
                break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


async def relay(port: int, target: int, delay: float, rate: float) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_copy(reader, outer, delay, rate), _copy(inner, writer, delay, rate))

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, rate: float) -> None:
    """Write what comes, each piece `delay` seconds later."""
    loop = asyncio.get_running_loop()
    pieces: deque[tuple[float, bytes]] = deque()
    held = 0
    changed = asyncio.Event()

    async def write() -> None:
        nonlocal held
        while True:
            while not pieces:
                changed.clear()
                await changed.wait()
            due, data = pieces[0]
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            pieces.popleft()
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            held -= len(data)
            await writer.drain()

    async def read() -> None:
        nonlocal held
        sent = loop.time()  # when the line is free again
        while True:
            while held > _IN_FLIGHT:
                await asyncio.sleep(0.001)
            data = await reader.read(CHUNK)
            held += len(data)
            sent = max(sent, loop.time()) + len(data) / rate
            pieces.append((sent + delay, data))
            changed.set()
            if not data:
                return

    try:
        await asyncio.gather(read(), write())
    except ConnectionError:
        writer.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])))
    else:
        asyncio.run(relay(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
