"""Floods: each has a bound, an answer and a count; what real clients do is none."""

from __future__ import annotations

from typing import Any, cast

import pytest
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher

from mcproxy.http.h2.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    rst_stream,
)
from mcproxy.http.h2.h2_server import Floods
from tests.http.h2.harness import REQUEST, H2ServerHarness, data, headers, request
from tests.support.logged import captured_logs

ONE = b"\0\0\0\1"


@pytest.mark.parametrize(
    ("flood", "kind"),
    [
        (frame(PING, 0, 0, bytes(8)), "ping_flood"),
        (frame(PING, 1, 0, bytes(8)), "ping_flood"),
        (frame(SETTINGS, 0, 0), "settings_flood"),
        (frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 100), "settings_flood"),
        (frame(SETTINGS, 1, 0), "settings_flood"),
        (frame(PRIORITY, 0, 7, bytes(5)), "priority_flood"),
        (frame(WINDOW_UPDATE, 0, 1, ONE), "window_update_flood"),
        (frame(WINDOW_UPDATE, 0, 0, ONE), "window_update_flood"),
        (frame(DATA, 0, 1, b""), "empty_data_flood"),
        (frame(DATA, 8, 1, b"\x03\0\0\0"), "empty_data_flood"),
        (frame(GOAWAY, 0, 0, bytes(8)), "goaway_flood"),
        (frame(0xEE, 0, 0, b""), "unknown_frame_flood"),
    ],
)
def test_frames_that_carry_nothing(flood: bytes, kind: str) -> None:
    stage = H2ServerHarness()
    stage.sends(request(1, b"POST", end=False))
    for _ in range(11):
        stage.sends(flood * 100)
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert stage.factory.protection == {kind: 1}
    assert stage.last.cancellations == 1


def test_resets_of_closed_streams() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.last.answer()
    for _ in range(11):
        stage.sends(rst_stream(1, 8) * 100)
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert stage.factory.protection == {"reset_flood": 1}


@pytest.mark.parametrize("in_one_read", [True, False])
def test_rapid_reset(in_one_read: bool) -> None:
    stage = H2ServerHarness()
    for number in range(1, 2000, 2):
        if in_one_read:
            stage.sends(request(number), rst_stream(number, 8))
        else:
            stage.sends(request(number))
            stage.sends(rst_stream(number, 8))
        if not stage.wire.open:
            break
    assert number == 2 * 201 - 1
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert stage.factory.protection == {"rapid_reset": 1}
    assert len(stage.requests) == (0 if in_one_read else 201)
    assert all(handled.cancellations == handled.ends == 1 for handled in stage.requests)


@pytest.mark.parametrize(
    "error",
    [
        lambda number: frame(WINDOW_UPDATE, 0, number, bytes(4)),
        lambda number: frame(WINDOW_UPDATE, 0, number, b"\x7f\xff\xff\xff"),
        lambda number: data(number, b"x"),
        lambda number: frame(PRIORITY, 0, number, bytes(4)),
        lambda number: headers(number, b"\x00\x01a\x01b"),
    ],
    ids=["WINDOW_UPDATE of 0", "window overflow", "DATA behind the end", "PRIORITY", "HEADERS behind the end"],
)
def test_resets_that_the_server_is_made_to_send(error: Any) -> None:
    stage = H2ServerHarness()
    for number in range(1, 2000, 2):
        stage.sends(request(number), error(number))
        if not stage.wire.open:
            break
    assert number == 2 * 201 - 1
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert stage.factory.protection == {"rapid_reset": 1}


def test_malformed_requests_are_resets_too() -> None:
    stage = H2ServerHarness()
    for number in range(1, 2000, 2):
        stage.sends(headers(number, b""))
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert stage.factory.protection == {"rapid_reset": 1}


def test_streams_far_beyond_the_limit_are_resets_too() -> None:
    stage = H2ServerHarness(streams=100)
    for number in range(1, 2000, 2):
        stage.sends(request(number))
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert len(stage.requests) == 100


def test_watches_that_end_together_are_no_attack() -> None:
    stage = H2ServerHarness(streams=1000, idle_timeout=0)
    stage.sends(*[request(number) for number in range(1, 1000, 2)])
    for _ in range(3):
        stage.passes(25)
        stage.sends(frame(PING, 1, 0, bytes(8)))
    stage.sends(*[rst_stream(number, 8) for number in range(1, 1000, 2)])
    assert stage.wire.open
    assert all(handled.cancellations == 1 for handled in stage.requests)


def test_continuation_flood() -> None:
    stage = H2ServerHarness()
    stage.sends(frame(HEADERS, 1, 1, REQUEST), *[frame(CONTINUATION, 0, 1, b"")] * 9)
    assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert stage.factory.protection == {"continuation_flood": 1}


def test_a_header_block_that_is_too_large() -> None:
    for pieces in ([bytes(16384)] * 69, [bytes(16384)] * 68 + [b"x"]):
        stage = H2ServerHarness(head_bytes=65536)
        stage.sends(frame(HEADERS, 1, 1, pieces[0]), *[frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:]])
        assert stage.ended_with == ErrorCode.ENHANCE_YOUR_CALM
        assert stage.factory.protection == {"large_header_block": 1}
    stage = H2ServerHarness(head_bytes=65536)
    stage.sends(frame(HEADERS, 1, 1, REQUEST), *[frame(CONTINUATION, 0, 1, b"x")] * 9)
    assert stage.factory.protection == {"continuation_flood": 1}


# -- what real clients do ---------------------------------------------------------------------------------------------


def test_a_client_that_updates_windows_for_each_piece() -> None:
    stage = H2ServerHarness(stall_timeout=0)
    stage.sends(frame(SETTINGS, 0, 0, b"\0\4\0\0\4\0"), request(1))  # a window of 1 KiB
    exchange = stage.last.exchange
    exchange.respond(200, b"", b"", -1)
    exchange.write(bytes(64 * 1024))
    exchange.end()
    got = 0
    for _ in range(100_000):
        pieces = [len(one.payload) for one in stage.gets() if one.kind == DATA]
        got += sum(pieces)
        if got == 64 * 1024:
            break
        for size in pieces:
            half = (size // 2).to_bytes(4, "big")
            stage.sends(*[frame(WINDOW_UPDATE, 0, number, half) for number in (0, 1) for _ in range(2)])
    assert got == 64 * 1024
    assert stage.wire.open


def test_a_client_with_many_short_requests() -> None:
    stage = H2ServerHarness()
    for number in range(1, 20_000, 2):
        stage.sends(request(number))
        stage.last.answer()
        stage.sends(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\2"), frame(PRIORITY, 0, number, bytes(5)))
    assert stage.wire.open
    assert not stage.factory.protection


def test_a_receiver_of_a_stream_may_measure_with_a_ping_for_each_message() -> None:
    """As grpc-go does, to estimate the bandwidth-delay product."""
    stage = H2ServerHarness(stall_timeout=0)
    stage.sends(request(1))
    exchange = stage.last.exchange
    exchange.respond(200, b"", b"", -1)
    opens = b"\0\0\0\x64"
    for _ in range(5000):
        exchange.write(bytes(100))
        exchange.flush()
        stage.sends(frame(PING, 0, 0, bytes(8)), frame(WINDOW_UPDATE, 0, 0, opens))
        stage.sends(frame(WINDOW_UPDATE, 0, 1, opens))
        stage.gets()
    assert stage.wire.open
    assert not stage.factory.protection


def test_uploads_that_are_answered_early() -> None:
    stage = H2ServerHarness()
    for number in range(1, 4000, 2):
        stage.sends(request(number, b"POST", end=False), data(number, bytes(8192)))
        stage.last.answer()
        stage.sends(data(number, bytes(8192)), data(number, bytes(8192), end=True))
        assert stage.wire.open
    stage.gets()
    assert not stage.factory.protection


# -- the log ----------------------------------------------------------------------------------------------------------


def test_one_line_a_minute_and_kind() -> None:
    events: list[LogEvent] = []
    observer = cast(ILogObserver, events.append)
    globalLogPublisher.addObserver(observer)
    try:
        floods = Floods()
        for second in range(100):
            floods.refused("rapid_reset", "192.0.2.7", "too many", float(second))
        floods.refused("ping_flood", "192.0.2.8", "too many", 100.0)
    finally:
        globalLogPublisher.removeObserver(observer)
    lines = [(event["kind"], event["client"], event["connections"]) for event in events if "kind" in event]
    assert lines == [("rapid_reset", "192.0.2.7", 1), ("rapid_reset", "192.0.2.7", 60), ("ping_flood", "192.0.2.8", 1)]
    assert all(event["cause"] == "too many" and event["todo"] for event in events if "kind" in event)
    assert floods.counts == {"rapid_reset": 100, "ping_flood": 1}


def test_the_log_names_the_limit_that_a_large_head_exceeds() -> None:
    with captured_logs() as events:
        Floods().refused("large_header_block", "10.0.0.1", "too large", 0.0)
    assert "raise limits.headBytes" in events[0]["todo"]
