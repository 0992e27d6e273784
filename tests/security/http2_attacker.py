"""A client of a whole proxy that sends frames as it likes (`tests.http.h2.raw`), with a certificate or without."""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.config import model
from mcproxy.config.model import HTTPProtocol
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.tls_contexts import client_context
from tests.http.h2 import raw
from tests.http.h2.origin import Peer
from tests.http.h2.raw import END_HEADERS, ENDS, Field
from tests.identity.certificates import Held
from tests.proxy.harness import CA, NAME, Harness, UpstreamEnd, listener
from tests.security.authenticating_proxy import client_pair

H2_LISTENER: model.ListenerConfig = listener(protocols=(HTTPProtocol.HTTP2, HTTPProtocol.HTTP1))
POD = b"/api/v1/namespaces/a/pods/b"


class Attacker(Peer):
    """One connection; `ask` sends a request without a body and returns its stream."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 1

    def begins(self) -> int:
        stream = self._next
        self._next += 2
        return stream

    def ask(self, *fields: Field, flags: int = ENDS, **pseudo: bytes | None) -> int:
        pseudo.setdefault("path", POD)
        return self.ask_block(raw.request(*fields, **pseudo), flags)

    def ask_block(self, block: bytes, flags: int = ENDS) -> int:
        """`block` may be longer than a frame."""
        stream = self.begins()
        pieces = [block[at : at + 16384] for at in range(0, len(block), 16384)] or [b""]
        frames = [raw.headers(stream, pieces[0], flags & ~END_HEADERS)]
        frames += [raw.continuation(stream, piece, 0) for piece in pieces[1:]]
        last = frames[-1]
        frames[-1] = last[:4] + bytes((last[4] | flags & END_HEADERS,)) + last[5:]
        self.send(b"".join(frames))
        return stream

    def over(self, stream: int) -> bool:
        return self.seen.ended(stream) or self.seen.reset(stream) is not None or self.lost is not None

    async def outcome(self, stream: int) -> tuple[int, bytes]:
        """Status and body; (-code, b"") of a stream that was reset."""
        await self.until(lambda: self.over(stream), 120.0)
        code = self.seen.reset(stream)
        if code is not None and not self.seen.ended(stream):
            return -code, b""
        assert self.seen.ended(stream), self.lost
        return self.seen.status(stream), self.seen.body(stream)

    async def answer(self, *fields: Field, **pseudo: bytes | None) -> tuple[int, bytes]:
        pseudo.setdefault("path", POD)
        return await self.outcome(self.ask_block(raw.request(*fields, **pseudo)))


async def attacker(
    proxy: Harness, server_name: str = NAME, *, certificate: Held | None = None, settings: bytes = raw.settings()
) -> Attacker:
    """A connection over HTTP/2; with server_name "127.0.0.1" it sends no name."""
    client = Attacker()
    context = client_context(CA.cert_pem.bytes(), client_pair(certificate), verify=False)
    tls = ClientTLS(context, server_name, verify=False, sessions=None)
    await connect(proxy.reactor, "127.0.0.1", proxy.port(), client, tls=tls, timeout=60.0, alpn=(b"h2",))
    proxy.closing(client.close)
    client.send(raw.PREFACE + settings + raw.SETTINGS_ACK)
    return client


# -- what an HTTP/1.1 upstream has received, read by a reader that is not ours, as strictly as it can be -------------


class HTTP1Request:
    """One request: nothing of it may be ambiguous. Raises AssertionError."""

    def __init__(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        assert not any(octet in head.replace(b"\r\n", b"") for octet in b"\r\n\0"), head
        self.method, self.target, version = lines[0].split(b" ")
        assert version == b"HTTP/1.1", head
        assert self.target[:1] in b"/*", head
        self.fields: list[Field] = []
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            assert colon, line
            assert name, line
            assert all(octet in b"!#$%&'*+-.^_`|~" or chr(octet).isalnum() for octet in name), line
            self.fields.append((name.lower(), value.strip(b" \t")))
        for once in (b"host", b"content-length", b"transfer-encoding", b"authorization", b"connection"):
            assert len(self.all(once)) <= 1, head
        assert len(self.all(b"host")) == 1, head
        assert not (self.all(b"content-length") and self.all(b"transfer-encoding")), head

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]

    def one(self, name: bytes) -> bytes | None:
        values = self.all(name)
        assert len(values) <= 1, (name, values)
        return values[0] if values else None


def http1_requests(received: bytes) -> list[tuple[HTTP1Request, bytes, list[bytes]]]:
    """Return all requests in what an upstream has received: head, body, lines of the trailers. Nothing may be left."""
    found = []
    while received:
        head, separator, received = received.partition(b"\r\n\r\n")
        assert separator, head
        one = HTTP1Request(head)
        body = b""
        trailers: list[bytes] = []
        if one.all(b"transfer-encoding"):
            assert one.one(b"transfer-encoding") == b"chunked"
            body, trailers, received = _chunked(received)
        elif one.all(b"content-length"):
            size = int(one.one(b"content-length") or b"")
            body, received = received[:size], received[size:]
            assert len(body) == size
        found.append((one, body, trailers))
    return found


def _chunked(rest: bytes) -> tuple[bytes, list[bytes], bytes]:
    body = b""
    while True:
        line, separator, rest = rest.partition(b"\r\n")
        assert separator
        size = int(line, 16)
        if not size:
            break
        body += rest[:size]
        assert rest[size : size + 2] == b"\r\n"
        rest = rest[size + 2 :]
    trailers: list[bytes] = []
    while True:
        line, separator, rest = rest.partition(b"\r\n")
        assert separator
        if not line:
            return body, trailers, rest
        trailers.append(line)


def answering_bodies(response: bytes) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers each request, also those with bodies, once it has come whole."""

    def reply(end: UpstreamEnd) -> None:
        try:
            count = len(http1_requests(end.received))
        except (AssertionError, ValueError):
            return  # not whole yet, or wrong: the test looks at it
        done, end.answered = end.answered, count
        end.send(response * (count - done))

    return reply
