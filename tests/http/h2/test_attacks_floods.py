"""Frames that cost the server more than their sender: each kind has a bound, an answer, a count and one log line."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from tests.http.h2 import raw
from tests.http.h2.raw import ENHANCE_YOUR_CALM, GET, data, frame, headers, literal, request, rst_stream
from tests.http.h2.stage import Stage
from tests.support.processor_time import processor_time

HOLD = request(path=b"/hold")
HELD_POST = request(path=b"/hold", method=b"POST")
OPEN = raw.END_HEADERS


@pytest.fixture
def logged() -> Iterator[list[LogEvent]]:
    """What the package logs, but for what is only of use when it is looked for."""
    events: list[LogEvent] = []

    def observe(event: LogEvent) -> None:
        if event.get("log_namespace", "").startswith("mcproxy") and event["log_level"].name != "debug":
            events.append(event)

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    yield events
    globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]


class Flood(NamedTuple):
    name: str
    kind: str  # in `ServerFactory.protection`
    make: Callable[[int], bytes]  # the frames with a number
    bound: int  # so many of them at most are taken
    setup: bytes = b""
    least: int = 1  # and so many at least, since legitimate clients send some


def _reset(number: int) -> bytes:
    return headers(2 * number + 1, HOLD) + rst_stream(2 * number + 1)


def _good_and_reset(number: int) -> bytes:
    """Two resets for each request that is answered."""
    first = 6 * number + 1
    return (
        headers(first, GET)
        + headers(first + 2, HOLD)
        + headers(first + 4, HOLD)
        + rst_stream(first + 2)
        + rst_stream(first + 4)
    )


def _window_overflow(number: int) -> bytes:
    """We are made to reset: MadeYouReset (CVE-2025-8671)."""
    return headers(2 * number + 1, HOLD) + raw.window_update(2 * number + 1, raw.MAX_WINDOW)


def _window_of_zero(number: int) -> bytes:
    return headers(2 * number + 1, HOLD) + raw.window_update(2 * number + 1, 0)


def _data_behind_the_end(number: int) -> bytes:
    return headers(2 * number + 1, HOLD) + data(2 * number + 1, b"x")


def _priority_too_short(number: int) -> bytes:
    return headers(2 * number + 1, HOLD) + frame(raw.PRIORITY, 0, 2 * number + 1, b"\0\0\0\0")


def _headers_behind_the_end(number: int) -> bytes:
    return headers(2 * number + 1, HOLD) + headers(2 * number + 1, literal(b"x-test", b"v"))


def _wrong_length(number: int) -> bytes:
    return headers(2 * number + 1, request((b"content-length", b"5"), method=b"POST", path=b"/hold"), OPEN) + data(
        2 * number + 1, b"too long for it"
    )


def _malformed(number: int) -> bytes:
    return headers(2 * number + 1, request((b"X", b"y")))


def _unread_body(number: int) -> bytes:
    """Each is answered before it is complete, so that its stream is reset with NO_ERROR."""
    return headers(2 * number + 1, request(path=b"/early", method=b"POST"), OPEN)


FLOODS = (
    Flood("rapid reset", "rapid_reset", _reset, 401, least=190),
    Flood("rapid reset among good requests", "rapid_reset", _good_and_reset, 201, least=95),
    Flood(
        "reset of requests that were answered at once",
        "",
        lambda n: headers(2 * n + 1, GET) + rst_stream(2 * n + 1),
        3000,
    ),
    *(
        Flood(f"MadeYouReset by {how}", "rapid_reset", make, 401, least=190)
        for how, make in (
            ("an overflow of the window", _window_overflow),
            ("a WINDOW_UPDATE of 0", _window_of_zero),
            ("DATA behind the end", _data_behind_the_end),
            ("HEADERS behind the end", _headers_behind_the_end),
            ("a PRIORITY that is too short", _priority_too_short),
            ("DATA that is not of content-length", _wrong_length),
            ("malformed requests", _malformed),
        )
    ),
    Flood("PING", "ping_flood", lambda n: raw.ping(struct.pack(">Q", n)), 1100, least=900),
    Flood("PING acknowledgements", "ping_flood", lambda n: raw.ping(struct.pack(">Q", n), raw.ACK), 1100, least=900),
    Flood("SETTINGS, empty", "settings_flood", lambda n: raw.settings(), 1100, least=400),
    Flood(
        "SETTINGS, full", "settings_flood", lambda n: raw.settings(*[(4, n * 7 + i) for i in range(2700)]), 2, least=0
    ),
    Flood("SETTINGS acknowledgements", "settings_flood", lambda n: raw.SETTINGS_ACK, 1100, least=400),
    Flood("PRIORITY", "priority_flood", lambda n: raw.priority(2 * n + 1), 1100, least=900),
    Flood("WINDOW_UPDATE of the connection", "window_update_flood", lambda n: raw.window_update(0, 1), 1100, least=900),
    Flood(
        "WINDOW_UPDATE of a stream",
        "window_update_flood",
        lambda n: raw.window_update(1, 1),
        1100,
        headers(1, HOLD),
        900,
    ),
    Flood(
        "WINDOW_UPDATE of a closed stream",
        "window_update_flood",
        lambda n: raw.window_update(1, 1),
        1100,
        headers(1, GET),
    ),
    Flood("RST_STREAM of one closed stream", "reset_flood", lambda n: rst_stream(1), 1100, headers(1, GET)),
    Flood("GOAWAY", "goaway_flood", lambda n: raw.goaway(0, 0), 1100, headers(1, HOLD), 0),
    Flood("unknown frames", "unknown_frame_flood", lambda n: frame(0x40 + n % 100, 0, n), 1100, least=900),
    Flood("empty DATA", "empty_data_flood", lambda n: data(1, b""), 1100, headers(1, HELD_POST, OPEN), 500),
    Flood(
        "DATA of padding alone",
        "empty_data_flood",
        lambda n: data(1, raw.padded(b"", 200), raw.PADDED),
        1100,
        headers(1, HELD_POST, OPEN),
        500,
    ),
    Flood(
        "DATA on a stream that was reset",
        "",
        lambda n: data(1, b"x"),
        1100,
        headers(1, HELD_POST, OPEN) + rst_stream(1),
    ),
    Flood("CONTINUATION, empty", "continuation_flood", lambda n: raw.continuation(1, b"", 0), 9, headers(1, GET, 1)),
    Flood(
        "CONTINUATION of one byte",
        "continuation_flood",
        lambda n: raw.continuation(1, GET[n : n + 1], 0),
        9,
        headers(1, b"", 1),
    ),
    Flood(
        "CONTINUATION, great",
        "large_header_block",
        lambda n: raw.continuation(1, literal(b"x-%d" % n, b"v" * 16000), 0),
        70,
        headers(1, GET, 1),
    ),
)


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_a_flood_is_bounded(flood: Flood, logged: list[LogEvent]) -> None:
    stage = Stage()
    stage.send(flood.setup)
    with processor_time() as taken:
        sent = 0
        while not stage.over and sent <= flood.bound:
            stage.send(flood.make(sent))
            sent += 1
    assert stage.over, f"{sent} were taken"
    assert flood.least <= sent <= flood.bound
    assert stage.seen.goaway == ENHANCE_YOUR_CALM
    assert taken.seconds < 3.0  # some 0.05 s
    kinds = set(stage.factory.protection)
    assert kinds == {flood.kind} if flood.kind else len(kinds) == 1
    assert sum(stage.factory.protection.values()) == 1
    assert not stage.connection.streams
    for each in stage.asked:
        assert each.ends == 1  # permits go back
    assert len([event for event in logged if "flood" in event["log_format"] or event["log_level"].name == "warn"]) == 1
