"""Requests of clients of both versions of HTTP to pods of both versions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import CHUNKED, Header
from mcproxy.services.ingress.forward_target import AttemptOutcome
from mcproxy.services.ingress.pod_pools import PodConnections
from tests.net.peers import until
from tests.services.ingress.stand import H2C, HTTP1, TLS, Stand

VERSIONS = [UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2]


class Echo:
    """A pod's request: answered with what it was, when it is complete, and with its trailers."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.body = b""
        self.trailers: list[Header] = []
        self.was_cancelled = False
        exchange.attach(self)
        if not exchange.head.length:
            self._answer()

    def body_data(self, data: bytes) -> None:
        self.body += data

    def body_end(self, trailers: list[Header]) -> None:
        self.trailers = trailers
        self._answer()

    def _answer(self) -> None:
        head = self.exchange.head
        told = b" ".join([head.method, head.target, head.host, self.exchange.protocol.encode(), self.body])
        self.exchange.respond(200, b"", b"X-Pod: yes\r\nTrailer: x-sum\r\n", CHUNKED)
        self.exchange.write(told)
        self.exchange.end([(b"x-sum", b"1"), *self.trailers])

    def cancelled(self) -> None:
        self.was_cancelled = True

    def pause_response(self) -> None:
        pass

    def resume_response(self) -> None:
        pass

    def end_gracefully(self) -> None:
        pass


def how(connections: PodConnections) -> str:
    return {HTTP1: "h1", H2C: "h2c", TLS: "tls"}[connections]


@pytest.mark.parametrize("connections", [HTTP1, H2C, TLS], ids=how)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_request_and_its_response(
    stand: Stand, tls: bool, version: UpstreamProtocol, connections: PodConnections
) -> None:
    port = stand.pod(Echo, tls=connections is TLS)
    front = stand.front(tls=tls)
    pod = front.to(port, connections)
    client = front.client(version)
    spoken = b"HTTP/1.1" if connections is HTTP1 else b"HTTP/2.0"
    got = await client.ask(b"GET", b"/a?b=c")
    assert got.status == 200
    assert got.body == b"GET /a?b=c shop.example.com %b " % spoken
    assert got.trailers == []  # it has not asked for them
    assert got.head is not None
    assert got.head.header(b"x-pod") == b"yes"
    asking = await client.begin(b"POST", b"/p", b"Trailer: x-more\r\n", length=CHUNKED, te_trailers=True)
    asking.send(b"some")
    asking.send(b"thing")
    asking.end([(b"x-more", b"2"), (b"x-forwarded-for", b"evil"), (b"content-length", b"3")])
    await asking.wait()
    assert asking.body == b"POST /p shop.example.com %b something" % spoken
    assert asking.trailers == [(b"x-sum", b"1"), (b"x-more", b"2")]
    assert [asked.outcomes for asked in front.asked] == [[AttemptOutcome.ANSWERED]] * 2
    assert pod.in_flight == 0
    assert sum(count for count, _ in pod.counts().values()) == 1  # one connection for both


@pytest.mark.parametrize("connections", [HTTP1, H2C], ids=how)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_that_goes_away_cancels_the_request_at_the_pod(
    stand: Stand, version: UpstreamProtocol, connections: PodConnections
) -> None:
    held: list[Any] = []

    class Held(Echo):
        def _answer(self) -> None:
            held.append(self)

    front = stand.front()
    pod = front.to(stand.pod(Held), connections)
    asking = await front.client(version).begin()
    await until(lambda: held)
    assert asking.stream is not None
    asking.stream.cancel()
    await until(lambda: held[0].was_cancelled)
    assert front.asked[0].outcomes == [AttemptOutcome.CANCELLED]
    assert pod.in_flight == 0


async def test_a_stream_that_takes_no_head_is_given_up(stand: Stand) -> None:
    """Else its connection would be nobody's for ever."""

    class Broken:
        in_flight = cancelled = 0
        takes_requests = True

        def take(self, **_: object) -> None:
            return None

        def open(self, **_: object) -> Deferred[Any]:
            return succeed(self)

        def send_head(self, *_: object) -> None:
            raise ValueError

        def cancel(self) -> None:
            self.cancelled += 1

    front, target = stand.front(), Broken()
    front.pods.append(target)
    got = await front.client().ask()
    assert (got.status, front.bugs, target.cancelled, target.in_flight) == (500, 1, 1, 0)
