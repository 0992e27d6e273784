"""An edge and a hub that keep to nothing: blocking sockets, Python's ssl and the `h2` package, no code of mcproxy."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

INSTANCE = "ab" * 16
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: mcproxy-tunnel/1\r\n\r\n"
WITHIN = 60.0


def read_head(sock: socket.socket) -> bytes:
    """Read up to the end of a head, and nothing behind it; what has come, if the peer ends before."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        try:
            byte = sock.recv(1)
        except OSError:
            return head
        if not byte:
            return head
        head += byte
    return head


def is_over(sock: socket.socket, within: float = WITHIN) -> bool:
    """Whether the peer ends the connection in time; what it sends before is thrown away."""
    sock.settimeout(within)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def upgrade_request(tunnel: str, *fields: str, instance: str = INSTANCE, path: str = "") -> bytes:
    lines = [
        f"GET {path or f'/mcproxy.io/v1/tunnels/{tunnel}'} HTTP/1.1",
        "Host: tunnels.test",
        "Connection: Upgrade",
        "Upgrade: mcproxy-tunnel/1",
        *([f"Mcproxy-Instance: {instance}"] if instance else []),
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class Streams:
    """HTTP/2 on a socket, in a thread (`start` it): each request or answer that is whole is given to `got`.

    `got(stream, headers, body)` may send more with the methods.
    """

    def __init__(self, sock: socket.socket, *, client: bool, got: Callable[[int, dict[str, str], bytes], None]) -> None:
        self.sock = sock
        self.got = got
        self.h2 = H2Connection(H2Configuration(client_side=client, header_encoding="utf-8"))
        self.ended = threading.Event()
        self._lock = threading.RLock()
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}
        self.h2.initiate_connection()
        self.flush()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def flush(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self.sock.sendall(self.h2.data_to_send())

    def raw(self, data: bytes) -> None:
        """Send bytes past the engine."""
        with self._lock, contextlib.suppress(OSError):
            self.sock.sendall(data)

    def answer(self, stream: int, status: int, body: bytes = b"", fields: list[tuple[str, str]] | None = None) -> None:
        with self._lock, contextlib.suppress(ProtocolError):
            self.h2.send_headers(stream, [(":status", str(status)), *(fields or [])], end_stream=not body)
            self.flush()
            while body and (room := min(self.h2.local_flow_control_window(stream), 16384)):
                self.h2.send_data(stream, body[:room], end_stream=room >= len(body))
                body = body[room:]
            self.flush()

    def request(
        self, method: str, path: str, body: bytes = b"", fields: tuple[tuple[str, str], ...] = (), host: str = "edge"
    ) -> int:
        """Send a request; return its stream. Raises ProtocolError."""
        with self._lock:
            stream = self.h2.get_next_available_stream_id()
            pseudo = [(":method", method), (":authority", host)]
            if method != "CONNECT":
                pseudo += [(":scheme", "https"), (":path", path)]
            self.h2.send_headers(stream, [*pseudo, *fields], end_stream=not body)
            if body:
                self.h2.send_data(stream, body, end_stream=True)
            self.flush()
            return stream

    def _run(self) -> None:
        try:
            while data := self.sock.recv(65536):
                with self._lock:
                    for event in self.h2.receive_data(data):
                        self._take(event)
                    self.flush()
        except (OSError, ProtocolError):
            pass
        self.ended.set()

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived | ResponseReceived):
            assert event.stream_id is not None
            self._heads[event.stream_id] = dict(event.headers)  # type: ignore[arg-type]
            self._bodies[event.stream_id] = b""
        elif isinstance(event, DataReceived):
            self._bodies[event.stream_id] += event.data or b""
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.got(event.stream_id, self._heads.pop(event.stream_id, {}), self._bodies.pop(event.stream_id, b""))
        elif isinstance(event, StreamReset):
            self.got(event.stream_id, {":status": "0"}, b"")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(WITHIN)
        self.sock.close()


class EvilHub:
    """A hub that the edge dials; `controls` and `data` are the streams of what it has opened. A context manager."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.controls: list[Streams] = []
        self.data: dict[str, Streams] = {}
        self.heads: list[str] = []
        self.answers: dict[tuple[int, int], tuple[dict[str, str], bytes]] = {}
        """By the connection (`id` of its streams) and the stream."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            sock = self._context.wrap_socket(plain, server_side=True)
            head = read_head(sock).decode("latin-1")
            sock.sendall(SWITCHED)
        except OSError:
            return
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n"))
        }
        holder: list[Streams] = []
        streams = Streams(sock, client=True, got=lambda *got: self._got(holder, *got))
        holder.append(streams)
        streams.start()
        with self._lock:
            self.heads.append(head)
            if "mcproxy-ticket" in fields:
                self.data[fields["mcproxy-ticket"]] = streams
            else:
                self.controls.append(streams)

    def _got(self, holder: list[Streams], stream: int, head: dict[str, str], body: bytes) -> None:
        self.answers[id(holder[0]), stream] = head, body

    def outcome(self, streams: Streams, stream: int) -> tuple[int, bytes]:
        """Wait for an answer; status 0: the stream was reset, or the connection has ended."""
        until = time.monotonic() + WITHIN
        while (id(streams), stream) not in self.answers:
            if streams.ended.is_set():
                return 0, b""
            assert time.monotonic() < until, f"no answer on stream {stream}"
            time.sleep(0.005)
        head, body = self.answers[id(streams), stream]
        return int(head[":status"]), body

    def ask(self, streams: Streams, method: str, path: str, body: Any = b"", **settings: Any) -> tuple[int, bytes]:
        """Send a request and wait for its answer; `body` may be of JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.outcome(streams, streams.request(method, path, data, **settings))

    def __enter__(self) -> EvilHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for streams in (*self.controls, *self.data.values()):
            streams.close()
        self._thread.join(WITHIN)
