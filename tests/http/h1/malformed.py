"""Requests that are malformed, ambiguous or not served, each with the answer that it gets.

Every one of them is answered before anything reaches an upstream, or, where the fault stands in a body whose head was
passed on already, the request to the upstream is broken off. `test_malformed` plays them through a whole proxy.
Sources: RFC 9110, RFC 9112, and the request smuggling literature (CL.TE, TE.CL, TE.TE, CL.0, chunk extensions).
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """`status` is the answer's. `begun`: the head was well-formed, so the upstream saw it before the fault came."""

    name: str
    raw: bytes
    status: int
    begun: bool = False
    closes: bool = True


HOST = b"Host: k8s.test\r\n"
PATH = b"/api/v1/namespaces/a/pods"
SMUGGLED = b"GET /api/v1/secrets HTTP/1.1\r\nHost: k8s.test\r\n\r\n"


def with_line(line: bytes) -> bytes:
    return line + b"\r\n" + HOST + b"\r\n"


def with_fields(*fields: bytes, body: bytes = b"", method: bytes = b"POST") -> bytes:
    return method + b" " + PATH + b" HTTP/1.1\r\n" + HOST + b"".join(fields_of(fields)) + b"\r\n" + body


def fields_of(fields: tuple[bytes, ...]) -> list[bytes]:
    return [field + b"\r\n" for field in fields]


def with_chunks(body: bytes) -> bytes:
    return with_fields(b"Transfer-Encoding: chunked", body=body)


def with_hosts(*hosts: bytes, target: bytes = PATH) -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\n" + b"".join(b"Host: %b\r\n" % host for host in hosts) + b"\r\n"


def with_target(target: bytes) -> bytes:
    return with_line(b"GET " + target + b" HTTP/1.1")


CASES = [
    # request line
    Case("HTTP/0.9", b"GET /\r\n\r\n", 400),
    Case("HTTP/0.9 in words", with_line(b"GET / HTTP/0.9"), 505),
    Case("HTTP/1.2", with_line(b"GET / HTTP/1.2"), 400),
    Case("HTTP/2.0 as version", with_line(b"GET / HTTP/2.0"), 505),
    Case("HTTP/3.0 as version", with_line(b"GET / HTTP/3.0"), 505),
    Case("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    Case("lower-case version", with_line(b"GET / http/1.1"), 400),
    Case("version without a dot", with_line(b"GET / HTTP/11"), 400),
    Case("another protocol", with_line(b"SOURCE / ICE/1.0"), 505),
    Case("lower-case method", with_line(b"get / HTTP/1.1"), 400),
    Case("unknown method", with_line(b"FROB / HTTP/1.1"), 400),
    Case("no method", with_line(b" / HTTP/1.1"), 400),
    Case("two spaces after the method", with_line(b"GET  / HTTP/1.1"), 400),
    Case("two spaces before the version", with_line(b"GET /  HTTP/1.1"), 400),
    Case("a tab after the method", with_line(b"GET\t/ HTTP/1.1"), 400),
    Case("a space behind the version", with_line(b"GET / HTTP/1.1 "), 400),
    Case("a space in the target", with_line(b"GET /a b HTTP/1.1"), 400),
    Case("two empty lines before", b"\r\n\r\n" + with_line(b"GET / HTTP/1.1"), 400),
    Case("a bare LF before", b"\n" + with_line(b"GET / HTTP/1.1"), 400),
    Case("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    Case("CONNECT", with_line(b"CONNECT k8s.test:443 HTTP/1.1"), 405),
    Case("CONNECT with a path", with_line(b"CONNECT /a HTTP/1.1"), 405),
    Case("TRACE", with_line(b"TRACE / HTTP/1.1"), 405),
    # target
    Case("* with GET", with_target(b"*"), 400),
    Case("a fragment", with_target(b"/a#b"), 400),
    Case("a target without a slash", with_target(b"api/v1"), 400),
    Case("an authority as target", with_target(b"k8s.test:443"), 400),
    Case("an absolute target for another host", with_target(b"http://evil.test/a"), 400),
    Case("an absolute target with another port", with_target(b"http://k8s.test:81/a"), 400),
    Case("an absolute target with a user", with_target(b"http://a@k8s.test/a"), 400),
    Case("an absolute target of another scheme", with_target(b"ftp://k8s.test/a"), 400),
    Case("an absolute target without an authority", with_target(b"http:///a"), 400),
    Case("NUL in the target", with_target(b"/a\x00b"), 400),
    Case("a control character in the target", with_target(b"/a\x01b"), 400),
    Case("DEL in the target", with_target(b"/a\x7fb"), 400),
    Case("a tab in the target", with_target(b"/a\tb"), 400),
    Case("non-ASCII in the target", with_target(b"/\xc3\xa9"), 400),
    Case("a target of 32 KiB and one", with_target(b"/" + b"a" * (32 * 1024)), 414),
    Case("an empty segment", with_target(b"//api/v1/pods"), 400, closes=False),
    Case("an empty segment inside", with_target(b"/api//v1/pods"), 400, closes=False),
    Case("an empty name", with_target(b"/api/v1/namespaces//pods"), 400, closes=False),
    Case("dot segments", with_target(b"/api/v1/../../apis/apps/v1/secrets"), 400, closes=False),
    Case("a dot segment", with_target(b"/./api/v1/pods"), 400, closes=False),
    Case("dot segments at the end", with_target(b"/api/v1/pods/.."), 400, closes=False),
    Case("dot segments, encoded", with_target(b"/version/%2e%2e/api/v1/secrets"), 400, closes=False),
    Case("dot segments, half encoded", with_target(b"/version/.%2E/api/v1/secrets"), 400, closes=False),
    Case("dot segments with backslashes", with_target(b"/version\\..\\api/v1/secrets"), 400, closes=False),
    Case("dot segments with encoded backslashes", with_target(b"/version%5c..%5capi/v1/secrets"), 400, closes=False),
    Case("an encoded slash in a name", with_target(b"/api/v1/namespaces/a%2Fb/pods"), 400, closes=False),
    Case("an encoded slash in a resource", with_target(b"/api/v1/pods%2Fa"), 400, closes=False),
    Case("the whole path encoded", with_target(b"/api%2Fv1%2Fsecrets"), 400, closes=False),
    Case("an encoded first segment", with_target(b"/%61pi/v1/secrets"), 400, closes=False),
    Case("a name encoded twice", with_target(b"/api/v1/namespaces/a%252Fb/pods"), 400, closes=False),
    Case("NUL, encoded, in a name", with_target(b"/api/v1/namespaces/a%00/pods"), 400, closes=False),
    # Host
    Case("no Host", b"GET / HTTP/1.1\r\n\r\n", 400),
    Case("two Hosts", with_hosts(b"k8s.test", b"evil.test"), 400),
    Case("the same Host twice", with_hosts(b"k8s.test", b"k8s.test"), 400),
    Case("an empty Host", with_hosts(b""), 400),
    Case("two names in Host", with_hosts(b"k8s.test, evil.test"), 400),
    Case("a path in Host", with_hosts(b"k8s.test/evil"), 400),
    Case("a user in Host", with_hosts(b"evil@k8s.test"), 400),
    Case("a Host with a strange port", with_hosts(b"k8s.test:80a"), 400),
    Case("non-ASCII in Host", with_hosts(b"k8s.t\xe9st"), 400),
    Case("Host of another server", with_hosts(b"other.test"), 421, closes=False),
    # fields
    Case("whitespace before the colon", with_fields(b"A : b"), 400),
    Case("a tab before the colon", with_fields(b"Content-Length\t: 5"), 400),
    Case("obs-fold", with_fields(b"A: b", b" c"), 400),
    Case("obs-fold of Transfer-Encoding", with_fields(b"Transfer-Encoding:", b" chunked"), 400),
    Case("whitespace before the first field", b"GET / HTTP/1.1\r\n Host: k8s.test\r\n\r\n", 400),
    Case("a field without a colon", with_fields(b"garbage"), 400),
    Case("a field without a name", with_fields(b": b"), 400),
    Case("a name with a space", with_fields(b"A b: c"), 400),
    Case("a name with a parenthesis", with_fields(b"A(b): c"), 400),
    Case("a non-ASCII name", with_fields(b"\xc3\xa9: c"), 400),
    Case("NUL in a name", with_fields(b"A\x00: b"), 400),
    Case("NUL in a value", with_fields(b"A: b\x00"), 400),
    Case("a control character in a value", with_fields(b"A: b\x0b"), 400),
    Case("a bare LF between fields", b"GET / HTTP/1.1\r\nHost: k8s.test\nA: b\r\n\r\n", 400),
    Case("a bare CR between fields", b"GET / HTTP/1.1\r\nHost: k8s.test\rA: b\r\n\r\n", 400),
    Case("a doubled CR", b"GET / HTTP/1.1\r\nHost: k8s.test\r\r\nA: b\r\n\r\n", 400),
    Case("bare LFs throughout", b"GET / HTTP/1.1\nHost: k8s.test\n\n", 400),
    Case("a head of more than 64 KiB", with_fields(*[b"A: " + b"x" * 1000] * 70), 431),
    Case("a field of more than 64 KiB without an end", b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000, 431),
    Case("201 fields", with_fields(*[b"A: b"] * 200), 431),
    Case("an unknown expectation", with_fields(b"Expect: 200-ok", b"Content-Length: 1", body=b"x"), 417),
    Case("two expectations", with_fields(b"Expect: 100-continue", b"Expect: 100-continue", b"Content-Length: 1"), 417),
    Case("Connection names authorization", with_fields(b"Connection: close, Authorization", b"Authorization: a"), 400),
    Case("Connection names impersonation", with_fields(b"Connection: impersonate-user", b"Impersonate-User: a"), 400),
    Case("Connection names X-Remote-*", with_fields(b"Connection: X_Remote_Group", b"X_Remote_Group: a"), 400),
    Case("impersonation where rights are lent", with_fields(b"Impersonate-User: admin"), 403, closes=False),
    Case("impersonation with an underscore", with_fields(b"impersonate_group: admins"), 403, closes=False),
    # length
    Case("CL.TE", with_fields(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\nG"), 400),
    Case("TE.CL", with_fields(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"5c\r\n" + SMUGGLED), 400),
    Case("two lengths that differ", with_fields(b"Content-Length: 5", b"Content-Length: 6", body=b"hello!"), 400),
    Case("two lengths that agree", with_fields(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), 400),
    Case("a list of lengths", with_fields(b"Content-Length: 5, 5", body=b"hello"), 400),
    Case("a length with plus", with_fields(b"Content-Length: +5", body=b"hello"), 400),
    Case("a negative length", with_fields(b"Content-Length: -1"), 400),
    Case("a hexadecimal length", with_fields(b"Content-Length: 0x5", body=b"hello"), 400),
    Case("a length with a fraction", with_fields(b"Content-Length: 5.0", body=b"hello"), 400),
    Case("a length with an underscore", with_fields(b"Content-Length: 1_0", body=b"hello"), 400),
    Case("a length with a space inside", with_fields(b"Content-Length: 1 0", body=b"hello"), 400),
    Case("an empty length", with_fields(b"Content-Length:"), 400),
    Case("a length that overflows", with_fields(b"Content-Length: 18446744073709551621", body=b"hello"), 400),
    Case("a length of 5000 digits", with_fields(b"Content-Length: " + b"0" * 4999 + b"5", body=b"hello"), 400),
    Case("a length in quotes", with_fields(b'Content-Length: "5"', body=b"hello"), 400),
    # transfer coding
    Case("TE.TE", with_fields(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=b"0\r\n\r\n"), 400),
    Case("chunked twice", with_fields(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    Case("chunked, chunked", with_fields(b"Transfer-Encoding: chunked, chunked"), 400),
    Case("gzip, chunked", with_fields(b"Transfer-Encoding: gzip, chunked"), 501),
    Case("chunked, gzip", with_fields(b"Transfer-Encoding: chunked, gzip"), 400),
    Case("identity", with_fields(b"Transfer-Encoding: identity"), 400),
    Case("xchunked", with_fields(b"Transfer-Encoding: xchunked"), 400),
    Case("chunked with a parameter", with_fields(b"Transfer-Encoding: chunked;a=b"), 400),
    Case("chunked in quotes", with_fields(b'Transfer-Encoding: "chunked"'), 400),
    Case("chunked behind a vertical tab", with_fields(b"Transfer-Encoding: \x0bchunked"), 400),
    Case(
        "chunked in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: k8s.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400
    ),
    Case("no coding", with_fields(b"Transfer-Encoding:"), 400),
    # bodies: the head went on already
    Case("no chunk size", with_chunks(b"\r\n"), 400, begun=True),
    Case("a chunk size with a sign", with_chunks(b"+5\r\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("a chunk size with 0x", with_chunks(b"0x5\r\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("a chunk size with spaces", with_chunks(b"5 \r\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("a chunk size that overflows", with_chunks(b"10000000000000005\r\nhello\r\n"), 400, begun=True),
    Case("a chunk size ended by LF", with_chunks(b"5\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("a chunk ended by LF", with_chunks(b"5\r\nhello\n0\r\n\r\n"), 400, begun=True),
    Case("a chunk longer than its size", with_chunks(b"5\r\nhello, " + SMUGGLED), 400, begun=True),
    Case("LF in a chunk extension", with_chunks(b"5;a\nb\r\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("CR in a chunk extension", with_chunks(b"5;a\rb\r\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("NUL in a chunk extension", with_chunks(b"5;\x00\r\nhello\r\n0\r\n\r\n"), 400, begun=True),
    Case("an endless chunk extension", with_chunks(b"5;" + b"a" * 1000), 400, begun=True),
    Case("a trailer without a colon", with_chunks(b"0\r\n" + SMUGGLED), 400, begun=True),
    Case("a trailer with a space in its name", with_chunks(b"0\r\nA : b\r\n\r\n"), 400, begun=True),
    Case("a folded trailer", with_chunks(b"0\r\nA: b\r\n c\r\n\r\n"), 400, begun=True),
    Case("trailers ended by LF", with_chunks(b"0\r\n\n"), 400, begun=True),
    Case("endless trailers", with_chunks(b"0\r\n" + b"A: b\r\n" * 3000), 400, begun=True),
    Case("a bad chunk behind a good one", with_chunks(b"5\r\nhello\r\nx\r\n"), 400, begun=True),
]

# Odd, but with one meaning: they are served, and this is what the upstream gets of them.
TOLERATED = [
    ("an empty line before the request", b"\r\n" + with_line(b"GET /a HTTP/1.1"), b"GET /a HTTP/1.1\r\n"),
    ("an absolute target for this host", with_target(b"http://k8s.test/a?b"), b"GET /a?b HTTP/1.1\r\n"),
    ("a long way to say chunked", with_fields(b"Transfer-Encoding:\t Chunked ", body=b"0;a=b\r\n\r\n"), b"0\r\n\r\n"),
    ("spaces around a length", with_fields(b"Content-Length:   2  ", body=b"ok"), b"Content-Length: 2\r\n\r\nok"),
    ("h2c is not upgraded to", with_fields(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"), b"\r\n\r\n"),
    ("TE: gzip is not passed on", with_fields(b"TE: gzip", b"Connection: TE"), b"\r\n\r\n"),
    ("empty members of Connection", with_fields(b"A: b", b"Connection: , close,"), b"\r\nA: b\r\n"),
    (
        "Connection names our own fields",
        with_fields(b"Connection: Host, X-Forwarded-For"),
        b"X-Forwarded-For: 127.0.0.1\r\n",
    ),
    ("bytes above 0x7f in a value", with_fields(b"A: \xe9"), b"A: \xe9\r\n"),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"OPTIONS * HTTP/1.1\r\n"),
    ("HTTP/1.0 without Host", b"GET /a HTTP/1.0\r\n\r\n", b"GET /a HTTP/1.1\r\n"),
]
