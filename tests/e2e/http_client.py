"""A client that sends exactly the given bytes, over TLS; responses are read whole or as they come."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

TIMEOUT = 60.0


@dataclass(frozen=True)
class Address:
    """A TLS port on 127.0.0.1, and the server name to ask it for."""

    port: int
    context: ssl.SSLContext
    server_name: str = ""
    source: str = "127.0.0.1"
    """The address to connect from."""

    def connect(self) -> ssl.SSLSocket:
        """Open a connection. Without a server name the certificate is checked against the address."""
        plain = socket.create_connection(("127.0.0.1", self.port), TIMEOUT, (self.source, 0))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return self.context.wrap_socket(plain, server_hostname=self.server_name or "127.0.0.1")
        except BaseException:
            plain.close()
            raise


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """The value of a header that is there once; "" if it isn't there."""
        found = [value for other, value in self.headers if other.lower() == name.lower()]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else ""


@dataclass
class Client:
    """One connection, kept alive."""

    address: Address
    host: str = ""

    def __post_init__(self) -> None:
        self.socket: ssl.SSLSocket = self.address.connect()

    def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        *,
        raw: bool = False,
    ) -> Answer:
        """Send a request, read the whole answer. `raw`: the headers say the body's framing, and it has it."""
        response = self.begin(method, target, headers, body, raw=raw)
        data = response.read()
        return Answer(response.status, response.getheaders(), data)

    def begin(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        *,
        raw: bool = False,
    ) -> http.client.HTTPResponse:
        """Send a request, read the head of the answer."""
        self.send(method, target, headers, body, raw=raw)
        return self.receive(method)

    def receive(self, method: str) -> http.client.HTTPResponse:
        """Read the head of the answer to what was sent."""
        response = http.client.HTTPResponse(self.socket, method=method)
        response.begin()
        return response

    def send(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        *,
        raw: bool = False,
    ) -> None:
        """Send a request and wait for nothing."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host or f'127.0.0.1:{self.address.port}'}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if body is not None and not raw:
            lines.append(f"Content-Length: {len(body)}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    def close(self) -> None:
        self.socket.close()

    def abort(self) -> None:
        """Break the connection off, in another thread than the one that reads."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(
    address: Address,
    target: str,
    *,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    host: str = "",
) -> Answer:
    """One request on a connection of its own."""
    with Client(address, host) as client:
        return client.request(method, target, headers, body)


def lines_of(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The lines of a response as they come."""
    while line := response.readline():
        yield line
