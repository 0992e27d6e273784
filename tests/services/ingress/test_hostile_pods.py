"""Pods that break the rules, or off: the client never gets anything that looks whole and is not."""

from __future__ import annotations

import pytest

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.client_stream import MAX_INTERIM, ConnectionClosed
from mcproxy.http.deadlines import NEVER
from mcproxy.http.exchange import Exchange
from mcproxy.http.h2.frames import END_HEADERS
from mcproxy.http.messages import CHUNKED
from mcproxy.services.ingress.forward_target import AttemptOutcome, Failure
from tests.http.h2 import raw
from tests.net.peers import until
from tests.services.ingress.stand import H2C, HTTP1, Stand

VERSIONS = [UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2]
OK = b"HTTP/1.1 200 OK\r\n"
BEGINNING = raw.settings() + raw.headers(1, raw.fields((b":status", b"200")), END_HEADERS) + raw.data(1, b"some")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: c=d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: b\nSet-Cookie: c=d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: b\x00c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX A: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n X-A: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * (MAX_INTERIM + 1) + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        OK + b"X-A: " + b"b" * 70_000 + b"\r\n\r\n",
        OK + b"X-A: " + b"b" * 70_000,
    ],
)
async def test_an_answer_that_is_ambiguous_or_malformed_is_502_and_ends_the_connection(
    stand: Stand, answer: bytes
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    target = front.to(pod.port)
    pod.answers = [answer]
    got = await front.client().ask()
    assert got.status == 502
    assert got.head is not None
    assert got.head.header(b"set-cookie") is None
    assert front.asked[0].failure is Failure.INVALID
    assert front.asked[0].outcomes == [AttemptOutcome.INVALID]
    await until(lambda: pod.connections[0].lost)
    assert target.counts()["HTTP/1.1"] == (0, 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resets", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 10\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
    ],
)
async def test_a_response_that_ends_within_is_broken_off_for_the_client_too(
    stand: Stand, answer: bytes, resets: bool, version: UpstreamProtocol
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers, pod.ends, pod.resets = [answer], 1, resets
    got = await front.client(version).ask()
    asked = front.asked[0]
    if resets and asked.failure is Failure.UNANSWERED:
        return  # the reset has overtaken what was sent before
    assert isinstance(got.failure, ConnectionClosed)
    assert not got.complete
    assert asked.outcomes == [AttemptOutcome.BROKEN]


@pytest.mark.parametrize("version", [UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2])
async def test_a_response_that_stands_still_is_broken_off(stand: Stand, version: UpstreamProtocol) -> None:
    """As by nginx's proxy_read_timeout: a pod that freezes within a response holds no client for ever."""
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    front.read_timeout = 0.1
    pod.answers = [OK + b"Content-Length: 10\r\n\r\nhello"]
    got = await front.client(version).ask()
    assert isinstance(got.failure, ConnectionClosed)
    assert front.asked[0].outcomes == [AttemptOutcome.BROKEN]
    assert "nothing more of the response came within 0.1 s" in str(front.asked[0].broke)
    await until(lambda: pod.connections[0].lost)


async def test_a_response_that_moves_is_not_broken_off(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK + b"Content-Length: 2\r\n\r\n"]
    answer = await front.client().begin(b"GET", b"/")
    await until(lambda: answer.head)
    forward = front.asked[0].forward
    before = forward.deadline
    assert before < NEVER
    pod.connections[0].send(b"x")
    await until(lambda: answer.body == b"x")
    assert forward.deadline > before
    pod.connections[0].send(b"x")
    assert (await answer.wait()).body == b"xx"
    assert forward.deadline == NEVER


@pytest.mark.parametrize("ends", [False, True], ids=["request unfinished", "request finished"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_response_that_begins_within_its_request_and_stands_still(
    stand: Stand, version: UpstreamProtocol, ends: bool
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    front.read_timeout = 0.1
    pod.answers = [OK + b"Content-Length: 10\r\n\r\nhello"]
    answer = await front.client(version).begin(b"POST", b"/", length=CHUNKED)
    await until(lambda: answer.body == b"hello")
    if ends:
        answer.end()
    assert isinstance((await answer.wait()).failure, ConnectionClosed)
    assert front.asked[0].outcomes == [AttemptOutcome.BROKEN]


async def test_a_response_whose_request_moves_is_not_broken_off(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK + b"Content-Length: 5\r\n\r\n"]
    answer = await front.client().begin(b"POST", b"/", length=CHUNKED)
    await until(lambda: answer.head)
    forward = front.asked[0].forward
    before = forward.deadline
    assert before < NEVER
    answer.send(b"x")
    await until(lambda: pod.connections[0].received.endswith(b"x\r\n"))
    assert forward.deadline > before
    answer.end()
    pod.connections[0].send(b"hello")
    assert (await answer.wait()).body == b"hello"
    assert forward.deadline == NEVER


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pod_that_reads_nothing_more_of_a_request(stand: Stand, version: UpstreamProtocol) -> None:
    """As by nginx's proxy_send_timeout: a pod that freezes within a request holds no client for ever."""
    front = stand.front()
    front.response_timeout = 0.1
    held: list[Exchange] = []

    def hold(exchange: Exchange) -> None:
        held.append(exchange)
        exchange.pause_body()

    how = H2C if version is UpstreamProtocol.HTTP2 else HTTP1
    front.to(stand.pod(hold), how)
    answer = await front.client(version).begin(b"POST", b"/", length=CHUNKED)
    for _ in range(200):
        answer.send(b"x" * 100_000)  # more than all buffers
    assert (await answer.wait()).status == 504
    assert front.asked[0].failure is Failure.TIMED_OUT
    assert front.asked[0].outcomes == [AttemptOutcome.TIMED_OUT]
    assert held


async def test_a_body_that_ends_with_its_connection_is_whole_only_if_that_ends_in_an_orderly_way(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers, pod.ends = [OK + b"\r\nhello"], 1
    got = await front.client().ask()
    assert (got.complete, got.body) == (True, b"hello")


async def test_bytes_behind_a_response_are_no_response_to_the_next_client(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"]
    client = front.client()
    assert (await client.ask()).body == b"ok"
    pod.answers = [OK + b"Content-Length: 4\r\n\r\ngood"]
    assert (await client.ask()).body == b"good"
    assert len(pod.connections) == 2


async def test_bytes_on_an_idle_connection_end_it(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [OK + b"Content-Length: 2\r\n\r\nok"] * 2
    client = front.client()
    await client.ask()
    pod.connections[0].send(OK + b"Content-Length: 4\r\n\r\nevil")
    await until(lambda: pod.connections[0].lost)
    assert (await client.ask()).body == b"ok"


async def test_a_response_before_the_end_of_the_request_is_passed_on_and_the_connection_not_used_again(
    stand: Stand,
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port)
    pod.answers = [b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig"]
    asking = await front.client().begin(b"POST", length=1000)
    asking.send(b"x" * 10)
    await asking.wait()
    assert (asking.status, asking.body) == (413, b"big")
    await until(lambda: pod.connections[0].lost)


async def test_a_pod_that_says_it_speaks_http2_and_does_not_is_502(stand: Stand) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port, H2C)
    pod.answers = [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"]
    got = await front.client().ask(b"POST", body=b"x")
    assert got.status == 502


@pytest.mark.parametrize("code", [0x8, 0xB])  # CANCEL, ENHANCE_YOUR_CALM
async def test_a_stream_that_a_pod_resets_within_the_response_is_reset_for_the_client_with_the_same_code(
    stand: Stand, code: int
) -> None:
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port, H2C)
    pod.answers = [BEGINNING]
    asking = await front.client(UpstreamProtocol.HTTP2).begin(b"POST", length=CHUNKED)
    await until(lambda: asking.body)
    pod.connections[0].send(raw.rst_stream(1, code))
    await asking.wait()
    assert isinstance(asking.failure, ConnectionClosed)
    assert asking.failure.code == code
    assert front.asked[0].outcomes == [AttemptOutcome.BROKEN]


async def test_a_refusal_within_the_response_is_no_refusal_for_the_client(stand: Stand) -> None:
    """REFUSED_STREAM would say that the request was not processed, and may be sent again."""
    front, pod = stand.front(), stand.raw_pod()
    front.to(pod.port, H2C)
    pod.answers = [BEGINNING]
    asking = await front.client(UpstreamProtocol.HTTP2).begin()
    await until(lambda: asking.body)
    pod.connections[0].send(raw.rst_stream(1, 0x7))
    await asking.wait()
    assert isinstance(asking.failure, ConnectionClosed)
    assert asking.failure.code == 0x2
