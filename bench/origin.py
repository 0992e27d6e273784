"""The upstream of watches, log streams and reviews: a small TLS server with one thread per connection.

A watch gets one event and is then left open without a thread, so that a thousand cost this process little; a log is
written as fast as it is read, in chunks of 32 KiB as a kube-apiserver copies them. A TokenReview accepts tokens that
begin with `legitimate`, a SubjectAccessReview allows everything, both after REVIEW_SECONDS, as a webhook behind a
cluster would take; any other path below /api gives a small object.

usage: python -P origin.py PORT CERTIFICATE KEY
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

WATCH_PATH = "/api/v1/namespaces/default/configmaps?watch=true"
REVIEW_SECONDS = 0.2
LOG_PATH = "/api/v1/namespaces/default/pods/bench/log"
_LINE = b"2026-01-01T00:00:00.000000000Z stdout F the quick brown fox jumps over the lazy dog, and again: 0123456789\n"
CHUNK = (_LINE * (32768 // len(_LINE) + 1))[:32768]
_BATCH = 8  # chunks in one send
_ANSWER = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"


def event() -> bytes:
    """Return the one watch event, about 1 KB, with its newline."""
    metadata = {"name": "bench", "namespace": "default", "resourceVersion": "1"}
    item = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"text": "x" * 850}}
    return json.dumps({"type": "ADDED", "object": item}).encode() + b"\n"


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of RFC 9112, section 7.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Origin:
    """Accepts for ever; keeps the sockets of the watches that it has begun."""

    def __init__(self, port: int, certificate: str, key: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._socket = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._watches: list[ssl.SSLSocket] = []

    def serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, plain: socket.socket) -> None:
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._context.wrap_socket(plain, server_side=True)
            while (request := _read_request(connection)) is not None:
                if self._answer(connection, *request):
                    return
            connection.close()
        except OSError:
            plain.close()

    def _answer(self, connection: ssl.SSLSocket, target: str, body: bytes) -> bool:
        """Answer one request; True when the connection now belongs to a watch."""
        url = urlsplit(target)
        query = parse_qs(url.query)
        if "watch" in query:
            self._watches.append(connection)
            connection.sendall(_STREAM % b"application/json" + chunk(event()))
            return True
        if url.path == LOG_PATH:
            connection.sendall(_STREAM % b"text/plain")
            _send_log(connection, int(query["limitBytes"][0]))
        elif url.path == "/readyz":
            connection.sendall(_ANSWER % (b"200 OK", b"text/plain", 2, b"ok"))
        elif url.path.endswith("reviews"):
            time.sleep(REVIEW_SECONDS)
            _send_json(connection, b"201 Created", reviewed(json.loads(body)))
        elif url.path.startswith("/api/"):
            _send_json(connection, b"200 OK", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "bench"}})
        else:
            connection.sendall(_ANSWER % (b"404 Not Found", b"text/plain", 0, b""))
        return False


def reviewed(review: dict[str, Any]) -> dict[str, Any]:
    """Return a TokenReview or SubjectAccessReview with its status."""
    if review["kind"] == "SubjectAccessReview":
        return {**review, "status": {"allowed": True}}
    token = review["spec"]["token"]
    if not token.startswith("legitimate"):
        return {**review, "status": {"authenticated": False}}
    return {
        **review,
        "status": {"authenticated": True, "user": {"username": token.partition(".")[0], "groups": ["dev"]}},
    }


def _send_json(connection: ssl.SSLSocket, status: bytes, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    connection.sendall(_ANSWER % (status, b"application/json", len(body), body))


def _send_log(connection: ssl.SSLSocket, size: int) -> None:
    whole, rest = divmod(size, len(CHUNK))
    batch = chunk(CHUNK) * _BATCH
    for _ in range(whole // _BATCH):
        connection.sendall(batch)
    connection.sendall(chunk(CHUNK) * (whole % _BATCH) + (chunk(CHUNK[:rest]) if rest else b"") + b"0\r\n\r\n")


def _read_request(connection: ssl.SSLSocket) -> tuple[str, bytes] | None:
    """Read one request, with a body if it has Content-Length; return target and body, None at the connection's end."""
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        if end and len(body) >= (length := _content_length(head)):
            return head.split(b" ", 2)[1].decode(), body[:length]
        more = connection.recv(65536)
        if not more:
            return None
        received += more


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


if __name__ == "__main__":
    Origin(int(sys.argv[1]), sys.argv[2], sys.argv[3]).serve()
