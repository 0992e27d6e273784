"""One `cat` in a container over a WebSocket (RFC 6455, v5.channel.k8s.io), as `kubectl exec -i` holds it for hours."""

from __future__ import annotations

import os
import struct

from tests.e2e.http_client import Client

EXEC = "/api/v1/namespaces/demo/pods/db-0/exec?command=cat&stdin=true&stdout=true"
HEADERS = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
)
_STDIN, _STDOUT, _BINARY, _FIN = 0, 1, 2, 0x80


class ExecEnded(ConnectionError):
    """The tunnel has ended, or never began."""


class Exec:
    """An open session. Raises ExecEnded or OSError where it is cut."""

    def __init__(self, client: Client, path: str = EXEC, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._client = client
        client.send("GET", path, [*HEADERS, *headers])
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._receive()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ExecEnded(head.partition(b"\r\n")[0].decode())

    def echo(self, text: bytes) -> None:
        """Write a line and wait until `cat` has given it back."""
        data = bytes([_STDIN]) + text
        mask = os.urandom(4)
        length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack("!H", len(data))
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
        self._client.socket.sendall(bytes([_FIN | _BINARY]) + length + mask + masked)
        got = b""
        while len(got) < len(text):
            opcode, payload = self._frame()
            if opcode == 8:
                raise ExecEnded(f"close frame {payload!r}")
            if opcode == _BINARY and payload[:1] == bytes([_STDOUT]):
                got += payload[1:]
        assert got == text, (got, text)

    def _frame(self) -> tuple[int, bytes]:
        opcode, length = self._take(2)
        size = length & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._take(8))
        return opcode & 15, self._take(size)

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._receive()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _receive(self) -> None:
        data = self._client.socket.recv(65536)
        if not data:
            raise ExecEnded("the connection was closed")
        self._buffer += data
