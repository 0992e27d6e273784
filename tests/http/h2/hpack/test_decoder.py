"""Header blocks: the `hpack` package as oracle over many blocks of a connection, and what is refused (RFC 7541)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import hpack
import pytest
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h2.frames import ErrorCode, HTTP2ConnectionError
from mcproxy.http.h2.hpack.checked_field import (
    AUTHORITY,
    KINDS,
    MALFORMED,
    METHOD,
    PATH,
    SCHEME,
    STATUS,
)
from mcproxy.http.h2.hpack.decoder import MAX_EXCESS, TABLE_SIZE, DecodedFields, HPACKDecoder, Representations
from mcproxy.http.h2.hpack.tables import STATIC_TABLE
from mcproxy.http.head_rules import MAX_GROUP_LINES
from mcproxy.http.messages import HOP_BY_HOP, Header

MAX_SIZE = 64 * 1024
MAX_FIELDS = 200
OVERSIZE = "the request head is longer than 1 bytes"
PSEUDO = {b":method": METHOD, b":scheme": SCHEME, b":authority": AUTHORITY, b":path": PATH}
HOP = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"cookie"}

huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode


def decoder() -> HPACKDecoder:
    return HPACKDecoder(Representations())


def decode(block: bytes, max_size: int = MAX_SIZE, max_fields: int = MAX_FIELDS) -> DecodedFields:
    return decoder().decode(block, max_size, max_fields)


def refused(block: bytes, max_size: int = MAX_SIZE) -> int:
    with pytest.raises(HTTP2ConnectionError) as caught:
        decode(block, max_size)
    assert caught.value.cause
    return caught.value.code


def integer(value: int, prefix: int, first: int = 0) -> bytes:
    octets = encode_integer(value, prefix)
    octets[0] |= first
    return bytes(octets)


def string(value: bytes, *, coded: bool = False) -> bytes:
    if coded:
        value = huffman(value)
    return integer(len(value), 7, 0x80 if coded else 0) + value


def literal(name: bytes | int, value: bytes, first: int = 0x00, *, coded: bool = False) -> bytes:
    """Return a literal with a new name or the index of one; `first`: 0x40 with indexing, 0 without, 0x10 never."""
    prefix = 6 if first == 0x40 else 4
    if isinstance(name, int):
        return integer(name, prefix, first) + string(value, coded=coded)
    return bytes([first]) + string(name, coded=coded) + string(value, coded=coded)


def special(fields: DecodedFields, kind: int) -> bytes | None:
    return fields.special[kind]


def lines(*fields: Header) -> list[bytes]:
    return [b"%b: %b\r\n" % field for field in fields]


class PeerEncoder:
    """Encodes by choices that hypothesis makes, with a dynamic table of its own."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw
        self._table: list[Header] = []  # the newest first
        self._limit = TABLE_SIZE

    def block(self, fields: Iterable[Header]) -> bytes:
        out = b""
        for size in self._draw(st.one_of(st.just([]), st.lists(sizes, max_size=2)), label="sizes"):
            self._limit = size
            self._evict(0)
            out += integer(size, 5, 0x20)
        return out + b"".join([self._field(field) for field in fields])

    def _field(self, field: Header) -> bytes:
        whole = list(hpack.table.HeaderTable.STATIC_TABLE) + self._table
        coded = self._draw(st.booleans(), label="coded")
        way = self._draw(st.sampled_from([0x80, 0x40, 0x40, 0x10, 0x00]), label="way")
        if way == 0x80 and field in whole:
            return integer(whole.index(field) + 1, 7, 0x80)
        first = 0x40 if way == 0x80 else way
        ways: list[bytes | int] = [index + 1 for index, entry in enumerate(whole) if entry[0] == field[0]]
        name = self._draw(st.sampled_from([*ways, field[0]]), label="name")
        if first == 0x40:
            self._evict(size_of(field))
            if size_of(field) <= self._limit:
                self._table.insert(0, field)
        return literal(name, field[1], first, coded=coded)

    def _evict(self, more: int) -> None:
        while self._table and sum(map(size_of, self._table)) + more > self._limit:
            self._table.pop()


def size_of(field: Header) -> int:
    return len(field[0]) + len(field[1]) + 32


sizes = st.sampled_from([0, 33, 100, 250, 4096])
names = st.sampled_from(
    [b"accept", b"user-agent", b"authorization", b"x-a", b"x-odd_name", b"traceparent", b"set-cookie"]
)
values = st.sampled_from(
    [b"", b"a", b"gzip", b"Bearer abc.def-ghi", b"a\\b", b"a\tb", b"\xc3\xa9", b"v" * 126, b"v" * 127, b"v" * 300]
)
paths = st.sampled_from(
    [b"/", b"/index.html", b"/api/v1/pods", b"/api/v1/namespaces/default/pods/a-0123456789?watch=1"]
)
heads = st.tuples(
    st.sampled_from([b"GET", b"POST", b"PATCH"]).map(lambda value: (b":method", value)),
    st.sampled_from([b"http", b"https"]).map(lambda value: (b":scheme", value)),
    st.sampled_from([b"a.example", b"localhost:6443"]).map(lambda value: (b":authority", value)),
    paths.map(lambda value: (b":path", value)),
)
requests = st.tuples(heads, st.lists(st.tuples(names, values), max_size=8)).map(lambda parts: [*parts[0], *parts[1]])


class TestOracle:
    @pytest.mark.slow
    @settings(max_examples=60)
    @given(st.data(), st.lists(requests, min_size=1, max_size=8))
    def test_blocks_of_a_connection_mean_what_they_mean_to_hpack(
        self, data: st.DataObject, messages: list[list[Header]]
    ) -> None:
        remembered = Representations(max_count=4)  # so that the generations change
        mine, other = (
            HPACKDecoder(remembered),
            HPACKDecoder(remembered),
        )  # the other one looks up what the first remembered
        theirs = hpack.Decoder()
        peer = PeerEncoder(data)
        for message in messages:
            block = peer.block(message)
            assert [tuple(field) for field in theirs.decode(block, raw=True)] == message
            for each in (mine, other):
                assert_same(each.decode(block, MAX_SIZE, MAX_FIELDS), message)
            entries = theirs.header_table.dynamic_entries
            assert [size for _, _, size, _ in reversed(mine._table)] == [size_of(entry[:2]) for entry in entries]
            assert mine._size == sum(size_of(entry[:2]) for entry in entries) <= TABLE_SIZE

    @pytest.mark.slow
    @settings(max_examples=60)
    @given(st.data(), st.lists(st.tuples(requests, st.booleans()), min_size=1, max_size=8))
    def test_a_block_that_is_too_large_changes_the_table_as_any_other(
        self, data: st.DataObject, messages: list[tuple[list[Header], bool]]
    ) -> None:
        theirs, mine = hpack.Decoder(), decoder()
        peer = PeerEncoder(data)
        for message, large in messages:
            block = peer.block(message)
            theirs.decode(block, raw=True)
            if large:
                mine._blocks.clear()  # what is remembered was within the one limit of a connection
            fields = mine.decode(block, 1 if large else MAX_SIZE, MAX_FIELDS)
            if large:
                assert (fields.oversize, fields.special[METHOD]) == (OVERSIZE, message[0][1])
            else:
                assert_same(fields, message)
            entries = theirs.header_table.dynamic_entries
            assert [size for _, _, size, _ in reversed(mine._table)] == [size_of(entry[:2]) for entry in entries]
            assert mine._size == sum(size_of(entry[:2]) for entry in entries) <= TABLE_SIZE

    @settings(max_examples=40)
    @given(st.lists(st.tuples(requests, st.booleans(), sizes), min_size=1, max_size=8))
    def test_what_hpack_encodes(self, messages: list[tuple[list[Header], bool, int]]) -> None:
        theirs, mine = hpack.Encoder(), decoder()
        for message, coded, size in messages:
            theirs.header_table_size = size
            assert_same(mine.decode(theirs.encode(message, huffman=coded), MAX_SIZE, MAX_FIELDS), message)

    @settings(max_examples=150)
    @given(st.data(), requests, st.binary(max_size=6), st.integers(0, 400), st.integers(0, 6))
    def test_a_mutated_block_is_an_error_to_both_or_to_none(
        self, data: st.DataObject, message: list[Header], inserted: bytes, at: int, removed: int
    ) -> None:
        block = PeerEncoder(data).block(message)
        mutated = block[: at % (len(block) + 1)] + inserted + block[at % (len(block) + 1) + removed :]
        agree(mutated)

    @settings(max_examples=150)
    @given(st.binary(max_size=40))
    def test_junk_is_never_anything_but_a_connection_error(self, junk: bytes) -> None:
        agree(junk)


def assert_same(fields: DecodedFields, message: list[Header]) -> None:
    assert fields.oversize is None
    for name, kind in PSEUDO.items():
        assert special(fields, kind) == dict(message)[name]
    assert special(fields, MALFORMED) is None
    assert fields.lines == lines(*[field for field in message if field[0] not in PSEUDO])


def agree(block: bytes) -> None:
    """Assert that a block is refused if `hpack` refuses it, else only by the rules that `hpack` has not."""
    theirs = hpack.Decoder()
    theirs.max_allowed_table_size = TABLE_SIZE
    try:
        expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
    except hpack.HPACKError:
        assert refused(block) == ErrorCode.COMPRESSION_ERROR
        return
    try:
        fields = decode(block)
    except HTTP2ConnectionError as error:
        only_ours = "an integer of too many bytes", "change of the dynamic table's size"
        if error.code != ErrorCode.COMPRESSION_ERROR or error.cause not in only_ours:
            raise
        return
    ordinary = [line for line in fields.lines if not line.startswith(b"cookie:")]
    assert ordinary == lines(*[field for field in expected if passes(*field)])


def passes(name: bytes, value: bytes) -> bool:
    """Whether a field is an ordinary one and well-formed."""
    good_name = re.fullmatch(rb"[a-z0-9!#$%&'*+.^_`|~-]+", name)
    good_value = not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]|\A[ \t]|[ \t]\Z", value)
    return good_name is not None and good_value and name not in HOP


# Examples of RFC 7541, Appendix C: blocks of one connection, what they mean, and the table's size behind them.
FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]


class TestStandard:
    @pytest.mark.parametrize(
        "blocks",
        [
            [  # C.3
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
            [  # C.4
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
        ],
    )
    def test_requests(self, blocks: list[str]) -> None:
        mine = decoder()
        for block, message, size in zip(blocks, (FIRST, SECOND, THIRD), (57, 110, 164), strict=True):
            assert_same(mine.decode(bytes.fromhex(block), MAX_SIZE, MAX_FIELDS), message)
            assert mine._size == size

    def test_responses_with_eviction(self) -> None:
        """C.6, whose table has 256 bytes."""
        mine = decoder()
        blocks = (
            "3fe101488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672"
            "c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        )
        answers = []
        for block, size in zip(blocks, (222, 222, 215), strict=True):
            fields = mine.decode(bytes.fromhex(block), MAX_SIZE, MAX_FIELDS)
            answers.append((special(fields, STATUS), fields.lines))
            assert mine._size == size
        date, later = b"Mon, 21 Oct 2013 20:13:21 GMT", b"Mon, 21 Oct 2013 20:13:22 GMT"
        location = (b"location", b"https://www.example.com")
        assert answers == [
            (b"302", lines((b"cache-control", b"private"), (b"date", date), location)),
            (b"307", lines((b"cache-control", b"private"), (b"date", date), location)),
            (
                b"200",
                lines(
                    (b"cache-control", b"private"),
                    (b"date", later),
                    location,
                    (b"content-encoding", b"gzip"),
                    (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
                ),
            ),
        ]

    def test_the_static_table(self) -> None:
        theirs = hpack.table.HeaderTable.STATIC_TABLE
        assert STATIC_TABLE[1:] == theirs
        for index, field in enumerate(theirs, 1):
            fields = decode(integer(index, 7, 0x80))
            by_name = decode(literal(*field))
            assert (fields.lines, fields.special) == (by_name.lines, by_name.special)
            assert fields.lines or fields.special != [None] * KINDS


class TestRefused:
    @pytest.mark.parametrize(
        "block",
        [
            b"\x80",  # the index 0
            b"\xbe",  # beyond an empty table
            b"\xff\x00",
            b"\xff\xff\xff\x7f",
            b"\x7e\x01a",  # the name's index, beyond
            b"\x0f\x2f\x01a",
            b"\x1f\x2f\x01a",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # integers of too many bytes
            b"\xff\x80\x80\x80\x80\x00",
            b"\x00\x7f\xff\xff\xff\xff\xff\xff\x0f",
            b"\x3f\xe1\xff\xff\xff\x0f",
            b"\x3f\xe2\x1f",  # a table of 4097 bytes
            b"\x20\x20\x20",  # three changes of the table's size
            b"\x82\x20",  # behind a field
            b"\x82\x3f\xe1\x1f",
            b"\x00\x01a\x81\xf0",  # wrong padding in a value
            b"\x00\x81\xf0\x01a",  # and in a name
            b"\x04\x81\xf0",  # and in a path
            b"\x00\x01a\x84\xff\xff\xff\xff",  # EOS
            b"\x00\x01a\x82\x1f\xff",  # padding of more than 7 bits
        ],
    )
    def test_what_no_encoder_sends(self, block: bytes) -> None:
        assert refused(block) == ErrorCode.COMPRESSION_ERROR
        assert refused(b"\x20" + block) == ErrorCode.COMPRESSION_ERROR
        if block[0] & 0xE0 != 0x20:
            assert refused(literal(b"a", b"b") + block) == ErrorCode.COMPRESSION_ERROR

    @pytest.mark.parametrize("coded", [False, True])
    @pytest.mark.parametrize("first", [0x00, 0x10, 0x40])
    @pytest.mark.parametrize("name", [4, 58, b"x-name"])
    def test_a_block_that_ends_too_early(self, name: bytes | int, first: int, coded: bool) -> None:
        block = literal(name, b"/" + b"v" * 200, first, coded=coded)
        assert decode(block).oversize is None
        for size in range(1, len(block)):
            assert refused(block[:size]) == ErrorCode.COMPRESSION_ERROR

    def test_an_empty_block_has_no_fields(self) -> None:
        fields = decode(b"")
        assert (fields.lines, fields.special) == ([], [None] * KINDS)

    def test_two_changes_of_the_size_are_allowed(self) -> None:
        mine = decoder()
        mine.decode(literal(b"a", b"b", 0x40), MAX_SIZE, MAX_FIELDS)
        assert mine.decode(b"\x20\x3f\xe1\x1f", MAX_SIZE, MAX_FIELDS).lines == []
        with pytest.raises(HTTP2ConnectionError):  # the first change has emptied the table
            mine.decode(b"\xbe", MAX_SIZE, MAX_FIELDS)


class TestBounds:
    def test_a_head_that_is_too_long_leaves_the_table_right(self) -> None:
        mine = decoder()
        big = literal(b"x-big", b"v" * 600)
        block = literal(b"x-first", b"a", 0x40) + big + literal(b"x-last", b"b", 0x40)
        assert mine.decode(block, 600, MAX_FIELDS).oversize == "the request head is longer than 600 bytes"
        fields = mine.decode(b"\xbe\xbf", 600, MAX_FIELDS)
        assert fields.lines == lines((b"x-last", b"b"), (b"x-first", b"a"))
        assert fields.oversize is None

    def test_the_size_counts_32_bytes_for_each_field(self) -> None:
        block = literal(b"a", b"b") * 3
        assert decode(block, 3 * 34).oversize is None
        assert decode(block, 3 * 34 - 1).oversize is not None
        indexed = literal(b"a", b"v" * 996, 0x40) + b"\xbe" * 1018  # 1,029 bytes for 1,019 fields
        assert decode(indexed, 1019 * 1029 - MAX_EXCESS, 2000).oversize is not None
        assert refused(indexed, 1019 * 1029 - MAX_EXCESS - 1) == ErrorCode.ENHANCE_YOUR_CALM

    @pytest.mark.parametrize("block", [b"\x00\x04%b\x00", b"\x0f\x00\x04%b", b"\x40\x04%b\x00", b"\x7e\x04%b"])
    def test_fields_that_must_be_decoded_are_bounded_in_number(self, block: bytes) -> None:
        mine = decoder()
        mine.decode(literal(b"x-name", b"", 0x40), MAX_SIZE, MAX_FIELDS)
        many = b"".join([block % b"%04d" % number for number in range(MAX_GROUP_LINES + 500)])
        fields = mine.decode(b"\x82\x87\x84" + many, 10**6, MAX_FIELDS)
        assert fields.oversize == "more than 200 header fields"
        assert (fields.special[METHOD], fields.lines) == (b"GET", [])

    def test_lines_of_groups_have_a_bound_of_their_own(self) -> None:
        groups = b"".join([literal(b"impersonate-group", b"g%d" % number) for number in range(400)])
        groups += b"".join([literal(b"x-remote-group", b"g%d" % number) for number in range(MAX_GROUP_LINES - 400)])
        mine = decoder()
        assert mine.decode(GET + literal(4, b"/") + groups, 10**6, 10).oversize is None
        assert mine.decode(GET + literal(4, b"/") + groups + literal(b"a", b"b") * 9, 10**6, 10).oversize is None
        for more in (literal(b"a", b"b") * 10, literal(b"x-remote-group", b"g") * 11):
            fields = mine.decode(GET + literal(4, b"/") + groups + more, 10**6, 10)
            assert fields.oversize == "more than 10 header fields"

    @pytest.mark.parametrize(
        "block",
        [
            *(
                b"\x80",
                b"\xbe",
                b"\xff",
                b"\x00\x01",
                b"\x00\x01a\x05b",
                b"\x40\x01a\x81\xff",
                b"\x3f\xe1\x1f",
                b"\x00",
            ),
            *(b"\xff\xff\xff\xff\xff\xff", b"\x82\x20", b"\x20\x20\x20", b"\x44\x81\x00", b"\x7f\x00\x00"),
        ],
    )
    def test_what_is_malformed_is_so_in_a_large_block_too(self, block: bytes) -> None:
        for before in (b"", b"\x82\x84"):
            if block != b"\x3f\xe1\x1f" or before:
                assert refused(before + block, 1 if len(before + block) > 1 else 0) == ErrorCode.COMPRESSION_ERROR

    def test_one_octet_for_four_thousand_ends_early(self) -> None:
        bomb = literal(b"a", b"v" * 4000, 0x40) + b"\xbe" * 60_000
        assert refused(bomb) == ErrorCode.ENHANCE_YOUR_CALM

    @pytest.mark.parametrize(
        "field",
        [
            literal(b"a", b"b"),
            literal(b"cookie", b"a=b"),
            literal(b"te", b"trailers"),
            literal(b"host", b"a"),
            literal(b"proxy-authorization", b"a"),
        ],
    )
    def test_fields_are_counted_as_in_http11(self, field: bytes) -> None:
        pseudo = b"\x82\x87\x84" + literal(1, b"a")  # :authority counts as Host would
        assert decode(pseudo + field * 9, max_fields=10).oversize is None
        assert decode(pseudo + field * 10, max_fields=10).oversize == "more than 10 header fields"

    def test_a_field_that_is_larger_than_the_table_empties_it(self) -> None:
        mine = decoder()
        mine.decode(literal(b"a", b"b", 0x40) + literal(b"big", b"v" * 4096, 0x40), MAX_SIZE, MAX_FIELDS)
        assert (mine._size, mine._table) == (0, [])

    def test_many_insertions_keep_the_table_at_its_size(self) -> None:
        mine = decoder()
        for number in range(1000):
            mine.decode(literal(b"x-%d" % number, b"v" * (number % 300), 0x40), MAX_SIZE, MAX_FIELDS)
            assert sum(field[2] for field in mine._table) == mine._size <= TABLE_SIZE


class TestRemembered:
    @pytest.mark.parametrize("first", [0x00, 0x40])
    @pytest.mark.parametrize("coded", [False, True])
    def test_a_literal_is_checked_once_for_all_connections(self, first: int, coded: bool) -> None:
        remembered = Representations()
        block = literal(b"user-agent", b"kubectl", first, coded=coded) + literal(58, b"go", first, coded=coded)
        for _ in range(3):
            fields = HPACKDecoder(remembered).decode(block, MAX_SIZE, MAX_FIELDS)
            assert fields.lines == lines((b"user-agent", b"kubectl"), (b"user-agent", b"go"))
            assert len(remembered) == 2

    @pytest.mark.parametrize(
        "block",
        [
            literal(b"authorization", b"Bearer a"),
            literal(23, b"Bearer a", 0x40),
            literal(32, b"a=b"),
            literal(b"sec-websocket-protocol", b"base64url.bearer.authorization.k8s.io.abc"),
            literal(b"x-token", b"a", 0x10),
            literal(58, b"a", 0x10),
        ],
    )
    def test_a_secret_is_remembered_by_its_connection_alone(self, block: bytes) -> None:
        remembered = Representations()
        first, second = HPACKDecoder(remembered), HPACKDecoder(remembered)
        expected = first.decode(block, MAX_SIZE, MAX_FIELDS)
        assert len(remembered) == 0
        assert len(first._own) == 1
        assert len(second._own) == 0
        again = first.decode(block, MAX_SIZE, MAX_FIELDS)
        assert (again.lines, again.special) == (expected.lines, expected.special)
        assert len(first._own) == 1

    @pytest.mark.parametrize(
        "block", [literal(4, b"/a"), literal(4, b"/a", 0x40), literal(5, b"/b"), literal(b":path", b"/a")]
    )
    def test_paths_are_not_remembered(self, block: bytes) -> None:
        remembered = Representations()
        mine = HPACKDecoder(remembered)
        mine.decode(block, MAX_SIZE, MAX_FIELDS)
        assert len(remembered) == 0
        assert len(mine._own) == 0

    def test_a_name_of_the_dynamic_table_is_not_remembered(self) -> None:
        remembered = Representations()
        for name in (b"x-a", b"x-b"):
            mine = HPACKDecoder(remembered)
            mine.decode(literal(name, b"", 0x40), MAX_SIZE, MAX_FIELDS)
            assert mine.decode(literal(62, b"v"), MAX_SIZE, MAX_FIELDS).lines == lines((name, b"v"))
        assert len(remembered) == 2

    @pytest.mark.parametrize("first", [0x00, 0x10])
    def test_what_is_remembered_is_bounded(self, first: int) -> None:
        remembered = Representations()
        mine = HPACKDecoder(remembered)
        for number in range(20_000):
            mine.decode(literal(b"x-request-id", b"%d" % number, first), MAX_SIZE, MAX_FIELDS)
        assert len(remembered) <= 4096
        assert len(mine._own) <= 64

    def test_what_is_malformed_stays_so(self) -> None:
        remembered = Representations()
        for _ in range(3):
            fields = HPACKDecoder(remembered).decode(literal(b"A", b"b"), MAX_SIZE, MAX_FIELDS)
            assert special(fields, MALFORMED) == b"field name"


GET = b"\x82\x87" + literal(1, b"a.test")
"""What is before the path in most blocks of the tests below."""
PARTS = (
    b"\x82",
    b"\x87",
    b"\x84",
    b"\xbe",
    b"\xbf",
    literal(1, b"a.test"),
    literal(4, b"/a"),
    literal(4, b"/b?c=d", coded=True),
    literal(4, b"bad path"),
    literal(4, b"/c", 0x40),
    literal(4, b"/d", 0x10),
    literal(b":path", b"/e"),
    literal(b"x", b"1"),
    literal(b"x", b"2", 0x40),
    literal(b"y", b"3", 0x40),
    literal(b"authorization", b"Bearer a", 0x10),
    literal(32, b"a=b"),
    literal(28, b"5"),
    literal(38, b"b.test"),
    b"\x20",
    b"\x3f\xe1\x1f",
    literal(62, b"of a name in the table"),
)


def outcome(mine: HPACKDecoder, block: bytes, max_size: int, max_fields: int) -> object:
    try:
        fields = mine.decode(block, max_size, max_fields)
    except HTTP2ConnectionError as error:
        return error.code
    return fields.special, b"".join(fields.lines), fields.oversize


class TestSameBlocks:
    """Blocks that a connection remembers, whole or without their path."""

    @given(
        st.lists(st.lists(st.sampled_from(PARTS), max_size=7).map(b"".join), min_size=1, max_size=4).flatmap(
            lambda blocks: st.lists(st.sampled_from(blocks), min_size=2, max_size=12)
        ),
        st.sampled_from([(MAX_SIZE, MAX_FIELDS), (150, 3)]),
    )
    @settings(max_examples=300, deadline=None)
    def test_they_mean_what_they_mean_to_a_connection_that_remembers_none(
        self, blocks: list[bytes], limits: tuple[int, int]
    ) -> None:
        mine, other = decoder(), decoder()
        for block in blocks:
            other._blocks.clear()
            other._requests.clear()
            found = outcome(mine, block, *limits)
            assert found == outcome(other, block, *limits)
            if isinstance(found, int):
                return  # the connection ends
            assert (mine._table, mine._size) == (other._table, other._size)

    def test_only_the_path_differs(self) -> None:
        mine = decoder()
        rest = literal(23, b"Bearer a", 0x10) + literal(b"x", b"1")
        for number in range(50):
            path = b"/%d" % number
            fields = mine.decode(GET + literal(4, path, coded=bool(number % 2)) + rest, MAX_SIZE, MAX_FIELDS)
            assert special(fields, PATH) == path
            assert b"".join(fields.lines) == b"authorization: Bearer a\r\nx: 1\r\n"
        assert len(mine._requests) == 1

    def test_a_path_is_judged_and_counted_each_time(self) -> None:
        mine = decoder()
        assert mine.decode(GET + literal(4, b"/"), 500, MAX_FIELDS).oversize is None
        assert special(mine.decode(GET + literal(4, b"/\x00"), 500, MAX_FIELDS), MALFORMED) is not None
        assert mine.decode(GET + literal(4, b"/" + b"a" * 400), 500, MAX_FIELDS).oversize is not None
        assert mine.decode(GET + literal(4, b"/" + b"a" * 900), 500, MAX_FIELDS).oversize is not None
        with pytest.raises(HTTP2ConnectionError):
            mine.decode(GET + literal(4, b"/" + b"a" * 900 + b"a" * MAX_EXCESS), 500, MAX_FIELDS)

    def test_a_change_of_the_table_empties_the_memory(self) -> None:
        mine = decoder()
        mine.decode(literal(b"x", b"1", 0x40), MAX_SIZE, MAX_FIELDS)
        block = GET + literal(4, b"/") + b"\xbe"
        for _ in range(2):
            assert mine.decode(block, MAX_SIZE, MAX_FIELDS).lines[-1:] == lines((b"x", b"1"))
        mine.decode(literal(b"y", b"2", 0x40), MAX_SIZE, MAX_FIELDS)
        assert mine.decode(block, MAX_SIZE, MAX_FIELDS).lines[-1:] == lines((b"y", b"2"))

    def test_what_is_remembered_is_bounded(self) -> None:
        mine = decoder()
        for number in range(100):
            mine.decode(literal(b"x-request-id", b"%d" % number), MAX_SIZE, MAX_FIELDS)
            mine.decode(GET + literal(4, b"/") + literal(b"x-request-id", b"%d" % number), MAX_SIZE, MAX_FIELDS)
            mine.decode(GET + literal(4, b"/") + literal(b"x", b"1" * (4000 + number)), MAX_SIZE, MAX_FIELDS)
        assert len(mine._blocks) <= 8
        assert len(mine._requests) <= 8
        assert max(len(before) + len(behind) for before, behind in mine._requests) <= 4096
