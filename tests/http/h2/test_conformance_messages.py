"""RFC 9113 7 and 8 as h2spec has them, and more: what makes a request malformed. Nothing of one reaches the handler."""

from __future__ import annotations

import pytest

from tests.http.h2 import raw
from tests.http.h2.conformance import Case, answered, case_id, error, ignored, served
from tests.http.h2.origin import play
from tests.http.h2.raw import GET, POST, PROTOCOL_ERROR, data, fields, headers, literal, request

HOLD = request(path=b"/hold")
OPEN = raw.END_HEADERS
HELD_POST = request(path=b"/hold", method=b"POST")
MALFORMED = error(1, PROTOCOL_ERROR)


def malformed(section: str, title: str, block: bytes) -> Case:
    """A request that is a stream error PROTOCOL_ERROR; the next one on the connection is served."""
    return Case(section, title, headers(1, block), MALFORMED, 0)


def refused(section: str, title: str, block: bytes, status: int = 400) -> Case:
    """A request that is malformed or what HTTP/1.1 refuses, too: then with the same response (RFC 9113 8.1.1)."""
    return Case(section, title, headers(1, block), (*MALFORMED, answered(1, status=status)), 0)


def length(value: bytes, path: bytes = b"/", *more: raw.Field) -> bytes:
    return request((b"content-length", value), *more, method=b"POST", path=path)


CODES = (
    Case("http2/7", "GOAWAY with an unknown code", raw.goaway(0, 0xFF), lambda result: not result.seen.goaway, 0),
    Case("http2/7", "RST_STREAM with an unknown code", headers(1, HOLD) + raw.rst_stream(1, 0xFF), ignored, 1),
)

MESSAGES = (
    Case(
        "http2/8.1",
        "a second HEADERS without END_STREAM",
        headers(1, HELD_POST, OPEN) + headers(1, literal(b"x-test", b"ok"), OPEN),
        MALFORMED,
        1,
    ),
    Case(
        "http2/8.1",
        "DATA behind trailers",
        headers(1, HELD_POST, OPEN) + headers(1, literal(b"x-test", b"ok")) + data(1, b"x"),
        error(1, raw.STREAM_CLOSED),
        1,
    ),
    Case(
        "http2/8.1",
        "a GET with a body",
        headers(1, GET, OPEN) + data(1, b"hello", raw.END_STREAM),
        answered(1, body=b"hello"),
        1,
    ),
    Case("http2/8.1", "an empty block", headers(1, b""), MALFORMED, 0),
)

NAMES = (
    malformed("http2/8.1.2", "a name in upper case", request((b"X-TEST", b"ok"))),
    *(
        malformed("http2/8.2.1", f"a name: {name!r}", request((name, b"ok")))
        for name in (
            b"",
            b"x test",
            b"x-test ",
            b" x-test",
            b"x:test",
            b"x-test:",
            b"x\r\ntest",
            b"x\ntest",
            b"x\0test",
            b"x\ttest",
            b"x(test",
            b"x\x7ftest",
            b"x\x80test",
            "xé".encode(),
            b"Connection",
            b"x-Test",
        )
    ),
    *(
        malformed("http2/8.2.1", f"a value: {value!r}", request((b"x-test", value)))
        for value in (b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b", b"\0", b" a", b"a ", b"\ta", b"a\t", b"a\r\n", b"\n")
    ),
    Case("http2/8.2.1", "a value in UTF-8", headers(1, request((b"x-test", "é".encode()))), answered(1), 1),
    Case("http2/8.2.1", "an empty value", headers(1, request((b"x-test", b""))), answered(1), 1),
    Case("http2/8.2.1", "a value with a tab within", headers(1, request((b"x-test", b"a\tb"))), answered(1), 1),
    Case(
        "http2/8.2.1",
        "a name of all other characters",
        headers(1, request((b"!#$%&'*+-.^_`|~09az", b"a"))),
        answered(1),
        1,
    ),
)

PSEUDO = (
    malformed("http2/8.1.2.1", "an unknown pseudo-header field", request((b":test", b"ok"))),
    malformed("http2/8.1.2.1", ":status in a request", request((b":status", b"200"))),
    malformed("http2/8.1.2.1", ":protocol without extended CONNECT", request((b":protocol", b"websocket"))),
    *(
        Case(
            "http2/8.1.2.1",
            f"{name.decode()} in trailers",
            headers(1, HELD_POST, OPEN) + data(1, b"x") + headers(1, literal(name, value)),
            MALFORMED,
            1,
        )
        for name, value in ((b":method", b"GET"), (b":path", b"/x"), (b":status", b"200"), (b":x", b""))
    ),
    *(
        malformed(
            "http2/8.1.2.1",
            f"{name.decode()} behind a regular field",
            fields(*(pair for pair in WHOLE if pair[0] != name), (b"x-test", b"ok"), (name, value)),
        )
        for WHOLE in (((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"k8s.test"), (b":path", b"/")),)
        for name, value in WHOLE
    ),
    *(
        malformed("http2/8.1.2.2", f"{name.decode()}", request((name, value)))
        for name, value in (
            (b"connection", b"keep-alive"),
            (b"connection", b"close"),
            (b"connection", b"x-test"),
            (b"connection", b""),
            (b"proxy-connection", b"keep-alive"),
            (b"keep-alive", b"timeout=5"),
            (b"transfer-encoding", b"chunked"),
            (b"transfer-encoding", b"identity"),
            (b"upgrade", b"websocket"),
            (b"upgrade", b"h2c"),
        )
    ),
    *(
        malformed("http2/8.1.2.2", f"te: {value.decode()}", request((b"te", value)))
        for value in (b"trailers, deflate", b"gzip", b"", b"trailers;q=1")
    ),
    Case("http2/8.1.2.2", "te: trailers", headers(1, request((b"te", b"trailers"))), answered(1), 1),
    *(
        refused("http2/8.1.2.3", f":path {path!r}", request(path=path))
        for path in (b"", b"x", b"api/v1", b"/ ", b"/a b", b"/\r\nx: y", b"/\0", b"/\n", b"/#a", b"/\x7f", b"/\x80")
    ),
    malformed("http2/8.1.2.3", "no :method", request(method=None)),
    malformed("http2/8.1.2.3", "no :scheme", request(scheme=None)),
    malformed("http2/8.1.2.3", "no :path", request(path=None)),
    malformed("http2/8.1.2.3", "two :method", literal(b":method", b"GET") + GET),
    malformed("http2/8.1.2.3", "two :scheme", literal(b":scheme", b"https") + GET),
    malformed("http2/8.1.2.3", "two :path", literal(b":path", b"/other") + GET),
    malformed("http2/8.1.2.3", "two :authority", literal(b":authority", b"k8s.test") + GET),
    *(
        refused("http2/8.1.2.3", f":method {method!r}", request(method=method))
        for method in (b"", b"GE T", b"GET ", b"GET\r\n", b"G\0T", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\nGET", b"G(T")
    ),
    *(
        refused("http2/8.1.2.3", f":authority {authority!r}", request(authority=authority))
        for authority in (b"k8s.test\r\nx: y", b"k8s.test\0", b"a b", b"user@k8s.test", b"k8s.test/x", b"a,b", b"\x80")
    ),
    refused("http2/8.1.2.3", ":method in lower case", request(method=b"get")),
    refused("http2/8.3.1", "neither :authority nor Host", request(authority=None)),
    refused("http2/8.5", "CONNECT", request(method=b"CONNECT", scheme=None, path=None), 405),
    refused("http2/8.5", "CONNECT with :path", request(method=b"CONNECT"), 405),
    refused("http2/8.5", "CONNECT with :protocol", request((b":protocol", b"websocket"), method=b"CONNECT"), 405),
    refused("http2/8.3.1", "TRACE", request(method=b"TRACE"), 405),
    refused("http2/8.3.1", "* with GET", request(path=b"*")),
    Case("http2/8.3.1", ":scheme http over TLS", headers(1, request(scheme=b"http")), answered(1), 1),
    refused("http2/8.3.1", ":scheme file", request(scheme=b"file")),
    malformed("http2/8.3.1", "Host that differs from :authority", request((b"host", b"other.test"))),
    refused("http2/8.3.1", "two Hosts", request((b"host", b"k8s.test"), (b"host", b"k8s.test"))),
    refused("http2/8.3.1", "two Hosts, no :authority", request((b"host", b"a"), (b"host", b"b"), authority=None)),
    Case("http2/8.3.1", "Host that is the same", headers(1, request((b"host", b"k8s.test"))), answered(1), 1),
    Case("http2/8.3.1", "Host alone", headers(1, request((b"host", b"k8s.test"), authority=None)), answered(1), 1),
)

LENGTHS = (
    Case(
        "http2/8.1.2.6",
        "content-length that is not the length of DATA",
        headers(1, length(b"1"), OPEN) + data(1, b"test", raw.END_STREAM),
        MALFORMED,
    ),
    Case(
        "http2/8.1.2.6",
        "content-length that is not the length of several DATA",
        headers(1, length(b"1"), OPEN) + data(1, b"test") + data(1, b"test", raw.END_STREAM),
        MALFORMED,
    ),
    Case(
        "http2/8.1.2.6",
        "content-length greater than DATA",
        headers(1, length(b"5"), OPEN) + data(1, b"test", raw.END_STREAM),
        MALFORMED,
    ),
    Case("http2/8.1.2.6", "content-length and no DATA at all", headers(1, length(b"5")), MALFORMED, 0),
    Case(
        "http2/8.1.2.6",
        "content-length greater than DATA, and trailers",
        headers(1, length(b"5"), OPEN) + data(1, b"test") + headers(1, literal(b"x-test", b"ok")),
        MALFORMED,
    ),
    Case(
        "http2/8.1.2.6",
        "content-length 0 and DATA",
        headers(1, length(b"0"), OPEN) + data(1, b"x", raw.END_STREAM),
        (*MALFORMED, served(1)),
    ),
    Case(
        "http2/8.1.2.6",
        "content-length that is right, by padding counted it were not",
        headers(1, length(b"5"), OPEN) + data(1, raw.padded(b"hello", 20), raw.PADDED | raw.END_STREAM),
        answered(1, body=b"hello"),
        1,
    ),
    Case("http2/8.1.2.6", "content-length 0", headers(1, length(b"0")), answered(1), 1),
    Case(
        "http2/8.1.2.6",
        "content-length 0 and an empty DATA",
        headers(1, length(b"0"), OPEN) + data(1, b"", raw.END_STREAM),
        served(1),
        1,
    ),
    *(
        malformed("http2/8.1.2.6", f"content-length {value!r}", length(value))
        for value in (b"", b"-1", b"+0", b"0x0", b"0,0", b"1e1", b"0 0", b"zero", b"0;", b"\xd9\xa0", b"9" * 30)
    ),
    malformed("http2/8.1.2.6", "two content-lengths that differ", length(b"0", b"/", (b"content-length", b"1"))),
    malformed("http2/8.1.2.6", "two content-lengths that agree", length(b"0", b"/", (b"content-length", b"0"))),
)

TRAILERS = tuple(
    Case(
        "http2/8.1",
        f"{name!r} in trailers",
        headers(1, HELD_POST, OPEN) + data(1, b"x") + headers(1, literal(name, b"a\r\nb" if not name else b"a")),
        MALFORMED,
        1,
    )
    for name in (b"", b"X-Test", b"x test", b"connection", b"transfer-encoding", b"x\r\ny")
)

SERVED = (
    Case(
        "http2/8.1.1",
        "a malformed request costs no other",
        headers(1, HOLD) + headers(3, request((b"X", b"ok"))) + headers(5, GET),
        lambda r: r.seen.resets == {3: PROTOCOL_ERROR} and r.seen.status(5) == 200 and not r.closed,
        2,
    ),
    Case(
        "http2/8.1.1",
        "the table of a malformed request's fields is kept",
        headers(1, request((b"X", b"ok")) + raw.indexing(b"x-test", b"h2spec")) + headers(3, GET + raw.indexed(62)),
        lambda r: r.seen.resets == {1: PROTOCOL_ERROR} and r.seen.status(3) == 200 and not r.closed,
        1,
    ),
    Case(
        "http2/8.1.1",
        "the body of a malformed request is not an error",
        headers(1, request((b"X", b"ok"), method=b"POST"), OPEN)
        + data(1, b"x" * 1000)
        + data(1, b"", raw.END_STREAM)
        + headers(3, POST, OPEN)
        + data(3, b"hello", raw.END_STREAM),
        lambda r: r.seen.resets == {1: PROTOCOL_ERROR} and r.seen.body(3) == b"hello" and not r.closed,
        1,
    ),
)


@pytest.mark.parametrize("case", CODES + MESSAGES + NAMES + PSEUDO + LENGTHS + TRAILERS + SERVED, ids=case_id)
async def test_it(case: Case) -> None:
    case.judge(await play(case))
