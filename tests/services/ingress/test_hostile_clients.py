"""Requests that would be two, or another one, at a pod that speaks the other version of HTTP."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.h2.frames import END_HEADERS, END_STREAM
from mcproxy.http.messages import CHUNKED
from mcproxy.services.ingress.forward_target import AttemptOutcome
from tests.http.h2 import raw
from tests.http.h2.origin import Peer
from tests.net.peers import until
from tests.services.ingress.stand import Front, Stand, real_connect
from tests.services.ingress.test_ingress_forward import Echo

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"shop"), (b":path", b"/"))


async def dial(front: Front, sent: bytes = raw.PREFACE + raw.settings()) -> Peer:
    """Open a connection to the front that sends what the test says."""
    peer = Peer()
    await real_connect("127.0.0.1", front.port, peer, tls=None, timeout=60.0)
    front.stand.closers.append(peer.close)
    peer.send(sent)
    return peer


@pytest.mark.parametrize(
    "field",
    [
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close"),
        (b"upgrade", b"websocket"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-connection", b"close"),
        (b"te", b"chunked"),
        (b"content-length", b"5"),
        (b"content-length", b"+0"),
        (b"host", b"other"),
        (b"X-Upper", b"a"),
        (b"x-a\r\nx-b", b"c"),
        (b"x-a: b\r\nx-c", b"d"),
        (b"x a", b"b"),
        (b"x-a:", b"b"),
        (b"", b"b"),
        (b"x-a", b"b\r\nInjected: c"),
        (b"x-a", b"b\nInjected: c"),
        (b"x-a", b"b\rc"),
        (b"x-a", b"b\0c"),
        (b"x-a", b" b"),
        (b":status", b"200"),
        (b":path", b"/other"),
    ],
)
async def test_no_field_of_http2_becomes_framing_or_another_field_at_a_pod(
    stand: Stand, field: tuple[bytes, bytes]
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK] * 3
    peer = await dial(front)
    peer.send(raw.headers(1, raw.fields(*GET, field), END_HEADERS | END_STREAM))
    await peer.settled()
    assert pod.heads == []


@pytest.mark.parametrize(
    "path", [b"/a b", b"/a\r\nX: y", b"/ HTTP/1.1\r\n\r\nGET /admin", b"", b"a", b"/a\x7f", b"/\xff"]
)
async def test_no_path_of_http2_becomes_a_second_request(stand: Stand, path: bytes) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK] * 3
    peer = await dial(front)
    peer.send(raw.headers(1, raw.fields(*GET[:3], (b":path", path)), END_HEADERS | END_STREAM))
    await peer.settled()
    assert pod.heads == []


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer_Encoding: chunked\r\nTransfer-Encoding: xchunked\r\n",
        b"X: a\r\n b\r\n",
        b"X: a\nTransfer-Encoding: chunked\r\n",
        b"X\0: a\r\n",
    ],
)
async def test_a_request_of_two_readings_reaches_no_pod(stand: Stand, head: bytes) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK] * 3
    await dial(front, b"POST / HTTP/1.1\r\nHost: a\r\n%b\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n" % head)
    other = await front.client().ask()
    assert other.body == b"ok"
    assert [each.partition(b"\r\n")[0] for each in pod.heads] == [b"GET / HTTP/1.1"]


async def test_a_body_that_is_longer_than_it_says_is_no_request_at_the_pod(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK] * 3
    peer = await dial(front)
    block = raw.fields((b":method", b"POST"), *GET[1:], (b"content-length", b"3"))
    peer.send(raw.headers(1, block, END_HEADERS))
    peer.send(raw.data(1, b"abcGET /smuggled HTTP/1.1\r\n\r\n", END_STREAM))
    await peer.settled()
    assert b"smuggled" not in b"".join(connection.received for connection in pod.connections)
    assert all(AttemptOutcome.ANSWERED not in asked.outcomes for asked in front.asked)


@pytest.mark.parametrize("version", [UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2])
async def test_trailers_that_are_framing_or_identity_reach_no_pod(stand: Stand, version: UpstreamProtocol) -> None:
    front = stand.front()
    front.to(stand.pod(Echo))
    asking = await front.client(version).begin(b"POST", length=CHUNKED, te_trailers=True)
    asking.send(b"x")
    names = (b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-forwarded-for", b"x-real-ip")
    asking.end([(name, b"5") for name in names] + [(b"x-remote-user", b"root"), (b"x-good", b"1")])
    await asking.wait()
    assert asking.trailers == [(b"x-sum", b"1"), (b"x-good", b"1")]


_TEXT = st.binary(max_size=12)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=25)
@given(fields=st.lists(st.tuples(_TEXT, _TEXT), max_size=4), path=_TEXT)
async def test_whatever_the_fields_a_pod_gets_at_most_one_request(
    stand: Stand, fields: list[tuple[bytes, bytes]], path: bytes
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK] * 3
    peer = await dial(front)
    block = raw.fields(*GET[:3], (b":path", b"/" + path), *fields)
    peer.send(raw.headers(1, block, END_HEADERS | END_STREAM))
    await peer.settled()
    received = b"".join(connection.received for connection in pod.connections)
    assert received.count(b"\r\n\r\n") == len(pod.heads) <= 1
    lines = received.split(b"\r\n")[1:-2]
    expected = [b"%b: %b" % field for field in fields]
    assert [line for line in lines if not line.startswith(b"Host: ")] in ([], expected)
    await until(lambda: not any(asked.exchange.ended is False for asked in front.asked))
