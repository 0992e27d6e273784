"""The server engine: order, keep-alive, bounds and times, and that each exchange ends exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone, ConnectionLost

from mcproxy.http.exchange import LINGER
from tests.http.h1.harness import ServerHarness
from tests.support.clock import START

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\nok"
OK_CLOSE = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def post(body: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *fields, b"", body])


CHUNKED_POST = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def harness() -> ServerHarness:
    return ServerHarness()


class TestRequests:
    def test_one_after_the_other_on_one_connection(self, harness: ServerHarness) -> None:
        for count in range(1, 4):
            harness.sends(GET)
            assert len(harness.requests) == count
            harness.last.answer()
            assert harness.gets() == OK
            assert harness.last.ends == 1
        assert harness.wire.open

    def test_a_pipeline_is_answered_in_order_and_looked_at_one_by_one(self, harness: ServerHarness) -> None:
        paths = [b"/1", b"/2", b"/3"]
        harness.sends(b"".join(GET.replace(b"/ ", path + b" ") for path in paths))
        for count, path in enumerate(paths, 1):
            assert len(harness.requests) == count
            assert harness.last.exchange.head.target == path
            harness.last.answer(path)
            assert harness.gets().endswith(path)

    @given(st.lists(st.integers(0, 300), max_size=8))
    def test_any_split_gives_the_same_requests(self, places: list[int]) -> None:
        raw = post(b"hello") + CHUNKED_POST + b"3\r\nabc\r\n0\r\nT: u\r\n\r\n" + GET
        harness = ServerHarness()
        edges = sorted({0, len(raw), *(place % len(raw) for place in places)})
        for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007
            harness.sends(raw[start:end])
        for _ in range(3):
            assert harness.last.trailers is not None or not harness.last.exchange.head.length
            harness.last.answer()
        assert [request.body for request in harness.requests] == [b"hello", b"abc", b""]
        assert harness.requests[1].trailers == [(b"T", b"u")]
        assert harness.wire.open

    def test_much_behind_a_request_stops_reading_until_it_is_answered(self) -> None:
        harness = ServerHarness(head_bytes=100)
        harness.sends(GET + b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
        assert not harness.wire.reading
        for _ in range(5):
            harness.last.answer()
        assert len(harness.requests) == 5
        assert harness.wire.reading

    def test_a_body_that_came_with_its_head_before_there_was_a_handler(self) -> None:
        harness = ServerHarness(attach=False)
        harness.sends(post(b"hello"))
        exchange = harness.last.exchange
        exchange.attach(harness.last)
        assert (harness.last.body, harness.last.trailers) == (b"hello", [])
        assert harness.wire.reading
        harness.last.answer()
        harness.sends(GET)
        assert len(harness.requests) == 2

    def test_a_request_refused_before_its_body_was_taken_leaves_a_connection_that_reads(self) -> None:
        harness = ServerHarness(attach=False)
        harness.sends(post(b"hello"))
        harness.last.answer()
        assert harness.wire.reading
        harness.sends(GET)
        assert len(harness.requests) == 2


class TestKeepAlive:
    @pytest.mark.parametrize(
        "raw", [b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"]
    )
    def test_connection_close_is_confirmed_and_closes(self, harness: ServerHarness, raw: bytes) -> None:
        harness.sends(raw)
        harness.last.answer()
        assert harness.gets() == OK_CLOSE
        assert harness.wire.closed

    def test_what_comes_behind_a_last_request_is_not_looked_at(self, harness: ServerHarness) -> None:
        harness.sends(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + GET)
        harness.last.answer()
        assert len(harness.requests) == 1

    def test_draining_closes_after_the_next_answer(self, harness: ServerHarness) -> None:
        harness.factory.begin_drain()
        harness.sends(GET)
        harness.last.answer()
        assert harness.gets() == OK_CLOSE
        assert harness.wire.closed

    def test_drain_closes_idle_connections_at_once_and_busy_ones_after_their_answer(self) -> None:
        idle, busy = ServerHarness(), ServerHarness().sends(GET)
        idle.factory.drain(unused=True)
        busy.factory.drain(unused=True)
        assert idle.wire.closed
        assert busy.wire.open
        busy.last.answer()
        assert busy.gets() == OK_CLOSE
        assert busy.wire.closed

    def test_drain_leaves_a_new_connection_its_first_request_unless_unused_ones_are_closed(self) -> None:
        new, unused, used = ServerHarness(), ServerHarness(), ServerHarness().sends(GET)
        used.last.answer()
        for harness in (new, unused, used):
            harness.factory.drain()
        assert used.wire.closed
        assert new.wire.open
        assert unused.wire.open
        new.sends(GET)
        new.last.answer()
        assert new.gets() == OK_CLOSE
        assert new.wire.closed
        unused.factory.drain(unused=True)
        assert unused.wire.closed


class TestResponses:
    def test_an_answer_of_unknown_length_is_chunked_and_flushed_piece_by_piece(self, harness: ServerHarness) -> None:
        harness.sends(GET.replace(b"\r\n\r\n", b"\r\nTE: trailers\r\n\r\n"))
        exchange = harness.last.exchange
        exchange.respond(200, b"Fine", b"A: b\r\n", -1)
        assert harness.gets() == b""
        exchange.flush()
        assert harness.gets() == b"HTTP/1.1 200 Fine\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n"
        exchange.write(b"hello")
        exchange.flush()
        assert harness.gets() == b"5\r\nhello\r\n"
        exchange.write(b"")
        exchange.end([(b"T", b"u")])
        assert harness.gets() == b"0\r\nT: u\r\n\r\n"
        assert harness.wire.open
        assert exchange.bytes_out == 5

    def test_trailers_go_only_to_who_asked_for_them(self, harness: ServerHarness) -> None:
        harness.sends(GET)
        harness.last.exchange.respond(200, b"", b"", -1)
        harness.last.exchange.end([(b"T", b"u")])
        assert harness.gets().endswith(b"\r\n\r\n0\r\n\r\n")

    def test_to_http10_it_ends_with_the_connection(self, harness: ServerHarness) -> None:
        harness.sends(b"GET / HTTP/1.0\r\nTE: trailers\r\n\r\n")
        exchange = harness.last.exchange
        exchange.send_interim(100, b"Continue", b"")
        exchange.respond(200, b"", b"", -1)
        exchange.write(b"hello")
        exchange.end([(b"T", b"u")])
        assert harness.gets() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
        assert harness.wire.closed

    @pytest.mark.parametrize(
        ("status", "declared", "shown"),
        [
            (200, 7, b"Content-Length: 7\r\n"),
            (200, None, b""),
            (304, 7, b"Content-Length: 7\r\n"),
            (304, None, b""),
            (204, 7, b""),
            (204, None, b""),
        ],
    )
    def test_a_length_is_shown_without_a_body_where_it_may_be(
        self, harness: ServerHarness, status: int, declared: int | None, shown: bytes
    ) -> None:
        harness.sends(GET.replace(b"GET", b"HEAD"))
        harness.last.exchange.respond(status, b"R", b"", 0, declared)
        harness.last.exchange.end()
        assert harness.gets() == b"HTTP/1.1 %d R\r\n%b\r\n" % (status, shown)

    def test_head_gets_no_body(self, harness: ServerHarness) -> None:
        harness.sends(GET.replace(b"GET", b"HEAD"))
        harness.last.answer(b"hello")
        assert harness.gets() == b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 5\r\n\r\n"

    def test_an_empty_answer_has_content_length_0(self, harness: ServerHarness) -> None:
        harness.sends(GET)
        harness.last.answer(b"")
        assert b"Content-Length: 0\r\n" in harness.gets()

    def test_interim_answers_go_out_at_once(self, harness: ServerHarness) -> None:
        harness.sends(post(b"x", b"Expect: 100-continue")[:-1])
        harness.last.exchange.send_interim(100, b"Continue", b"")
        assert harness.gets() == b"HTTP/1.1 100 Continue\r\n\r\n"
        harness.sends(b"x")
        harness.last.answer()
        assert harness.gets() == OK

    def test_a_slow_client_stops_the_answer(self, harness: ServerHarness) -> None:
        harness.sends(GET)
        harness.wire.block()
        assert harness.last.paused
        harness.wire.unblock()
        assert not harness.last.paused

    def test_a_client_that_is_slow_already_stops_the_next_answer(self, harness: ServerHarness) -> None:
        harness.sends(GET + GET)
        harness.wire.block()
        harness.last.answer()
        assert harness.last.paused


class TestRequestBodies:
    def test_back_pressure(self, harness: ServerHarness) -> None:
        harness.sends(post(b"0123456789")[:-5])
        harness.last.exchange.pause_body()
        assert not harness.wire.reading
        harness.last.exchange.resume_body()
        assert harness.wire.reading

    def test_a_body_that_we_stopped_is_not_late(self) -> None:
        harness = ServerHarness(stall_timeout=10)
        harness.sends(post(b"0123456789")[:-5])
        stop = harness.last.exchange.pause_body
        harness.last.body_data = lambda data: stop()  # type: ignore[method-assign]
        harness.sends(b"5")
        harness.passes(60)
        assert harness.wire.open
        harness.last.exchange.resume_body()
        harness.passes(11)
        assert harness.status() == 408

    def test_paused_by_the_last_piece_the_connection_reads_again_after_the_answer(self, harness: ServerHarness) -> None:
        harness.sends(post(b"0123456789"))
        harness.last.exchange.pause_body()
        harness.last.answer()
        assert harness.wire.reading

    def test_an_early_answer_has_connection_close_and_the_rest_is_dropped(self, harness: ServerHarness) -> None:
        harness.sends(post(b"0123456789")[:-5])
        harness.last.answer()
        assert harness.gets() == OK_CLOSE
        assert harness.wire.half_closed
        assert harness.wire.open
        harness.sends(b"56789" + GET)
        assert len(harness.requests) == 1
        assert harness.last.body == b"01234"
        harness.passes(LINGER + 0.25)
        assert harness.wire.aborted
        assert harness.last.ends == 1

    def test_a_lingering_client_that_ends_is_closed(self, harness: ServerHarness) -> None:
        harness.sends(post(b"0123456789")[:-5])
        harness.last.answer()
        harness.wire.end()
        assert harness.wire.closed

    def test_an_answer_begun_early_keeps_its_word_to_close(self, harness: ServerHarness) -> None:
        harness.sends(post(b"0123456789")[:-5])
        exchange = harness.last.exchange
        exchange.respond(200, b"", b"", -1)
        harness.sends(b"56789")
        assert harness.last.trailers == []
        exchange.end()
        assert b"Connection: close\r\n" in harness.gets()
        assert harness.wire.closed

    @pytest.mark.parametrize("chunk", [b"x\r\n", b"3\r\nabcd\r\n", b"3 \r\n", b"3\n"])
    def test_a_broken_chunk_after_the_head_ends_what_was_begun(self, harness: ServerHarness, chunk: bytes) -> None:
        harness.sends(CHUNKED_POST + b"1\r\na\r\n")
        assert harness.last.body == b"a"
        harness.sends(chunk)
        assert harness.status() == 400
        assert (harness.last.cancellations, harness.last.ends) == (1, 1)
        assert harness.last.trailers is None
        assert harness.wire.half_closed

    def test_a_broken_chunk_when_an_answer_is_under_way_breaks_off(self, harness: ServerHarness) -> None:
        harness.sends(CHUNKED_POST)
        harness.last.exchange.respond(200, b"", b"", -1)
        harness.last.exchange.flush()
        harness.gets()
        harness.sends(b"junk\r\n")
        assert harness.gets() == b""
        assert harness.wire.aborted
        assert (harness.last.cancellations, harness.last.ends) == (1, 1)


class TestBounds:
    def refused(self, raw: bytes, **bounds: Any) -> int:
        harness = ServerHarness(**bounds)
        harness.sends(raw)
        assert harness.requests == []
        out = harness.wire.out
        assert b"Connection: close\r\n" in out
        assert harness.wire.half_closed
        return harness.status()

    def test_head(self) -> None:
        assert self.refused(b"GET / HTTP/1.1\r\nA: " + b"x" * 200, head_bytes=100) == 431
        assert self.refused(b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 200 + b"\r\n\r\n", head_bytes=100) == 431

    def test_target(self) -> None:
        assert self.refused(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * 100), target_bytes=100) == 414

    def test_fields(self) -> None:
        assert self.refused(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 5 + b"\r\n", headers=5) == 431

    def test_body_by_its_length(self) -> None:
        assert self.refused(post(b"x" * 11), body_bytes=10) == 413

    def test_body_by_its_chunks(self) -> None:
        harness = ServerHarness(body_bytes=10)
        harness.sends(CHUNKED_POST + b"6\r\nabcdef\r\n")
        assert harness.last.body == b"abcdef"
        harness.sends(b"6\r\nabcdef\r\n")
        assert harness.status() == 413
        assert harness.last.cancellations == 1

    def test_within_all_bounds(self) -> None:
        harness = ServerHarness(head_bytes=200, target_bytes=10, headers=3, body_bytes=5)
        harness.sends(post(b"12345"))
        harness.last.answer()
        assert harness.status() == 200

    @pytest.mark.parametrize("raw", [b"\r\n\r\n", b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nA\x00", b"\r\n\r\n" + GET])
    def test_the_hopeless_is_refused_before_its_end(self, raw: bytes) -> None:
        assert self.refused(raw) == 400


class TestTimes:
    def test_a_silent_connection_is_closed(self) -> None:
        harness = ServerHarness(head_timeout=10)
        harness.passes(9.75)
        assert harness.wire.open
        harness.passes(0.75)
        assert harness.gets() == b""
        assert harness.wire.closed

    def test_a_head_byte_by_byte_has_no_more_time_than_any_other(self) -> None:
        harness = ServerHarness(head_timeout=10)
        for byte in b"GET / HTTP/1.1\r\nHost: a":
            harness.sends(bytes([byte]))
            harness.passes(0.5)
        assert harness.status() == 408
        assert harness.requests == []

    def test_that_holds_for_later_heads_from_their_first_byte(self) -> None:
        harness = ServerHarness(head_timeout=10, idle_timeout=100)
        harness.sends(GET)
        harness.last.answer()
        harness.gets()
        harness.passes(90)
        harness.sends(b"G")
        harness.passes(9)
        harness.sends(b"E")
        assert harness.gets() == b""
        harness.passes(1.25)
        assert harness.status() == 408

    def test_a_later_head_that_came_behind_the_request_before_has_its_time_too(self) -> None:
        harness = ServerHarness(head_timeout=10, idle_timeout=100)
        harness.sends(GET + b"GE")
        harness.passes(50)
        assert harness.wire.open
        harness.last.answer()
        harness.gets()
        harness.passes(10.5)
        assert harness.status() == 408

    def test_an_idle_connection_is_closed_without_a_word(self) -> None:
        harness = ServerHarness(idle_timeout=10)
        harness.sends(GET)
        harness.last.answer()
        harness.gets()
        harness.passes(10.5)
        assert harness.gets() == b""
        assert harness.wire.closed

    def test_an_answer_may_take_for_ever(self) -> None:
        harness = ServerHarness(head_timeout=10, idle_timeout=10)
        harness.sends(GET)
        harness.passes(1000)
        harness.last.answer()
        assert harness.status() == 200

    def test_a_body_that_stops_is_late_and_one_that_goes_on_is_not(self) -> None:
        harness = ServerHarness(stall_timeout=10)
        harness.sends(post(b"x" * 100)[:-99])
        for _ in range(5):
            harness.passes(9)
            harness.sends(b"x")
        assert harness.wire.open
        harness.passes(10.5)
        assert harness.status() == 408
        assert (harness.last.cancellations, harness.last.ends) == (1, 1)

    def test_a_chunk_that_drips_its_framing_is_late(self) -> None:
        harness = ServerHarness(stall_timeout=10)
        harness.sends(CHUNKED_POST)
        for byte in b"1;aaaaaaaa":
            harness.passes(2)
            harness.sends(bytes([byte]))
        assert harness.status() == 408

    def test_zero_is_no_limit(self) -> None:
        harness = ServerHarness(idle_timeout=0, head_timeout=0)
        harness.passes(1000)
        harness.sends(GET)
        harness.last.answer()
        harness.passes(1000)
        assert harness.wire.open


STAGES = {
    "no handler yet": (False, GET),
    "a request without a body": (True, GET),
    "half a body": (True, post(b"0123456789")[:-5]),
    "a whole body": (True, post(b"0123456789")),
    "a pipeline behind it": (True, GET + GET),
}


class TestGone:
    @pytest.mark.parametrize("stage", STAGES)
    @pytest.mark.parametrize("responded", [False, True])
    @pytest.mark.parametrize("end", ["half", "done", "lost", "both"])
    def test_the_handler_hears_of_it_once_and_the_exchange_ends_once(
        self, stage: str, responded: bool, end: str
    ) -> None:
        attach, raw = STAGES[stage]
        harness = ServerHarness(attach=attach)
        harness.sends(raw)
        request = harness.last
        if responded:
            request.exchange.respond(200, b"", b"", -1)
            request.exchange.flush()
        if end in ("half", "both"):
            harness.wire.end()
            assert harness.wire.closed
        if end != "half":
            harness.wire.lose(ConnectionLost if end == "lost" else ConnectionDone)
        assert request.cancellations == (1 if attach else 0)
        assert request.ends == 1
        assert not request.exchange.completed
        request.exchange.write(b"late")
        request.exchange.end()
        request.exchange.abort()
        assert request.ends == 1
        assert len(harness.requests) == 1

    def test_an_answer_that_is_broken_off_ends_once_and_the_client_sees_it(self, harness: ServerHarness) -> None:
        harness.sends(GET)
        harness.last.exchange.respond(200, b"", b"", -1)
        harness.last.exchange.abort()
        assert harness.wire.aborted
        harness.wire.settle()
        assert (harness.last.ends, harness.last.cancellations) == (1, 0)

    def test_nothing_is_left_with_the_factory_or_the_clock(self, harness: ServerHarness) -> None:
        harness.sends(GET)
        harness.wire.lose()
        assert not harness.factory.connections
        harness.passes(0.5)
        assert not harness.clock.getDelayedCalls()


class TestStall:
    """A short request whose client neither reads nor sends is cut off; a long-running one is not."""

    def begins(self) -> ServerHarness:
        """A response is under way that the client does not read."""
        harness = ServerHarness(stall_timeout=60)
        harness.sends(GET)
        harness.last.exchange.respond(200, b"OK", b"", 10_000_000)
        harness.last.exchange.write(b"x" * 100_000)
        harness.last.exchange.flush()
        harness.wire.block()
        return harness

    def test_client_that_takes_nothing_is_cut_off(self) -> None:
        harness = self.begins()
        harness.passes(59)
        assert harness.wire.open
        harness.passes(1.5)
        assert harness.wire.aborted
        assert (harness.last.cancellations, harness.last.ends) == (1, 1)
        assert harness.last.exchange.stalled

    def test_client_that_takes_a_byte_now_and_then_is_not(self) -> None:
        harness = self.begins()
        for _ in range(10):
            harness.passes(50)
            harness.wire.sent_from_queue += 1
        assert harness.wire.open
        harness.passes(121)
        assert harness.wire.aborted

    def test_time_ends_when_the_buffer_is_drained(self) -> None:
        harness = self.begins()
        harness.wire.unblock()
        harness.passes(1000)
        assert harness.wire.open
        harness.wire.block()
        harness.passes(60.5)
        assert harness.wire.aborted

    def test_watch_may_stall(self) -> None:
        harness = ServerHarness(stall_timeout=60)
        harness.sends(GET)
        harness.last.exchange.set_long_running()
        harness.last.exchange.respond(200, b"OK", b"", -1)
        harness.wire.block()
        harness.passes(1000)
        assert harness.wire.open

    def test_zero_is_no_limit(self) -> None:
        harness = ServerHarness(stall_timeout=0)
        harness.sends(GET)
        harness.wire.block()
        harness.passes(1000)
        assert harness.wire.open

    def test_tunnel_may_stall(self) -> None:
        harness = ServerHarness(stall_timeout=60)
        harness.sends(GET.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"))
        harness.last.exchange.switch_protocols(b"", b"", b"websocket")
        harness.wire.block()
        harness.passes(1000)
        assert harness.wire.open

    def test_body_of_a_long_running_request_has_the_idle_time(self) -> None:
        harness = ServerHarness(stall_timeout=10, idle_timeout=100)
        harness.sends(post(b"x" * 100)[:-99])
        harness.last.exchange.set_long_running()
        harness.passes(50)
        harness.sends(b"x")
        harness.passes(99)
        assert harness.wire.open
        harness.passes(1.5)
        assert harness.status() == 408

    def test_body_that_stalls_is_marked(self) -> None:
        harness = ServerHarness(stall_timeout=10)
        harness.sends(post(b"x" * 100)[:-99])
        harness.passes(10.5)
        assert harness.status() == 408
        assert harness.last.exchange.stalled

    def test_client_that_does_not_read_while_its_body_waits_is_cut_off(self) -> None:
        harness = ServerHarness(stall_timeout=10)
        harness.sends(post(b"x" * 100)[:-99])
        harness.last.exchange.pause_body()
        harness.wire.block()
        harness.passes(10.5)
        assert harness.wire.aborted


class TestIdleSince:
    def test_it_is_the_end_of_the_last_exchange_and_none_while_one_is_under_way(self) -> None:
        harness = ServerHarness()
        assert harness.connection.idle_since == START
        harness.passes(5)
        harness.sends(GET)
        assert not harness.connection.idle_since
        harness.passes(5)
        harness.last.answer()
        assert harness.connection.idle_since == START + 10

    def test_an_unfinished_head_is_idle_and_a_tunnel_is_not(self) -> None:
        harness = ServerHarness()
        harness.sends(b"GET / HT")
        assert harness.connection.idle_since == START
        harness.sends(b"TP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        harness.last.exchange.switch_protocols(b"", b"", b"websocket")
        assert harness.connection.idle_since is None
