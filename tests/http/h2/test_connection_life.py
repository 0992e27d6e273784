"""From the preface to the end of a connection: SETTINGS, times, PING, GOAWAY of a drain."""

from __future__ import annotations

import pytest

from mcproxy.http.h2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    decode_settings,
    frame,
    ping,
)
from tests.http.h2.harness import REQUEST, Frame, H2ServerHarness, data, headers, request
from tests.support.clock import START

BEGIN = PREFACE + frame(SETTINGS, 0, 0)


def goaways(found: list[Frame]) -> list[tuple[int, int]]:
    return [(one.number, one.code) for one in found if one.kind == GOAWAY]


# -- the beginning --------------------------------------------------------------------------------------------------


def test_what_the_server_announces() -> None:
    stage = H2ServerHarness(begun=False, streams=123, head_bytes=40_000)
    settings, window = stage.gets()
    assert dict(decode_settings(settings.payload)) == {1: 4096, 2: 0, 3: 123, 4: 65536, 5: 16384, 6: 40_000}
    assert (window.kind, window.stream_id, window.number) == (WINDOW_UPDATE, 0, 1024 * 1024 - 65535)


def test_a_connection_that_arrives_byte_by_byte() -> None:
    stage = H2ServerHarness(begun=False)
    stage.gets()
    stage.wire.drip(BEGIN + frame(SETTINGS, 1, 0) + request(1, b"POST", end=False) + data(1, b"body", end=True))
    assert stage.last.body == b"body"
    assert [one.kind for one in stage.gets()] == [SETTINGS]


@pytest.mark.parametrize(
    "begin",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", PREFACE + ping(bytes(8)), PREFACE + frame(SETTINGS, 1, 0)],
    ids=["HTTP/1.1", "another preface", "PING first", "ACK first"],
)
def test_another_beginning(begin: bytes) -> None:
    stage = H2ServerHarness(begun=False)
    stage.sends(begin)
    assert stage.ended_with == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"", ErrorCode.PROTOCOL_ERROR),
        (PREFACE[:10], ErrorCode.PROTOCOL_ERROR),
        (PREFACE, ErrorCode.PROTOCOL_ERROR),
        (BEGIN, ErrorCode.SETTINGS_TIMEOUT),
    ],
    ids=["nothing", "a part of the preface", "no SETTINGS", "no acknowledgement"],
)
def test_the_beginning_has_its_time(sent: bytes, code: int) -> None:
    stage = H2ServerHarness(begun=False, head_timeout=10)
    stage.sends(sent)
    stage.passes(9.5)
    assert stage.wire.open
    stage.passes(1)
    assert stage.ended_with == code


@pytest.mark.parametrize(
    "sent",
    [frame(HEADERS, END_STREAM, 1, REQUEST), headers(1, REQUEST)[:12]],
    ids=["CONTINUATION does not come", "a part of HEADERS"],
)
def test_a_header_block_has_its_time(sent: bytes) -> None:
    stage = H2ServerHarness(head_timeout=10)
    stage.passes(30)
    stage.sends(sent)
    stage.passes(9.5)
    assert stage.wire.open
    stage.passes(1)
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM


def test_header_blocks_in_parts_do_not_prolong_the_beginning() -> None:
    stage = H2ServerHarness(begun=False, head_timeout=10)
    stage.sends(BEGIN)
    for number in range(1, 7, 2):
        stage.passes(4)
        stage.sends(headers(number, REQUEST, END_STREAM))
        stage.sends(frame(CONTINUATION, END_HEADERS, number))
    assert stage.ended_with == ErrorCode.SETTINGS_TIMEOUT


def test_a_header_block_in_many_frames() -> None:
    stage = H2ServerHarness(head_timeout=10)
    block = REQUEST + b"\x00\x01a\x7f\xf1\x06" + b"v" * 1008
    stage.sends(frame(HEADERS, END_STREAM, 1, block[:10]))
    for at in range(10, 900, 150):
        stage.sends(frame(CONTINUATION, 0, 1, block[at : at + 150]))
    stage.sends(frame(CONTINUATION, END_HEADERS, 1, block[910:]))
    assert stage.last.exchange.head.fields == b"a: " + b"v" * 1008 + b"\r\n"
    stage.passes(20)
    assert stage.wire.open


# -- silence --------------------------------------------------------------------------------------------------------


def test_a_connection_without_streams() -> None:
    stage = H2ServerHarness(idle_timeout=50)
    stage.sends(request(1))
    stage.last.answer()
    stage.passes(40)
    stage.sends(request(3))
    stage.last.answer()
    stage.gets()
    stage.passes(49)
    assert not stage.gets()
    stage.passes(2)
    [last] = stage.gets()
    assert (last.kind, last.number, last.code) == (GOAWAY, 3, ErrorCode.NO_ERROR)
    assert not stage.wire.open


def test_idle_since() -> None:
    stage = H2ServerHarness()
    assert stage.connection.idle_since == START
    stage.passes(5)
    stage.sends(request(1))
    assert not stage.connection.idle_since
    stage.passes(5)
    stage.last.answer()
    assert stage.connection.idle_since == START + 10


def test_a_silent_client_with_a_stream_is_asked() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    for _ in range(4):
        stage.passes(31)
        [asked] = stage.gets()
        assert asked.kind == PING
        stage.sends(ping(asked.payload, ack=True))
    assert stage.last.cancellations == 0


def test_a_client_that_does_not_answer_is_gone() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.passes(44)
    assert stage.last.cancellations == 0
    stage.passes(2)
    assert stage.wire.aborted
    assert (stage.last.cancellations, stage.last.ends) == (1, 1)


def test_pings_are_answered() -> None:
    stage = H2ServerHarness()
    stage.sends(ping(b"12345678"), ping(b"abcdefgh"))
    assert [(one.kind, one.flags, one.payload) for one in stage.gets()] == [
        (PING, 1, b"12345678"),
        (PING, 1, b"abcdefgh"),
    ]


def test_the_round_trip_of_a_ping_is_measured() -> None:
    stage = H2ServerHarness()
    assert stage.connection.rtt == 0.0
    stage.connection.ask_peer()
    stage.connection.ask_peer()  # before the answer to the first: the first one counts
    stage.passes(0.25)
    first, second = stage.gets()
    stage.sends(ping(first.payload, ack=True))
    assert stage.connection.rtt == 0.25
    stage.passes(2)
    stage.sends(ping(second.payload, ack=True))
    assert stage.connection.rtt == 0.25


def test_an_acknowledgement_of_no_ping_of_ours_is_no_round_trip() -> None:
    stage = H2ServerHarness()
    stage.sends(ping(b"mcproxy\0", ack=True))
    stage.connection.ask_peer()
    stage.passes(0.5)
    [asked] = stage.gets()
    stage.sends(ping(b"12345678", ack=True))
    assert stage.connection.rtt == 0.0
    stage.sends(ping(asked.payload, ack=True))
    assert stage.connection.rtt == 0.5


def test_a_ping_after_silence_is_measured_too() -> None:
    stage = H2ServerHarness()
    stage.connection.keep_alive(15, 10)
    stage.passes(16)
    [asked] = stage.gets()
    stage.passes(1)
    stage.sends(ping(asked.payload, ack=True))
    assert 1 <= stage.connection.rtt <= 2


# -- GOAWAY ---------------------------------------------------------------------------------------------------------


def test_a_drain_serves_what_is_on_its_way_and_closes_with_the_last_stream() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.factory.drain()
    assert goaways(stage.gets()) == [(MAX_STREAM_ID, ErrorCode.NO_ERROR)]
    stage.passes(0.5)
    stage.sends(request(3))
    stage.passes(1)
    assert goaways(stage.gets()) == [(3, ErrorCode.NO_ERROR)]
    stage.sends(request(5, b"POST", end=False), data(5, b"x", end=True))
    assert not stage.gets()
    assert [handled.exchange.head.target for handled in stage.requests] == [b"/1", b"/3"]
    stage.last.answer()
    assert [one.kind for one in stage.gets()] == [HEADERS, DATA]
    assert stage.wire.open
    stage.requests[0].answer()
    assert [one.kind for one in stage.gets()] == [HEADERS, DATA]
    assert stage.wire.closed


def test_no_later_goaway_names_a_stream_that_was_ignored() -> None:
    """The client has sent it elsewhere: it must not learn that it may have been processed here (RFC 9113 6.8)."""
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.factory.drain()
    stage.passes(1.5)
    stage.sends(request(3), frame(PING, 0, 0, b"short"))
    assert goaways(stage.gets()) == [(MAX_STREAM_ID, 0), (1, 0), (1, ErrorCode.FRAME_SIZE_ERROR)]


def test_a_drain_of_an_idle_connection() -> None:
    stage = H2ServerHarness()
    stage.factory.drain()
    stage.factory.drain(unused=True)
    assert goaways(stage.gets()) == [(MAX_STREAM_ID, 0)]
    stage.passes(1.5)
    assert goaways(stage.gets()) == [(0, 0)]
    assert stage.wire.closed


def test_a_drain_waits_for_a_response_that_is_read_slowly() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.last.answer(bytes(100_000))
    stage.gets()
    stage.factory.drain()
    stage.passes(2)
    assert goaways(stage.gets()) == [(MAX_STREAM_ID, 0), (1, 0)]
    assert stage.wire.open
    more = (50_000).to_bytes(4, "big")
    stage.sends(frame(WINDOW_UPDATE, 0, 1, more), frame(WINDOW_UPDATE, 0, 0, more))
    assert sum(len(one.payload) for one in stage.gets()) == 100_000 - 65535
    assert stage.wire.closed


def test_fields_of_ignored_streams_are_decoded() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    stage.factory.drain()
    stage.passes(1.5)
    stage.sends(headers(3, REQUEST + b"\x40\x01x\x01y"))
    stage.sends(headers(1, b"\xbe"))  # x: y, as a trailer
    assert stage.last.trailers == [(b"x", b"y")]


def test_a_new_connection_of_a_draining_listener_serves_its_request() -> None:
    stage = H2ServerHarness()
    stage.factory.begin_drain()
    stage.sends(request(1))
    assert goaways(stage.gets()) == [(MAX_STREAM_ID, 0)]
    stage.last.answer()
    assert [one.kind for one in stage.gets()] == [HEADERS, DATA]
    stage.passes(1.5)
    assert goaways(stage.gets()) == [(1, 0)]
    assert stage.wire.closed


@pytest.mark.parametrize(("random", "goes"), [(0.009, True), (0.02, False)])
def test_the_chance_of_goaway(random: float, goes: bool) -> None:
    stage = H2ServerHarness(goaway_chance=0.01, random=random)
    stage.sends(request(1), request(3))
    assert goaways(stage.gets()) == ([(MAX_STREAM_ID, 0)] if goes else [])
    for handled in stage.requests:
        handled.answer()
    assert len(stage.gets()) == 4
    stage.passes(1.5)
    assert stage.wire.closed is goes


def test_the_goaway_of_a_client_ends_nothing() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1), frame(GOAWAY, 0, 0, bytes(8)))
    stage.last.answer()
    assert [one.kind for one in stage.gets()] == [HEADERS, DATA]
    assert stage.wire.open


def test_nothing_is_sent_or_handled_behind_an_error() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.sends(request(3), frame(DATA, 0, 0, b""), request(5))
    assert stage.last.exchange.head.target == b"/1"
    assert (stage.last.cancellations, stage.last.ends) == (1, 1)
    stage.last.answer()
    assert goaways(stage.gets()) == [(3, ErrorCode.PROTOCOL_ERROR)]
    assert stage.wire.closed
    stage.wire.lose()
    assert not stage.factory.connections


def test_a_deadline_behind_the_end_does_nothing() -> None:
    stage = H2ServerHarness(head_timeout=10, stall_timeout=10)
    stage.sends(request(1, b"POST", end=False))
    stage.wire.lose()
    stage.passes(100)
    assert stage.last.ends == 1
    assert not stage.deadlines._items


def test_a_reset_stream_is_no_error_for_what_was_on_its_way() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    stage.last.exchange.abort()
    stage.gets()
    stage.sends(data(1, b"x"), frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), frame(RST_STREAM, 0, 1, bytes(4)))
    stage.sends(data(1, b"x", end=True))
    assert not stage.gets()
    assert stage.wire.open
