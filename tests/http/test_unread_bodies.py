"""What waits to be read of requests' bodies, over all connections of a listener of either version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address

from mcproxy.http.exchange import UnreadBodies
from mcproxy.http.messages import ProtocolError
from tests.http.h1.harness import ServerHarness
from tests.http.h2.harness import H2ServerHarness, data, request

ONE, OTHER = (IPv4Address("TCP", f"10.0.0.{number}", 1) for number in (1, 2))


def full(bodies: UnreadBodies, client: IPv4Address, size: int) -> bool:
    try:
        bodies.add(client, b"x" * size)
    except ProtocolError:
        return True
    return False


def test_one_client_leaves_half_of_it_to_others() -> None:
    bodies = UnreadBodies(most=1600)
    assert not full(bodies, ONE, 800)
    with pytest.raises(ProtocolError, match="please try again later") as caught:
        bodies.add(ONE, b"x")
    assert caught.value.status == 503
    assert not full(bodies, OTHER, 200)
    assert full(bodies, OTHER, 1), "it has its eighth"
    bodies.remove(ONE, [b"x" * 800])
    assert not full(bodies, OTHER, 600)
    assert full(bodies, OTHER, 1)


def test_all_together_have_a_bound() -> None:
    bodies = UnreadBodies(most=1600)
    clients = [IPv4Address("TCP", f"10.0.1.{number}", 1) for number in range(9)]
    assert [full(bodies, client, 200) for client in clients] == [False] * 8 + [True]
    assert bodies.size == 1600
    bodies.take_back(ONE, [b"ab", b"c"])  # what a handler gives back is in memory already
    assert bodies.size == 1603
    bodies.remove(ONE, [b"abc"])
    for client in clients[:8]:
        bodies.remove(client, [b"x" * 200])
    assert bodies.size == 0
    assert bodies._by_client == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900), st.booleans()), max_size=60))
def test_it_is_the_sum_of_what_is_held_and_never_more_than_the_bound(steps: list[tuple[int, int, bool]]) -> None:
    bodies, held = UnreadBodies(most=1600), list[tuple[IPv4Address, int]]()
    for number, size, leaves in steps:
        client = IPv4Address("TCP", f"10.0.0.{number}", 1)
        if leaves and held:
            gone, much = held.pop(size % len(held))
            bodies.remove(gone, [b"x" * much])
        elif not full(bodies, client, size):
            held.append((client, size))
        assert bodies.size == sum(size for _, size in held) <= 1600


POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"


def test_http1() -> None:
    harness = ServerHarness(attach=False)
    bodies = harness.factory.unread_bodies = UnreadBodies(most=1000)
    harness.sends(POST % 2000 + b"x" * 400)
    assert bodies.size == 400
    assert not harness.wire.reading
    harness.last.exchange.attach(harness.last)
    assert (bodies.size, len(harness.last.body)) == (0, 400)
    harness.sends(b"y" * 600)
    assert bodies.size == 0
    harness.last.exchange.detach([harness.last.body])
    assert bodies.size == 1000
    harness.wire.lose()
    assert bodies.size == 0


def test_http1_beyond_it_is_refused() -> None:
    harness = ServerHarness(attach=False)
    bodies = harness.factory.unread_bodies = UnreadBodies(most=1000)
    harness.sends(POST % 2000 + b"x" * 501)
    assert harness.status() == 503
    assert (harness.last.ends, harness.last.cancellations, bodies.size) == (1, 0, 0)


def test_http2_refuses_the_stream_and_keeps_the_others() -> None:
    harness = H2ServerHarness(attach=False)
    bodies = harness.factory.unread_bodies = UnreadBodies(most=1000)
    harness.sends(request(1, b"POST", end=False), data(1, b"x" * 400))
    harness.sends(request(3, b"POST", end=False), data(3, b"x" * 100))
    assert bodies.size == 500
    harness.sends(data(3, b"x" * 5), data(1, b""))
    refused, first = harness.requests[1], harness.requests[0]
    assert (refused.exchange.status, refused.ends, bodies.size) == (503, 1, 400)
    first.exchange.attach(first)
    assert (len(first.body), bodies.size) == (400, 0)
    harness.sends(data(1, b"z" * 700, end=True))
    assert (len(first.body), first.trailers, bodies.size) == (1100, [], 0)
    first.answer()
    assert harness.wire.open


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2.0"])
def test_an_answer_before_the_body_gives_it_back(protocol: str) -> None:
    harness = ServerHarness(attach=False) if protocol == "HTTP/1.1" else H2ServerHarness(attach=False)
    begin = POST % 2000 if protocol == "HTTP/1.1" else request(1, b"POST", end=False)
    harness.sends(begin + (b"x" * 400 if protocol == "HTTP/1.1" else data(1, b"x" * 400)))
    assert harness.factory.unread_bodies.size == 400
    harness.last.answer(b"unauthorized", 401)
    assert harness.factory.unread_bodies.size == 0
