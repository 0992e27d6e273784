"""Where bodies end, whatever pieces they arrive in, and what is no body at all."""

from __future__ import annotations

import itertools
from typing import Any

import h11
import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.http.h1.framing import (
    MAX_SIZE_LINE,
    BodyReader,
    ChunkedReader,
    FramingError,
    LengthReader,
    UntilCloseReader,
    encode_chunk,
    encode_last_chunk,
)
from mcproxy.http.head_rules import MAX_TRAILERS

Outcome = tuple[bytes, bytes, list[tuple[bytes, bytes]], bool]

contents = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
extensions = st.sampled_from([b"", b";a", b";a=b", b' ; a="b c"', b"\t;x"])
names = st.from_regex(rb"\A[A-Za-z][A-Za-z0-9-]{0,8}\Z").filter(lambda name: name.lower() not in (b"te", b"host"))
values = st.from_regex(rb"\A[!-~\x80-\xff]{0,10}\Z")


def read(reader: BodyReader, pieces: list[bytes]) -> Outcome:
    """Content, what follows the body, trailers, and whether the body came to its end."""
    content, rest = b"", b""
    for piece in pieces:
        if reader.complete:
            rest += piece
        elif piece:
            got, rest = reader.feed(piece)
            assert all(got)
            content += b"".join(got)
    return content, rest, reader.trailers, reader.complete


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def single(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


@st.composite
def chunked_bodies(draw: Any) -> tuple[bytes, bytes]:
    """Wire bytes and the content that they carry."""
    wire, content = b"", b""
    for data in draw(contents):
        size = b"%X" % len(data) if draw(st.booleans()) else b"%04x" % len(data)
        wire += size + draw(extensions) + b"\r\n" + data + b"\r\n"
        content += data
    wire += b"0" + draw(extensions) + b"\r\n"
    for name, value in draw(st.lists(st.tuples(names, values), max_size=3)):
        wire += name + b": " + value + b"\r\n"
    return wire + b"\r\n", content


class TestLength:
    @given(st.binary(min_size=1, max_size=100), st.binary(max_size=20), st.lists(st.integers(0, 200), max_size=8))
    def test_any_split_gives_the_same_content_and_the_exact_rest(
        self, body: bytes, behind: bytes, places: list[int]
    ) -> None:
        assert read(LengthReader(len(body)), cut(body + behind, places)) == (body, behind, [], True)
        assert read(LengthReader(len(body)), single(body + behind)) == (body, behind, [], True)

    def test_a_short_body_is_not_complete(self) -> None:
        assert read(LengthReader(5), [b"four"]) == (b"four", b"", [], False)


def test_a_body_until_close_has_no_end_of_its_own() -> None:
    assert read(UntilCloseReader(), [b"a", b"b"]) == (b"ab", b"", [], False)


class TestChunked:
    @given(chunked_bodies(), st.binary(max_size=20), st.lists(st.integers(0, 500), max_size=10))
    def test_any_split_gives_the_same_content_and_the_exact_rest(
        self, body: tuple[bytes, bytes], behind: bytes, places: list[int]
    ) -> None:
        wire, content = body
        whole = read(ChunkedReader(), [wire + behind])
        assert whole[:2] == (content, behind)
        assert whole[3]
        assert read(ChunkedReader(), cut(wire + behind, places)) == whole
        assert read(ChunkedReader(), single(wire + behind)) == whole

    @given(contents, st.lists(st.tuples(names, values), max_size=3))
    def test_what_is_encoded_here_is_read_by_h11_and_here(
        self, pieces: list[bytes], trailers: list[tuple[bytes, bytes]]
    ) -> None:
        wire = b"".join(map(encode_chunk, pieces)) + encode_last_chunk(trailers)
        content, rest, _, complete = read(ChunkedReader(), [wire])
        assert (content, rest, complete) == (b"".join(pieces), b"", True)
        assert by_h11(wire) == content

    @given(st.binary(max_size=60))
    def test_junk_is_a_framing_error_or_waits_for_more(self, junk: bytes) -> None:
        try:
            read(ChunkedReader(), single(junk))
        except FramingError:
            pass

    @given(st.lists(st.sampled_from([b"0", b"1", b"a", b"\r\n", b"\r", b"\n", b";", b" ", b"\t", b":", b"x", b"\x00"])))
    def test_what_is_accepted_h11_and_llhttp_read_alike(self, parts: list[bytes]) -> None:
        wire = b"".join(parts)
        try:
            content, rest, _, complete = read(ChunkedReader(), [wire])
        except FramingError:
            return
        if complete and len(rest) == 0:
            assert by_llhttp(wire) == content
            assert by_h11(wire) == content

    @given(chunked_bodies(), st.integers(0, 400), st.binary(min_size=1, max_size=2))
    def test_a_damaged_body_reads_the_same_in_one_piece_and_in_single_bytes(
        self, body: tuple[bytes, bytes], place: int, damage: bytes
    ) -> None:
        wire = body[0]
        place %= len(wire)
        wire = wire[:place] + damage + wire[place + 1 :]
        assert outcome(wire, [wire]) == outcome(wire, single(wire))

    @pytest.mark.parametrize(
        "wire",
        [
            b"\r\n",
            b" 5\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b"-5\r\nhello\r\n",
            b"0x5\r\nhello\r\n",
            b"5_0\r\n",
            b"5,5\r\n",
            b"5\nhello\r\n",
            b"5\rhello\r\n",
            b"5;a\nb\r\nhello\r\n",
            b"5;a\x00\r\nhello\r\n",
            b"5;a\x7f\r\nhello\r\n",
            b"5;\r\r\nhello\r\n",
            b"5\r\nhellohello\r\n",
            b"5\r\nhello\n",
            b"5\r\nhello\r5",
            b"5\r\nhelloX\r\n",
            b"5\r\nhell\r\n0\r\n\r\n",
            b"\xef\xbc\x95\r\nhello\r\n",
            b"8000000000000000\r\n",
            b"ffffffffffffffff\r\n",
            b"00000000000000005\r\nhello\r\n",
            b"0" * 17 + b"\r\n\r\n",
            b"0\r\nname value\r\n\r\n",
            b"0\r\nname : value\r\n\r\n",
            b"0\r\n name: value\r\n\r\n",
            b"0\r\nname: a\r\n folded\r\n\r\n",
            b"0\r\n: value\r\n\r\n",
            b"0\r\nname: a\x00b\r\n\r\n",
            b"0\r\nname: a\nother: b\r\n\r\n",
            b"0\r\nname: a\rother: b\r\n\r\n",
            b"0\r\n\n",
            b"0\n\r\n",
            b"1" + b";" + b"x" * MAX_SIZE_LINE + b"\r\n",
            b"0\r\nname: " + b"x" * MAX_TRAILERS + b"\r\n\r\n",
            b"0\r\n" + b"name: 0123456789\r\n" * 600 + b"\r\n",
        ],
    )
    def test_what_two_readers_could_read_in_two_ways_is_refused(self, wire: bytes) -> None:
        with pytest.raises(FramingError):
            read(ChunkedReader(), [wire])
        with pytest.raises(FramingError):
            read(ChunkedReader(), single(wire))

    def test_an_endless_size_line_is_given_up_before_its_end(self) -> None:
        with pytest.raises(FramingError):
            read(ChunkedReader(), single(b"1;" + b"x" * (MAX_SIZE_LINE + 1)))

    def test_endless_trailers_are_given_up_before_their_end(self) -> None:
        with pytest.raises(FramingError):
            read(ChunkedReader(), single(b"0\r\nname: " + b"x" * (MAX_TRAILERS + 1)))

    def test_trailers_are_kept_apart_in_order_with_values_trimmed(self) -> None:
        wire = b"1\r\nx\r\n0\r\nAudit: \t one \r\naudit:two\r\nEmpty:\r\n\r\n"
        assert read(ChunkedReader(), [wire]) == (
            b"x",
            b"",
            [(b"Audit", b"one"), (b"audit", b"two"), (b"Empty", b"")],
            True,
        )

    @pytest.mark.parametrize(
        "name",
        [
            b"Host",
            b"Content-Length",
            b"Transfer-Encoding",
            b"Connection",
            b"Upgrade",
            b"TE",
            b"Trailer",
            b"Keep-Alive",
            b"Proxy-Authorization",
            b"Authorization",
            b"Content-Encoding",
            b"Impersonate-User",
            b"impersonate-extra-scopes",
            b"Impersonate_User",
            b"Sec-WebSocket-Protocol",
            b"X-Real-IP",
            b"Forwarded",
            b"X-Remote-User",
            b"X-REMOTE-GROUP",
            b"X-Forwarded-For",
            b"X_Remote_User",
            b"Impersonate_Group",
        ],
    )
    def test_a_trailer_that_means_framing_routing_or_identity_is_dropped(self, name: bytes) -> None:
        wire = b"0\r\n" + name + b": x\r\nOther: y\r\n\r\n"
        assert read(ChunkedReader(), [wire])[2] == [(b"Other", b"y")]


def outcome(wire: bytes, pieces: list[bytes]) -> Outcome | None:
    try:
        return read(ChunkedReader(), pieces)
    except FramingError:
        return None


def by_h11(wire: bytes) -> bytes:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + wire)
    assert isinstance(connection.next_event(), h11.Request)
    content = b""
    while isinstance(event := connection.next_event(), h11.Data):
        content += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    return content


class _Body:
    def __init__(self) -> None:
        self.content = b""
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.content += data

    def on_message_complete(self) -> None:
        self.complete = True


def by_llhttp(wire: bytes) -> bytes:
    body = _Body()
    parser = httptools.HttpRequestParser(body)
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + wire)
    assert body.complete
    return body.content
