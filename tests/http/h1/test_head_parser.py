"""Heads: what is understood, what is refused with which status, and that h11 agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.http.h1.head_parser import (
    TLS_INSTEAD,
    RequestHeadParser,
    ResponseHeadParser,
    incomplete_head_error,
    parse_request_head,
    parse_response_head,
)
from mcproxy.http.head_rules import MAX_GROUP_LINES
from mcproxy.http.messages import (
    CHUNKED,
    UNTIL_CLOSE,
    ProtocolError,
    RequestHead,
    ResponseHead,
    UpstreamProtocolError,
)
from tests.http.h1.harness import ServerHarness
from tests.support.attributes import attributes_of

tokens = st.from_regex(rb"\A[A-Za-z][A-Za-z0-9!#$%&'*+.^_`|~-]{0,12}\Z")
values = st.from_regex(rb"\A([!-~\x80-\xff]([ \t!-~\x80-\xff]{0,12}[!-~\x80-\xff])?)?\Z")
SPECIAL = {
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"connection",
    b"upgrade",
    b"te",
    b"expect",
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authenticate",
    b"proxy-authorization",
}
plain_fields = st.lists(st.tuples(tokens.filter(lambda name: name.lower() not in SPECIAL), values), max_size=6)
PARTS = b"GET| |/|*|HTTP/1.1|HTTP/1.0|\r\n|\n|\r|\t|:|Host|a|Content-Length|5|0|Transfer-Encoding|chunked|,|\x00".split(
    b"|"
)
targets = st.from_regex(rb"\A/[A-Za-z0-9/._~%!$&'()*+,;=:@?-]{0,30}\Z")


def parse(raw: bytes) -> RequestHead:
    return parse_request_head(raw, 32 * 1024, 200)


def request(*fields: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes | None = b"Host: a") -> RequestHead:
    lines = [line, *([] if host is None else [host]), *fields, b"", b""]
    return parse(b"\r\n".join(lines))


def refused(*fields: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes | None = b"Host: a") -> int:
    with pytest.raises(ProtocolError) as caught:
        request(*fields, line=line, host=host)
    assert caught.value.message
    return caught.value.status


def response(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK", method: bytes = b"GET") -> ResponseHead:
    return parse_response_head(b"\r\n".join([line, *fields, b"", b""]), method)


class TestRequest:
    def test_everything_that_is_end_to_end_passes_as_it_was_written(self) -> None:
        fields = [b"Accept: */*", b"x-ODD:\t spaced  ", b"X-Odd: again", b"Latin: \xe9", b"Empty:", b"Cookie: a=b; c=d"]
        assert request(*fields).fields == b"".join(field + b"\r\n" for field in fields)

    @pytest.mark.parametrize(
        "field",
        [
            b"Connection: keep-alive",
            b"Proxy-Connection: keep-alive",
            b"Keep-Alive: timeout=5",
            b"Proxy-Authorization: Basic x",
            b"Proxy-Authenticate: Basic",
            b"TE: gzip",
            b"Upgrade: h2c",
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
        ],
    )
    @pytest.mark.parametrize("change", [bytes.lower, bytes.upper, bytes.swapcase])
    def test_what_is_for_this_hop_does_not_pass(self, field: bytes, change: Any) -> None:
        name, colon, value = field.partition(b":")
        assert request(b"A: b", change(name) + colon + value, b"C: d").fields == b"A: b\r\nC: d\r\n"

    @pytest.mark.parametrize(
        ("connection", "left"),
        [
            (b"X-Hop", b"A: b\r\n"),
            (b"x-hop", b"A: b\r\n"),
            (b"close, X-Hop , keep-alive", b"A: b\r\n"),
            (b"a,x-hop", b""),
            (b"close", b"A: b\r\nX-Hop: 1\r\nX-HOP: 2\r\n"),
            (b",", b"A: b\r\nX-Hop: 1\r\nX-HOP: 2\r\n"),
            (b"close,", b"A: b\r\nX-Hop: 1\r\nX-HOP: 2\r\n"),
            (b"", b"A: b\r\nX-Hop: 1\r\nX-HOP: 2\r\n"),
            (b"x-absent", b"A: b\r\nX-Hop: 1\r\nX-HOP: 2\r\n"),
        ],
    )
    def test_fields_that_connection_names_do_not_pass(self, connection: bytes, left: bytes) -> None:
        assert request(b"Connection: " + connection, b"A: b", b"X-Hop: 1", b"X-HOP: 2").fields == left

    @pytest.mark.parametrize(
        "name", [b"Authorization", b"authorization_", b"Impersonate-User", b"impersonate_group", b"X-Remote-Extra-a"]
    )
    def test_connection_cannot_name_who_calls_away(self, name: bytes) -> None:
        assert refused(b"Connection: close, " + name, name + b": a") == 400

    @pytest.mark.parametrize("name", [b"X-Forwarded-For", b"x_forwarded_host", b"Forwarded", b"X-Real-IP"])
    def test_connection_cannot_name_away_where_a_request_came_from(self, name: bytes) -> None:
        """A trusted proxy that passes Connection on would let its clients delete what it adds."""
        assert request(b"Connection: close, b, " + name, name + b": a", b"B: c").fields == name + b": a\r\n"

    def test_several_connection_fields_count_together(self) -> None:
        head = request(b"Connection: a", b"Connection: close", b"A: b", b"C: d")
        assert (head.fields, head.keep_alive) == (b"C: d\r\n", False)

    def test_connection_cannot_name_host_or_the_length_away(self) -> None:
        head = request(b"Connection: host, content-length", b"Content-Length: 5")
        assert (head.host, head.length) == (b"a", 5)

    @pytest.mark.parametrize(
        ("field", "length"),
        [
            (b"Content-Length: 0", 0),
            (b"Content-Length: 5", 5),
            (b"Content-Length: 5 ", 5),
            (b"Content-Length:\t5", 5),
            (b"Content-Length: 007", 7),
            (b"Content-Length: 9223372036854775807", 2**63 - 1),
            (b"Transfer-Encoding: chunked", CHUNKED),
            (b"Transfer-Encoding: Chunked ", CHUNKED),
        ],
    )
    def test_length(self, field: bytes, length: int) -> None:
        assert request(field, line=b"POST / HTTP/1.1").length == length

    @pytest.mark.parametrize(
        ("line", "field", "kept"),
        [
            (b"GET / HTTP/1.1", b"A: b", True),
            (b"GET / HTTP/1.1", b"Connection: close", False),
            (b"GET / HTTP/1.1", b"Connection: Close", False),
            (b"GET / HTTP/1.1", b"Connection: a, CLOSE", False),
            (b"GET / HTTP/1.1", b"Connection: keep-alive", True),
            (b"GET / HTTP/1.0", b"A: b", False),
            (b"GET / HTTP/1.0", b"Connection: keep-alive", False),
        ],
    )
    def test_whether_the_connection_is_kept(self, line: bytes, field: bytes, kept: bool) -> None:
        assert request(field, line=line).keep_alive is kept

    @pytest.mark.parametrize(
        ("connection", "upgrade", "tunnel"),
        [
            (b"Upgrade", b"websocket", b"websocket"),
            (b"keep-alive, upgrade", b"WebSocket", b"WebSocket"),
            (b"Upgrade", b"SPDY/3.1", b"SPDY/3.1"),
            (b"Upgrade", b"h2c, websocket", b"websocket"),
            (b"Upgrade", b"h2c", None),
            (b"Upgrade, HTTP2-Settings", b"h2c", None),
            (b"Upgrade", b"TLS/1.2", None),
            (b"Upgrade", b"SPDY/3", None),
            (b"close", b"websocket", None),
        ],
    )
    def test_only_websocket_and_spdy_open_a_tunnel(
        self, connection: bytes, upgrade: bytes, tunnel: bytes | None
    ) -> None:
        assert request(b"Connection: " + connection, b"Upgrade: " + upgrade).upgrade == tunnel

    def test_http10_neither_upgrades_nor_expects(self) -> None:
        head = request(
            b"Connection: upgrade",
            b"Upgrade: websocket",
            b"Expect: 100-continue",
            b"Content-Length: 1",
            line=b"POST / HTTP/1.0",
        )
        assert (head.upgrade, head.expects_continue) == (None, False)

    def test_an_expectation_without_a_body_is_ignored(self) -> None:
        assert not request(b"Expect: 100-continue").expects_continue
        assert request(b"Expect: 100-Continue", b"Content-Length: 1").expects_continue

    def test_trailers_are_asked_for_by_te(self) -> None:
        assert request(b"TE: trailers").te_trailers
        assert request(b"TE: gzip;q=0.5, Trailers").te_trailers
        assert not request(b"TE: gzip").te_trailers

    @pytest.mark.parametrize(
        ("target", "host", "seen"),
        [
            (b"/a?b=c%2F", b"x", b"/a?b=c%2F"),
            (b"http://x/a", b"X", b"/a"),
            (b"HTTPS://X:443/a?b", b"x:443", b"/a?b"),
            (b"http://x", b"x", b"/"),
            (b"http://x?q=1", b"x", b"/?q=1"),
            (b"http://x//a", b"x", b"//a"),
        ],
    )
    def test_target(self, target: bytes, host: bytes, seen: bytes) -> None:
        assert request(line=b"GET %b HTTP/1.1" % target, host=b"Host: " + host).target == seen

    def test_a_star_belongs_to_options(self) -> None:
        assert request(line=b"OPTIONS * HTTP/1.1").target == b"*"
        assert refused(line=b"GET * HTTP/1.1") == 400

    def test_one_empty_line_before_the_request_is_tolerated(self) -> None:
        assert parse(b"\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n").target == b"/x"

    @pytest.mark.parametrize(
        "host", [b"a", b"A.Example.com:6443", b"[::1]:443", b"10.0.0.1", b"a_b", b"a:", b"[fe80::1]"]
    )
    def test_host_is_lower_case(self, host: bytes) -> None:
        assert request(host=b"Host: " + host).host == host.lower()

    @pytest.mark.parametrize(
        "host", [b"", b"a b", b"a,b", b"a/b", b"user@a", b"a:80:80", b"a:x", b"[::1", b"a\xe9", b"a?b", b"a%20"]
    )
    def test_a_malformed_host_is_refused(self, host: bytes) -> None:
        assert refused(host=b"Host: " + host) == 400

    @pytest.mark.parametrize("limit", [1, 5])
    def test_too_many_fields(self, limit: int) -> None:
        def raw(count: int) -> bytes:
            return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * (count - 1) + b"\r\n"

        assert parse_request_head(raw(limit), 100, limit).target == b"/"
        with pytest.raises(ProtocolError) as caught:
            parse_request_head(raw(limit + 1), 100, limit)
        assert caught.value.status == 431

    @pytest.mark.parametrize("name", [b"Impersonate-Group", b"X-Remote-Group", b"x-remote-group"])
    def test_lines_of_groups_have_a_bound_of_their_own(self, name: bytes) -> None:
        def raw(groups: int, others: int) -> bytes:
            lines = b"".join([b"%b: g%d\r\n" % (name, number) for number in range(groups)]) + b"A: b\r\n" * others
            return b"GET / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n"

        assert parse_request_head(raw(250, 9), 100, 10).fields.count(name) == 250
        assert parse_request_head(raw(MAX_GROUP_LINES, 9), 100, 10).fields.count(name) == MAX_GROUP_LINES
        for groups, others in ((250, 10), (MAX_GROUP_LINES + 1, 9)):
            with pytest.raises(ProtocolError) as caught:
                parse_request_head(raw(groups, others), 100, 10)
            assert caught.value.status == 431

    def test_too_long_a_target(self) -> None:
        with pytest.raises(ProtocolError) as caught:
            parse_request_head(b"GET /2345678901 HTTP/1.1\r\nHost: a\r\n\r\n", 10, 10)
        assert caught.value.status == 414

    @given(st.sampled_from([b"GET", b"POST", b"PATCH", b"DELETE"]), targets, plain_fields)
    def test_a_well_formed_head_is_read_as_h11_reads_it(
        self, method: bytes, target: bytes, fields: list[tuple[bytes, bytes]]
    ) -> None:
        raw = b"%b %b HTTP/1.1\r\nHost: a\r\n" % (method, target)
        raw += b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"
        head = parse(raw)
        theirs = by_h11(raw)
        assert (head.method, head.target) == (theirs.method, theirs.target)
        mine = [tuple(line.split(b": ", 1)) for line in head.fields.split(b"\r\n")[:-1]]
        assert [(name.lower(), value) for name, value in mine] == [
            field for field in theirs.headers if field[0] != b"host"
        ]

    @given(st.binary(max_size=80))
    @example(b"GET  HTTP/1.1")
    @example(b"GET /")
    @example(b"\r\nGET / HTTP/1.1")
    @example(b"PRI * HTTP/2.0")
    def test_junk_is_never_anything_but_a_protocol_error(self, junk: bytes) -> None:
        for raw in (junk, b"GET / HTTP/1.1\r\nHost: a\r\n" + junk, b"GET " + junk):
            whole = raw + b"\r\n\r\n"
            head = whole[: whole.find(b"\r\n\r\n") + 4]
            try:
                parse(head)
            except ProtocolError as problem:
                assert 400 <= problem.status < 506  # noqa: PT017 - not every junk is refused

    @given(
        st.lists(
            st.sampled_from(PARTS),
            max_size=12,
        )
    )
    def test_what_is_accepted_h11_accepts_too(self, parts: list[bytes]) -> None:
        raw = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(parts).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        if raw.count(b"\r\n\r\n") != 1:
            return
        try:
            parse(raw)
        except ProtocolError:
            return
        by_h11(raw)  # raises if it does not


def by_h11(raw: bytes) -> h11.Request:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    event = connection.next_event()
    assert isinstance(event, h11.Request), event
    return event


class TestUnfinished:
    @pytest.mark.parametrize("data", [b"GET / HTTP/1.1\n", b"\n", b"GET / HTTP/1.1\r\nA: b\n", b"GET /\x00"])
    def test_an_invalid_head_is_refused_before_its_end(self, data: bytes) -> None:
        assert incomplete_head_error(data)

    @given(targets, plain_fields)
    def test_a_well_formed_beginning_is_never_hopeless(self, target: bytes, fields: list[tuple[bytes, bytes]]) -> None:
        raw = b"GET %b HTTP/1.1\r\nHost: a\r\n" % target + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"
        for end in range(len(raw)):
            assert incomplete_head_error(raw[:end]) is None

    @given(plain_fields, st.lists(st.integers(0, 300), max_size=5))
    def test_a_head_is_the_same_however_it_is_split(self, fields: list[tuple[bytes, bytes]], places: list[int]) -> None:
        raw = b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"
        dripped, split = ServerHarness(), ServerHarness()
        dripped.wire.drip(raw)
        edges = sorted({0, len(raw), *(place % len(raw) for place in places)})
        for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007
            split.sends(raw[start:end])
        expected = parse(raw).fields
        assert [harness.last.exchange.head.fields for harness in (dripped, split)] == [expected, expected]


class TestResponse:
    @pytest.mark.parametrize(
        ("fields", "method", "line", "length"),
        [
            ([b"Content-Length: 5"], b"GET", b"HTTP/1.1 200 OK", 5),
            ([b"Content-Length: 0"], b"GET", b"HTTP/1.1 200 OK", 0),
            ([b"Transfer-Encoding: chunked"], b"GET", b"HTTP/1.1 200 OK", CHUNKED),
            ([], b"GET", b"HTTP/1.1 200 OK", UNTIL_CLOSE),
            ([b"Content-Length: 5"], b"HEAD", b"HTTP/1.1 200 OK", 0),
            ([b"Transfer-Encoding: chunked"], b"HEAD", b"HTTP/1.1 200 OK", 0),
            ([], b"GET", b"HTTP/1.1 204 No Content", 0),
            ([b"Content-Length: 5"], b"GET", b"HTTP/1.1 304 Not Modified", 0),
            ([], b"GET", b"HTTP/1.1 100 Continue", 0),
            ([], b"GET", b"HTTP/1.0 200 OK", UNTIL_CLOSE),
        ],
    )
    def test_length(self, fields: list[bytes], method: bytes, line: bytes, length: int) -> None:
        assert response(*fields, line=line, method=method).length == length

    @pytest.mark.parametrize(
        ("line", "field", "kept"),
        [
            (b"HTTP/1.1 200 OK", b"A: b", True),
            (b"HTTP/1.1 200 OK", b"Connection: Close", False),
            (b"HTTP/1.0 200 OK", b"A: b", False),
            (b"HTTP/1.0 200 OK", b"Connection: keep-alive", True),
        ],
    )
    def test_whether_the_connection_is_kept(self, line: bytes, field: bytes, kept: bool) -> None:
        assert response(field, b"Content-Length: 0", line=line).keep_alive is kept

    def test_until_close_the_connection_is_not_kept(self) -> None:
        assert not response().keep_alive

    def test_hop_by_hop_fields_do_not_pass_and_all_others_do_unchanged(self) -> None:
        head = response(
            b"Audit-ID: 1",
            b"Connection: X-Hop, keep-alive",
            b"x-hop: 1",
            b"Keep-Alive: timeout=5",
            b'Warning: 299 - "a"',
            b'WARNING: 299 - "b"',
            b"Content-Length: 0",
        )
        assert head.fields == b'Audit-ID: 1\r\nWarning: 299 - "a"\r\nWARNING: 299 - "b"\r\n'

    def test_reason_phrases_pass(self) -> None:
        assert response(line=b"HTTP/1.1 200 All right").reason == b"All right"
        assert response(line=b"HTTP/1.1 200").reason == b""

    @pytest.mark.parametrize(
        "raw",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999",
            b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000,
            b"HTTP/1.1 200 OK\nA: b",
            b"HTTP/1.1 200 OK\r\nA: b\nC: d",
            b"HTTP/1.1 200 OK\r\nA: b\r\n folded",
            b"HTTP/1.1 200 OK\r\nA : b",
            b"HTTP/1.1 200 OK\r\nno colon",
            b"HTTP/1.1 200 a\x00b",
            b"HTTP/1.1 200 a\x0bb",
            b"HTTP/1.1 20 OK",
            b"HTTP/1.1 000 OK",
            b"HTTP/1.1 099 OK",
            b"HTTP/1.1 2000 OK",
            b"HTTP/2.0 200 OK",
            b"HTTP/0.9 200 OK",
            b"ICY 200 OK",
            b"\r\nHTTP/1.1 200 OK",
            b"",
            b"garbage",
        ],
    )
    def test_what_cannot_be_understood_in_one_way_is_refused(self, raw: bytes) -> None:
        with pytest.raises(UpstreamProtocolError):
            parse_response_head(raw + b"\r\n\r\n", b"GET")

    @given(st.binary(max_size=60))
    def test_junk_is_never_anything_but_an_upstream_error(self, junk: bytes) -> None:
        for raw in (junk, b"HTTP/1.1 200 OK\r\n" + junk, b"HTTP/1.1 " + junk):
            whole = raw + b"\r\n\r\n"
            head = whole[: whole.find(b"\r\n\r\n") + 4]
            try:
                parsed = parse_response_head(head, b"GET")
            except UpstreamProtocolError:
                continue
            assert b"\n" not in parsed.reason
            assert all(b":" in line for line in parsed.fields.split(b"\r\n")[:-1])


LINES = [
    b"GET /a HTTP/1.1", b"GET /b?x=1 HTTP/1.1", b"GET /a HTTP/1.0", b"POST /a HTTP/1.1", b"GET  /a HTTP/1.1", b"GET /a",
    b"GET /a HTTP/1.1 x", b"GET /\xff HTTP/1.1", b"GET /a#b HTTP/1.1", b"GET * HTTP/1.1", b"OPTIONS * HTTP/1.1",
    b"GET http://a/x HTTP/1.1", b"GET http://b/x HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"get /a HTTP/1.1",
    b"GET /a HTTP/2.0", b"GET /a\nX:y HTTP/1.1", b"GET /" + b"l" * 100 + b" HTTP/1.1", b"",
    b"\r\nGET /a HTTP/1.1", b"GET /a\rX: y HTTP/1.1", b"GET /a\nX: y HTTP/1.1",
]  # fmt: skip
FIELDS = [
    b"", b"Host: a", b"Host: a\r\nHost: b", b"Host: a\r\nX: y", b"Host: a\r\nContent-Length: 5", b"Host: b\r\nX: y",
    b"Host: a\r\nTransfer-Encoding: chunked", b"Host: a\r\nConnection: x\r\nX: y", b"Host: a\r\nX : y", b"X: y",
    b"Host: a\r\nConnection: upgrade\r\nUpgrade: websocket", b"Host: a\r\nConnection: close\r\nTE: trailers",
    b"Host: a\r\n" + b"\r\n".join([b"X: y"] * 30), b"Host: a\r\nX: " + b"z" * 5000,
]  # fmt: skip


def outcome(parse: Any, raw: bytes) -> Any:
    try:
        head = parse(raw)
    except ProtocolError as problem:
        return problem.status, problem.message
    return attributes_of(head)


@given(st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(FIELDS)), min_size=2, max_size=6), st.booleans())
def test_connection_that_repeats_its_fields_is_parsed_as_one_that_does_not(
    heads: list[tuple[bytes, bytes]], same_fields: bool
) -> None:
    parser = RequestHeadParser(90, 20)
    for line, fields in heads:
        fields = heads[0][1] if same_fields else fields
        raw = line + b"\r\n" + fields + (b"\r\n\r\n" if fields else b"\r\n")
        assert outcome(parser.parse, raw) == outcome(lambda raw: parse_request_head(raw, 90, 20), raw)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12))
def test_a_target_after_repeated_fields_is_checked_as_the_first_one(target: str) -> None:
    parser = RequestHeadParser(90, 20)
    parser.parse(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    raw = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % target.encode()
    assert outcome(parser.parse, raw) == outcome(lambda raw: parse_request_head(raw, 90, 20), raw)


def test_repeated_fields_are_the_same_bytes() -> None:
    parser = RequestHeadParser(1000, 20)
    first = parser.parse(b"GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n")
    second = parser.parse(b"GET /b HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n")
    assert second.fields is first.fields
    assert (first.target, second.target) == (b"/a", b"/b")


def test_a_client_that_speaks_tls_is_told_apart_from_rubbish() -> None:
    assert incomplete_head_error(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\n" * 10) == TLS_INSTEAD
    assert incomplete_head_error(b"\x16\x04") is None


RESPONSE_LINES = [
    b"Content-Length: 5",
    b"Content-Length: 06 ",
    b"content-length: 7",
    b"Content-Length: 5, 5",
    b"Content-Length: 99999999999999999999",
    b"Content-Length:",
    b"Connection: keep-alive",
    b"Connection: close",
    b"Connection: x-a",
    b"Keep-Alive: timeout=5",
    b"Transfer-Encoding: chunked",
    b"Upgrade: h2c",
    b"X-A: b",
    b"X-A: c\td",
    b"X-A:",
    b"X-A : b",
    b"X-A: \xe9",
    b"X-A: b\x00",
    b"X-A: b\rc",
    b"X-A: b\nContent-Length: 3",
    b" folded",
    b"Date: Sun, 29 Nov 2026 12:00:00 GMT",
    b"Date: Sun, 29 Nov 2026 12:00:01 GMT",
]
STATUS_LINES = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 200 Fine",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 103 X",
]


def read(raw: bytes, method: bytes, parse: Callable[[bytes, bytes], ResponseHead]) -> object:
    try:
        return attributes_of(parse(raw, method))
    except UpstreamProtocolError:
        return "malformed"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(STATUS_LINES),
            st.lists(st.sampled_from(RESPONSE_LINES), max_size=4),
            st.sampled_from([b"GET", b"HEAD"]),
        ),
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(RESPONSE_LINES)), max_size=8),
)
def test_a_response_head_is_parsed_alike_whatever_came_before(
    heads: list[tuple[bytes, list[bytes], bytes]], changes: list[tuple[int, bytes]]
) -> None:
    parser = ResponseHeadParser()
    for status_line, fields, method in heads:
        for place, line in [(-1, b""), *changes]:
            if 0 <= place < len(fields):
                fields[place] = line
            raw = b"\r\n".join([status_line, *fields, b"", b""])
            assert read(raw, method, parser.parse) == read(raw, method, parse_response_head)


def test_a_similar_response_head_is_not_parsed_as_a_whole() -> None:
    parser = ResponseHeadParser()
    raw = b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 5\r\nDate: 1\r\n\r\n"
    parser.parse(raw, b"GET")
    lines = raw.replace(b"5", b"16").replace(b"b", b"c").split(b"\r\n")
    similar = parser._similar(parser.parse(raw, b"GET"), lines, b"GET")
    assert similar is not None
    assert (similar.length, similar.fields) == (16, b"X-A: c\r\nDate: 1\r\n")


def test_a_head_of_another_kind_is_remembered_when_it_is_the_usual_one() -> None:
    parser = ResponseHeadParser()
    usual, other = (b"HTTP/1.1 %b\r\nContent-Length: 5\r\n\r\n" % line for line in (b"200 OK", b"404 Not Found"))
    remembered = []
    for raw in (usual, other, usual, other, other, other, other):
        parser.parse(raw, b"GET")
        remembered.append(parser._lines[0][9:12])
    assert remembered == [b"200", b"200", b"200", b"200", b"200", b"404", b"404"]
