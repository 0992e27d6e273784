"""RFC 9113 6 as h2spec has it, and more: each kind of frame, with wrong sizes, streams, padding and values."""

from __future__ import annotations

import struct

import pytest

from tests.http.h2 import raw
from tests.http.h2.conformance import Case, Result, answered, case_id, error, goaway, ignored, reset
from tests.http.h2.origin import LARGE, play
from tests.http.h2.raw import (
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GET,
    MAX_WINDOW,
    POST,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    continuation,
    data,
    frame,
    headers,
    literal,
    priority,
    request,
)

HOLD = request(path=b"/hold")
BIG = request(path=b"/large")
OPEN = raw.END_HEADERS
MORE = literal(b"x-more", b"1")


def sized(size: int) -> bytes:
    return bytes(size)


DATA = (
    Case("http2/6.1", "DATA on stream 0", data(0, b"test", raw.END_STREAM), goaway(PROTOCOL_ERROR), 0),
    Case(
        "http2/6.1",
        'DATA on a stream that is not "open" or "half-closed (local)"',
        headers(1, HOLD) + data(1, b"test", raw.END_STREAM),
        error(1, STREAM_CLOSED),
        1,
    ),
    *(
        Case(
            "http2/6.1",
            f"DATA with an invalid pad length: {size} in {len(payload)} bytes",
            headers(1, POST, OPEN) + data(1, payload, raw.PADDED | raw.END_STREAM),
            goaway(PROTOCOL_ERROR),
        )
        for size, payload in ((6, b"\x06test\0"), (5, b"\x05test"), (1, b"\x01"), (255, b"\xff" + b"x" * 254))
    ),
    Case(
        "http2/6.1",
        "DATA with PADDED and no pad length",
        headers(1, POST, OPEN) + data(1, b"", raw.PADDED | raw.END_STREAM),
        goaway(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
    ),
    Case(
        "http2/6.1",
        "DATA with nothing but padding at the end",
        headers(1, POST, OPEN) + data(1, raw.padded(b"", 9), raw.PADDED | raw.END_STREAM),
        answered(1),
    ),
)

HEADERS = (
    Case(
        "http2/6.2",
        "HEADERS without END_HEADERS, then PRIORITY",
        headers(1, GET, raw.END_STREAM) + priority(1) + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case(
        "http2/6.2",
        "HEADERS without END_HEADERS, then HEADERS of another stream",
        headers(1, GET, raw.END_STREAM) + headers(3, GET),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case("http2/6.2", "HEADERS on stream 0", headers(0, GET), goaway(PROTOCOL_ERROR), 0),
    Case(
        "http2/6.2",
        "HEADERS with an invalid pad length",
        headers(1, bytes((len(GET) + 1,)) + GET, raw.ENDS | raw.PADDED),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case(
        "http2/6.2",
        "HEADERS with PADDED and no pad length",
        headers(1, b"", raw.ENDS | raw.PADDED),
        goaway(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
        0,
    ),
    Case(
        "http2/6.2",
        "HEADERS with PRIORITY and too short for it",
        headers(1, b"\0\0\0\0", raw.ENDS | raw.HAS_PRIORITY),
        goaway(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
        0,
    ),
    Case(
        "http2/6.2",
        "HEADERS whose padding reaches into its dependency",
        headers(1, b"\x03" + b"\0" * 7, raw.ENDS | raw.HAS_PRIORITY | raw.PADDED),
        goaway(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
        0,
    ),
)

PRIORITY = (
    Case("http2/6.3", "PRIORITY on stream 0", priority(0), goaway(PROTOCOL_ERROR), 0),
    *(
        Case(
            "http2/6.3",
            f"PRIORITY of {size} bytes",
            headers(1, HOLD) + frame(raw.PRIORITY, 0, 1, sized(size)),
            error(1, FRAME_SIZE_ERROR),
            1,
        )
        for size in (0, 4, 6)
    ),
    Case(
        "http2/6.3",
        "PRIORITY of 4 bytes on an idle stream",
        frame(raw.PRIORITY, 0, 9, sized(4)),
        error(9, FRAME_SIZE_ERROR),
        0,
    ),
)

RST_STREAM = (
    Case("http2/6.4", "RST_STREAM on stream 0", raw.rst_stream(0), goaway(PROTOCOL_ERROR), 0),
    Case("http2/6.4", "RST_STREAM on an idle stream", raw.rst_stream(1), goaway(PROTOCOL_ERROR), 0),
    *(
        Case(
            "http2/6.4",
            f"RST_STREAM of {size} bytes",
            headers(1, HOLD) + frame(raw.RST_STREAM, 0, 1, sized(size)),
            goaway(FRAME_SIZE_ERROR),
            1,
        )
        for size in (0, 3, 5)
    ),
)


def _acknowledged(result: Result) -> None:
    assert len([one for one in result.seen.of(raw.SETTINGS) if one.flags & raw.ACK]) == 2


SETTINGS = (
    Case(
        "http2/6.5",
        "SETTINGS with ACK and a payload",
        frame(raw.SETTINGS, raw.ACK, 0, b"\0"),
        goaway(FRAME_SIZE_ERROR),
        0,
    ),
    Case(
        "http2/6.5",
        "SETTINGS with ACK and a whole setting",
        frame(raw.SETTINGS, raw.ACK, 0, struct.pack(">HI", raw.INITIAL_WINDOW_SIZE, 1)),
        goaway(FRAME_SIZE_ERROR),
        0,
    ),
    Case(
        "http2/6.5",
        "SETTINGS on a stream",
        frame(raw.SETTINGS, 0, 1, struct.pack(">HI", raw.MAX_CONCURRENT_STREAMS, 9)),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case("http2/6.5", "an acknowledgement on a stream", frame(raw.SETTINGS, raw.ACK, 1), goaway(PROTOCOL_ERROR), 0),
    *(
        Case(
            "http2/6.5",
            f"SETTINGS of {size} bytes",
            frame(raw.SETTINGS, payload=sized(size)),
            goaway(FRAME_SIZE_ERROR),
            0,
        )
        for size in (1, 3, 5, 7)
    ),
    Case("http2/6.5", "SETTINGS without a value", raw.settings(), ignored, 0, check=_acknowledged),
    *(
        Case(
            "http2/6.5.2",
            f"SETTINGS_ENABLE_PUSH {value}",
            raw.settings((raw.ENABLE_PUSH, value)),
            goaway(PROTOCOL_ERROR),
            0,
        )
        for value in (2, 2**32 - 1)
    ),
    Case("http2/6.5.2", "SETTINGS_ENABLE_PUSH 1", raw.settings((raw.ENABLE_PUSH, 1)), ignored, 0, check=_acknowledged),
    *(
        Case(
            "http2/6.5.2",
            f"SETTINGS_INITIAL_WINDOW_SIZE {value}",
            raw.settings((raw.INITIAL_WINDOW_SIZE, value)),
            goaway(FLOW_CONTROL_ERROR),
            0,
        )
        for value in (2**31, 2**32 - 1)
    ),
    *(
        Case(
            "http2/6.5.2",
            f"SETTINGS_MAX_FRAME_SIZE {value}",
            raw.settings((raw.MAX_FRAME_SIZE, value)),
            goaway(PROTOCOL_ERROR),
            0,
        )
        for value in (0, 16383, 16777216)
    ),
    *(
        Case(
            "http2/6.5.2",
            f"SETTINGS_MAX_FRAME_SIZE {value}",
            raw.settings((raw.MAX_FRAME_SIZE, value)) + headers(1, GET),
            answered(1),
            1,
        )
        for value in (16384, 16777215)
    ),
    *(
        Case("http2/6.5.2", f"SETTINGS of unknown {name:#x}", raw.settings((name, 1)), ignored, 0, check=_acknowledged)
        for name in (0, 0xFF, 0xFFFF)
    ),
    Case(
        "http2/6.5.2",
        "SETTINGS_HEADER_TABLE_SIZE 0, and the greatest",
        raw.settings((raw.HEADER_TABLE_SIZE, 0))
        + headers(1, GET)
        + raw.settings((raw.HEADER_TABLE_SIZE, 2**32 - 1))
        + headers(3, GET),
        answered(1, 3),
        2,
    ),
    Case(
        "http2/6.5.2",
        "SETTINGS_MAX_CONCURRENT_STREAMS 0 binds us, who open none",
        raw.settings((raw.MAX_CONCURRENT_STREAMS, 0)) + headers(1, GET),
        answered(1),
        1,
    ),
    Case(
        "http2/6.5.3", "SETTINGS is acknowledged", raw.settings((raw.ENABLE_PUSH, 0)), ignored, 0, check=_acknowledged
    ),
    Case(
        "http2/6.5.3",
        "several values of SETTINGS_INITIAL_WINDOW_SIZE in one frame: the last counts",
        raw.settings((raw.INITIAL_WINDOW_SIZE, 100), (raw.INITIAL_WINDOW_SIZE, 1)) + headers(1, GET),
        lambda result: result.seen.body(1) == b"h" and not result.seen.ended(1) and result.seen.goaway is None,
        1,
    ),
)

PUSH_PROMISE = (
    Case(
        "http2/8.2",
        "PUSH_PROMISE of a client",
        headers(1, HOLD) + frame(raw.PUSH_PROMISE, raw.END_HEADERS, 1, struct.pack(">I", 3) + GET),
        goaway(PROTOCOL_ERROR),
        1,
    ),
    Case(
        "http2/6.6",
        "PUSH_PROMISE on an idle stream",
        frame(raw.PUSH_PROMISE, raw.END_HEADERS, 1, struct.pack(">I", 2) + GET),
        goaway(PROTOCOL_ERROR),
        0,
    ),
)


def _ponged(result: Result) -> None:
    assert result.seen.ponged(b"h2spec\0\1")


def _not_ponged(result: Result) -> None:
    assert not result.seen.ponged(b"h2spec\0\1")


PING = (
    Case("http2/6.7", "PING", raw.ping(b"h2spec\0\1"), ignored, 0, check=_ponged),
    Case("http2/6.7", "PING with ACK", raw.ping(b"h2spec\0\1", raw.ACK), ignored, 0, check=_not_ponged),
    Case("http2/6.7", "PING on a stream", frame(raw.PING, 0, 1, sized(8)), goaway(PROTOCOL_ERROR), 0),
    *(
        Case("http2/6.7", f"PING of {size} bytes", frame(raw.PING, payload=sized(size)), goaway(FRAME_SIZE_ERROR), 0)
        for size in (0, 7, 9)
    ),
    Case("http2/6.7", "PING with ACK of 7 bytes", frame(raw.PING, raw.ACK, 0, sized(7)), goaway(FRAME_SIZE_ERROR), 0),
)

GOAWAY = (
    Case("http2/6.8", "GOAWAY on a stream", raw.goaway(0, 0, b"", 1), goaway(PROTOCOL_ERROR), 0),
    *(
        Case(
            "http2/6.8", f"GOAWAY of {size} bytes", frame(raw.GOAWAY, payload=sized(size)), goaway(FRAME_SIZE_ERROR), 0
        )
        for size in (0, 7)
    ),
)


WINDOW_UPDATE = (
    Case("http2/6.9", "WINDOW_UPDATE of 0 for the connection", raw.window_update(0, 0), goaway(PROTOCOL_ERROR), 0),
    Case(
        "http2/6.9",
        "WINDOW_UPDATE of 0 for a stream",
        headers(1, HOLD) + raw.window_update(1, 0),
        error(1, PROTOCOL_ERROR),
        1,
    ),
    *(
        Case(
            "http2/6.9",
            f"WINDOW_UPDATE of {size} bytes",
            frame(raw.WINDOW_UPDATE, payload=sized(size)),
            goaway(FRAME_SIZE_ERROR),
            0,
        )
        for size in (0, 3, 5)
    ),
    Case(
        "http2/6.9",
        "WINDOW_UPDATE of 3 bytes for a stream",
        headers(1, HOLD) + frame(raw.WINDOW_UPDATE, 0, 1, sized(3)),
        goaway(FRAME_SIZE_ERROR),
        1,
    ),
    Case(
        "http2/6.9.1",
        "SETTINGS_INITIAL_WINDOW_SIZE 1: one byte of DATA",
        raw.settings((raw.INITIAL_WINDOW_SIZE, 1)) + headers(1, GET),
        lambda result: [one.payload for one in result.seen.of(raw.DATA, 1)] == [b"h"] and not result.closed,
        1,
    ),
    Case(
        "http2/6.9.1",
        "WINDOW_UPDATEs that add up to more than 2^31-1 for the connection",
        raw.window_update(0, MAX_WINDOW) * 2,
        goaway(FLOW_CONTROL_ERROR),
        0,
    ),
    Case(
        "http2/6.9.1",
        "WINDOW_UPDATEs that add up to more than 2^31-1 for a stream",
        headers(1, HOLD) + raw.window_update(1, MAX_WINDOW) * 2,
        reset(1, FLOW_CONTROL_ERROR),
        1,
    ),
    Case(
        "http2/6.9.1",
        "WINDOW_UPDATEs that add up to exactly 2^31-1",
        headers(1, HOLD) + raw.window_update(1, MAX_WINDOW - 65535) + raw.window_update(0, MAX_WINDOW - 65535),
        ignored,
        1,
    ),
    Case(
        "http2/6.9.1",
        "an empty DATA frame needs no window",
        raw.settings((raw.INITIAL_WINDOW_SIZE, 0)) + headers(1, request(path=b"/empty")),
        answered(1, body=b""),
        1,
    ),
    Case(
        "http2/6.9.1",
        "DATA beyond the window that we have given for a stream",
        headers(1, request(path=b"/paused", method=b"POST"), OPEN) + data(1, b"x" * 16384) * 4 + data(1, b"x"),
        error(1, FLOW_CONTROL_ERROR),
        1,
    ),
    Case(
        "http2/6.9.1",
        "padding counts, too",
        headers(1, request(path=b"/paused", method=b"POST"), OPEN)
        + data(1, raw.padded(b"x" * 16128, 255), raw.PADDED) * 4
        + data(1, b"x"),
        error(1, FLOW_CONTROL_ERROR),
        1,
    ),
    Case(
        "http2/6.9.2",
        "SETTINGS_INITIAL_WINDOW_SIZE changed after HEADERS",
        raw.settings((raw.INITIAL_WINDOW_SIZE, 0)) + headers(1, GET) + raw.settings((raw.INITIAL_WINDOW_SIZE, 1)),
        lambda result: result.seen.body(1) == b"h" and not result.seen.ended(1),
        1,
    ),
    Case(
        "http2/6.9.2",
        "a window that becomes negative",
        raw.settings((raw.INITIAL_WINDOW_SIZE, 3))
        + headers(1, GET)
        + raw.settings((raw.INITIAL_WINDOW_SIZE, 2))
        + raw.window_update(1, 2),
        lambda result: result.seen.body(1) == b"hell" and not result.seen.ended(1),
        1,
    ),
    Case(
        "http2/6.9.2",
        "a window that becomes negative, and nothing else",
        raw.settings((raw.INITIAL_WINDOW_SIZE, 3))
        + headers(1, GET)
        + raw.settings((raw.INITIAL_WINDOW_SIZE, 0))
        + raw.window_update(1, 3),
        lambda result: result.seen.body(1) == b"hel" and not result.seen.ended(1),
        1,
    ),
    Case(
        "http2/6.9.2",
        "SETTINGS_INITIAL_WINDOW_SIZE that takes a stream's window above 2^31-1",
        headers(1, HOLD) + raw.window_update(1, MAX_WINDOW - 65535) + raw.settings((raw.INITIAL_WINDOW_SIZE, 65536)),
        goaway(FLOW_CONTROL_ERROR),
        1,
    ),
    Case(
        "http2/6.9.2",
        "SETTINGS_INITIAL_WINDOW_SIZE does not change the connection's window",
        raw.settings((raw.INITIAL_WINDOW_SIZE, MAX_WINDOW)) + headers(1, BIG),
        lambda result: len(result.seen.body(1)) == 65535 < LARGE and not result.seen.ended(1),
        1,
    ),
    Case(
        "http2/6.9.1",
        "the connection's window counts all streams",
        headers(1, BIG) + headers(3, BIG),
        lambda result: len(result.seen.body(1)) + len(result.seen.body(3)) == 65535 and not result.closed,
        2,
    ),
)

CONTINUATION = (
    Case(
        "http2/6.10",
        "several CONTINUATIONs",
        headers(1, GET, raw.END_STREAM) + continuation(1, MORE, 0) + continuation(1, MORE),
        answered(1),
        1,
    ),
    Case(
        "http2/6.10",
        "a CONTINUATION followed by another frame",
        headers(1, GET, raw.END_STREAM) + continuation(1, MORE, 0) + data(1, b"test", raw.END_STREAM),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case(
        "http2/6.10",
        "a CONTINUATION on stream 0",
        headers(1, GET, raw.END_STREAM) + continuation(0, MORE),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case(
        "http2/6.10",
        "a CONTINUATION behind HEADERS with END_HEADERS",
        headers(1, HOLD) + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        1,
    ),
    Case(
        "http2/6.10",
        "a CONTINUATION behind CONTINUATION with END_HEADERS",
        headers(1, HOLD, raw.END_STREAM) + continuation(1, MORE) + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        1,
    ),
    Case(
        "http2/6.10",
        "a CONTINUATION behind DATA",
        headers(1, request(path=b"/hold", method=b"POST"), OPEN) + data(1, b"test") + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        1,
    ),
    Case(
        "http2/6.10",
        "a block cut within an integer, a name and a value",
        headers(1, GET[:1], raw.END_STREAM)
        + continuation(1, GET[1:2], 0)
        + continuation(1, b"", 0)
        + continuation(1, GET[2:4], 0)
        + continuation(1, GET[4:]),
        answered(1),
        1,
    ),
    Case(
        "http2/6.10",
        "a CONTINUATION with undefined flags",
        headers(1, GET, raw.END_STREAM) + continuation(1, MORE, 0xFF),
        answered(1),
        1,
    ),
    Case(
        "http2/6.10",
        "trailers in a CONTINUATION",
        headers(1, POST, OPEN)
        + data(1, b"hello")
        + headers(1, MORE, raw.END_STREAM)
        + continuation(1, literal(b"x-test", b"ok")),
        answered(1, body=b"hello"),
        1,
    ),
)


@pytest.mark.parametrize(
    "case",
    DATA + HEADERS + PRIORITY + RST_STREAM + SETTINGS + PUSH_PROMISE + PING + GOAWAY + WINDOW_UPDATE + CONTINUATION,
    ids=case_id,
)
async def test_it(case: Case) -> None:
    case.judge(await play(case))
