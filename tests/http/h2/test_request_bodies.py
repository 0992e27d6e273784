"""Request bodies over HTTP/2: content-length, limits, windows and back-pressure, time to go on."""

from __future__ import annotations

import pytest

from mcproxy.http.h2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    PADDED,
    RST_STREAM,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
)
from tests.http.h2.harness import Client, Frame, H2ServerHarness, data, headers, request

KIB = 1024
LENGTH = b"\x0f\x0d\x015"  # content-length: 5


def updates(found: list[Frame], stream_id: int) -> list[int]:
    return [one.number for one in found if one.kind == WINDOW_UPDATE and one.stream_id == stream_id]


def test_a_body_in_pieces() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    assert stage.last.exchange.head.length < 0
    stage.sends(data(1, b"one"))
    assert stage.last.body == b"one"
    stage.sends(data(1, b"two"), data(1, b"", end=True))
    assert stage.last.body == b"onetwo"
    assert stage.last.trailers == []
    assert stage.last.exchange.body_complete
    assert stage.last.exchange.bytes_in == 6


def test_padding_is_no_body_and_counts_for_the_windows() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    for _ in range(200):
        stage.sends(frame(DATA, PADDED, 1, b"\xc8" + b"x" + bytes(200)))
    assert stage.last.body == b"x" * 200
    assert updates(stage.gets(), 1) == [163 * 202]


@pytest.mark.parametrize(
    ("sent", "end"),
    [(b"1234", True), (b"123456", True), (b"123456", False)],
    ids=["less", "more", "more, and no end"],
)
def test_a_body_of_another_length_than_declared(sent: bytes, end: bool) -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False, fields=LENGTH), data(1, sent, end=end))
    [reset] = stage.gets()
    assert (reset.kind, reset.code) == (RST_STREAM, ErrorCode.PROTOCOL_ERROR)
    assert not stage.requests  # all in one read: nothing has begun


def test_a_body_that_turns_out_to_be_shorter_cancels_its_request() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False, fields=LENGTH), data(1, b"1234"))
    stage.sends(headers(1, b"", END_HEADERS | END_STREAM))
    assert stage.gets()[-1].code == ErrorCode.PROTOCOL_ERROR
    assert stage.last.cancellations == 1
    assert stage.last.trailers is None


def test_a_body_of_the_declared_length() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False, fields=LENGTH), data(1, b"123"))
    stage.sends(data(1, b"45", end=True))
    assert stage.last.body == b"12345"
    assert not stage.gets()


def test_a_declared_length_of_0_has_no_body_to_wait_for() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False, fields=b"\x0f\x0d\x010"))
    assert stage.last.exchange.body_complete
    stage.sends(data(1, b"", end=True))
    assert stage.last.trailers is None
    stage.last.answer()
    assert [one.kind for one in stage.gets()] == [1, 0]  # no RST_STREAM


def test_a_header_block_in_the_middle_of_a_body() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False), headers(1, b"\x00\x01a\x01b", END_HEADERS))
    assert stage.gets()[-1].code == ErrorCode.PROTOCOL_ERROR


def test_pseudo_header_fields_in_trailers() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False), headers(1, b"\x82"))
    assert stage.gets()[-1].code == ErrorCode.PROTOCOL_ERROR


# -- limits.bodyBytes ---------------------------------------------------------------------------------------------


def test_a_declared_length_above_the_limit() -> None:
    client = Client(body_bytes=100)
    number = client.asks("POST", fields=[("content-length", "101")], end=False)
    assert client.status[number] == 413
    assert not client.server.requests
    client.server.passes(3)
    client.exchange()
    assert client.resets == {number: ErrorCode.NO_ERROR}


def test_a_body_that_grows_above_the_limit() -> None:
    client = Client(body_bytes=100)
    number = client.asks("POST", body=b"x" * 100, end=False)
    client.h2.send_data(number, b"y")
    client.exchange()
    assert client.status[number] == 413
    assert number in client.ended
    assert client.last.cancellations == 1
    assert client.last.body == b"x" * 100
    client.server.passes(3)
    client.exchange()
    assert client.resets == {number: ErrorCode.NO_ERROR}
    other = client.asks()
    client.last.answer()
    client.exchange()
    assert client.status[other] == 200


def test_a_body_above_the_limit_behind_the_beginning_of_a_response() -> None:
    stage = H2ServerHarness(body_bytes=100)
    stage.sends(request(1, b"POST", end=False))
    stage.last.exchange.respond(200, b"", b"", -1)
    stage.last.exchange.flush()
    stage.sends(data(1, b"x" * 101))
    assert stage.gets()[-1].kind == RST_STREAM
    assert stage.last.cancellations == 1


# -- windows --------------------------------------------------------------------------------------------------------


def test_windows_are_given_back_as_the_body_arrives() -> None:
    client = Client()
    number = client.asks("POST", end=False)
    sent = b""
    while len(sent) < 3_000_000:
        size = min(client.h2.local_flow_control_window(number), 16384)
        assert size > 0
        client.h2.send_data(number, bytes(size))
        sent += bytes(size)
        client.exchange()
    assert client.last.body == sent


def test_a_handler_that_pauses_shuts_the_window_of_its_stream_alone() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False), request(3, b"POST", end=False))
    slow, quick = stage.requests
    slow.exchange.pause_body()
    for _ in range(4):
        stage.sends(data(1, bytes(16 * KIB)))
    found = stage.gets()
    assert not updates(found, 1)
    for _ in range(100):
        stage.sends(data(3, bytes(16 * KIB)))
    found = stage.gets()
    assert sum(updates(found, 3)) >= 98 * 16 * KIB
    assert sum(updates(found, 0)) > 1000 * KIB
    assert len(quick.body) == 100 * 16 * KIB
    assert len(slow.body) == 64 * KIB
    slow.exchange.resume_body()
    assert updates(stage.gets(), 1) == [64 * KIB]


def test_what_all_paused_streams_hold_is_bounded_by_the_window_of_the_connection() -> None:
    stage = H2ServerHarness()
    sent, window = 0, 1024 * KIB
    for number in range(1, 250, 2):
        stage.sends(request(number, b"POST", end=False))
        stage.last.exchange.pause_body()
        for _ in range(4):
            if window < 16 * KIB:
                break
            stage.sends(data(number, bytes(16 * KIB)))
            sent += 16 * KIB
            window += sum(updates(stage.gets(), 0)) - 16 * KIB
    assert stage.wire.open
    assert 1024 * KIB <= sent <= 2048 * KIB
    for handled in stage.requests:
        handled.exchange.resume_body()
    assert sum(updates(stage.gets(), 0)) > 512 * KIB


@pytest.mark.parametrize("end", ["reset", "answer", "abort"])
def test_a_paused_stream_that_ends_holds_nothing_any_more(end: str) -> None:
    stage = H2ServerHarness()
    number = 1
    for _ in range(100):
        stage.sends(request(number, b"POST", end=False))
        stage.last.exchange.pause_body()
        for _ in range(4):
            stage.sends(data(number, bytes(16 * KIB)))
        if end == "reset":
            stage.sends(frame(RST_STREAM, 0, number, bytes(4)))
        elif end == "answer":
            stage.last.answer()
        else:
            stage.last.exchange.abort()
        number += 2
    assert stage.wire.open
    assert sum(updates(stage.gets(), 0)) >= 99 * 64 * KIB - 512 * KIB


def test_data_beyond_the_window_of_a_stream() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    stage.last.exchange.pause_body()
    for _ in range(5):
        stage.sends(data(1, bytes(16 * KIB)))
    assert [(one.kind, one.stream_id, one.code) for one in stage.gets()] == [
        (RST_STREAM, 1, ErrorCode.FLOW_CONTROL_ERROR)
    ]
    assert stage.last.cancellations == 1


def test_data_beyond_the_window_of_the_connection() -> None:
    stage = H2ServerHarness()
    for number in range(1, 250, 2):
        stage.sends(request(number, b"POST", end=False))
        stage.last.exchange.pause_body()
        for _ in range(4):
            stage.sends(data(number, bytes(16 * KIB)))
    assert stage.ended_with == ErrorCode.FLOW_CONTROL_ERROR


def test_data_on_a_stream_that_we_have_reset_counts_for_the_connection() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    stage.last.exchange.abort()
    stage.gets()
    for _ in range(40):
        stage.sends(data(1, bytes(16 * KIB)))
    found = stage.gets()
    assert [one.kind for one in found] == [WINDOW_UPDATE]
    assert updates(found, 0)[0] > 512 * KIB


def test_an_answer_to_an_unfinished_request_ends_it() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False), data(1, b"x"))
    stage.last.answer()
    assert [(one.kind, one.flags & 1) for one in stage.gets()] == [(1, 0), (0, 1)]
    stage.passes(1.75)
    assert not stage.gets()
    stage.passes(0.75)
    [reset] = stage.gets()
    assert (reset.kind, reset.code) == (RST_STREAM, ErrorCode.NO_ERROR)
    stage.sends(data(1, b"still on its way", end=True), headers(1, b"\x00\x01a\x01b"))
    assert not stage.gets()
    assert stage.wire.open


@pytest.mark.parametrize("end", [data(1, b"x", end=True), headers(1, b"\x00\x01a\x01b")], ids=["DATA", "trailers"])
def test_a_request_that_is_whole_soon_after_its_answer_is_not_reset(end: bytes) -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False, fields=b"\x0f\x0d\x041000"))
    stage.last.exchange.pause_body()
    stage.last.answer()
    stage.gets()
    for _ in range(20):
        stage.sends(data(1, bytes(16 * KIB)))
    assert sum(updates(stage.gets(), 1)) > 256 * KIB  # discarded, with credit for more
    stage.sends(end)
    assert not stage.connection.streams
    stage.passes(3)
    assert not stage.gets()
    assert stage.last.body == b""
    assert stage.last.ends == 1


def test_a_client_that_resets_what_was_answered_is_no_attacker() -> None:
    stage = H2ServerHarness()
    for number in range(1, 1000, 2):
        stage.sends(request(number, b"POST", end=False))
        stage.last.answer()
        stage.sends(frame(RST_STREAM, 0, number, bytes(4)))
    assert stage.wire.open


# -- times ----------------------------------------------------------------------------------------------------------


def test_a_body_that_stalls() -> None:
    stage = H2ServerHarness(stall_timeout=10)
    stage.sends(request(1, b"POST", end=False), request(3))
    stage.passes(9)
    stage.sends(data(1, b"x"))
    stage.passes(9)
    assert not stage.gets()
    stage.passes(1.5)
    found = stage.gets()
    assert [one.kind for one in found] == [1, 0]
    assert b"stalled" in found[1].payload
    stalled, other = stage.requests
    assert (stalled.cancellations, stalled.ends, stalled.exchange.stalled) == (1, 1, True)
    assert other.cancellations == 0
    other.answer()
    assert len(stage.gets()) == 2


def test_the_time_does_not_run_while_the_handler_pauses() -> None:
    stage = H2ServerHarness(stall_timeout=10)
    stage.sends(request(1, b"POST", end=False))
    stage.last.exchange.pause_body()
    stage.passes(20)
    assert not stage.gets()
    stage.last.exchange.resume_body()
    stage.passes(9)
    assert not stage.gets()
    stage.passes(2)
    assert stage.last.exchange.stalled


def test_a_long_running_request_has_the_idle_timeout() -> None:
    stage = H2ServerHarness(stall_timeout=2, idle_timeout=20)
    stage.sends(request(1, b"POST", end=False))
    stage.last.exchange.set_long_running()
    stage.passes(19)
    assert not [one for one in stage.gets() if one.kind not in (6, GOAWAY)]
    stage.passes(2)
    assert stage.last.exchange.stalled


def test_a_body_that_is_complete_has_no_time_to_keep() -> None:
    stage = H2ServerHarness(stall_timeout=2)
    stage.sends(request(1, b"POST", end=False), data(1, b"x"))
    stage.sends(data(1, b"y", end=True))
    stage.passes(20)
    stage.last.answer()
    assert [one.kind for one in stage.gets()] == [1, 0]
