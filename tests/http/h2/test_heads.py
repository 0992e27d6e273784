"""From fields to heads: what RFC 9113 calls malformed, what is refused as in HTTP/1.1, and that both versions agree."""

from __future__ import annotations

import re

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h1.head_parser import parse_request_head
from mcproxy.http.h2.frames import ErrorCode, HTTP2StreamError
from mcproxy.http.h2.heads import request_head, response_head, trailer_fields
from mcproxy.http.h2.hpack.decoder import DecodedFields, HPACKDecoder, Representations
from mcproxy.http.head_rules import MAX_TRAILERS
from mcproxy.http.messages import CHUNKED, Header, ProtocolError, RequestHead, ResponseHead

MAX_TARGET = 32 * 1024
PSEUDO = ((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/a?b"), (b":authority", b"a"))
MALFORMED = "PROTOCOL_ERROR"


def decoded(*fields: Header, max_size: int = 64 * 1024) -> DecodedFields:
    block = Encoder().encode(list(fields))
    return HPACKDecoder(Representations()).decode(block, max_size, 200)


def request(*fields: Header, pseudo: tuple[Header, ...] = PSEUDO, end_stream: bool = True) -> RequestHead:
    return request_head(decoded(*pseudo, *fields), end_stream=end_stream, max_target=MAX_TARGET)


def outcome(*fields: Header, pseudo: tuple[Header, ...] = PSEUDO, end_stream: bool = True) -> int | str:
    """Return the status that a request gets, the name of its stream error, or 0 if it is served."""
    try:
        request(*fields, pseudo=pseudo, end_stream=end_stream)
    except HTTP2StreamError as error:
        return str(error).partition(":")[0]
    except ProtocolError as problem:
        return problem.status
    return 0


def pseudo(**values: bytes | None) -> tuple[Header, ...]:
    """Return the pseudo-header fields, changed; None: without."""
    fields = {"method": b"GET", "scheme": b"https", "path": b"/", "authority": b"a"} | values
    return tuple((b":" + name.encode(), value) for name, value in fields.items() if value is not None)


class TestRequest:
    def test_a_plain_one(self) -> None:
        head = request(
            (b"accept", b"*/*"), (b"x-odd_name", b"a\tb"), (b"authorization", b"Bearer a"), (b"accept", b"b")
        )
        assert (head.method, head.target, head.host) == (b"GET", b"/a?b", b"a")
        assert head.fields == b"accept: */*\r\nx-odd_name: a\tb\r\nauthorization: Bearer a\r\naccept: b\r\n"
        assert (head.http11, head.keep_alive, head.upgrade, head.length) == (True, True, None, 0)
        assert (head.expects_continue, head.te_trailers) == (False, False)
        assert head.header(b"authorization") == b"Bearer a"

    def test_identity_fields_pass_as_any_other(self) -> None:
        fields = [
            (b"impersonate-user", b"a"),
            (b"x-remote-user", b"b"),
            (b"authorization", b"c"),
            (b"authorization", b"d"),
        ]
        assert request(*fields).fields == b"".join(b"%b: %b\r\n" % field for field in fields)

    @pytest.mark.parametrize(
        ("fields", "end_stream", "length"),
        [
            ([], True, 0),
            ([], False, CHUNKED),
            ([(b"content-length", b"0")], True, 0),
            ([(b"content-length", b"0")], False, 0),
            ([(b"content-length", b"5")], False, 5),
            ([(b"content-length", b"007")], False, 7),
            ([(b"content-length", b"9223372036854775807")], False, 2**63 - 1),
        ],
    )
    def test_length(self, fields: list[Header], end_stream: bool, length: int) -> None:
        assert request(*fields, end_stream=end_stream).length == length

    @pytest.mark.parametrize(
        "value", [b"", b"+5", b"-1", b"0x5", b"5.0", b"1_0", b"1 0", b"5, 5", b"9" * 19, b"0" * 5000]
    )
    def test_a_malformed_length(self, value: bytes) -> None:
        assert outcome((b"content-length", value), end_stream=False) == MALFORMED

    def test_a_length_twice_or_without_a_body(self) -> None:
        five = (b"content-length", b"5")
        assert outcome(five, five, end_stream=False) == MALFORMED
        assert outcome(five, (b"content-length", b"6"), end_stream=False) == MALFORMED
        assert outcome(five, end_stream=True) == MALFORMED

    @pytest.mark.parametrize(
        "field",
        [
            (b"Accept", b"a"),
            (b"X-A", b"a"),
            (b"", b"a"),
            (b"a b", b"a"),
            (b"a:", b"a"),
            (b"a\r\nb", b"a"),
            (b"a\x00", b"a"),
            (b"a\xc3\xa9", b"a"),
            (b"a(", b"a"),
            (b" a", b"a"),
            (b"a", b"b\r\nimpersonate-user: admin"),
            (b"a", b"b\nc"),
            (b"a", b"b\rc"),
            (b"a", b"b\x00"),
            (b"a", b"b\x0bc"),
            (b"a", b"\x7f"),
            (b"a", b" b"),
            (b"a", b"b "),
            (b"a", b"\tb"),
            (b"a", b"b\t"),
            (b"a", b" "),
            (b"cookie", b"a\r\nb"),
            (b"expect", b"100-continue\r\nb"),
            (b"host", b"a\r\nb"),
            (b"proxy-authorization", b"\x00"),
            (b"connection", b"close"),
            (b"connection", b"authorization"),
            (b"keep-alive", b"timeout=5"),
            (b"proxy-connection", b"keep-alive"),
            (b"transfer-encoding", b"chunked"),
            (b"upgrade", b"websocket"),
            (b"te", b"gzip"),
            (b"te", b"trailers, gzip"),
            (b"te", b""),
            (b":foo", b"a"),
            (b":protocol", b"websocket"),
            (b":status", b"200"),
            (b":", b"a"),
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/a?b"),
            (b":authority", b"a"),
        ],
    )
    def test_a_malformed_field(self, field: Header) -> None:
        assert outcome(field) == MALFORMED
        assert outcome((b"x", b"y"), field, (b"z", b"")) == MALFORMED
        assert outcome(pseudo=(field, *PSEUDO)) == MALFORMED

    @pytest.mark.parametrize("before", [(b"a", b"b"), (b"host", b"a"), (b"cookie", b"a=b"), (b"content-length", b"0")])
    @pytest.mark.parametrize("last", range(4))
    def test_a_pseudo_header_field_behind_another(self, before: Header, last: int) -> None:
        fields = (*PSEUDO[:last], *PSEUDO[last + 1 :], before, PSEUDO[last])
        assert outcome(pseudo=fields) == MALFORMED

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            (pseudo(method=None), MALFORMED),
            (pseudo(scheme=None), MALFORMED),
            (pseudo(path=None), MALFORMED),
            (pseudo(authority=None), 400),
            ((), MALFORMED),
            (pseudo(method=b""), MALFORMED),
            (pseudo(method=b"GE T"), MALFORMED),
            (pseudo(method=b"GET\r\n"), MALFORMED),
            (pseudo(method=b"GET /a HTTP/1.1\r\nhost: b\r\n\r\n"), MALFORMED),
            (pseudo(method=b"get"), 400),
            (pseudo(method=b"FROB"), 400),
            (pseudo(method=b"PRI"), 400),
            (pseudo(method=b"PROPFIND"), 0),
            (pseudo(method=b"TRACE"), 405),
            (pseudo(method=b"CONNECT"), 405),
            (pseudo(method=b"CONNECT", scheme=None, path=None), 405),
            (pseudo(method=b"CONNECT", scheme=None), MALFORMED),
            (pseudo(method=b"CONNECT", path=None), MALFORMED),
            (pseudo(scheme=b"http"), 0),
            (pseudo(scheme=b"httpsx"), MALFORMED),
            (pseudo(scheme=b"ftp"), MALFORMED),
            (pseudo(scheme=b""), MALFORMED),
            (pseudo(scheme=b"https:"), MALFORMED),
            (pseudo(scheme=b"HTTPS"), 0),
            (pseudo(path=b""), MALFORMED),
            (pseudo(path=b"a"), MALFORMED),
            (pseudo(path=b"https://a/"), MALFORMED),
            (pseudo(path=b"/ HTTP/1.1\r\nhost: b"), MALFORMED),
            (pseudo(path=b"/a b"), MALFORMED),
            (pseudo(path=b"/a\x7f"), MALFORMED),
            (pseudo(path=b"/a\x00"), MALFORMED),
            (pseudo(path=b"/a\tb"), MALFORMED),
            (pseudo(path=b"*a"), MALFORMED),
            (pseudo(path=b"/\xc3\xa9"), 400),
            (pseudo(path=b"/a#b"), 400),
            (pseudo(path=b"*"), 400),
            (pseudo(path=b"*", method=b"OPTIONS"), 0),
            (pseudo(path=b"/" + b"a" * (MAX_TARGET - 1)), 0),
            (pseudo(path=b"/" + b"a" * MAX_TARGET), 414),
            (pseudo(authority=b""), 400),
            (pseudo(authority=b"a,b"), 400),
            (pseudo(authority=b"a/b"), 400),
            (pseudo(authority=b"a:b"), 400),
            (pseudo(authority=b"[::1"), 400),
            (pseudo(authority=b"a\xe9"), 400),
            (pseudo(authority=b"user@a"), MALFORMED),
            (pseudo(authority=b"user:secret@a:443"), MALFORMED),
            (pseudo(authority=b"a b"), MALFORMED),
            (pseudo(authority=b"a\r\nx: y"), MALFORMED),
            (pseudo(authority=b"a\x00"), MALFORMED),
            (pseudo(authority=b"[fe80::1]:6443"), 0),
        ],
    )
    def test_pseudo_header_fields(self, fields: tuple[Header, ...], expected: int | str) -> None:
        assert outcome(pseudo=fields) == expected

    def test_a_wrong_scheme_is_named_up_to_a_length(self) -> None:
        with pytest.raises(HTTP2StreamError, match=r":scheme (a{32}) is neither https nor http"):
            request(pseudo=pseudo(scheme=b"a" * 100))

    @pytest.mark.parametrize(
        ("authority", "hosts", "expected"),
        [
            (b"a", [b"a"], 0),
            (b"A:443", [b"a:443"], 0),
            (None, [b"a"], 0),
            (b"a", [b"b"], MALFORMED),
            (b"a", [b"a:443"], MALFORMED),
            (b"a", [b""], 400),
            (b"a", [b"a", b"a"], 400),
            (None, [b"a", b"a"], 400),
            (None, [b"a", b"b"], 400),
            (None, [b""], 400),
            (None, [b"user@a"], 400),
            (None, [b"a b"], 400),
            (None, [], 400),
        ],
    )
    def test_host(self, authority: bytes | None, hosts: list[bytes], expected: int | str) -> None:
        fields = [(b"host", host) for host in hosts]
        assert outcome(*fields, pseudo=pseudo(authority=authority)) == expected
        if not expected:
            head = request(*fields, pseudo=pseudo(authority=authority))
            assert head.host == (authority or hosts[0]).lower()
            assert head.fields == b""

    def test_crumbs_of_cookie_are_joined_where_the_first_one_was(self) -> None:
        head = request((b"a", b"b"), (b"cookie", b"c=1"), (b"d", b"e"), (b"cookie", b"f=2"), (b"cookie", b"g=3; h=4"))
        assert head.fields == b"a: b\r\ncookie: c=1; f=2; g=3; h=4\r\nd: e\r\n"

    @pytest.mark.parametrize("name", [b"proxy-authorization", b"proxy-authenticate"])
    def test_what_is_for_this_hop_does_not_pass(self, name: bytes) -> None:
        assert request((b"a", b"b"), (name, b"Basic x"), (name, b"Basic y")).fields == b"a: b\r\n"

    def test_trailers_are_asked_for_by_te(self) -> None:
        assert request((b"te", b"trailers")).te_trailers
        assert request((b"te", b"Trailers"), (b"te", b"trailers")).te_trailers
        assert request((b"te", b"trailers")).fields == b""

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([b"100-continue"], 0),
            ([b"100-Continue"], 0),
            ([b"200-ok"], 417),
            ([b""], 417),
            ([b"100-continue", b"100-continue"], 417),
        ],
    )
    def test_expect(self, values: list[bytes], expected: int) -> None:
        fields = [(b"expect", value) for value in values]
        assert outcome(*fields, end_stream=False) == expected
        if not expected:
            assert request(*fields, end_stream=False).expects_continue
            assert not request(*fields).expects_continue

    def test_too_large_a_head(self) -> None:
        fields = decoded(*PSEUDO, (b"a", b"v" * 500), max_size=600)
        with pytest.raises(ProtocolError) as caught:
            request_head(fields, end_stream=True, max_target=MAX_TARGET)
        assert caught.value.status == 431
        assert outcome(*[(b"a", b"b")] * 199) == 0
        assert outcome(*[(b"a", b"b")] * 200) == 431


class TestBothVersions:
    """What HTTP/1.1 refuses, HTTP/2 refuses; what both serve means the same."""

    values = st.binary(max_size=6) | st.sampled_from([b"", b"a", b"a b", b"\xe9", b"5", b"100-continue", b"trailers"])
    names = st.binary(max_size=4) | st.sampled_from(
        [b"a", b"x_b", b"host", b"content-length", b"te", b"expect", b"cookie", b"upgrade", b"proxy-authorization"]
    )
    paths = st.binary(max_size=4).map(lambda rest: b"/" + rest) | st.sampled_from([b"*", b"/a?b", b"//", b"http://a/"])

    @settings(max_examples=300)
    @given(
        st.sampled_from([b"GET", b"POST", b"OPTIONS", b"TRACE", b"get", b"FLUSH", b"M-SEARCH"]),
        paths,
        st.sampled_from([b"a", b"A:443", b"", b"a/b", b"[::1]"]) | st.binary(max_size=3),
        st.lists(st.tuples(names, values), max_size=3),
    )
    def test_requests(self, method: bytes, path: bytes, host: bytes, fields: list[Header]) -> None:
        try:
            theirs = self.by_http11(method, path, host, fields)
        except ProtocolError:
            theirs = None
        try:
            mine = request(*fields, pseudo=pseudo(method=method, path=path, authority=host), end_stream=False)
        except (ProtocolError, HTTP2StreamError):
            return
        assert theirs is not None
        assert (mine.method, mine.target, mine.host) == (theirs.method, theirs.target, theirs.host)
        assert mine.te_trailers == theirs.te_trailers
        plain = [line for line in mine.fields.split(b"\r\n") if not line.startswith(b"cookie:")]
        assert plain == [line for line in theirs.fields.split(b"\r\n") if not line.startswith(b"cookie:")]

    def by_http11(self, method: bytes, path: bytes, host: bytes, fields: list[Header]) -> RequestHead:
        lines = [b"%b %b HTTP/1.1" % (method, path), b"host: " + host]
        # In HTTP/2 a Host beside :authority may say the same.
        lines += [b"%b: %b" % field for field in fields if field[0] != b"host" or field[1].lower() != host.lower()]
        return parse_request_head(b"\r\n".join([*lines, b"", b""]), MAX_TARGET, 200)

    @pytest.mark.parametrize("octet", range(256))
    def test_each_octet(self, octet: int) -> None:
        one = bytes([octet])
        for path, host, field in [
            (b"/a%ba" % one, b"a", (b"x", b"y")),
            (b"/a?%ba" % one, b"a", (b"x", b"y")),
            (b"/", b"a%ba" % one, (b"x", b"y")),
            (b"/", b"a", (b"a%ba" % one, b"y")),
            (b"/", b"a", (b"x", b"a%ba" % one)),
        ]:
            try:
                self.by_http11(b"GET", path, host, [field])
                expected = bool(re.search(rb"[A-Z:]", field[0]))  # HTTP/2 alone refuses these in names
            except ProtocolError:
                expected = True
            assert bool(outcome(field, pseudo=pseudo(path=path, authority=host))) is expected


def response(*fields: Header, method: bytes = b"GET", end_stream: bool = False) -> ResponseHead:
    return response_head(decoded(*fields), method, end_stream=end_stream)


class TestResponse:
    def test_a_plain_one(self) -> None:
        head = response((b":status", b"200"), (b"content-type", b"a/b"), (b"set-cookie", b"a"), (b"set-cookie", b"b"))
        assert (head.status, head.reason, head.http11, head.keep_alive, head.upgrade) == (200, b"", True, True, None)
        assert head.fields == b"content-type: a/b\r\nset-cookie: a\r\nset-cookie: b\r\n"
        assert head.header(b"content-type") == b"a/b"

    @pytest.mark.parametrize(
        ("status", "method", "declared", "end_stream", "length"),
        [
            (b"200", b"GET", None, False, CHUNKED),
            (b"200", b"GET", None, True, 0),
            (b"200", b"GET", 5, False, 5),
            (b"200", b"GET", 0, True, 0),
            (b"200", b"GET", 0, False, 0),
            (b"200", b"HEAD", 5, True, 0),
            (b"200", b"HEAD", None, True, 0),
            (b"304", b"GET", 5, True, 0),
            (b"204", b"GET", None, True, 0),
            (b"103", b"GET", None, False, 0),
            (b"100", b"POST", None, False, 0),
        ],
    )
    def test_length(self, status: bytes, method: bytes, declared: int | None, end_stream: bool, length: int) -> None:
        fields = [(b":status", status)] + ([] if declared is None else [(b"content-length", b"%d" % declared)])
        head = response(*fields, method=method, end_stream=end_stream)
        assert (head.length, head.declared_length, head.fields) == (length, declared, b"")

    @pytest.mark.parametrize(
        ("fields", "end_stream"),
        [
            ([], False),
            ([(b":status", b"20")], False),
            ([(b":status", b"2000")], False),
            ([(b":status", b"099")], False),
            ([(b":status", b"+20")], False),
            ([(b":status", b"")], False),
            ([(b":status", b"200"), (b":status", b"200")], False),
            ([(b"a", b"b"), (b":status", b"200")], False),
            ([(b":status", b"200"), (b":path", b"/")], False),
            ([(b":method", b"GET"), (b":status", b"200")], False),
            ([(b":status", b"200"), (b":scheme", b"https")], False),
            ([(b":status", b"200"), (b":authority", b"a")], False),
            ([(b":status", b"200"), (b":authority", b"a/b")], False),
            ([(b":status", b"200"), (b"Content-Type", b"a")], False),
            ([(b":status", b"200"), (b"connection", b"close")], False),
            ([(b":status", b"200"), (b"transfer-encoding", b"chunked")], False),
            ([(b":status", b"200"), (b"a", b"b\r\nc: d")], False),
            ([(b":status", b"200"), (b"content-length", b"5"), (b"content-length", b"6")], False),
            ([(b":status", b"200"), (b"content-length", b"x")], False),
            ([(b":status", b"200"), (b"content-length", b"5")], True),
            ([(b":status", b"101")], False),
            ([(b":status", b"100")], True),
        ],
    )
    def test_a_malformed_one(self, fields: list[Header], end_stream: bool) -> None:
        with pytest.raises(HTTP2StreamError) as caught:
            response(*fields, end_stream=end_stream)
        assert caught.value.code == ErrorCode.PROTOCOL_ERROR

    def test_too_large_a_head(self) -> None:
        fields = decoded((b":status", b"200"), (b"a", b"v" * 500), max_size=400)
        with pytest.raises(HTTP2StreamError) as caught:
            response_head(fields, b"GET", end_stream=False)
        assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


class TestTrailers:
    def test_those_that_may_pass(self) -> None:
        fields = [(b"grpc-status", b"0"), (b"x-a", b"b"), (b"x-a", b"c")]
        assert trailer_fields(decoded(*fields)) == fields

    @pytest.mark.parametrize(
        "name",
        b"host content-length trailer authorization content-encoding forwarded x-real-ip te impersonate-user"
        b" impersonate_user x-remote-user x-forwarded-for proxy-authorization sec-websocket-protocol".split(),
    )
    def test_those_that_do_not(self, name: bytes) -> None:
        value = {b"te": b"trailers", b"content-length": b"5"}.get(name, b"a")
        assert trailer_fields(decoded((b"a", b"b"), (name, value))) == [(b"a", b"b")]

    @pytest.mark.parametrize(
        "field",
        [
            *PSEUDO,
            (b":status", b"200"),
            (b":authority", b"a/b"),
            (b":x", b""),
            (b"A", b"b"),
            (b"a", b"\n"),
            (b"upgrade", b""),
        ],
    )
    def test_malformed_ones(self, field: Header) -> None:
        with pytest.raises(HTTP2StreamError) as caught:
            trailer_fields(decoded(field))
        assert caught.value.code == ErrorCode.PROTOCOL_ERROR

    def test_they_are_bounded(self) -> None:
        assert len(trailer_fields(decoded(*[(b"a", b"v" * 1000)] * 8))) == 8
        for fields in (decoded(*[(b"a", b"v" * 1000)] * 9), decoded((b"a", b"b"), max_size=32)):
            with pytest.raises(HTTP2StreamError) as caught:
                trailer_fields(fields)
            assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM
        assert MAX_TRAILERS == 8192
