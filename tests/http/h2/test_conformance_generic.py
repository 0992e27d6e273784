"""h2spec's generic cases: what every HTTP/2 client sends, and a server must take."""

from __future__ import annotations

import pytest

from tests.http.h2 import raw
from tests.http.h2.conformance import Case, Result, answered, case_id, ignored
from tests.http.h2.origin import play
from tests.http.h2.raw import GET, POST, continuation, data, headers, indexed, literal, padded, priority, request

HOLD = request(path=b"/hold")
OPEN = raw.END_HEADERS  # a HEADERS frame whose stream stays open
STATIC = indexed(2) + indexed(7) + indexed(4) + literal(b":authority", b"k8s.test")  # GET, https, /


def _first_is_settings(result: Result) -> None:
    first = result.seen.frames[0]
    assert (first.kind, first.flags, first.stream) == (raw.SETTINGS, 0, 0)
    assert [one for one in result.seen.frames if one.kind == raw.SETTINGS and one.flags & raw.ACK]


def _acknowledged_twice(result: Result) -> None:
    assert len([one for one in result.seen.of(raw.SETTINGS) if one.flags & raw.ACK]) == 2


def _ponged(result: Result) -> None:
    assert result.seen.ponged(b"h2spec\0\1")


def _without_body(result: Result) -> None:
    assert result.seen.body(1) == b""
    assert (b"content-length", b"5") in result.seen.heads[1][-1]


CASES = (
    Case("generic/1", "a client connection preface", b"", ignored, 0, check=_first_is_settings),
    Case("generic/2", "PRIORITY on an idle stream", priority(1) + headers(1, GET), answered(1), 1),
    Case(
        "generic/2",
        "WINDOW_UPDATE on a half-closed (remote) stream",
        headers(1, HOLD) + raw.window_update(1, 100),
        ignored,
        1,
    ),
    Case("generic/2", "PRIORITY on a half-closed (remote) stream", headers(1, HOLD) + priority(1), ignored, 1),
    Case("generic/2", "RST_STREAM on a half-closed (remote) stream", headers(1, HOLD) + raw.rst_stream(1), ignored, 1),
    Case("generic/2", "PRIORITY on a closed stream", headers(1, GET) + priority(1), answered(1), 1),
    Case(
        "generic/3.1",
        "a DATA frame",
        headers(1, POST, OPEN) + data(1, b"hello", raw.END_STREAM),
        answered(1, body=b"hello"),
    ),
    Case(
        "generic/3.1",
        "several DATA frames",
        headers(1, POST, OPEN) + data(1, b"hel") + data(1, b"lo") + data(1, b"", raw.END_STREAM),
        answered(1, body=b"hello"),
    ),
    Case(
        "generic/3.1",
        "DATA with padding",
        headers(1, POST, OPEN) + data(1, padded(b"hello", 10), raw.PADDED | raw.END_STREAM),
        answered(1, body=b"hello"),
    ),
    Case(
        "generic/3.1",
        "DATA with padding alone",
        headers(1, POST, OPEN) + data(1, padded(b"", 255), raw.PADDED) + data(1, b"hello", raw.END_STREAM),
        answered(1, body=b"hello"),
    ),
    Case("generic/3.2", "HEADERS", headers(1, GET), answered(1), 1),
    Case("generic/3.2", "HEADERS with padding", headers(1, padded(GET, 10), raw.ENDS | raw.PADDED), answered(1), 1),
    Case(
        "generic/3.2",
        "HEADERS with padding of length 0",
        headers(1, padded(GET, 0), raw.ENDS | raw.PADDED),
        answered(1),
        1,
    ),
    Case(
        "generic/3.2",
        "HEADERS with priority",
        headers(1, raw.dependency(0) + GET, raw.ENDS | raw.HAS_PRIORITY),
        answered(1),
        1,
    ),
    Case(
        "generic/3.2",
        "HEADERS with padding and an exclusive dependency on a stream that never was",
        headers(1, padded(raw.dependency(99, exclusive=True) + GET, 7), raw.ENDS | raw.HAS_PRIORITY | raw.PADDED),
        answered(1),
        1,
    ),
    Case("generic/3.3", "PRIORITY, weight 1", priority(1, 0, 1) + headers(1, GET), answered(1), 1),
    Case("generic/3.3", "PRIORITY, weight 256", priority(1, 0, 256) + headers(1, GET), answered(1), 1),
    Case("generic/3.3", "PRIORITY with a dependency", priority(1) + priority(3, 1) + headers(3, GET), answered(3), 1),
    Case("generic/3.3", "PRIORITY, exclusive", priority(1, 0, exclusive=True) + headers(1, GET), answered(1), 1),
    Case(
        "generic/3.3",
        "PRIORITY for an idle stream, then HEADERS for a lower one",
        priority(3) + headers(1, GET),
        answered(1),
        1,
    ),
    Case("generic/3.4", "RST_STREAM", headers(1, request(method=b"POST"), OPEN) + raw.rst_stream(1), ignored),
    Case("generic/3.5", "SETTINGS", raw.settings((raw.ENABLE_PUSH, 0)), ignored, 0, check=_acknowledged_twice),
    Case("generic/3.7", "PING", raw.ping(b"h2spec\0\1"), ignored, 0, check=_ponged),
    Case("generic/3.8", "GOAWAY with a stream open", headers(1, GET) + raw.goaway(), lambda r: not r.seen.resets, 1),
    Case(
        "generic/3.9",
        "WINDOW_UPDATE of the connection",
        headers(1, GET) + raw.window_update(0, 1),
        answered(1),
        1,
    ),
    Case("generic/3.9", "WINDOW_UPDATE of a stream", headers(1, HOLD) + raw.window_update(1, 1), ignored, 1),
    Case(
        "generic/3.10", "CONTINUATION", headers(1, GET[:9], raw.END_STREAM) + continuation(1, GET[9:]), answered(1), 1
    ),
    Case(
        "generic/3.10",
        "several CONTINUATIONs",
        headers(1, GET[:9], raw.END_STREAM)
        + continuation(1, GET[9:20], 0)
        + continuation(1, GET[20:30], 0)
        + continuation(1, GET[30:]),
        answered(1),
        1,
    ),
    Case("generic/4", "GET", headers(1, GET), answered(1, body=b"hello"), 1),
    Case("generic/4", "HEAD", headers(1, request(method=b"HEAD")), answered(1), 1, check=_without_body),
    Case(
        "generic/4",
        "POST",
        headers(1, POST, OPEN) + data(1, b"test", raw.END_STREAM),
        answered(1, body=b"test"),
        1,
    ),
    Case(
        "generic/4",
        "POST with trailers",
        headers(1, request((b"trailer", b"x-test"), method=b"POST"), OPEN)
        + data(1, b"test")
        + headers(1, literal(b"x-test", b"ok")),
        answered(1, body=b"test"),
        1,
    ),
    Case("generic/5", "indexed fields", headers(1, STATIC), answered(1), 1),
    *(
        Case("generic/5", f"literal, {how}", headers(1, STATIC + block), answered(1), 1)
        for how, block in (
            ("with incremental indexing, indexed name", b"\x7a" + raw.string(b"h2spec")),
            ("with incremental indexing, indexed name, Huffman", b"\x7a" + raw.huffman(b"h2spec")),
            ("with incremental indexing, new name", b"\x40" + raw.string(b"x-test") + raw.string(b"h2spec")),
            ("with incremental indexing, new name, Huffman", b"\x40" + raw.huffman(b"x-test") + raw.huffman(b"h2spec")),
            ("without indexing, indexed name", b"\x0f\x2b" + raw.string(b"h2spec")),
            ("without indexing, indexed name, Huffman", b"\x0f\x2b" + raw.huffman(b"h2spec")),
            ("without indexing, new name", b"\x00" + raw.string(b"x-test") + raw.string(b"h2spec")),
            ("without indexing, new name, Huffman", b"\x00" + raw.huffman(b"x-test") + raw.huffman(b"h2spec")),
            ("never indexed, indexed name", b"\x1f\x2b" + raw.string(b"h2spec")),
            ("never indexed, indexed name, Huffman", b"\x1f\x2b" + raw.huffman(b"h2spec")),
            ("never indexed, new name", b"\x10" + raw.string(b"x-test") + raw.string(b"h2spec")),
            ("never indexed, new name, Huffman", b"\x10" + raw.huffman(b"x-test") + raw.huffman(b"h2spec")),
        )
    ),
    Case("generic/5", "a dynamic table size update", headers(1, raw.table_size(128) + STATIC), answered(1), 1),
    Case(
        "generic/5",
        "two dynamic table size updates",
        headers(1, raw.table_size(128) + raw.table_size(4096) + STATIC),
        answered(1),
        1,
    ),
    Case(
        "generic/5",
        "an entry of one request is used by the next",
        headers(1, STATIC + raw.indexing(b"x-test", b"h2spec")) + headers(3, STATIC + indexed(62)),
        answered(1, 3),
        2,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
async def test_it(case: Case) -> None:
    case.judge(await play(case))
