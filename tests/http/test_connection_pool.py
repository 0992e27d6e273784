"""Which version of HTTP a pool speaks: what is offered, what the upstream chooses, how long that is remembered."""

from __future__ import annotations

from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.connection_pool import ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.h1_client import H1ClientConnection
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.net.connect_errors import ConnectError, ConnectFailed, ConnectionRefused, from_handshake
from tests.http.h1.harness import Answer, request_to_send
from tests.http.h2.harness import H2Wire
from tests.support.clock import Clock

BOTH = (b"h2", b"http/1.1")
HTTP1 = (b"http/1.1",)
HTTP2 = (b"h2",)


class Play:
    def __init__(self, protocol: UpstreamProtocol, *, max_idle: int = 9, max_connections: int = 0) -> None:
        self.offered: list[tuple[bytes, ...]] = []
        self.dials: list[tuple[Any, Deferred[None]]] = []
        self.wires: list[H2Wire] = []
        self.clock = Clock()
        self.pool = ConnectionPool(
            self._connect,
            Deadlines(self.clock),
            protocol=protocol,
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=90.0,
        )

    def _connect(self, protocol: Any, alpn: tuple[bytes, ...]) -> Deferred[None]:
        self.offered.append(alpn)
        self.dials.append((protocol, Deferred()))
        return self.dials[-1][1]

    def asks(self, count: int = 1, *, upgrade: bool = False) -> list[Any]:
        """The streams of requests, or why they have none; the list grows."""
        got: list[Any] = []
        for _ in range(count):
            stream = self.pool.take(upgrade=upgrade)
            if stream is not None:
                got.append(stream)
            else:
                self.pool.open(upgrade=upgrade).addCallbacks(got.append, lambda why: got.append(why.value))
        return got

    def agrees(self, alpn: bytes | None) -> None:
        """The oldest handshake that is under way ends with this protocol."""
        protocol, done = self.dials.pop(0)
        wire = H2Wire(protocol)
        wire.alpn = alpn
        self.wires.append(wire)
        protocol.makeConnection(wire)
        done.callback(None)

    def fails(self, error: ConnectError) -> None:
        self.dials.pop(0)[1].errback(error)


def test_http2_if_both_are_offered_and_it_is_chosen() -> None:
    play = Play(UpstreamProtocol.AUTO)
    got = play.asks(20)
    assert play.offered == [BOTH]
    play.agrees(b"h2")
    assert [type(stream) for stream in got] == [H2ClientStream] * 20
    assert len({stream._connection for stream in got}) == 1
    assert play.pool.connections == 1


@pytest.mark.parametrize("chosen", [b"http/1.1", None])
def test_http1_is_remembered_and_all_who_waited_get_a_connection(chosen: bytes | None) -> None:
    play = Play(UpstreamProtocol.AUTO)
    got = play.asks(3)
    play.agrees(chosen)
    assert [type(stream) for stream in got] == [H1ClientConnection]
    assert play.offered == [BOTH, HTTP1, HTTP1]
    play.agrees(b"http/1.1")
    play.agrees(b"http/1.1")
    assert len(set(got)) == 3
    assert play.pool.connections == 3
    for stream, wire in zip(got, play.wires, strict=True):
        stream.send_head(request_to_send(), b"/", b"host", (), Answer(), 60.0)
        assert wire.taken().startswith(b"GET / HTTP/1.1\r\n")


def test_who_waits_for_http2_does_not_wait_for_a_handshake_that_hangs() -> None:
    play = Play(UpstreamProtocol.AUTO)
    got = play.asks(101)
    assert play.offered == [BOTH, BOTH]
    play.agrees(b"http/1.1")
    assert play.offered == [BOTH, BOTH] + [HTTP1] * 100
    assert [type(stream) for stream in got] == [H1ClientConnection]
    play.agrees(b"http/1.1")  # the one that hung
    assert play.pool.idle == 1


def test_an_upstream_that_restarted_between_two_requests_is_asked_again() -> None:
    play = Play(UpstreamProtocol.AUTO)
    play.asks()
    play.agrees(b"http/1.1")
    play.wires[0].protocol.connectionLost(connectionDone)
    got = play.asks()
    assert play.offered == [BOTH, BOTH]
    play.agrees(b"h2")
    assert isinstance(got[0], H2ClientStream)
    assert isinstance(play.asks()[0], H2ClientStream)


def test_where_no_idle_connection_is_kept_a_request_costs_one_handshake() -> None:
    play = Play(UpstreamProtocol.AUTO, max_idle=0)
    play.asks()
    play.agrees(b"http/1.1")
    play.agrees(b"http/1.1")
    for wire in play.wires:
        wire.protocol.connectionLost(connectionDone)
    assert play.pool.connections == 0
    play.asks()
    assert play.offered == [BOTH, HTTP1, HTTP1]


def test_an_upstream_that_never_fails_is_asked_again_by_one_connection_after_five_minutes() -> None:
    play = Play(UpstreamProtocol.AUTO)
    play.asks()
    play.agrees(b"http/1.1")
    play.clock.advance(299)
    play.asks()
    play.agrees(b"http/1.1")
    play.clock.advance(1)
    first = play.asks()
    second = play.asks()
    assert play.offered == [BOTH, HTTP1, BOTH, HTTP1]
    play.agrees(b"http/1.1")
    assert isinstance(first[0], H1ClientConnection)
    play.agrees(b"http/1.1")
    assert isinstance(second[0], H1ClientConnection)
    play.clock.advance(300)
    play.pool.open().addCallback(lambda got: got.send_head(request_to_send(), b"/", b"host", (), Answer(), 60.0))
    play.agrees(b"h2")
    assert isinstance(play.asks()[0], H2ClientStream)
    assert play.offered[4:] == [BOTH]


@pytest.mark.parametrize("how", ["refused", "out"])
def test_a_failure_of_the_upstream_makes_it_be_asked_again(how: str) -> None:
    play = Play(UpstreamProtocol.AUTO)
    play.asks()
    play.agrees(b"http/1.1")
    if how == "refused":
        got = play.asks()
        play.fails(ConnectionRefused("refused"))
        assert isinstance(got[0], ConnectionRefused)
    else:
        play.pool.renew()
    got = play.asks()
    assert play.offered[-1] == BOTH
    play.agrees(b"h2")
    assert isinstance(got[0], H2ClientStream)


def test_an_upstream_that_goes_back_to_http1_is_followed() -> None:
    play = Play(UpstreamProtocol.AUTO)
    (got,) = [play.asks()]
    play.agrees(b"h2")
    got[0].send_head(request_to_send(), b"/", b"host", (), Answer(), 60.0)
    waiting: list[Any] = []
    play.pool.open().addCallback(waiting.append)
    play.agrees(b"http/1.1")
    assert isinstance(waiting[0], H1ClientConnection)
    assert play.pool.take() is None  # the HTTP/2 connection is left to its stream
    assert play.wires[0].open


def test_upgrades_have_connections_of_their_own() -> None:
    play = Play(UpstreamProtocol.HTTP2)
    play.asks()
    play.agrees(b"h2")
    got = play.asks(2, upgrade=True)
    assert play.offered == [HTTP2, HTTP1, HTTP1]
    play.agrees(b"http/1.1")
    assert isinstance(got[0], H1ClientConnection)


def test_http2_alone_is_not_satisfied_with_less() -> None:
    play = Play(UpstreamProtocol.HTTP2)
    got = play.asks(2)
    play.agrees(None)
    assert [type(problem) for problem in got] == [ConnectFailed] * 2
    assert "set connections.protocol to Auto or HTTP1" in got[0].cause
    assert play.wires[0].aborted
    got = play.asks()
    play.fails(from_handshake(SSL.Error([("", "", "tlsv1 alert no application protocol")]), "10.0.0.1:6443"))
    assert "set connections.protocol to Auto or HTTP1" in got[0].cause
    assert play.pool.connections == 0


def test_http1_alone_offers_nothing_else() -> None:
    play = Play(UpstreamProtocol.HTTP1)
    play.asks(2)
    assert play.offered == [HTTP1, HTTP1]
