"""The tunnel after 101: bytes, half-close and pace go both ways, whatever comes first."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost

from mcproxy.http.tunnel import TunnelSide
from tests.http.h1.harness import ClientHarness, ServerHarness

ASK = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class Play:
    """A client and an upstream with both engines and the tunnel between them."""

    def __init__(self, *, early_client: bytes = b"", early_upstream: bytes = b"") -> None:
        self.server = ServerHarness().sends(ASK + early_client)
        self.upstream = ClientHarness()
        answer = self.upstream.asks(upgrade=True)
        self.upstream.wire.taken()
        self.upstream.answers(UPGRADE + early_upstream)
        assert answer.upgraded is not None
        self.request = self.server.last
        side: TunnelSide = self.request.exchange.switch_protocols(b"", b"", b"websocket")
        self.client_side = side
        side.splice(answer.upgraded)
        head = self.server.wire.out[: self.server.wire.out.find(b"\r\n\r\n") + 4]
        assert head == UPGRADE
        self.server.wire.out = self.server.wire.out[len(head) :]
        self.client = self.server.wire
        self.behind = self.upstream.wire


@pytest.fixture
def harness() -> Play:
    return Play()


def both(harness: Play, forward: bool) -> tuple[Any, Any]:
    """The end that does something, and the other one."""
    return (harness.client, harness.behind) if forward else (harness.behind, harness.client)


@pytest.mark.parametrize("forward", [True, False])
class TestEitherWay:
    def test_bytes_pass(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        one.deliver(b"hello\r\n\r\n\x00")
        assert other.taken() == b"hello\r\n\r\n\x00"

    def test_half_close_passes_and_the_other_way_goes_on(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        one.deliver(b"last")
        one.end()
        assert other.half_closed
        assert not other.closed
        assert one.open
        other.deliver(b"answer")
        assert one.taken() == b"answer"
        other.end()
        assert one.closed
        assert harness.request.ends == 0

    def test_a_broken_connection_breaks_the_other(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        one.lose(ConnectionLost)
        assert other.aborted
        other.settle()
        assert harness.request.ends == 1

    def test_an_orderly_end_is_passed_on_as_one(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        one.deliver(b"last")
        one.lose(ConnectionDone)
        assert other.closed
        assert not other.aborted
        assert other.out == b"last"

    def test_a_full_send_buffer_stops_the_other_side(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        other.block()
        assert not one.reading
        assert other.reading
        other.unblock()
        assert one.reading

    def test_an_end_that_is_broken_off_after_half_close(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        one.end()
        other.lose(ConnectionLost)
        assert one.aborted

    def test_bytes_for_a_side_that_takes_no_more_are_dropped(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        other.lose(ConnectionDone)
        other.taken()
        one.protocol.dataReceived(b"late")
        assert other.out == b""
        one.settle()
        assert harness.request.ends == 1

    def test_bytes_behind_an_end_from_here_are_dropped(self, harness: Play, forward: bool) -> None:
        one, other = both(harness, forward)
        harness.client_side.close(clean=True)
        harness.client.taken()
        harness.behind.taken()
        one.protocol.dataReceived(b"late")
        assert other.out == (b"late" if forward else b"")  # only the client's side was ended


def test_early_bytes_of_both_sides_come_through_in_order() -> None:
    harness = Play(early_client=b"one ", early_upstream=b"uno ")
    assert (harness.behind.taken(), harness.client.taken()) == (b"one ", b"uno ")
    assert harness.client.reading
    assert harness.behind.reading
    harness.client.deliver(b"two")
    harness.behind.deliver(b"due")
    assert (harness.behind.taken(), harness.client.taken()) == (b"two", b"due")


def test_early_bytes_that_fill_the_other_side_keep_this_one_stopped() -> None:
    server, upstream = ServerHarness().sends(ASK), ClientHarness()
    answer = upstream.asks(upgrade=True)
    upstream.answers(UPGRADE + b"early")
    assert answer.upgraded is not None
    assert not upstream.wire.reading
    side = server.last.exchange.switch_protocols(b"", b"", b"websocket")
    plain_write = server.wire.write

    def fills_up(data: bytes) -> None:
        plain_write(data)
        server.wire.block()

    server.wire.write = fills_up  # type: ignore[method-assign]
    side.splice(answer.upgraded)
    assert not upstream.wire.reading
    server.wire.unblock()
    assert upstream.wire.reading


def test_the_upstream_may_have_ended_before_the_tunnel_stands() -> None:
    server, upstream = ServerHarness().sends(ASK), ClientHarness()
    answer = upstream.asks(upgrade=True)
    upstream.answers(UPGRADE + b"bye")
    upstream.wire.end()
    assert answer.upgraded is not None
    server.last.exchange.switch_protocols(b"", b"", b"websocket").splice(answer.upgraded)
    assert server.wire.out.endswith(b"bye")
    assert server.wire.half_closed


def test_the_upstream_may_be_lost_before_the_tunnel_stands() -> None:
    server, upstream = ServerHarness().sends(ASK), ClientHarness()
    answer = upstream.asks(upgrade=True)
    upstream.answers(UPGRADE)
    upstream.wire.lose(ConnectionAborted)
    assert answer.upgraded is not None
    server.last.exchange.switch_protocols(b"", b"", b"websocket").splice(answer.upgraded)
    assert server.wire.aborted


def test_the_exchange_ends_with_the_tunnel_and_knows_its_bytes(harness: Play) -> None:
    harness.client.deliver(b"12345")
    harness.behind.deliver(b"123")
    exchange = harness.request.exchange
    assert (exchange.status, exchange.upgraded, harness.request.ends) == (101, True, 0)
    harness.client.lose(ConnectionDone)
    assert (harness.request.ends, exchange.bytes_in, exchange.bytes_out, exchange.completed) == (1, 5, 3, True)
    harness.behind.settle()
    assert harness.request.ends == 1


def test_the_deadlines_of_http_do_not_end_a_tunnel(harness: Play) -> None:
    harness.server.passes(1000)
    harness.upstream.passes(1000)
    assert harness.client.open
    assert harness.behind.open


def test_closed_in_an_orderly_way_from_here_it_ends_on_both_sides(harness: Play) -> None:
    harness.client_side.close(clean=True)
    assert harness.client.closed
    harness.client.settle()
    assert harness.behind.closed
