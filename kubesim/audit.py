"""The audit log: every request that reached a simulated apiserver, so that tests can check what the proxy forwarded.

It is bounded; the oldest records are dropped. A record is added when the head of a request has been read, and is
completed (user, status, body) while the request is handled.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web
from cryptography import x509

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.user import User

MAX_RECORDS = 20_000
MAX_BODY_KEPT = 1 << 16


@dataclass
class Record:
    """One request. Times are Unix seconds; header names and values are as received, decoded as Latin-1."""

    sequence: int
    time: float
    endpoint: int
    connection: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    client_subject: str
    protocol: str = "HTTP/1.1"
    stream: int = 0
    """The stream of an HTTP/2 request."""
    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)
    authenticated_as: str = ""
    """The authenticated user of a request that impersonates `user`."""
    upgraded: str = ""
    """The protocol of the Upgrade header when the answer was 101."""
    status: int = 0
    fault: str = ""
    body_length: int | None = None
    """None until the whole body has been read; the body of a refused request is never read."""
    body_sha256: str = ""
    body: bytes | None = None

    def note_user(self, user: User, *, impersonated: bool = False) -> None:
        """Record the user; called again for the impersonated one."""
        if impersonated:
            self.authenticated_as = self.user
        self.user, self.uid, self.groups = user.name, user.uid, user.groups
        self.extra = {key: list(values) for key, values in user.extra.items()}

    def note_upgrade(self, protocol: str) -> None:
        """Record that the connection was upgraded."""
        self.status, self.upgraded = 101, protocol

    def as_dict(self) -> JSONDict:
        out = {key: value for key, value in vars(self).items() if key != "body"}
        out["headers"] = [list(pair) for pair in self.headers]
        out["body_base64"] = None if self.body is None else base64.b64encode(self.body).decode()
        return out


RECORD = web.RequestKey("audit record", Record)
"""The key of a request's record."""


class AuditLog:
    """The records of one cluster, over all its endpoints."""

    def __init__(self, limit: int = MAX_RECORDS) -> None:
        self._records: deque[Record] = deque(maxlen=limit)
        self._sequence = 0
        self._connections: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._connection_count = 0
        self.in_flight = 0

    @property
    def last(self) -> int:
        """The sequence number of the newest record; pass it to `since` later."""
        return self._sequence

    @property
    def connections_seen(self) -> int:
        return self._connection_count

    def begin(self, request: web.BaseRequest, endpoint: int, now: float) -> Record:
        """Record the head of a request; call `finish` at its end."""
        self._sequence += 1
        self.in_flight += 1
        stream: Any = request.transport and request.transport.get_extra_info("http2_stream")
        record = Record(
            sequence=self._sequence,
            time=now,
            endpoint=endpoint,
            connection=self._connection(request.transport if stream is None else stream.connection),
            method=request.method,
            path=request.raw_path,
            headers=[
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in request.raw_headers
                if stream is None or name != b"transfer-encoding"  # not the client's
            ],
            client_subject=_subject(request),
            protocol="HTTP/1.1" if stream is None else "HTTP/2.0",
            stream=0 if stream is None else stream.ident,
        )
        self._records.append(record)
        request[RECORD] = record
        return record

    def _connection(self, transport: object) -> int:
        if transport is None:
            return 0
        known = self._connections.get(transport)
        if known is None:
            self._connection_count += 1
            known = self._connections[transport] = self._connection_count
        return known

    async def finish(self, record: Record, request: web.BaseRequest, status: int) -> None:
        """Complete a record with the status and, if the handler has read it, the body."""
        self.in_flight -= 1
        record.status = record.status or status
        if not request.body_exists:
            record.body_length, record.body = 0, b""
        elif not request.can_read_body and request.content.exception() is None:
            body = await request.read()
            record.body_length = len(body)
            record.body_sha256 = hashlib.sha256(body).hexdigest()
            record.body = body if len(body) <= MAX_BODY_KEPT else None

    def since(self, sequence: int = 0, *, path_prefix: str = "", method: str = "") -> list[Record]:
        """Return the records after a sequence number, oldest first."""
        return [
            record
            for record in self._records
            if record.sequence > sequence
            and record.path.startswith(path_prefix)
            and (not method or record.method == method)
        ]

    def clear(self) -> None:
        """Drop all records; sequence numbers continue."""
        self._records.clear()


def note_user(request: web.BaseRequest, user: User, *, impersonated: bool = False) -> None:
    """Record a request's user, if the request has a record."""
    record = request.get(RECORD)
    if record is not None:
        record.note_user(user, impersonated=impersonated)


def peer_certificate(request: web.BaseRequest) -> bytes | None:
    """Return the client's certificate (DER), or None."""
    connection = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
    if not isinstance(connection, ssl.SSLObject):
        return None
    return connection.getpeercert(binary_form=True)


@functools.lru_cache(maxsize=1000)
def _subject_of(der: bytes) -> str:
    return x509.load_der_x509_certificate(der).subject.rfc4514_string()


def _subject(request: web.BaseRequest) -> str:
    der = peer_certificate(request)
    return _subject_of(der) if der else ""
