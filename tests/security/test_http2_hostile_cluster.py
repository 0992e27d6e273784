"""A cluster that speaks HTTP/2 and means ill: it harms nobody else, and its clients get one well-formed answer each.

The cluster sends raw frames. Its clients speak HTTP/1.1 and HTTP/2; beside each attack somebody uses another cluster.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import hpack
import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from mcproxy.config import model
from tests.http.h2 import raw
from tests.http.h2.raw import END_HEADERS, END_STREAM, ENDS, data, frame, headers, literal
from tests.proxy.harness import NAME, OK, Client, Harness, Upstream, always, cluster, config
from tests.proxy.http2_peers import H2_TLS, H2Upstream
from tests.security.http2_attacker import H2_LISTENER, attacker

GOOD = b"\x88" + literal(b"content-type", b"application/json")
#: What it does with a request: the frames that it sends, by the stream's number.
Script = Callable[[int], bytes]
#: The stream of the first request, on the connection that the health check has opened.
FIRST = 3


class HostileEnd(Protocol):
    """One connection of the proxy; every request is answered by the cluster's script."""

    def __init__(self, site: HostileCluster) -> None:
        self._site = site
        self._decoder = hpack.Decoder()
        self._rest = b""
        self._preface = len(raw.PREFACE)
        self._block = b""
        self.frames: list[raw.Frame] = []
        self.lost = False

    def connectionMade(self) -> None:
        self.send(self._site.begins)

    def send(self, sent: bytes) -> None:
        if not self.lost and self.transport is not None:
            self.transport.write(sent)

    def dataReceived(self, received: bytes) -> None:
        received = self._rest + received
        skipped = min(self._preface, len(received))
        self._preface -= skipped
        frames, self._rest = raw.parse(received[skipped:])
        for one in frames:
            self.frames.append(one)
            if one.kind == raw.SETTINGS and not one.flags & raw.ACK:
                self.send(raw.SETTINGS_ACK)
            elif one.kind == raw.PING and not one.flags & raw.ACK and self._site.pongs:
                self.send(raw.ping(one.payload, raw.ACK))
            elif one.kind in (raw.HEADERS, raw.CONTINUATION):
                self._block += one.payload
                if one.flags & END_HEADERS:
                    fields = dict(self._decoder.decode(self._block, raw=True))
                    self._block = b""
                    self._asked(one.stream, bytes(fields.get(b":path", b"")))

    def _asked(self, stream: int, path: bytes) -> None:
        if path == b"/readyz-check":
            self.send(headers(stream, GOOD, END_HEADERS) + data(stream, b"ok", END_STREAM))
        elif path:
            self._site.asked.append((self, stream))
            self.send(self._site.script(stream))

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = True

    def abort(self) -> None:
        if not self.lost and self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]


class HostileCluster(H2Upstream):
    def __init__(self, reactor: Any) -> None:
        self.asked: list[tuple[HostileEnd, int]] = []
        self.script: Script = lambda _: b""
        self.begins = raw.settings()
        self.pongs = True
        self.hostile: list[HostileEnd] = []
        super().__init__(reactor)

    def of_protocol(self, name: bytes | None, addr: Any) -> Any:
        if name != b"h2":
            return super().of_protocol(name, addr)
        self.hostile.append(HostileEnd(self))
        return self.hostile[-1]

    def stop(self) -> Any:
        for end in self.hostile:
            end.abort()
        return super().stop()


class Stage(Harness):
    """k8s.test goes to the hostile cluster, other.test to a good one."""

    bad: HostileCluster
    good: Upstream

    async def open(self, **changed: Any) -> None:
        self.bad, self.good = self.add(HostileCluster(self.reactor)), self.upstream()
        self.good.reply = always(OK)
        http2 = model.Connections(protocol=model.UpstreamProtocol.HTTP2, **changed)
        clusters = (
            cluster(self.bad.endpoint(), name="bad", tls=H2_TLS, connections=http2),
            cluster(self.good.endpoint(), name="good"),
        )
        servers = tuple(
            model.Server(name=of, listeners=("tls",), server_names=(name,), backend=model.ClusterBackend(of))
            for of, name in (("bad", NAME), ("good", "other.test"))
        )
        await self.serve(config(clusters, servers, (H2_LISTENER,)))
        runtime = self.service.runtime
        assert runtime is not None
        endpoints = [endpoint for each in runtime.clusters.values() for endpoint in each.endpoints]
        await self.until(lambda: all(endpoint.ready for endpoint in endpoints), "readiness")

    async def over_http1(self, script: Script, path: bytes = b"/api/v1/pods") -> bytes:
        """All that a client of HTTP/1.1 gets."""
        self.bad.script = script
        client: Client = await self.asks(b"GET %b HTTP/1.1\r\nHost: k8s.test\r\nConnection: close\r\n\r\n" % path)
        await self.until(lambda: client.over, "the answer's end")
        received: bytes = client.received
        client.abort()
        return received

    async def over_http2(self, script: Script, path: bytes = b"/api/v1/pods") -> tuple[int, bytes, list[raw.Field]]:
        """Status (-code for a reset), body and fields that a client of HTTP/2 gets."""
        self.bad.script = script
        client = await attacker(self)
        stream = client.ask(path=path)
        await client.until(lambda: client.over(stream), 120.0)
        code = client.seen.reset(stream)
        fields = [field for head in client.seen.heads.get(stream, []) for field in head]
        body = client.seen.body(stream)
        ended = client.seen.ended(stream)
        client.close()
        await client.until(lambda: client.lost)
        return (-code if code is not None and not ended else client.seen.status(stream)), body, fields

    async def good_serves(self) -> None:
        client = await attacker(self, "other.test")
        assert await client.answer(authority=b"other.test") == (200, b"{}")


@pytest.fixture
def stage(reactor: Any, nothing_left_open: None) -> Iterator[Stage]:
    stage = Stage(reactor)
    pytest_twisted.blockon(Deferred.fromCoroutine(stage.open()))
    yield stage
    pytest_twisted.blockon(Deferred.fromCoroutine(stage.close()))


#: Answers that are malformed: 502, or a connection that breaks off if the head has gone on.
MALFORMED: dict[str, bytes] = {
    "a value with a line end": GOOD + literal(b"x-test", b"a\r\nset-cookie: b=c"),
    "a value with another response": GOOD + literal(b"x-test", b"a\r\n\r\nHTTP/1.1 200 OK\r\n\r\nevil"),
    "a value with NUL": GOOD + literal(b"x-test", b"a\0"),
    "a name with a line end": GOOD + literal(b"x\r\nset-cookie: a=b\r\ny", b"a"),
    "a name with a colon": GOOD + literal(b"set-cookie: a=b", b"a"),
    "a name with a blank": GOOD + literal(b"x y", b"a"),
    "a name in upper case": GOOD + literal(b"X-Test", b"a"),
    "an empty name": GOOD + literal(b"", b"a"),
    "connection": GOOD + literal(b"connection", b"close"),
    "transfer-encoding": GOOD + literal(b"transfer-encoding", b"chunked"),
    "upgrade": GOOD + literal(b"upgrade", b"websocket"),
    "two content-lengths": GOOD + literal(b"content-length", b"2") + literal(b"content-length", b"3"),
    "a content-length that is no number": GOOD + literal(b"content-length", b"2\r\nx: y"),
    "no :status": literal(b"content-type", b"a"),
    "two :status": b"\x88\x8d",
    ":status with a line end": literal(b":status", b"200\r\nx: y"),
    ":status of four digits": literal(b":status", b"2000"),
    ":status 101": literal(b":status", b"101"),
    ":status 000": literal(b":status", b"000"),
    ":path": GOOD[:1] + literal(b":path", b"/"),
    "an unknown pseudo-header field": GOOD[:1] + literal(b":x", b"y"),
    ":status behind a field": literal(b"x-test", b"a") + b"\x88",
}


async def test_a_malformed_answer_is_502_to_both(stage: Stage) -> None:
    for name, block in MALFORMED.items():

        def script(stream: int, block: bytes = block) -> bytes:
            return headers(stream, block, END_HEADERS) + data(stream, b"{}", END_STREAM)

        got = await stage.over_http1(script)
        assert got.startswith(b"HTTP/1.1 502 "), (name, got)
        assert got.count(b"HTTP/1.1 ") == 1, (name, got)
        assert b"evil" not in got
        status, body, fields = await stage.over_http2(script)
        assert status == 502, name
        assert b'"code":502' in body
        assert b"set-cookie" not in dict(fields)
    assert len(stage.bad.hostile) <= 3  # a malformed answer costs its stream, not the connection
    await stage.good_serves()


async def test_what_it_may_send_arrives_as_one_answer(stage: Stage) -> None:
    """Fields that only look like framing, long ones, empty ones."""
    many = b"".join(literal(b"x-%d" % number, b"v" * 50) for number in range(150))
    for block in (
        GOOD + literal(b"content-length", b"2"),
        GOOD + literal(b"x-content-length", b"9") + literal(b"content_length", b"9"),
        GOOD + literal(b"trailer", b"x-sum") + literal(b"x-empty", b""),
        GOOD + many,
        literal(b":status", b"299") + literal(b"x-utf8", "é".encode()),
    ):

        def script(stream: int, block: bytes = block) -> bytes:
            return headers(stream, block, END_HEADERS) + data(stream, b"{}", END_STREAM)

        got = await stage.over_http1(script)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 299 "))
        assert head.lower().count(b"\r\ncontent-length:") + head.lower().count(b"\r\ntransfer-encoding:") == 1
        assert body in (b"{}", b"2\r\n{}\r\n0\r\n\r\n")
        status, body, _ = await stage.over_http2(script)
        assert (status in (200, 299), body) == (True, b"{}")


#: What breaks off: the client must not take what it has for a whole answer.
BROKEN: dict[str, Script] = {
    "less than content-length": lambda s: (
        headers(s, GOOD + literal(b"content-length", b"9"), END_HEADERS) + data(s, b"{}", END_STREAM)
    ),
    "more than content-length": lambda s: (
        headers(s, GOOD + literal(b"content-length", b"1"), END_HEADERS) + data(s, b"{}", END_STREAM)
    ),
    "reset within the body": lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{") + raw.rst_stream(s, 2),
    "reset with NO_ERROR within the body": lambda s: (
        headers(s, GOOD, END_HEADERS) + data(s, b"{") + raw.rst_stream(s, 0)
    ),
    "a second head within the body": lambda s: (
        headers(s, GOOD, END_HEADERS) + data(s, b"{") + headers(s, GOOD, END_HEADERS)
    ),
    "pseudo-header fields in trailers": lambda s: (
        headers(s, GOOD, END_HEADERS) + data(s, b"{}") + headers(s, b"\x88", ENDS)
    ),
    "nasty trailers": lambda s: (
        headers(s, GOOD, END_HEADERS) + data(s, b"{}") + headers(s, literal(b"x", b"a\r\n\r\nHTTP/1.1 200 OK"), ENDS)
    ),
    "DATA before the head": lambda s: data(s, b"{}", END_STREAM),
    "GOAWAY within the body": lambda s: (
        headers(s, GOOD, END_HEADERS) + data(s, b"{") + raw.goaway(0, 0) + raw.rst_stream(s, 8)
    ),
    "a frame that is too large": lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"x" * 16385),
    "PUSH_PROMISE": lambda s: (
        headers(s, GOOD, END_HEADERS)
        + data(s, b"{")
        + frame(raw.PUSH_PROMISE, END_HEADERS, s, struct.pack(">I", 2) + raw.GET)
    ),
    "HEADERS on a stream of its own": lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{") + headers(2, GOOD),
    "DATA on an idle stream": lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{") + data(s + 100, b"x"),
    "SETTINGS_ENABLE_PUSH 1": lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{") + raw.settings((2, 1)),
    "a block that cannot be decoded": lambda s: headers(s, GOOD + b"\xff\xff\xff\xff\xff\xff", END_HEADERS),
    "a head of a megabyte": lambda s: (
        headers(s, GOOD + literal(b"x", b"v" * 16000), 0)
        + raw.continuation(s, literal(b"x", b"v" * 16000), 0) * 62
        + raw.continuation(s, b"")
    ),
    "an HPACK bomb": lambda s: headers(s, GOOD + raw.indexing(b"x", b"v" * 4000) + raw.indexed(62) * 8000, ENDS),
    "DATA beyond the stream's window": lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"x" * 16384) * 200,
}


async def test_what_breaks_off_is_never_taken_for_whole(stage: Stage) -> None:
    for name, script in BROKEN.items():
        if name == "DATA beyond the stream's window":
            continue  # it is read at once here, so its window never ends: see below
        got = await stage.over_http1(script)
        head, _, body = got.partition(b"\r\n\r\n")
        if got and not head.startswith((b"HTTP/1.1 502 ", b"HTTP/1.1 503 ")):
            assert head.startswith(b"HTTP/1.1 200 "), (name, got)
            assert b"transfer-encoding: chunked" in head.lower(), (name, got)
            assert not body.endswith(b"0\r\n\r\n"), (name, got)
        assert got.count(b"HTTP/1.1 ") <= 1, (name, got)
        status, _, fields = await stage.over_http2(script)
        assert status in (502, 503) or status < 0, (name, status)
        assert not any(field == b"set-cookie" for field, _ in fields)
        await stage.good_serves()


async def test_interim_answers_without_end_end(stage: Stage) -> None:
    def script(stream: int) -> bytes:
        return headers(stream, literal(b":status", b"103") + literal(b"x-early", b"a"), END_HEADERS) * 5000

    got = await stage.over_http1(script)
    assert b"HTTP/1.1 502 " in got
    assert got.count(b"HTTP/1.1 103 ") <= 40
    status, _, fields = await stage.over_http2(script)
    assert status == 502
    assert sum(value == b"103" for _, value in fields) <= 40
    await stage.good_serves()


FLOODS: dict[str, bytes] = {
    "PING": raw.ping() * 5000,
    "PING acknowledgements": raw.ping(b"x" * 8, raw.ACK) * 5000,
    "SETTINGS": raw.settings() * 5000,
    "SETTINGS with many values": raw.settings(*[(4, 1000 + n) for n in range(2700)]) * 10,
    "PRIORITY": raw.priority(1) * 5000,
    "WINDOW_UPDATE": raw.window_update(0, 1) * 5000,
    "unknown frames": frame(0x99, payload=b"x") * 5000,
    "GOAWAY": raw.goaway(2**31 - 1, 2, b'text\r\nlevel=error event="forged"') * 5000,
    "empty DATA": data(1, b"") * 5000,
    "RST_STREAM": raw.rst_stream(1) * 5000,
    "CONTINUATION": headers(1, GOOD, 0) + raw.continuation(1, b"", 0) * 5000,
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_its_ends_its_connection(stage: Stage, name: str) -> None:
    status, _, _ = await stage.over_http2(lambda stream: FLOODS[name])
    assert status in (502, 503) or status < 0
    await stage.until(lambda: stage.bad.hostile[0].lost or name == "GOAWAY", "the connection's end")
    # The next request has a connection of its own, and is served.
    good = await stage.over_http2(lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{}", END_STREAM))
    assert good[:2] == (200, b"{}")
    await stage.good_serves()


async def test_refusals_for_ever_end_in_502_or_503(stage: Stage) -> None:
    status, _, _ = await stage.over_http2(lambda stream: raw.rst_stream(stream, raw.REFUSED_STREAM))
    assert status in (502, 503)
    assert len(stage.bad.asked) <= 10
    stage.bad.asked.clear()
    status, _, _ = await stage.over_http2(lambda stream: raw.goaway(0, raw.NO_ERROR))
    assert status in (502, 503)
    assert len(stage.bad.asked) <= 10
    await stage.good_serves()


async def test_no_streams_at_all_end_in_503(stage: Stage) -> None:
    """SETTINGS_MAX_CONCURRENT_STREAMS 0 when requests wait: nothing is sent, and nobody waits for ever."""
    stage.bad.script = lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{}", END_STREAM)
    assert (await stage.over_http2(stage.bad.script))[0] == 200
    stage.bad.hostile[-1].send(raw.settings((raw.MAX_CONCURRENT_STREAMS, 0)))
    stage.bad.begins = raw.settings((raw.MAX_CONCURRENT_STREAMS, 0))
    await stage.turns(5)
    client = await attacker(stage)
    stream = client.ask()
    await stage.turns(20)
    client.send(raw.rst_stream(stream))  # who gives up leaves nothing behind
    await client.settled()
    await stage.good_serves()


async def test_a_window_of_nothing_holds_one_upload_alone(stage: Stage) -> None:
    stage.bad.begins = raw.settings((raw.INITIAL_WINDOW_SIZE, 0))
    for end in list(stage.bad.hostile):
        end.abort()
    await stage.turns(5)
    good = await stage.over_http2(lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{}", END_STREAM))
    assert good[0] == 200
    stage.bad.asked.clear()
    stage.bad.script = lambda _: b""
    client = await attacker(stage)
    stream = client.ask(method=b"POST", flags=END_HEADERS)
    await stage.until(lambda: stage.bad.asked, "the request")
    for _ in range(3):
        client.send(data(stream, b"x" * 16384))
    await client.settled()
    end, number = stage.bad.asked[-1]
    assert not [one for one in end.frames if one.kind == raw.DATA and one.payload]
    # The client has used its window of 64 KiB but for a piece, and gets no more of it than is kept.
    stage.bad.script = lambda s: headers(s, GOOD, END_HEADERS) + data(s, b"{}", END_STREAM)
    assert await client.answer() == (200, b"{}")
    end.send(raw.window_update(number, 100_000))
    end.send(headers(number, GOOD, END_HEADERS) + data(number, b"{}", END_STREAM))
    assert (await client.outcome(stream))[0] == 200
    await stage.good_serves()


async def test_a_window_above_the_greatest_costs_its_stream(stage: Stage) -> None:
    status, _, _ = await stage.over_http2(lambda stream: raw.window_update(stream, 2**31 - 1))
    assert status == 502
    assert not stage.bad.hostile[-1].lost
    status, _, _ = await stage.over_http2(lambda stream: raw.window_update(0, 2**31 - 1))
    assert status in (502, 503)
    await stage.good_serves()


async def test_data_for_a_client_that_does_not_read_is_bounded_by_the_window(stage: Stage) -> None:
    """It ignores the window of a stream whose client reads nothing: the stream ends, nothing else."""
    stage.bad.script = lambda stream: headers(stream, GOOD, END_HEADERS) + data(stream, b"x" * 16384) * 2000
    client = await attacker(stage, settings=raw.settings((raw.INITIAL_WINDOW_SIZE, 0)))
    stream = client.ask()
    await stage.until(
        lambda: (
            any(one.kind == raw.RST_STREAM for end in stage.bad.hostile for one in end.frames)
            or any(end.lost for end in stage.bad.hostile)
        ),
        "the end of the stream",
    )
    codes = [one.code for end in stage.bad.hostile for one in end.frames if one.kind in (raw.RST_STREAM, raw.GOAWAY)]
    assert raw.FLOW_CONTROL_ERROR in codes
    client.send(raw.window_update(stream, 2**31 - 1 - 65535))
    await client.until(lambda: client.over(stream))
    assert not client.seen.ended(stream)
    await stage.good_serves()


async def test_a_request_whose_response_has_begun_is_never_sent_again(stage: Stage) -> None:
    """Whatever the cluster says afterwards: GOAWAY that does not count the stream, REFUSED_STREAM."""
    began = [GOOD, b"\x08\x03403" + literal(b"content-type", b"application/json")]
    takes_back: list[Script] = [
        lambda _: raw.goaway(0, raw.NO_ERROR),
        lambda stream: raw.rst_stream(stream, raw.REFUSED_STREAM),
    ]
    for block in began:
        for last in takes_back:
            stage.bad.script = lambda s, block=block, last=last: headers(s, block, END_HEADERS) + last(s)  # type: ignore[misc]
            stage.bad.asked.clear()
            client = await attacker(stage)
            status, _ = await client.answer(method=b"POST")
            assert status == 502
            assert len(stage.bad.asked) == 1
            client.close()


PROXIED = (
    b"/api/v1/namespaces/a/services/web:80/proxy/x",
    b"/api/v1/namespaces/a/pods/b/proxy",
    b"/api/v1/nodes/n/proxy/metrics",
    b"/api/v1/proxy/namespaces/a/services/web/x",
)


@pytest.mark.parametrize("path", PROXIED)
async def test_a_tenants_server_below_proxy_cannot_end_a_connection_that_others_share(
    stage: Stage, path: bytes
) -> None:
    """A kube-apiserver passes on heads of up to 10 MiB; over HTTP/2 there is no stopping within one."""
    huge = headers(5, GOOD, 0) + b"".join(raw.continuation(5, b"\0" * 16_000, 0) for _ in range(9))
    stage.bad.script = lambda s: headers(s, GOOD, END_HEADERS) if s == FIRST else huge
    stage.bad.reply = always(b"HTTP/1.1 200 OK\r\nX-Large: %b\r\n\r\n" % (b"x" * 300_000))
    victim = await attacker(stage)
    watch = victim.ask(path=b"/api/v1/pods?watch=1")
    await victim.until(lambda: watch in victim.seen.heads)
    other = await attacker(stage)
    assert (await other.answer(path=path))[0] == 502
    end, _ = stage.bad.asked[0]
    end.send(data(FIRST, b"event"))
    await victim.until(lambda: victim.seen.body(watch) == b"event")
    assert len(stage.bad.asked) == 1
    victim.close()
    other.close()


async def test_a_large_head_cannot_end_a_connection_that_others_share(stage: Stage) -> None:
    """Nginx answers a field of more than 8 KiB, :path too, with GOAWAY ENHANCE_YOUR_CALM."""
    stage.bad.script = lambda s: headers(s, GOOD, END_HEADERS) if s == FIRST else raw.goaway(s, raw.ENHANCE_YOUR_CALM)
    stage.bad.reply = always(b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n")
    victim = await attacker(stage)
    watch = victim.ask(path=b"/api/v1/pods?watch=1")
    await victim.until(lambda: watch in victim.seen.heads)
    other = await attacker(stage)
    assert (await other.answer((b"x-large", b"x" * 9000), path=b"/api/v1/pods"))[0] == 431
    assert (await other.answer(path=b"/api/v1/pods?labelSelector=" + b"x" * 9000))[0] == 431
    assert (await other.answer(*[(b"x-%d" % number, b"x" * 4000) for number in range(10)]))[0] == 431
    assert len(stage.bad.asked) == 1
    assert not stage.bad.asked[0][0].lost
    victim.close()
    other.close()
