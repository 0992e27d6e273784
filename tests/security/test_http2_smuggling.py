"""What HTTP/2 can carry and HTTP/1.1 cannot: an upstream of either version sees one well-formed request, or none.

The HTTP/1.1 upstream's bytes are read by a strict reader of the tests' own, the HTTP/2 upstream is the `h2` package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from mcproxy.config import model
from tests.http.h2 import raw
from tests.http.h2.raw import END_HEADERS, END_STREAM, PROTOCOL_ERROR, data, headers, literal, request
from tests.proxy.harness import NAME, OK, Harness, Upstream, cluster, config
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream
from tests.security.http2_attacker import H2_LISTENER, POD, Attacker, answering_bodies, attacker, http1_requests

BODY = b"the body\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: k8s.test\r\n\r\n"
ENDS = raw.ENDS


class Two(Harness):
    """k8s.test goes to an HTTP/1.1 upstream, other.test to an HTTP/2 upstream; both answer everything."""

    h1: Upstream
    h2: H2Upstream

    async def open(self) -> None:
        self.h1, self.h2 = self.upstream(), self.add(H2Upstream(self.reactor))
        self.h1.reply = answering_bodies(OK)
        self.h2.stream_event = self._answer
        self.h2.reply = answering_bodies(OK)  # by HTTP/1.1 comes what announces trailers
        protocol = model.Connections(protocol=model.UpstreamProtocol.HTTP2)
        clusters = (
            cluster(self.h1.endpoint(), name="one"),
            cluster(self.h2.endpoint(), name="two", tls=H2_TLS, connections=protocol),
        )
        servers = tuple(
            model.Server(name=of, listeners=("tls",), server_names=(name,), backend=model.ClusterBackend(of))
            for of, name in (("one", NAME), ("two", "other.test"))
        )
        await self.serve(config(clusters, servers, (H2_LISTENER,)))
        runtime = self.service.runtime
        assert runtime is not None
        endpoints = [endpoint for each in runtime.clusters.values() for endpoint in each.endpoints]
        await self.until(lambda: all(endpoint.ready for endpoint in endpoints), "readiness")

    def _answer(self, stream: PeerStream, event: Any) -> None:
        if stream.ended and not stream.finished and not stream.fields.get(b":path", b"").startswith(b"/readyz"):
            stream.head([(b":status", b"200"), (b"content-type", b"application/json")])
            stream.send(b"{}")
            stream.end()

    def forget(self) -> None:
        for upstream in (self.h1, self.h2):
            upstream.forget()
            upstream.reply = answering_bodies(OK)
        for end in self.h2.h2:
            end.streams = {number: stream for number, stream in end.streams.items() if not stream.over}

    def discard(self) -> None:
        """Forget a request that was broken off."""
        for connection in self.h1.connections:
            connection.received = b""
            connection.answered = 0

    @property
    def received(self) -> list[tuple[bytes, bytes, list[raw.Field], bytes]]:
        """Method, target, fields and body of all requests that came to either."""
        found = [
            (one.method, one.target, one.fields, body)
            for connection in (*self.h1.connections, *self.h2.connections)
            for one, body, _ in http1_requests(connection.received)
        ]
        for end in self.h2.h2:
            assert end.problem is None
        for stream in self.h2.streams:
            fields = [(name, value) for name, value in stream.fields.items() if name[:1] != b":"]
            found.append((stream.fields[b":method"], stream.fields[b":path"], fields, stream.data))
        return [each for each in found if not each[1].startswith(b"/readyz")]


@pytest.fixture
def two(reactor: Any, nothing_left_open: None) -> Iterator[Two]:
    harness = Two(reactor)
    pytest_twisted.blockon(Deferred.fromCoroutine(harness.open()))
    yield harness
    pytest_twisted.blockon(Deferred.fromCoroutine(harness.close()))


def _name(host: bytes, name: bytes) -> bytes:
    return request((name, b"v"), authority=host, path=POD)


def _value(host: bytes, value: bytes) -> bytes:
    return request((b"x-test", value), authority=host, path=POD)


NASTY = (
    b"a\r\nimpersonate-user: root",
    b"a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: k8s.test\r\n\r\n",
    b"a\nx: y",
    b"a\rx: y",
    b"\r\n",
    b"\0",
    b"a\0b",
    b" a",
    b"a ",
    b"\x0b",
    b"a\x0cb",
    b"\x1b[31m",
    b"\x7f",
)
NAMES = (
    b"",
    b"a b",
    b"a:b",
    b"a\r\nb",
    b"a\nb",
    b"a\0",
    b"A",
    b"transfer-Encoding",
    b"a\t",
    b" a",
    b"content-length ",
    b"host:",
    b":",
    b":host",
    b":authority ",
    b"a\xff",
    b"a/b",
    b"a\x0b",
    b"(a)",
    b'"a"',
)
CONNECTION = (
    (b"connection", b"close"),
    (b"connection", b"content-length"),
    (b"connection", b"authorization, impersonate-user"),
    (b"transfer-encoding", b"chunked"),
    (b"transfer-encoding", b"xchunked"),
    (b"transfer-encoding", b""),
    (b"te", b"chunked"),
    (b"upgrade", b"websocket"),
    (b"upgrade", b"h2c"),
    (b"http2-settings", b"AAMAAABkAAQAAP__"),
    (b"keep-alive", b"timeout=1"),
    (b"proxy-connection", b"keep-alive"),
    (b"content-length", b"3"),
    (b"content-length", b"-1"),
    (b"content-length", b"+0"),
    (b"content-length", b"0, 0"),
    (b"content-length", b"0\r\n"),
    (b"content-length", b"0x0"),
    (b"content-length", b""),
    (b"content_length", b"3"),
    (b"transfer_encoding", b"chunked"),
    (b"x-content-length", b"3"),
    (b"trailer", b"host"),
    (b"max-forwards", b"0"),
    (b"expect", b"100-continue"),
    (b"range", b"bytes=0-"),
    (b"host", b"k8s.test\r\nx: y"),
    (b"host", b"other.test, k8s.test"),
)
PSEUDO: tuple[dict[str, bytes | None], ...] = (
    {"method": b"GET /smuggled HTTP/1.1\r\nHost: k8s.test\r\n\r\nGET"},
    {"method": b"GET /smuggled"},
    {"method": b""},
    {"method": b"get"},
    {"method": b"CONNECT"},
    {"method": b"PRI"},
    {"method": b"TRACE"},
    {"method": None},
    {"path": b"/ HTTP/1.1\r\nHost: k8s.test\r\n\r\nGET /smuggled"},
    {"path": b"/a b"},
    {"path": b"/a\tb"},
    {"path": b"/a\r\n"},
    {"path": b"/\0"},
    {"path": b"smuggled"},
    {"path": b""},
    {"path": b"*"},
    {"path": b"http://other/x"},
    {"path": b"//other/x"},
    {"path": b"/\xff"},
    {"path": None},
    {"authority": b"k8s.test\r\nX: y"},
    {"authority": b"k8s.test x"},
    {"authority": b"a@k8s.test"},
    {"authority": b""},
    {"authority": None},
    {"scheme": b"https://k8s.test/x HTTP/1.1\r\n"},
    {"scheme": b"http"},
    {"scheme": None},
)


async def _one_or_none(two: Two, client: Attacker, block: bytes, body: bytes | None) -> tuple[int, list[Any]]:
    """Send a request; return its outcome's status, and what came to an upstream, which is its request alone if any."""
    two.forget()
    stream = client.ask_block(block, ENDS if body is None else END_HEADERS)
    if body is not None:
        client.send(data(stream, body[:9]) + data(stream, body[9:], END_STREAM))
    status, _ = await client.outcome(stream)
    received = two.received
    assert len(received) <= 1, received
    if status < 0:
        await two.turns(1)
        assert status == -PROTOCOL_ERROR
        assert not two.received
    elif status == 200:
        ((_, target, fields, got),) = received
        assert got == (body or b"")
        assert b"smuggled" not in target
        names = [name for name, _ in fields]
        assert not {b"upgrade", b"keep-alive", b"proxy-connection"} & set(names)
        assert all(not set(value) & set(b"\r\n\0") for _, value in fields)
    else:
        assert status in (400, 405, 413, 417, 421), status
        assert not received
    return status, received


HOSTS = (NAME.encode(), b"other.test")


@pytest.mark.parametrize("host", HOSTS, ids=("towards HTTP/1.1", "towards HTTP/2"))
class TestFields:
    async def test_nasty_values_reach_nobody(self, two: Two, host: bytes) -> None:
        client = await attacker(two, host.decode())
        for value in NASTY:
            status, _ = await _one_or_none(two, client, _value(host, value), None)
            assert status < 0, value
        status, (received,) = await _one_or_none(two, client, _value(host, b"good"), None)
        assert status == 200
        assert (b"x-test", b"good") in received[2]

    async def test_nasty_names_reach_nobody(self, two: Two, host: bytes) -> None:
        client = await attacker(two, host.decode())
        for name in NAMES:
            status, _ = await _one_or_none(two, client, _name(host, name), None)
            assert status < 0, name
        assert (await _one_or_none(two, client, _name(host, b"good"), None))[0] == 200

    @pytest.mark.parametrize(
        "body", [None, b"abc", BODY], ids=("no body", "3 bytes", "a body that looks like a request")
    )
    async def test_fields_of_framing_frame_nothing(self, two: Two, host: bytes, body: bytes | None) -> None:
        client = await attacker(two, host.decode())
        for field in CONNECTION:
            block = request(field, method=b"GET" if body is None else b"POST", authority=host, path=POD)
            await _one_or_none(two, client, block, body)
            twice = request(field, field, method=b"GET" if body is None else b"POST", authority=host, path=POD)
            await _one_or_none(two, client, twice, body)
        assert (await _one_or_none(two, client, _name(host, b"good"), None))[0] == 200
        assert client.lost is None

    async def test_nasty_pseudo_header_fields_reach_nobody(self, two: Two, host: bytes) -> None:
        client = await attacker(two, host.decode())
        for pseudo in PSEUDO:
            whole = {"authority": host, "path": POD, **pseudo}
            status, received = await _one_or_none(two, client, request(**whole), None)
            assert status != 200 or received[0][1] in (b"//other/x", POD), pseudo
        assert (await _one_or_none(two, client, _name(host, b"good"), None))[0] == 200

    async def test_trailers_end_a_body_and_begin_nothing(self, two: Two, host: bytes) -> None:
        client = await attacker(two, host.decode())
        for block in (
            literal(b"x\r\n\r\nGET /smuggled HTTP/1.1", b"a"),
            literal(b"x-sum", b"a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: k8s.test\r\n\r\n"),
            literal(b"content-length", b"0"),
            literal(b"transfer-encoding", b"chunked"),
            literal(b":method", b"GET"),
            literal(b"x-sum", b"1"),
            b"",
        ):
            two.forget()
            stream = client.ask_block(request(method=b"POST", authority=host, path=POD), END_HEADERS)
            client.send(data(stream, b"abc") + headers(stream, block))
            status, _ = await client.outcome(stream)
            if status == 200:
                ((_, target, _, body),) = two.received
                assert (target, body) == (POD, b"abc")
            else:
                assert status == -PROTOCOL_ERROR
                await two.turns(2)
                # The request was begun and is broken off: the upstream must not have taken it for complete.
                assert all(not _complete(connection.received) for connection in two.h1.connections)
                assert all(not stream.ended for stream in two.h2.streams if stream.fields[b":path"] == POD)
                two.discard()

    async def test_a_body_that_is_not_of_its_length_is_never_complete(self, two: Two, host: bytes) -> None:
        client = await attacker(two, host.decode())
        for size, pieces in ((5, (b"abc",)), (5, (b"abcdef",)), (5, (b"abc", b"def")), (0, (b"a",)), (5, ())):
            two.forget()
            block = request((b"content-length", b"%d" % size), method=b"POST", authority=host, path=POD)
            stream = client.ask_block(block, END_HEADERS)
            for piece in pieces:
                client.send(data(stream, piece))
            client.send(data(stream, b"", END_STREAM))
            assert (await client.outcome(stream))[0] == -PROTOCOL_ERROR
            await two.turns(2)
            assert all(not _complete(connection.received) for connection in two.h1.connections), (size, pieces)
            assert all(not stream.ended for stream in two.h2.streams if stream.fields[b":path"] == POD)
            two.discard()


def _complete(received: bytes) -> bool:
    try:
        return bool(http1_requests(received))
    except (AssertionError, ValueError):
        return False
