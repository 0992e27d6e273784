"""Which connections of a pool the proxy's own requests use, and that they hold up no client's, nor the reverse."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.connection_pool import Use
from mcproxy.http.h1.h1_client import H1ClientConnection
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.net.connect_errors import ConnectionRefused
from tests.http.h1.harness import Answer, request_to_send
from tests.http.test_connection_pool import BOTH, HTTP1, Play

OWN = (Use.SHORT, Use.LASTING, Use.BULK)


def own(play: Play, use: Use, count: int = 1, **how: bool) -> list[Any]:
    """The streams of the proxy's own requests, or why they have none; the list grows."""
    got: list[Any] = []
    for _ in range(count):
        stream = play.pool.take_own(use, **how)
        if stream is not None:
            got.append(stream)
        else:
            play.pool.open_own(use, **how).addCallbacks(got.append, lambda why: got.append(why.value))
    return got


def connection(stream: Any) -> Any:
    return stream._connection


def send(stream: Any) -> Answer:
    answer = Answer()
    stream.send_head(request_to_send(b"GET"), b"/", b"host", (), answer, 0.0)
    return answer


def test_short_ones_share_with_clients_and_the_others_have_their_own() -> None:
    play = Play(UpstreamProtocol.AUTO)
    clients = play.asks()
    play.agrees(b"h2")
    short = own(play, Use.SHORT, 3)
    assert {connection(stream) for stream in short} == {connection(clients[0])}
    lasting = own(play, Use.LASTING, 20)
    play.agrees(b"h2")
    bulk = own(play, Use.BULK, 4)
    play.agrees(b"h2")
    assert len({connection(stream) for stream in lasting}) == 1
    assert len({connection(stream) for stream in bulk}) == 1
    assert len({connection(stream) for stream in (*short, *lasting, *bulk)}) == 3
    assert connection(play.asks()[0]) is connection(clients[0]), "a client got a connection of the proxy's own"
    assert play.pool.counts()["HTTP/2.0"][0] == play.pool.connections == 3
    assert play.dials == []


def test_clients_that_use_all_they_may_hold_up_no_request_of_the_proxy() -> None:
    play = Play(UpstreamProtocol.AUTO, max_connections=1)
    clients = play.asks()
    play.agrees(b"h2")
    connection(clients[0]).limit = 1
    send(clients[0])
    assert play.asks() == []
    assert play.dials == []
    short = own(play, Use.SHORT)
    play.agrees(b"h2")
    assert connection(short[0]) is not connection(clients[0])
    apart: list[Any] = []
    play.pool.open_apart().addCallback(apart.append)
    play.agrees(b"h2")
    assert len({connection(each) for each in (*clients, *short, *apart)}) == 3


def test_over_http1_neither_do_they() -> None:
    play = Play(UpstreamProtocol.HTTP1, max_connections=1)
    assert play.asks() == []
    watches = own(play, Use.LASTING, 5)
    assert play.offered == [HTTP1] * 6
    for _ in range(6):
        play.agrees(b"http/1.1")
    assert len(set(watches)) == 5


def test_over_http1_a_connection_of_clients_stays_theirs() -> None:
    """One that a review used would be missed where clients may have but one."""
    play = Play(UpstreamProtocol.HTTP1, max_connections=1)
    clients = play.asks()
    play.agrees(b"http/1.1")
    [client] = clients
    answer = send(client)
    client.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert answer.body == b"ok"
    assert play.pool.idle == 1
    own(play, Use.SHORT)
    assert play.offered == [HTTP1] * 2
    assert play.pool.take() is client


def test_lasting_ones_spread_as_those_of_clients_do() -> None:
    play = Play(UpstreamProtocol.AUTO)
    own(play, Use.LASTING)
    play.agrees(b"h2")
    for _ in range(100):
        stream = play.pool.take_own(Use.LASTING)
        assert stream is not None
        send(stream)
    assert play.pool.take_own(Use.LASTING) is None


@pytest.mark.parametrize("use", OWN)
def test_an_upstream_that_chooses_http1_gets_the_request_over_the_connection_that_found_out(use: Use) -> None:
    play = Play(UpstreamProtocol.AUTO)
    got = own(play, use)
    assert play.offered == [BOTH]
    play.agrees(b"http/1.1")
    assert [type(stream) for stream in got] == [H1ClientConnection]
    assert play.pool.over_http1
    assert play.dials == []
    own(play, use)
    assert play.offered == [BOTH, HTTP1]


def test_it_is_asked_again_when_no_connection_over_http1_is_left() -> None:
    play = Play(UpstreamProtocol.AUTO)
    got = own(play, Use.SHORT)
    play.agrees(b"http/1.1")
    got[0].cancel()
    own(play, Use.LASTING)
    assert play.offered == [BOTH, BOTH]


def test_http1_can_be_asked_for() -> None:
    play = Play(UpstreamProtocol.AUTO)
    own(play, Use.SHORT)
    play.agrees(b"h2")
    got = own(play, Use.SHORT, http1=True)
    assert play.offered == [BOTH, HTTP1]
    play.agrees(b"http/1.1")
    assert [type(stream) for stream in got] == [H1ClientConnection]


def test_one_apart_opens_a_connection_and_leaves_it_to_all() -> None:
    play = Play(UpstreamProtocol.AUTO)
    clients = play.asks()
    play.agrees(b"h2")
    send(clients[0])
    got: list[Any] = []
    play.pool.open_apart().addCallback(got.append)
    assert len(play.dials) == 1
    play.agrees(b"h2")
    assert [type(stream) for stream in got] == [H2ClientStream]
    assert connection(got[0]) is not connection(clients[0])
    assert connection(got[0]) in play.pool._h2.connections


def test_one_apart_fails_with_its_connection() -> None:
    play = Play(UpstreamProtocol.AUTO)
    play.asks()
    play.agrees(b"h2")
    got: list[Any] = []
    play.pool.open_apart().addErrback(lambda why: got.append(why.value))
    play.fails(ConnectionRefused("it refused"))
    assert [type(each) for each in got] == [ConnectionRefused]


def test_after_a_failure_of_the_upstream_none_of_its_connections_gets_a_request() -> None:
    play = Play(UpstreamProtocol.AUTO)
    for use in OWN:
        own(play, use)
        play.agrees(b"h2")
    play.pool.renew()
    assert [play.pool.take_own(use) for use in OWN] == [None] * 3
    assert play.pool.connections == 0


def test_a_closed_pool_serves_and_keeps_nothing() -> None:
    play = Play(UpstreamProtocol.HTTP1)
    play.pool.close()
    got = own(play, Use.SHORT)
    play.agrees(b"http/1.1")
    answer = send(got[0])
    got[0].dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert answer.body == b"ok"
    assert play.pool.connections == 0


def test_what_may_end_its_connection_goes_apart_from_clients_and_from_the_proxy() -> None:
    play = Play(UpstreamProtocol.AUTO, max_connections=1)
    clients = play.asks()
    play.agrees(b"h2")
    got: list[Any] = []
    assert play.pool.take(apart=True) is None
    play.pool.open(apart=True).addCallback(got.append)
    play.agrees(b"h2")
    assert connection(got[0]) is not connection(clients[0])
    send(got[0])
    assert connection(play.pool.take(apart=True)) is connection(got[0])
    assert connection(play.asks()[0]) is connection(clients[0])
    assert connection(own(play, Use.SHORT)[0]) is connection(clients[0])


def test_without_http2_what_may_end_its_connection_goes_with_all_others() -> None:
    play = Play(UpstreamProtocol.AUTO)
    got: list[Any] = []
    play.pool.open(apart=True).addCallback(got.append)
    play.agrees(b"http/1.1")
    assert isinstance(got[0], H1ClientConnection)


def test_a_retired_connection_counts_for_as_long_as_it_carries_streams() -> None:
    play = Play(UpstreamProtocol.AUTO)
    got = play.asks()
    play.agrees(b"h2")
    send(got[0])
    connection(got[0]).goaway_received(1, 0, b"")
    assert (play.pool.connections, play.pool.counts()["HTTP/2.0"]) == (1, (1, 1))
    got[0].cancel()
    play.wires[0].turn()
    assert (play.pool.connections, play.pool.counts()["HTTP/2.0"]) == (0, (0, 0))
    assert len(play.pool._h2.retired) <= 1
    connection(got[0]).connectionLost()
    assert not play.pool._h2.retired
