"""WebSocket framing of both sides (RFC 6455 section 5), without a socket.

The proxy uses it as a client of API servers, for SPDY inside binary messages. Simulated clusters use it because tests
need control over each frame: empty subprotocols, the order of headers. Input is bounded.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "BINARY",
    "CLOSE",
    "PING",
    "PONG",
    "TEXT",
    "WebSocketError",
    "WebSocketFrameReader",
    "WebSocketMessage",
    "accept_key",
    "frame",
]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MAX_MESSAGE = 1 << 26
MAX_CONTROL = 125
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(Exception):
    """The peer violated the framing rules; the connection must end."""


@dataclass(frozen=True)
class WebSocketMessage:
    opcode: int
    payload: bytes


def accept_key(key: str) -> str:
    """Return the Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455 section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def frame(opcode: int, payload: bytes, mask: bytes | None = None) -> bytes:
    """Encode one unfragmented frame of a server or, with `mask` (four random bytes, 5.3), of a client."""
    size = len(payload)
    masked = 0 if mask is None else 0x80
    if size < 126:
        head = bytes((0x80 | opcode, masked | size))
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, masked | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, masked | 127, size)
    return head + payload if mask is None else head + mask + _masked(payload, mask)


def _masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


class WebSocketFrameReader:
    """Parses bytes to messages. Fragments are joined; control frames are allowed between them."""

    def __init__(self, *, masked: bool = True, limit: int = MAX_MESSAGE) -> None:
        """`masked`: the peer is a client. `limit`: maximum of bytes of a message."""
        self._masked = masked
        self._limit = limit
        self._pending = bytearray()
        self._opcode = 0
        self._parts: list[bytes] | None = None  # fragments of an incomplete message
        self._size = 0

    def feed(self, data: bytes) -> Iterator[WebSocketMessage]:
        """Return the messages that these bytes complete. Raises WebSocketError for invalid framing."""
        self._pending += data
        while (message := self._next()) is not None:
            if message.opcode >= 0:
                yield message

    def _next(self) -> WebSocketMessage | None:
        pending = self._pending
        if len(pending) < 2:
            return None
        final, opcode, size, start = bool(pending[0] & 0x80), pending[0] & 0x0F, pending[1] & 0x7F, 2
        if bool(pending[1] & 0x80) is not self._masked:
            raise WebSocketError("a client's frame must be masked, and a server's must not")
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(pending) < 2 + width:
                return None
            size, start = int.from_bytes(pending[2 : 2 + width], "big"), 2 + width
        if self._size + size > self._limit:
            raise WebSocketError("message too long")
        after_mask = start + 4 if self._masked else start
        if len(pending) < after_mask + size:
            return None
        payload = bytes(pending[after_mask : after_mask + size])
        if self._masked:
            payload = _masked(payload, bytes(pending[start:after_mask]))
        del pending[: after_mask + size]
        return self._assemble(final, opcode, payload)

    def _assemble(self, final: bool, opcode: int, payload: bytes) -> WebSocketMessage:
        if opcode >= CLOSE:
            if not final or len(payload) > MAX_CONTROL:
                raise WebSocketError("a control frame is not fragmented, and has 125 bytes at most")
            return WebSocketMessage(opcode, payload)
        if opcode > BINARY or (opcode == CONTINUATION) is (self._parts is None):
            raise WebSocketError("a frame of an unknown kind, or one in the middle of another message")
        if self._parts is None:
            self._opcode, self._parts = opcode, []
        if payload:
            self._parts.append(payload)
            self._size += len(payload)
        if not final:
            return WebSocketMessage(-1, b"")  # this is a fragment, and the rest of the message follows
        message = WebSocketMessage(self._opcode, b"".join(self._parts))
        self._parts, self._size = None, 0
        return message
