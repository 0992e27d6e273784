"""A connection on which a response is late: what becomes of it, and requests beside a stream."""

from __future__ import annotations

import pytest

from mcproxy.http.client_stream import ConnectionClosed
from mcproxy.http.h2.frames import GOAWAY, PING, ping
from tests.http.h2.client_harness import H2ClientHarness, response
from tests.http.h2.raw import goaway


@pytest.fixture
def harness() -> H2ClientHarness:
    return H2ClientHarness()


def pings(harness: H2ClientHarness) -> int:
    return len([sent for sent in harness.gets() if sent.kind == PING])


def test_one_on_which_nothing_arrived_gets_no_request_and_ends_unless_a_ping_is_answered(
    harness: H2ClientHarness,
) -> None:
    stream, _ = harness.asks()
    _, watch = harness.asks(lasting=True)
    since = harness.clock.seconds()
    harness.passes(2)
    stream.doubt(since)
    stream.cancel()
    assert harness.unusable == 1
    harness.passes(0.25)
    assert pings(harness) == 1
    harness.passes(14)
    assert not watch.failure
    harness.passes(2)
    assert isinstance(watch.failure, ConnectionClosed)
    assert harness.violations == ["the peer does not answer a PING"]


def test_one_whose_peer_answers_keeps_its_streams(harness: H2ClientHarness) -> None:
    stream, _ = harness.asks()
    _, watch = harness.asks(lasting=True)
    since = harness.clock.seconds()
    harness.passes(2)
    stream.doubt(since)
    harness.passes(0.25)
    harness.answers(ping(b"mcproxy\0", ack=True))
    harness.passes(29)
    assert watch.failure is None
    assert harness.violations == []


def test_one_on_which_something_arrived_is_as_before(harness: H2ClientHarness) -> None:
    late, _ = harness.asks()
    since = harness.clock.seconds()
    other, _ = harness.asks()
    harness.passes(1)
    harness.answers(response(other.stream_id, end=True))
    late.doubt(since)
    late.cancel()
    assert harness.unusable == 0
    assert pings(harness) == 0


def test_one_without_another_stream_closes_with_the_request_that_was_given_up(harness: H2ClientHarness) -> None:
    stream, _ = harness.asks()
    since = harness.clock.seconds()
    harness.passes(2)
    stream.doubt(since)
    stream.cancel()
    assert GOAWAY in [sent.kind for sent in harness.gets()]
    assert not harness.wire.open


def test_beside_a_stream_goes_another_while_its_connection_takes_any() -> None:
    harness = H2ClientHarness((3, 2))  # MAX_CONCURRENT_STREAMS
    stream, _ = harness.asks(lasting=True)
    beside = stream.sibling()
    assert beside is not None
    assert beside._connection is harness.connection
    harness.asks()
    assert stream.sibling() is None, "beyond the peer's limit"


def test_beside_no_stream_of_a_connection_out_of_service_or_that_is_over(harness: H2ClientHarness) -> None:
    over, _ = harness.asks()
    stream, answer = harness.asks(lasting=True)
    harness.answers(response(over.stream_id, end=True))
    assert over.sibling() is None
    assert stream.sibling() is not None
    harness.answers(goaway(stream.stream_id, 0))
    assert stream.sibling() is None
    assert answer.failure is None
