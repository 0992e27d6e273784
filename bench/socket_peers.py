"""Clients and API servers on socket pairs, for `bench instructions`, that do as little as they can.

They run in the process whose instructions are counted, while nothing is counted. Clients send heads that were encoded
before (`Traffic`); API servers look only for where a request ends and whether it is a TokenReview.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Protocol

_RECEIVED = 1 << 20
"""Bytes that are received at once: what a peer gets in one turn is less."""
_BUFFER = 1 << 20
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE = 3, 4
_WINDOW = 2**30


class PeerError(Exception):
    """The service sent something else than what is expected of it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What goes over the sockets. Header blocks are HPACK: `first_block` fills the table, the others only use it."""

    requests: list[bytes]  # HTTP/1.1, one for each path
    first_block: bytes
    blocks: list[bytes]
    response: bytes  # HTTP/1.1
    first_response_block: bytes
    response_block: bytes
    body: bytes
    token_review: bytes  # the body that answers a TokenReview
    access_review: bytes  # the body that answers a SelfSubjectAccessReview

    def review(self, request: bytes) -> bytes:
        """Return the body that answers a review; `request` has its body."""
        return self.access_review if b'"SelfSubjectAccessReview"' in request else self.token_review


class APIServer(Protocol):
    """One connection of an API server."""

    def serve(self) -> int:
        """Answer what has been received; return how many objects were asked for."""
        ...


class Client(Protocol):
    """One connection of a client."""

    def ask(self) -> int:
        """Send requests; return how many."""
        ...

    def received(self) -> bytes:
        """Return what has come so far, and nothing twice."""
        ...

    def check(self) -> None:
        """Receive the responses; raises PeerError unless each request has its object."""


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that do not block."""
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return pair


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(_RECEIVED)
    except BlockingIOError:
        return b""


def _send(sock: socket.socket, data: bytes) -> None:
    if sock.send(data) != len(data):
        raise PeerError("a socket pair is full")


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class HTTP1APIServer:
    """Answers one request at a time."""

    def __init__(self, sock: socket.socket, traffic: Traffic) -> None:
        self._sock = sock
        self._traffic = traffic

    def serve(self) -> int:
        data = _receive(self._sock)
        if data.startswith(b"GET /api/"):
            _send(self._sock, self._traffic.response)
            return 1
        if data:
            is_review = data.startswith(b"POST ")
            status, body = (b"201 Created", self._traffic.review(data)) if is_review else (b"200 OK", b"ok")
            head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
            _send(self._sock, head + body)
        return 0


class HTTP2APIServer:
    """Answers any number of streams; a request with a body is a review."""

    def __init__(self, sock: socket.socket, traffic: Traffic) -> None:
        self._sock = sock
        self._traffic = traffic
        self._rest = b""
        self._has_preface = False
        self._block = traffic.first_response_block
        self._bodies: dict[int, bytes] = {}
        settings = struct.pack(">HIHI", _MAX_CONCURRENT_STREAMS, 250, _INITIAL_WINDOW_SIZE, 65536)
        _send(sock, _frame(_SETTINGS, 0, 0, settings))

    def serve(self) -> int:
        data = self._rest + _receive(self._sock)
        if not self._has_preface and data:
            if not data.startswith(_PREFACE):
                raise PeerError(f"the service begins HTTP/2 with {data[:24]!r}")
            self._has_preface = True
            data = data[len(_PREFACE) :]
        place, served, answers = 0, 0, []
        while place + 9 <= len(data):
            end = place + 9 + int.from_bytes(data[place : place + 3], "big")
            if end > len(data):
                break
            kind, flags = data[place + 3], data[place + 4]
            if kind == _HEADERS and flags & _END_STREAM:
                answers.append(self._object(int.from_bytes(data[place + 5 : place + 9], "big")))
                served += 1
            elif kind == _DATA:  # mcproxy ends a body with an empty frame
                stream = int.from_bytes(data[place + 5 : place + 9], "big")
                self._bodies[stream] = body = self._bodies.get(stream, b"") + data[place + 9 : end]
                if flags & _END_STREAM:
                    answers.append(self._review(stream, body))
                    del self._bodies[stream]
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                answers.append(_frame(kind, _ACK, 0, data[place + 9 : end] if kind == _PING else b""))
            elif kind in (_RST_STREAM, _GOAWAY):
                raise PeerError(f"the service sent a frame of type {kind}: {data[place:end]!r}")
            place = end
        self._rest = data[place:]
        if answers:
            _send(self._sock, b"".join(answers))
        return served

    def _object(self, stream: int) -> bytes:
        block, self._block = self._block, self._traffic.response_block
        return _frame(_HEADERS, _END_HEADERS, stream, block) + _frame(_DATA, _END_STREAM, stream, self._traffic.body)

    def _review(self, stream: int, request: bytes) -> bytes:
        # ":status: 200" of the static table, and content-type (31) as a literal that is not indexed (RFC 7541).
        block = b"\x88\x0f\x10\x10application/json"
        return _frame(_HEADERS, _END_HEADERS, stream, block) + _frame(
            _DATA, _END_STREAM, stream, self._traffic.review(request)
        )


class HTTP1Client:
    """Sends one request at a time, for one path after the other."""

    def __init__(self, sock: socket.socket, traffic: Traffic, start: int) -> None:
        """`start` is the number of its first path."""
        self._sock = sock
        self._traffic = traffic
        self._next = start

    def ask(self) -> int:
        requests = self._traffic.requests
        _send(self._sock, requests[self._next % len(requests)])
        self._next += 1
        return 1

    def received(self) -> bytes:
        return _receive(self._sock)

    def check(self) -> None:
        data = self.received()
        if not (data.startswith(b"HTTP/1.1 200 ") and data.endswith(self._traffic.body)):
            raise PeerError(f"a client got {data[:300]!r}")


class HTTP2Client:
    """Sends a request on each of some streams at once."""

    def __init__(self, sock: socket.socket, traffic: Traffic, start: int, streams: int) -> None:
        """`start` is the number of its first path."""
        self._sock = sock
        self._traffic = traffic
        self._next = start
        self._streams = streams
        self._stream = 1
        self._asked = 0
        settings = struct.pack(">HIHI", _MAX_CONCURRENT_STREAMS, 100, _INITIAL_WINDOW_SIZE, _WINDOW)
        window = _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW))
        _send(sock, _PREFACE + _frame(_SETTINGS, 0, 0, settings) + window + _frame(_SETTINGS, _ACK, 0))

    def ask(self) -> int:
        """The very first time it is one request, which fills the table of its encoder."""
        blocks, frames = self._traffic.blocks, []
        if self._stream == 1:
            frames.append(self._headers(self._traffic.first_block))
        else:
            for _ in range(self._streams):
                frames.append(self._headers(blocks[self._next % len(blocks)]))
                self._next += 1
        _send(self._sock, b"".join(frames))
        self._asked = len(frames)
        return len(frames)

    def _headers(self, block: bytes) -> bytes:
        stream, self._stream = self._stream, self._stream + 2
        return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, block)

    def received(self) -> bytes:
        return _receive(self._sock)

    def check(self) -> None:
        data = self.received()
        found = data.count(self._traffic.body)
        if found != self._asked:
            raise PeerError(f"a client got {found} objects for {self._asked} requests: {data[:300]!r}")
