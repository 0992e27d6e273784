"""What is encoded, decoded by the `hpack` package: the same fields with lower-case names; nothing enters its table."""

from __future__ import annotations

import re

import hpack
import pytest
from hpack.struct import NeverIndexedHeaderTuple
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h2.hpack.encoder import NO_TABLE, HPACKEncoder
from mcproxy.http.messages import HOP_BY_HOP, Header

names = st.from_regex(re.compile(rb"\A[A-Za-z][A-Za-z0-9_-]{0,12}\Z")).filter(
    lambda name: name.lower() not in HOP_BY_HOP
)
known = st.sampled_from([b"Accept", b"accept-encoding", b"Authorization", b"User-Agent", b"www-authenticate"])
values = st.one_of(
    st.sampled_from(
        [
            b"",
            b"gzip, deflate",
            b"/",
            b"200",
            b"v" * 126,
            b"v" * 127,
            b"v" * 254,
            b"v" * 255,
            b"v" * 16510,
            b"v" * 16511,
        ]
    ),
    st.from_regex(rb"\A([!-~\x80-\xff]([ \t!-~\x80-\xff]{0,12}[!-~\x80-\xff])?)?\Z"),
)
fields = st.lists(st.tuples(st.one_of(names, known), values), max_size=8)


def decoded(block: bytes) -> list[Header]:
    decoder = hpack.Decoder(2**20)
    result = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    assert not decoder.header_table.dynamic_entries
    return result


def block_of(message: list[Header]) -> bytes:
    return b"".join([b"%b: %b\r\n" % field for field in message])


def lower(message: list[Header]) -> list[Header]:
    return [(name.lower(), value) for name, value in message]


@settings(max_examples=40)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=4), st.sampled_from([b"GET", b"POST", b"PROPFIND"]))
def test_a_request_is_decoded_as_it_was(messages: list[tuple[list[Header], list[Header]]], method: bytes) -> None:
    encoder = HPACKEncoder()
    for first, second in messages * 2:
        for path in (b"/", b"/api", b"/" + b"a" * 125, b"/" + b"a" * 126, b"/" + b"a" * 8000):
            block = encoder.request(method, b"https", path, b"a.example:6443", (block_of(first), block_of(second)))
            assert decoded(block) == [
                (b":method", method),
                (b":scheme", b"https"),
                (b":authority", b"a.example:6443"),
                (b":path", path),
                *lower(first + second),
            ]


@settings(max_examples=40)
@given(st.lists(fields, min_size=1, max_size=4), st.sampled_from([100, 200, 204, 206, 304, 400, 404, 500, 201, 999]))
def test_a_response_is_decoded_as_it_was(messages: list[list[Header]], status: int) -> None:
    encoder = HPACKEncoder()
    for message in messages * 2:
        block = encoder.response(status, block_of(message), b"", b"Content-Length: 5\r\n")
        expected = [(b":status", b"%d" % status), *lower(message), (b"content-length", b"5")]
        assert decoded(block) == expected
        assert decoded(encoder.trailers(message)) == lower(message)


def test_fields_of_the_static_table_are_one_octet() -> None:
    encoder = HPACKEncoder()
    assert encoder.request(b"GET", b"https", b"/", b"a", (b"Accept-Encoding: gzip, deflate\r\n",))[-1] == 0x90
    assert encoder.response(404) == b"\x8d"
    assert encoder.response(418) == b"\x08\x03418"


def test_every_literal_is_never_indexed() -> None:
    block = HPACKEncoder().request(
        b"PUT", b"https", b"/a", b"a", (b"Impersonate-User: a\r\nAuthorization: b\r\nX: c\r\n",)
    )
    for field in hpack.Decoder().decode(block, raw=True):
        assert isinstance(field, NeverIndexedHeaderTuple) or field[0] == b":scheme"


@pytest.mark.parametrize("line", [b"A:b\r\n", b"A:  b\r\n", b"A:\tb \t\r\n", b"a: b\r\n"])
def test_blanks_around_a_value_are_not_sent(line: bytes) -> None:
    assert decoded(HPACKEncoder().response(200, line)) == [(b":status", b"200"), (b"a", b"b")]


@pytest.mark.parametrize("name", [b"Connection", b"transfer-encoding", b"KEEP-ALIVE", b"Upgrade", b"Proxy-Connection"])
def test_a_field_of_the_connection_never_gets_into_http2(name: bytes) -> None:
    block = b"A: b\r\n%b: x\r\nC: d\r\n" % name
    encoder = HPACKEncoder()
    for _ in range(2):
        assert decoded(encoder.response(200, block))[1:] == [(b"a", b"b"), (b"c", b"d")]
        assert decoded(encoder.request(b"GET", b"https", b"/", b"a", (block,)))[4:] == [(b"a", b"b"), (b"c", b"d")]


def test_te_may_pass() -> None:
    block = HPACKEncoder().request(b"GET", b"https", b"/", b"a", (b"te: trailers\r\n",))
    assert decoded(block)[4:] == [(b"te", b"trailers")]


@pytest.mark.parametrize("secret", [b"Authorization: Bearer a", b"cookie: a=b", b"Sec-WebSocket-Protocol: base64url.a"])
def test_of_credentials_only_the_last_block_is_remembered(secret: bytes) -> None:
    encoder = HPACKEncoder()
    first, second = b"A: b\r\n%b1\r\n" % secret, b"A: b\r\n%b2\r\n" % secret
    for block in (first, second, second, first):
        encoder.request(b"GET", b"https", b"/", b"a", (block,))
        assert encoder._last_secret[0] == block
    held = [*encoder._blocks.recent, *encoder._lines.recent]
    assert held == [b"A: b"]


def test_what_recurs_stays_among_much_that_does_not() -> None:
    encoder = HPACKEncoder()
    for number in range(5000):
        encoder.response(200, b"Content-Type: application/json\r\nAudit-Id: %d\r\n" % number)
        encoder.request(
            b"GET", b"https", b"/%d" % number, b"a", (b"User-Agent: a\r\n", b"X-Request-Id: %d\r\n" % number)
        )
        for held, key in (encoder._lines, b"Content-Type: application/json"), (encoder._blocks, b"User-Agent: a\r\n"):
            assert key in held.recent or key in held._older
    assert len(encoder._lines) <= 2048
    assert len(encoder._blocks) <= 1024


def test_a_smaller_table_of_the_peer_is_answered_by_none() -> None:
    decoder, other = hpack.Decoder(), hpack.Decoder()
    decoder.max_allowed_table_size = other.max_allowed_table_size = 100
    block = HPACKEncoder().response(200, b"A: b\r\n")
    for octets in (NO_TABLE + block, block):
        assert [tuple(field) for field in decoder.decode(octets, raw=True)] == [(b":status", b"200"), (b"a", b"b")]
    with pytest.raises(hpack.HPACKError):
        other.decode(block)
