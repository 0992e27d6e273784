"""RFC 7541 as h2spec has it, and more: what cannot be decoded ends the connection, for the tables differ from then."""

from __future__ import annotations

import pytest

from tests.http.h2 import raw
from tests.http.h2.conformance import Case, answered, case_id, goaway
from tests.http.h2.origin import play
from tests.http.h2.raw import COMPRESSION_ERROR, GET, headers, indexed, indexing, literal, table_size

UNDECODABLE = goaway(COMPRESSION_ERROR)


def undecodable(section: str, title: str, block: bytes) -> Case:
    return Case(section, title, headers(1, block), UNDECODABLE, 0)


CASES = (
    undecodable("hpack/2.3.3", "an index beyond both tables", GET + indexed(70)),
    undecodable("hpack/2.3.3", "a name's index beyond both tables", GET + b"\x7f\x07" + raw.string(b"v")),
    undecodable("hpack/2.3.3", "the first index behind the static table, the dynamic one empty", GET + indexed(62)),
    undecodable("hpack/2.3.3", "an index one beyond the dynamic table", GET + indexing(b"a", b"b") + indexed(63)),
    undecodable(
        "hpack/2.3.3",
        "an entry that was evicted",
        GET + indexing(b"a", b"b") + indexing(b"c", b"v" * 4060) + indexed(63),
    ),
    undecodable("hpack/4.2", "a table size update at the end of a block", GET + table_size(1)),
    undecodable("hpack/4.2", "a table size update in the middle of a block", GET[:9] + table_size(1) + GET[9:]),
    undecodable("hpack/4.2", "a table size update alone, behind a field", literal(b"a", b"b") + table_size(0)),
    undecodable("hpack/5.2", "Huffman padding of more than 7 bits", GET + b"\x00\x01a" + b"\x82\x1f\xff"),
    undecodable("hpack/5.2", "Huffman padding of zeros", GET + b"\x00\x01a" + b"\x81\x18"),
    undecodable("hpack/5.2", "Huffman with EOS", GET + b"\x00\x01a" + b"\x84\xff\xff\xff\xff"),
    undecodable(
        "hpack/5.2", "Huffman with EOS and something behind it", GET + b"\x00\x01a" + b"\x85\xff\xff\xff\xfc\x1f"
    ),
    undecodable("hpack/5.2", "a string longer than the block", GET + b"\x00\x01a\x7eb"),
    undecodable("hpack/5.2", "a name longer than the block", GET + b"\x00\x7e"),
    undecodable("hpack/5.2", "a field without its value", GET + b"\x00\x01a"),
    undecodable("hpack/5.1", "an integer that does not end", GET + b"\xff" + b"\x80" * 8),
    undecodable("hpack/5.1", "an integer of 100 bits", GET + b"\xff" + b"\xff" * 14 + b"\x01"),
    undecodable("hpack/5.1", "a length of 2^63", GET + b"\x00\x7f" + b"\xff" * 8 + b"\x7f" + b"x"),
    undecodable("hpack/5.1", "a length of 2^32", GET + b"\x00\x7f\x81\xff\xff\xff\x0f" + b"x"),
    undecodable("hpack/6.1", "index 0", GET + b"\x80"),
    undecodable("hpack/6.3", "a table size update above SETTINGS_HEADER_TABLE_SIZE", table_size(4097) + GET),
    undecodable("hpack/6.3", "a table size update far above it", table_size(2**31) + GET),
    undecodable("hpack/6.3", "the second of two updates above it", table_size(0) + table_size(4097) + GET),
    Case(
        "hpack/4.3",
        "a table emptied and made great again is empty",
        headers(1, GET + indexing(b"a", b"b")) + headers(3, table_size(0) + table_size(4096) + GET + indexed(62)),
        UNDECODABLE,
        1,
    ),
    Case(
        "hpack/4.4",
        "an entry that is greater than the table empties it",
        headers(1, GET + indexing(b"a", b"b") + indexing(b"c", b"v" * 4096)) + headers(3, GET + indexed(62)),
        UNDECODABLE,
        1,
    ),
    Case(
        "hpack/4.4",
        "an entry whose name refers to the one that it evicts",
        headers(1, table_size(64) + GET + indexing(b"x-a", b"v" * 20) + b"\x7e" + raw.string(b"w" * 20) + indexed(62)),
        answered(1),
        1,
    ),
    Case(
        "hpack/6.3",
        "a table of exactly SETTINGS_HEADER_TABLE_SIZE",
        headers(1, table_size(4096) + GET + indexing(b"x-a", b"b") + indexed(62)),
        answered(1),
        1,
    ),
    Case(
        "hpack/5.1",
        "an integer of one byte more than it needs",
        headers(1, GET + b"\x00\x03x-a\x7f\x80\x00" + b"b" * 127),
        answered(1),
        1,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
async def test_it(case: Case) -> None:
    case.judge(await play(case))
