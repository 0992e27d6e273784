"""An HTTP proxy for tests: a real server for CONNECT (RFC 9110 9.3.6), in threads of this process.

It opens connections to loopback only, or wherever `routes` leads, so names need no DNS.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_WITHIN = 60.0  # seconds for a head to arrive, and for a connection to be opened
_MAX_HEAD = 64 * 1024

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
UNAUTHORIZED = (
    b'HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="proxy"\r\n'
    b"Content-Length: 3\r\nConnection: close\r\n\r\nno\n"
)


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A request as it came; the names of fields are in lower case."""

    head: bytes
    method: str
    authority: str
    fields: Mapping[str, str]


class ConnectProxy:
    """A running proxy on a free port of 127.0.0.1; `close`, or leaving a `with`, ends it and all its connections."""

    def __init__(
        self,
        *,
        credentials: tuple[str, str] | None = None,
        routes: Mapping[str, tuple[str, int]] | None = None,
        reply: Callable[[socket.socket, ConnectRequest], bool] | None = None,
        port: int = 0,
    ) -> None:
        """`credentials`: user and password that it demands, else it answers 407. `routes`: where connections lead that
        are requested for "host:port". `reply`: called with the client's socket and the request instead of the usual
        answer; it returns whether the connection is then opened and passed on. `port`: 0 is a free one.
        """
        self.credentials = credentials
        self.routes = dict(routes or {})
        self.reply = reply
        self.requests: list[ConnectRequest] = []
        self.opened: list[str] = []  # the authorities to which connections were opened
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def authorization(self) -> bytes:
        """The value of Proxy-Authorization that it demands."""
        assert self.credentials is not None
        return b"Basic " + base64.b64encode(":".join(self.credentials).encode())

    def drop_connections(self) -> None:
        """Close all connections, but accept further ones."""
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(2)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(_WITHIN)
        with client, contextlib.suppress(OSError), self._known(client):
            request = read_request(client)
            if request is None:
                return
            self.requests.append(request)
            if self.reply is not None:
                if not self.reply(client, request):
                    return
            elif self.credentials is not None and not self._is_authorized(request):
                client.sendall(UNAUTHORIZED)
                return
            try:
                server = self._open(request.authority)
            except OSError:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                return
            with server, self._known(server):
                self.opened.append(request.authority)
                if self.reply is None:
                    client.sendall(ESTABLISHED)
                pass_on(client, server)

    def _is_authorized(self, request: ConnectRequest) -> bool:
        return request.fields.get("proxy-authorization", "").encode() == self.authorization

    def _open(self, authority: str) -> socket.socket:
        host, _, port = authority.rpartition(":")
        return socket.create_connection(self.routes.get(authority, (host.strip("[]"), int(port))), _WITHIN)

    @contextlib.contextmanager
    def _known(self, sock: socket.socket) -> Iterator[None]:
        """Let `drop_connections` find a socket; raises OSError if the proxy is closed already."""
        with self._lock:
            self._sockets.add(sock)
        try:
            if self._closed:
                raise ConnectionAbortedError
            yield
        finally:
            with self._lock:
                self._sockets.discard(sock)


def read_request(client: socket.socket) -> ConnectRequest | None:
    """Read a request's head, and nothing behind it; None if the client ends before."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        if not byte or len(head) > _MAX_HEAD:
            return None
        head += byte
    first, *lines = head.decode("latin-1").split("\r\n")
    method, authority, _ = first.split(" ")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    return ConnectRequest(bytes(head), method, authority, fields)


def pass_on(client: socket.socket, server: socket.socket) -> None:
    """Copy bytes both ways; an end of one way is passed on, and the other goes on."""
    ways = {client: server, server: client}
    client.settimeout(None)
    server.settimeout(None)
    while ways:
        readable, _, _ = select.select(list(ways), [], [])
        for sock in readable:
            data = sock.recv(65536)
            if data:
                ways[sock].sendall(data)
                continue
            with contextlib.suppress(OSError):
                ways[sock].shutdown(socket.SHUT_WR)
            del ways[sock]
