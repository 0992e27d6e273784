"""RFC 9113 3 to 5 as h2spec has them, and more: preface, frame format and size, header blocks, states, ids, errors."""

from __future__ import annotations

import struct

import pytest

from tests.http.h2 import raw
from tests.http.h2.conformance import Case, Result, answered, case_id, closed, error, goaway, ignored, reset
from tests.http.h2.origin import STREAMS, play
from tests.http.h2.raw import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GET,
    POST,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    continuation,
    data,
    frame,
    headers,
    literal,
    priority,
    request,
    rst_stream,
)

HOLD = request(path=b"/hold")
OPEN = raw.END_HEADERS
MORE = literal(b"x-more", b"1")  # a further piece of a header block


def _all_but_the_last_held(result: Result) -> None:
    assert result.seen.resets == {2 * STREAMS + 1: REFUSED_STREAM}


PREFACE = (
    Case("http2/3.5", "a valid preface", b"", ignored, 0),
    *(
        Case("http2/3.5", f"an invalid preface: {how}", b"", (goaway(PROTOCOL_ERROR), closed), 0, preface=preface)
        for how, preface in (
            ("other text", b"INVALID CONNECTION PREFACE\r\n\r\n" + raw.settings()),
            ("a request of HTTP/1.1", b"GET / HTTP/1.1\r\nHost: k8s.test\r\n\r\n"),
            ("cut off in the middle", raw.PREFACE[:16] + raw.settings()),
            ("of HTTP/2.1", raw.PREFACE.replace(b"2.0", b"2.1") + raw.settings()),
            ("without SETTINGS, a request at once", raw.PREFACE + headers(1, GET)),
            ("an acknowledgement for SETTINGS", raw.PREFACE + raw.SETTINGS_ACK),
            ("PING before SETTINGS", raw.PREFACE + raw.ping()),
        )
    ),
)

FRAMES = (
    Case("http2/4.1", "a frame of unknown type", frame(0x16, payload=b"\0" * 8), ignored, 0),
    Case("http2/4.1", "an undefined flag", raw.ping(b"\0" * 8, 0x16 & ~raw.ACK), ignored, 0),
    Case("http2/4.1", "the reserved bit", frame(raw.PING, 0x16 & ~raw.ACK, 1 << 31, b"\0" * 8), ignored, 0),
    Case("http2/4.1", "the reserved bit of a request", frame(raw.HEADERS, raw.ENDS, 1 << 31 | 1, GET), answered(1), 1),
    Case(
        "http2/4.1",
        "all undefined flags of a request",
        headers(1, GET, raw.ENDS | 0xD2),
        answered(1),
        1,
    ),
    Case(
        "http2/4.1",
        "the reserved bit of a WINDOW_UPDATE's increment",
        frame(raw.WINDOW_UPDATE, payload=struct.pack(">I", 1 << 31 | 1)),
        ignored,
        0,
    ),
    Case(
        "http2/4.2",
        "DATA of 2^14 bytes",
        headers(1, POST, OPEN) + data(1, b"x" * 16384, raw.END_STREAM),
        answered(1, body=b"x" * 16384),
    ),
    Case(
        "http2/4.2",
        "DATA beyond SETTINGS_MAX_FRAME_SIZE",
        headers(1, POST, OPEN) + data(1, b"x" * 16385, raw.END_STREAM),
        error(1, FRAME_SIZE_ERROR),
    ),
    Case("http2/4.2", "HEADERS beyond SETTINGS_MAX_FRAME_SIZE", headers(1, b"\0" * 16385), goaway(FRAME_SIZE_ERROR), 0),
    *(
        Case("http2/4.2", f"{kind} beyond SETTINGS_MAX_FRAME_SIZE, not sent", sent, goaway(FRAME_SIZE_ERROR), 0)
        for kind, sent in (
            ("SETTINGS", frame(raw.SETTINGS, length=16386)),
            ("an unknown frame", frame(0x99, length=(1 << 24) - 1)),
            ("CONTINUATION", headers(1, GET[:5], raw.END_STREAM) + frame(raw.CONTINUATION, 4, 1, length=16385)),
        )
    ),
    Case("http2/4.3", "a header block that cannot be decoded", headers(1, b"\x00\x01"), goaway(COMPRESSION_ERROR), 0),
    Case(
        "http2/4.3",
        "PRIORITY within a header block",
        headers(1, GET, raw.END_STREAM) + priority(1) + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case(
        "http2/4.3",
        "HEADERS of another stream within a header block",
        headers(1, GET, raw.END_STREAM) + headers(3, GET) + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    *(
        Case(
            "http2/4.3",
            f"{name} within a header block",
            headers(1, GET, raw.END_STREAM) + sent + continuation(1, MORE),
            goaway(PROTOCOL_ERROR),
            0,
        )
        for name, sent in (
            ("DATA", data(1, b"x")),
            ("RST_STREAM", rst_stream(1)),
            ("SETTINGS", raw.settings()),
            ("PING", raw.ping()),
            ("WINDOW_UPDATE", raw.window_update(0, 1)),
            ("GOAWAY", raw.goaway()),
            ("CONTINUATION of another stream", continuation(3, MORE)),
        )
    ),
)

IDLE = tuple(
    Case("http2/5.1", f"idle: {name}", sent, goaway(PROTOCOL_ERROR), 0)
    for name, sent in (
        ("DATA", data(1, b"test", raw.END_STREAM)),
        ("RST_STREAM", rst_stream(1)),
        ("WINDOW_UPDATE", raw.window_update(1, 100)),
        ("CONTINUATION", continuation(1, GET)),
        ("DATA on a stream of the server", data(2, b"test", raw.END_STREAM)),
        ("RST_STREAM on a stream of the server", rst_stream(2)),
        ("WINDOW_UPDATE on a stream of the server", raw.window_update(2, 1)),
    )
)

HALF_CLOSED = (
    Case(
        "http2/5.1",
        "half-closed (remote): DATA",
        headers(1, HOLD) + data(1, b"test", raw.END_STREAM),
        error(1, STREAM_CLOSED),
        1,
    ),
    Case(
        "http2/5.1",
        "half-closed (remote): HEADERS",
        headers(1, HOLD) + headers(1, literal(b"x-test", b"ok")),
        error(1, STREAM_CLOSED),
        1,
    ),
    Case(
        "http2/5.1",
        "half-closed (remote): CONTINUATION",
        headers(1, HOLD) + continuation(1, MORE),
        error(1, STREAM_CLOSED, PROTOCOL_ERROR),
        1,
    ),
    Case(
        "http2/5.1",
        "half-closed (remote) by DATA: DATA",
        headers(1, request(path=b"/hold", method=b"POST"), OPEN)
        + data(1, b"x", raw.END_STREAM)
        + data(1, b"y", raw.END_STREAM),
        error(1, STREAM_CLOSED),
        1,
    ),
)

CLOSED = (
    Case(
        "http2/5.1",
        "closed by RST_STREAM: DATA",
        headers(1, request(path=b"/hold", method=b"POST"), OPEN) + rst_stream(1) + data(1, b"test", raw.END_STREAM),
        error(1, STREAM_CLOSED),
        1,
    ),
    Case(
        "http2/5.1",
        "closed by RST_STREAM: HEADERS",
        headers(1, request(path=b"/hold", method=b"POST"), OPEN)
        + rst_stream(1)
        + headers(1, literal(b"x-test", b"ok")),
        error(1, STREAM_CLOSED),
        1,
    ),
    Case(
        "http2/5.1",
        "closed by RST_STREAM: CONTINUATION",
        headers(1, request(path=b"/hold", method=b"POST"), OPEN) + rst_stream(1) + continuation(1, MORE),
        error(1, STREAM_CLOSED, PROTOCOL_ERROR),
        1,
    ),
    Case(
        "http2/5.1",
        "closed: DATA",
        headers(1, GET) + data(1, b"test", raw.END_STREAM),
        error(1, STREAM_CLOSED),
        1,
    ),
    Case("http2/5.1", "closed: HEADERS", headers(1, GET) + headers(1, GET), goaway(STREAM_CLOSED), 1),
    Case(
        "http2/5.1",
        "closed: CONTINUATION",
        headers(1, GET) + continuation(1, MORE),
        goaway(STREAM_CLOSED, PROTOCOL_ERROR),
        1,
    ),
    Case("http2/5.1", "closed: WINDOW_UPDATE", headers(1, GET) + raw.window_update(1, 5), answered(1), 1),
    Case("http2/5.1", "closed: RST_STREAM", headers(1, GET) + rst_stream(1), answered(1), 1),
    Case(
        "http2/5.1",
        "reset by the server: what was under way is not an error",
        headers(1, request(path=b"/reset", method=b"POST"), OPEN)
        + data(1, b"x" * 1000)
        + raw.window_update(1, 9)
        + headers(1, MORE),
        lambda result: result.seen.goaway is None and list(result.seen.resets) == [1] and not result.closed,
        1,
    ),
)

IDENTIFIERS = (
    Case("http2/5.1.1", "an even stream identifier", headers(2, GET), goaway(PROTOCOL_ERROR), 0),
    Case(
        "http2/5.1.1",
        "a stream identifier lower than the last",
        headers(5, GET) + headers(3, GET),
        goaway(PROTOCOL_ERROR, STREAM_CLOSED),
        1,
    ),
    Case("http2/5.1.1", "identifiers with gaps", headers(7, GET) + headers(99, GET), answered(7, 99), 2),
    Case("http2/5.1.1", "the greatest identifier", headers(2**31 - 1, GET), answered(2**31 - 1), 1),
    Case(
        "http2/5.1.2",
        "more streams than SETTINGS_MAX_CONCURRENT_STREAMS",
        b"".join(headers(2 * number + 1, HOLD) for number in range(STREAMS + 1)),
        (reset(2 * STREAMS + 1, REFUSED_STREAM, PROTOCOL_ERROR),),
        STREAMS,
        check=_all_but_the_last_held,
    ),
    Case(
        "http2/5.1.2",
        "the table of a refused request's fields is kept",
        b"".join(headers(2 * number + 1, HOLD) for number in range(STREAMS))
        + headers(2 * STREAMS + 1, GET + raw.indexing(b"x-test", b"h2spec"))
        + rst_stream(1)
        + headers(2 * STREAMS + 3, GET + raw.indexed(62)),
        lambda r: r.seen.resets == {2 * STREAMS + 1: REFUSED_STREAM} and r.seen.status(2 * STREAMS + 3) == 200,
        STREAMS + 1,
    ),
)

# RFC 9113 5.3.2 has no more dependencies that could be wrong, RFC 7540 5.3.1 made these stream errors: both is right.
PRIORITIES = (
    Case(
        "http2/5.3.1",
        "HEADERS that depends on itself",
        headers(1, raw.dependency(1) + GET, raw.ENDS | raw.HAS_PRIORITY),
        (*error(1, PROTOCOL_ERROR), answered(1)),
    ),
    Case("http2/5.3.1", "PRIORITY that depends on itself", priority(3, 3), (*error(3, PROTOCOL_ERROR), ignored), 0),
)

ERRORS = (
    Case("http2/5.4.1", "a connection error closes the connection", frame(raw.PING, payload=b"short"), closed, 0),
    Case(
        "http2/5.4.1",
        "and sends a GOAWAY with the last stream",
        headers(1, GET) + frame(raw.PING, payload=b"short"),
        goaway(FRAME_SIZE_ERROR),
        1,
        check=lambda result: _last_stream(result, 1),
    ),
    Case("http2/5.4.2", "RST_STREAM is not answered by RST_STREAM", headers(1, HOLD) + rst_stream(1, 2), ignored, 1),
    Case("http2/5.5", "an unknown frame", frame(0xFF, 0xFF, 99, b"\xff" * 20) + headers(1, GET), answered(1), 1),
    Case(
        "http2/5.5",
        "an unknown frame within a header block",
        headers(1, GET, raw.END_STREAM) + frame(0xFF, payload=b"x" * 8) + continuation(1, MORE),
        goaway(PROTOCOL_ERROR),
        0,
    ),
    Case(
        "http2/5.5",
        "the first stream after many of unknown type",
        b"".join(frame(0x20 + number, stream=1) for number in range(50)) + headers(1, GET),
        answered(1),
        1,
    ),
)


def _last_stream(result: Result, last: int) -> None:
    payload = result.seen.of(raw.GOAWAY)[-1].payload
    assert int.from_bytes(payload[:4], "big") == last


@pytest.mark.parametrize(
    "case",
    PREFACE + FRAMES + IDLE + HALF_CLOSED + CLOSED + IDENTIFIERS + PRIORITIES + ERRORS,
    ids=case_id,
)
async def test_it(case: Case) -> None:
    case.judge(await play(case))


async def test_a_header_block_beyond_the_limit_ends_the_connection() -> None:
    """80 CONTINUATION frames of 16,000 bytes, where 1 MiB beyond the head's limit is the limit."""
    piece = literal(b"x-long", b"v" * 16000)
    sends = headers(1, GET, raw.END_STREAM) + continuation(1, piece, 0) * 80 + continuation(1, b"")
    result = await play(Case("http2/10.5", "a header block of 1,280,000 bytes", sends, goaway(ENHANCE_YOUR_CALM)))
    assert result.closed
    assert result.seen.goaway in (ENHANCE_YOUR_CALM, PROTOCOL_ERROR)
    assert result.requests == 0
