"""The harness's own client: checks a subject before it is measured, and holds watches and log streams.

It verifies the subject's certificate and asks for TLS 1.3 with the one cipher that the whole run uses, and fails in
words when a subject does not give it: figures of different ciphers cannot be compared.
"""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass

from bench import configs
from bench.lab import Lab, Running
from bench.origin import LOG_PATH, WATCH_PATH, event
from bench.processes import Failed

_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


def client_context(lab: Lab) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(lab.identity.authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Open a verified TLS connection to localhost:`port`; OSError (ssl.SSLError) when that fails."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain, server_hostname="localhost")


def send_get(connection: ssl.SSLSocket, path: str, fields: str = "") -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\n{fields}\r\n".encode())


def get(port: int, context: ssl.SSLContext, path: str, fields: str = "") -> Answer:
    """Ask once on a connection of its own and read the answer, its length given or chunked.

    `fields` are lines to add to the request, each with its CRLF.
    """
    with connect(port, context) as connection:
        send_get(connection, path, fields)
        received = b""
        while (answer := parse_answer(received)) is None:
            more = connection.recv(1 << 18)
            if not more:
                raise Failed(f"the connection ended within the answer to {path}: {received[:200]!r}")
            received += more
        return answer


def parse_answer(received: bytes) -> Answer | None:
    """Return the whole answer in `received`, None while a part is missing."""
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return None
    status = int(head.split(b" ", 2)[1])
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    if fields.get(b"transfer-encoding", b"").strip() == b"chunked":
        decoded = unchunk(body)
        return None if decoded is None else Answer(status, decoded)
    length = int(fields.get(b"content-length", b"0"))
    return Answer(status, body) if len(body) >= length else None


def unchunk(body: bytes) -> bytes | None:
    """Decode chunked coding (RFC 9112, 7.1) without trailers; None while the last chunk is missing."""
    pieces: list[bytes] = []
    offset = 0
    while (end := body.find(b"\r\n", offset)) >= 0:
        size = int(body[offset:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        offset = end + 2 + size + 2
    return None


def check_subject(
    lab: Lab, subject: Running, context: ssl.SSLContext | None = None, fields: str = "", *, impersonated: str = ""
) -> None:
    """Raise Failed unless the object comes whole and both sides speak the run's TLS version and cipher.

    `impersonated` is the user that the upstream must see in Impersonate-User. `context` and `fields` are the client's,
    if they are special.
    """
    context = context or client_context(lab)
    front = _negotiated(subject.port)
    answer = get(subject.port, context, configs.OBJECT_PATH, fields)
    if answer != Answer(200, configs.object_body()):
        raise Failed(f"{subject.name} answers {answer.status} with {answer.body[:200]!r} instead of the object")
    back = get(subject.port, context, configs.TLS_PATH, fields).body.decode()
    wanted = f"TLSv1.3 {configs.CIPHER}"
    if (front, back) != (wanted, wanted):
        raise Failed(f"{subject.name} speaks {front} to clients and {back} to the upstream, not {wanted}")
    user = get(subject.port, context, configs.WHO_PATH, fields).body.decode()
    if user != impersonated:
        raise Failed(f"{subject.name} impersonates {user!r} towards the upstream, not {impersonated!r}")


def _negotiated(port: int) -> str:
    """Return TLS version and cipher of a connection to localhost:`port` that offers `configs.CIPHER` alone.

    wrk offers no other either; a subject that prefers another one (Go does) speaks this one then.
    """
    from OpenSSL import SSL

    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_tls13_ciphersuites(configs.CIPHER.encode())
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT) as plain:
        plain.setblocking(True)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_TIMEOUT), 0))
        connection = SSL.Connection(context, plain)
        connection.set_tlsext_host_name(b"localhost")
        connection.set_connect_state()
        try:
            connection.do_handshake()
        except SSL.Error as error:
            raise Failed(f"port {port} does not speak TLS 1.3 with {configs.CIPHER}: {error}") from None
        return f"{connection.get_protocol_version_name()} {connection.get_cipher_name()}"


def open_watch(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Begin a watch and return its connection after the first event has arrived whole."""
    connection = connect(port, context)
    send_get(connection, WATCH_PATH)
    wanted, received = event(), b""
    while wanted not in received:
        more = connection.recv(65536)
        if not more:
            raise Failed(f"a watch ended before its first event: {received[:200]!r}")
        received += more
    return connection


def is_open(connection: ssl.SSLSocket) -> bool:
    """Return whether an idle connection is still there."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False


def log_path(size: int) -> str:
    return f"{LOG_PATH}?follow=true&limitBytes={size}"
