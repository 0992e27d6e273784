"""WebSocket framing, server side (RFC 6455 section 5), without a socket.

Used instead of aiohttp's WebSocket because tests need control over each frame: empty subprotocols, the order of
headers, SPDY inside binary messages.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "TEXT", "FrameReader", "Message", "WebSocketError", "accept_key", "frame"]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MAX_MESSAGE = 1 << 26
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(Exception):
    """The client violated the framing rules; the connection must end."""


@dataclass(frozen=True)
class Message:
    opcode: int
    payload: bytes


def accept_key(key: str) -> str:
    """Return the Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455 section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def frame(opcode: int, payload: bytes) -> bytes:
    """Encode one unfragmented, unmasked frame."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 1 << 16:
        return struct.pack(">BBH", 0x80 | opcode, 126, size) + payload
    return struct.pack(">BBQ", 0x80 | opcode, 127, size) + payload


def _unmask(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


class FrameReader:
    """A parser from bytes to messages; fragments are joined, control frames may come between them."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._opcode = 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[Message]:
        """Return the messages that these bytes complete. Raises WebSocketError for invalid framing."""
        self._pending += data
        while (message := self._next()) is not None:
            if message.opcode >= 0:
                yield message

    def _next(self) -> Message | None:
        pending = self._pending
        if len(pending) < 2:
            return None
        final, opcode, size, start = bool(pending[0] & 0x80), pending[0] & 0x0F, pending[1] & 0x7F, 2
        if not pending[1] & 0x80:
            raise WebSocketError("a client's frame must be masked")
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(pending) < 2 + width:
                return None
            size, start = int.from_bytes(pending[2 : 2 + width], "big"), 2 + width
        if size > MAX_MESSAGE:
            raise WebSocketError("message too long")
        if len(pending) < start + 4 + size:
            return None
        payload = _unmask(bytes(pending[start + 4 : start + 4 + size]), bytes(pending[start : start + 4]))
        del pending[: start + 4 + size]
        return self._assemble(final, opcode, payload)

    def _assemble(self, final: bool, opcode: int, payload: bytes) -> Message:
        if opcode >= CLOSE:
            return Message(opcode, payload)
        if opcode != CONTINUATION:
            self._opcode = opcode
        self._parts.append(payload)
        if not final:
            return Message(-1, b"")  # a fragment: the rest follows
        message = Message(self._opcode, b"".join(self._parts))
        self._parts = []
        return message
