"""A client of HTTP/2 for `bench http2-floods`: one GET after the other on a connection, and frames of any kind.

It sends literal fields without Huffman coding and nothing for the peer's table, so it needs no HPACK encoder; of a
response it reads only whether `:status` is 200 (RFC 7541, static index 8).
"""

from __future__ import annotations

import asyncio
import ssl
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
_STATUS_200 = 0x88
_TIMEOUT = 10.0


def frame(type_: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame (RFC 9113, 4.1)."""
    return struct.pack(">IBI", len(payload) << 8 | type_, flags, stream) + payload


def get_block(path: str) -> bytes:
    """Return the header block of a GET of localhost; `path` is shorter than 127 bytes."""
    return b"\x82\x87\x01\x09localhost\x04%c%b" % (len(path), path.encode())


def is_ok(block: bytes) -> bool:
    """Return whether a response's header block says 200, table size updates before it or not."""
    return block.lstrip(bytes(range(0x20, 0x40)))[:1] == bytes([_STATUS_200])


class Connection:
    """A connection to localhost:`port` from the address `source`, opened when it is needed."""

    def __init__(self, port: int, context: ssl.SSLContext, source: str) -> None:
        """`context` offers h2 alone."""
        self._port, self._context, self._source = port, context, source
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._next = 1

    async def open(self) -> asyncio.StreamWriter | None:
        """Connect and send the preface; None when that fails."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                self._streams = await asyncio.open_connection(
                    "127.0.0.1",
                    self._port,
                    ssl=self._context,
                    server_hostname="localhost",
                    local_addr=(self._source, 0),
                )
        except OSError:  # TimeoutError is one
            return None
        _, writer = self._streams
        self._next = 1
        writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
        return writer

    async def ask(self, path: str) -> bool:
        """Send a GET and read the answer; return whether it was 200. After anything else the connection is closed."""
        if self._streams is None and await self.open() is None:
            return False
        assert self._streams is not None
        _, writer = self._streams
        stream, self._next = self._next, self._next + 2
        try:
            async with asyncio.timeout(_TIMEOUT):
                writer.write(frame(HEADERS, END_STREAM | END_HEADERS, stream, get_block(path)))
                good = await self._answer(stream)
        except (OSError, asyncio.IncompleteReadError):
            good = False
        if not good:
            self.close()
        return good

    async def _answer(self, stream: int) -> bool:
        good = False
        while True:
            type_, flags, of, payload = await self.read()
            if type_ == GOAWAY or (type_ == RST_STREAM and of == stream):
                return False
            if type_ == HEADERS and of == stream:
                good = is_ok(payload)
            if of == stream and type_ in (DATA, HEADERS) and flags & END_STREAM:
                return good

    async def read(self) -> tuple[int, int, int, bytes]:
        """Read a frame: type, flags, stream, payload. SETTINGS and PING are answered before they are returned."""
        assert self._streams is not None
        reader, writer = self._streams
        size, flags, stream = struct.unpack(">IBI", await reader.readexactly(9))
        payload = await reader.readexactly(size >> 8)
        type_ = size & 255
        if type_ in (SETTINGS, PING) and not flags & ACK:
            writer.write(frame(type_, ACK, 0, payload if type_ == PING else b""))
        return type_, flags, stream, payload

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
