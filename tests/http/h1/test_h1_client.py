"""The client engine: what it makes of an upstream's bytes, and when the connection can be used again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone, ConnectionLost

from mcproxy.http.client_stream import MAX_INTERIM, ConnectionClosed, ResponseTimeout
from mcproxy.http.h1.h1_client import MAX_HEAD
from mcproxy.http.messages import UpstreamProtocolError
from tests.http.h1.harness import Answer, ClientHarness

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


@pytest.fixture
def harness() -> ClientHarness:
    return ClientHarness()


def failed(answer: Answer, kind: type[Exception]) -> bool:
    return isinstance(answer.failure, kind) and not answer.complete


def reusable(harness: ClientHarness) -> bool:
    return harness.idle == 1 and harness.closed == 0 and harness.wire.open


def used_up(harness: ClientHarness) -> bool:
    """The pool heard of it once, and the connection ends."""
    return (
        harness.idle == 0 and harness.closed == 1 and (harness.wire.closed or harness.wire.aborted or harness.wire.lost)
    )


class TestBodies:
    @pytest.mark.parametrize(
        ("raw", "body"),
        [
            (OK, b"ok"),
            (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"ok"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
            (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
            (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
            (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        ],
    )
    def test_after_its_body_the_connection_can_be_used_again(
        self, harness: ClientHarness, raw: bytes, body: bytes
    ) -> None:
        answer = harness.asks()
        harness.answers(raw)
        assert (answer.body, answer.trailers) == (body, [])
        assert reusable(harness)
        again = harness.asks()
        harness.wire.drip(OK)
        assert again.body == b"ok"
        assert harness.idle == 2

    @pytest.mark.parametrize(
        "raw",
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    )
    def test_an_answer_to_head_has_no_body_whatever_its_length(self, harness: ClientHarness, raw: bytes) -> None:
        answer = harness.asks(b"HEAD")
        harness.answers(raw)
        assert answer.complete
        assert answer.body == b""
        assert reusable(harness)

    @given(st.lists(st.integers(0, 200), max_size=8))
    def test_any_split_gives_the_same_answer(self, places: list[int]) -> None:
        raw = (
            b"HTTP/1.1 100 Continue\r\n\r\n"
            + CHUNKED.replace(b"\r\n\r\n", b"\r\nA: b\r\n\r\n")
            + b"5\r\nhello\r\n0\r\nT: u\r\n\r\n"
        )
        harness = ClientHarness()
        answer = harness.asks()
        edges = sorted({0, len(raw), *(place % len(raw) for place in places)})
        for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007
            harness.answers(raw[start:end])
        assert answer.head is not None
        assert (answer.informed, answer.head.fields, answer.body) == ([100], b"A: b\r\n", b"hello")
        assert answer.trailers == [(b"T", b"u")]
        assert reusable(harness)

    def test_a_body_until_close_ends_with_an_orderly_close(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(b"HTTP/1.1 200 OK\r\n\r\nsome").answers(b" more")
        assert not answer.complete
        harness.wire.end()
        assert (answer.body, answer.complete) == (b"some more", True)
        assert used_up(harness)

    def test_it_ends_with_the_connection_too(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(b"HTTP/1.1 200 OK\r\n\r\nsome")
        harness.wire.lose(ConnectionDone)
        assert answer.complete

    def test_a_body_until_close_that_is_broken_off_is_not_complete(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(b"HTTP/1.1 200 OK\r\n\r\nsome")
        harness.wire.lose(ConnectionLost)
        assert failed(answer, ConnectionClosed)
        assert used_up(harness)

    @pytest.mark.parametrize("end", ["half", "done", "lost"])
    @pytest.mark.parametrize(
        "raw", [b"", b"HTTP/1.1 20", OK[:-1], CHUNKED, CHUNKED + b"2\r\nok\r\n", CHUNKED + b"2\r\nok\r\n0\r\n"]
    )
    def test_a_shortened_answer_fails(self, harness: ClientHarness, raw: bytes, end: str) -> None:
        answer = harness.asks()
        harness.answers(raw)
        if end == "half":
            harness.wire.end()
        else:
            harness.wire.lose(ConnectionDone if end == "done" else ConnectionLost)
        assert failed(answer, ConnectionClosed)
        assert used_up(harness)
        assert harness.connection.began is bool(raw)

    def test_the_end_of_available_data_is_signalled(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(CHUNKED)
        assert answer.flushes == 1
        harness.answers(b"2\r\nok\r\n")
        assert (answer.body, answer.flushes) == (b"ok", 2)


class TestInterim:
    def test_interim_answers_come_before_the_final_one(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK)
        assert (answer.informed, answer.body) == ([103, 100], b"ok")
        assert reusable(harness)

    def test_after_100_the_final_answer_has_its_own_time(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True, timeout=10)
        harness.answers(b"HTTP/1.1 100 Continue\r\n\r\n")
        harness.passes(30)
        assert answer.failure is None
        harness.connection.send_body(b"x")
        harness.connection.end_body([])
        harness.passes(11)
        assert failed(answer, ResponseTimeout)

    def test_an_interim_answer_and_the_beginning_of_the_final_one_in_one_read(self, harness: ClientHarness) -> None:
        answer = harness.asks(timeout=10)
        harness.answers(b"HTTP/1.1 100 Continue\r\n\r\n" + OK[:-1])
        harness.passes(30)
        harness.answers(OK[-1:])
        assert answer.complete


class TestTimeout:
    def test_without_a_first_byte_it_fails(self, harness: ClientHarness) -> None:
        answer = harness.asks(timeout=10)
        harness.passes(9.75)
        assert answer.failure is None
        harness.passes(0.75)
        assert failed(answer, ResponseTimeout)
        assert harness.wire.aborted
        assert used_up(harness)

    def test_the_head_ends_it(self, harness: ClientHarness) -> None:
        answer = harness.asks(timeout=10)
        harness.answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
        harness.passes(100)
        assert answer.failure is None

    def test_half_a_head_does_not(self, harness: ClientHarness) -> None:
        answer = harness.asks(timeout=10)
        harness.answers(b"HTTP/1.1 200 OK\r\nContent-")
        harness.passes(10.25)
        assert failed(answer, ResponseTimeout)

    def test_it_runs_from_the_end_of_the_request(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True, timeout=10)
        harness.passes(100)
        harness.connection.send_body(b"x")
        harness.passes(100)
        assert answer.failure is None
        harness.connection.end_body([])
        harness.passes(10.25)
        assert failed(answer, ResponseTimeout)

    def test_an_upstream_that_reads_nothing_of_the_request(self, harness: ClientHarness) -> None:
        """As nginx's proxy_send_timeout: it holds no client for ever."""
        answer = harness.asks(b"POST", body=True, timeout=10)
        harness.connection.send_body(b"x")
        harness.wire.block()
        harness.passes(9.75)
        assert answer.failure is None
        harness.passes(0.75)
        assert failed(answer, ResponseTimeout)
        assert used_up(harness)

    def test_an_upstream_that_reads_slowly(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True, timeout=10)
        harness.connection.send_body(b"x")
        harness.wire.block()
        for _ in range(10):
            harness.wire.sent_from_queue += 1
            harness.passes(9)
        assert answer.failure is None
        harness.wire.unblock()
        harness.passes(100)  # it is the client's turn
        assert answer.failure is None
        harness.connection.end_body([])
        harness.passes(10.25)
        assert failed(answer, ResponseTimeout)

    @pytest.mark.parametrize("timeout", [0, 10])
    def test_no_time_for_the_request_runs_once_the_response_has_begun(
        self, harness: ClientHarness, timeout: float
    ) -> None:
        answer = harness.asks(b"POST", body=True, timeout=timeout)
        if timeout:
            harness.answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
        harness.wire.block()
        harness.passes(1000)
        assert answer.failure is None

    def test_zero_is_none(self, harness: ClientHarness) -> None:
        answer = harness.asks(timeout=0)
        harness.passes(1000)
        assert answer.failure is None


class TestKeepAlive:
    @pytest.mark.parametrize(
        "raw",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ],
    )
    def test_a_connection_that_will_close_is_not_used_again(self, harness: ClientHarness, raw: bytes) -> None:
        answer = harness.asks()
        harness.answers(raw)
        assert answer.body == b"ok"
        assert answer.complete
        assert used_up(harness)
        assert harness.wire.closed

    @pytest.mark.parametrize("garbage", [b"x", b"\r\n", OK])
    @pytest.mark.parametrize("raw", [OK, CHUNKED + b"0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"])
    def test_bytes_behind_the_answer_spoil_the_connection_but_not_the_answer(
        self, harness: ClientHarness, raw: bytes, garbage: bytes
    ) -> None:
        answer = harness.asks()
        harness.answers(raw + garbage)
        assert answer.complete
        assert used_up(harness)
        assert harness.wire.aborted

    def test_an_answer_before_the_request_is_complete_uses_the_connection_up(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True)
        harness.connection.send_body(b"some")
        harness.answers(OK)
        assert answer.complete
        assert used_up(harness)
        harness.wire.taken()
        harness.connection.send_body(b"more")
        harness.connection.end_body([])
        assert harness.wire.taken() == b""

    def test_an_answer_while_the_request_is_still_queued_uses_the_connection_up(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True)
        harness.wire.block()
        assert answer.request_paused
        harness.connection.end_body([])
        harness.answers(OK)
        assert answer.complete
        assert used_up(harness)

    def test_a_paused_answer_that_is_complete_leaves_a_connection_that_reads(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(OK[:-1])
        harness.connection.pause()
        assert not harness.wire.reading
        harness.answers(OK[-1:])  # was read already
        assert answer.complete
        assert harness.wire.reading


class TestRefusals:
    @pytest.mark.parametrize(
        "raw",
        [
            b"garbage\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            CHUNKED + b"x\r\n",
            CHUNKED + b"2\r\nokay\r\n",
            UPGRADE,
            b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD,
        ],
    )
    def test_what_breaks_the_protocol_fails_and_is_broken_off(self, harness: ClientHarness, raw: bytes) -> None:
        answer = harness.asks()
        harness.answers(raw)
        assert failed(answer, UpstreamProtocolError)
        assert harness.wire.aborted
        assert used_up(harness)
        harness.wire.settle()
        assert harness.closed == 1

    def test_unasked_bytes_break_an_idle_connection_off(self, harness: ClientHarness) -> None:
        harness.answers(OK)
        assert used_up(harness)

    def test_101_before_the_request_is_complete_is_refused(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True, upgrade=True)
        harness.answers(UPGRADE)
        assert failed(answer, UpstreamProtocolError)


class TestEnds:
    def test_cancelled_the_connection_is_broken_off_and_the_sink_hears_no_more(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        harness.answers(OK[:-1])
        harness.connection.cancel()
        assert harness.wire.aborted
        harness.connection.dataReceived(OK[-1:])
        harness.wire.settle()
        assert not answer.complete
        assert answer.failure is None
        assert harness.closed == 1

    def test_cancelled_at_the_head_the_sink_hears_nothing_of_the_body(self, harness: ClientHarness) -> None:
        answer = harness.asks()
        answer.on_head = harness.connection.cancel
        harness.answers(OK[:-1])
        assert (answer.body, answer.complete) == (b"", False)
        assert used_up(harness)

    def test_retired_it_closes_at_once_although_it_is_a_producer(self, harness: ClientHarness) -> None:
        harness.connection.retire()
        assert harness.wire.closed
        harness.wire.settle()
        assert harness.closed == 1

    def test_the_upstream_closes_an_idle_connection(self, harness: ClientHarness) -> None:
        harness.wire.end()
        assert harness.wire.closed
        harness.wire.settle()
        assert harness.closed == 1


class TestPace:
    def test_reading_is_stopped_and_goes_on(self, harness: ClientHarness) -> None:
        harness.asks()
        harness.connection.pause()
        harness.connection.pause()
        assert not harness.wire.reading
        harness.connection.resume()
        assert harness.wire.reading

    def test_a_full_send_buffer_stops_the_request(self, harness: ClientHarness) -> None:
        answer = harness.asks(b"POST", body=True)
        harness.wire.block()
        assert answer.request_paused
        harness.wire.unblock()
        assert not answer.request_paused


class TestUpgrade:
    def test_101_makes_a_tunnel_and_takes_the_connection_from_the_pool(self, harness: ClientHarness) -> None:
        answer = harness.asks(upgrade=True)
        harness.answers(UPGRADE + b"early")
        assert answer.upgraded is not None
        assert answer.upgraded.bytes_received == 5
        assert (harness.idle, harness.closed) == (0, 1)
        assert harness.wire.open

    def test_any_other_answer_is_a_plain_one(self, harness: ClientHarness) -> None:
        answer = harness.asks(upgrade=True)
        harness.answers(OK)
        assert answer.body == b"ok"
        assert reusable(harness)


def test_interim_responses_are_bounded() -> None:
    harness = ClientHarness()
    answer = harness.asks()
    harness.answers(b"HTTP/1.1 103 Early Hints\r\n\r\n" * MAX_INTERIM)
    assert answer.informed == [103] * MAX_INTERIM
    harness.answers(b"HTTP/1.1 103 Early Hints\r\n\r\n")
    assert isinstance(answer.failure, UpstreamProtocolError)


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.2\r\n", b"220 mail.example ESMTP\r\n", b"\x15\x03\x01", b"H\n"])
def test_what_cannot_become_http_is_told_at_once(harness: ClientHarness, banner: bytes) -> None:
    """Its peer waits for our next words; without that the request would have all of its time."""
    answer = harness.asks()
    harness.wire.deliver(banner)
    assert isinstance(answer.failure, UpstreamProtocolError)
    assert harness.wire.aborted


def test_the_first_bytes_may_come_one_by_one(harness: ClientHarness) -> None:
    answer = harness.asks()
    harness.wire.drip(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert answer.head is not None
    assert answer.head.status == 204
