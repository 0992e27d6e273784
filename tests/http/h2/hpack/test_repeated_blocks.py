"""Blocks that recur on a connection, with other paths and other tables between them: each means what `hpack` says.

Whatever a decoder remembers of a block must not outlive the table that the block was read with. The pieces are few, so
that the same bytes come again and again.
"""

from __future__ import annotations

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h2.frames import HTTP2ConnectionError, HTTP2StreamError
from mcproxy.http.h2.heads import request_head
from mcproxy.http.h2.hpack.decoder import HPACKDecoder, Representations
from mcproxy.http.messages import ProtocolError
from tests.http.h2 import raw

PSEUDO = b"\x82\x87" + b"\x01" + raw.string(b"k8s.test")  # GET, https, :authority
PATHS = (b"/a", b"/b", b"/api/v1/pods", b"/" + b"p" * 200)
#: Of what is before :path; the dynamic table's entries are users, so that a wrong one is another user.
BEFORE = (
    PSEUDO,
    b"\x82\x87" + raw.indexed(62),  # :authority from the table, or whatever is there
    b"\x82\x87\x41" + raw.string(b"k8s.test"),  # :authority, into the table
    raw.table_size(0) + PSEUDO,
    raw.table_size(0) + raw.table_size(4096) + PSEUDO,
    raw.table_size(100) + PSEUDO,
)
BEHIND = (
    b"",
    raw.indexed(62),
    raw.indexed(63),
    raw.indexed(64),
    raw.indexed(62) + raw.indexed(63),
    b"\x57" + raw.string(b"Bearer alice"),  # authorization, into the table
    b"\x57" + raw.string(b"Bearer boss"),
    b"\x1f\x08" + raw.string(b"Bearer alice"),  # never indexed
    b"\x0f\x08" + raw.string(b"Bearer boss"),
    raw.indexing(b"impersonate-user", b"carol"),
    raw.indexing(b"x-long", b"v" * 3900),  # drives all others out
    b"\x7e" + raw.string(b"v"),  # the name of the newest entry with another value, into the table
    b"\x0f\x2f" + raw.string(b"w"),  # the same, not into it
    raw.literal(b"x-a", b"b"),
    raw.indexed(16) + raw.literal(b"cookie", b"a=b") + raw.literal(b"cookie", b"c=d"),
)
#: :path as a literal that is not indexed, indexed, never indexed, from the static table, with its name written out.
FORMS = (b"\x04", b"\x44", b"\x14", b"\x05", b"\x00" + raw.string(b":path"))

blocks = st.tuples(
    st.sampled_from(BEFORE),
    st.sampled_from(FORMS),
    st.sampled_from(PATHS),
    st.booleans(),
    st.lists(st.sampled_from(BEHIND), max_size=3),
)


def _ours(decoder: HPACKDecoder, block: bytes) -> list[raw.Field] | None:
    """The fields of a request as its head has them, None if the table is lost."""
    try:
        fields = decoder.decode(block, 65536, 200)
    except HTTP2ConnectionError:
        return None
    try:
        head = request_head(fields, end_stream=True, max_target=65536)
    except (ProtocolError, HTTP2StreamError) as error:
        return [(b"refused", type(error).__name__.encode())]
    lines = [line.partition(b": ")[::2] for line in head.fields.split(b"\r\n")[:-1]]
    return [(head.method, head.target), (b"host", head.host), *lines]


def _theirs(decoder: hpack.Decoder, block: bytes) -> list[raw.Field] | None:
    try:
        found = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except hpack.HPACKError:
        return None
    names = [name for name, _ in found]
    pseudo = [name for name in names if name[:1] == b":"]
    whole = sorted(pseudo) == [b":authority", b":method", b":path", b":scheme"] and names[: len(pseudo)] == pseudo
    if not whole or sum(name == b"te" for name in names):
        return [(b"refused", b"HTTP2StreamError")]
    values = dict(found)
    lines: list[raw.Field] = []
    crumbs = [value for name, value in found if name == b"cookie"]
    for name, value in found[len(pseudo) :]:
        if name == b"cookie":
            if crumbs:
                lines.append((name, b"; ".join(crumbs)))
                crumbs = []
        else:
            lines.append((name, value))
    return [(values[b":method"], values[b":path"]), (b"host", values[b":authority"].lower()), *lines]


@settings(max_examples=150)
@given(st.lists(blocks, min_size=2, max_size=25))
def test_each_block_means_what_it_says_now(chosen: list[tuple[bytes, bytes, bytes, bool, list[bytes]]]) -> None:
    ours, theirs = HPACKDecoder(Representations()), hpack.Decoder()
    theirs.max_allowed_table_size = 4096
    for before, form, path, coded, behind in chosen:
        block = before + form + (raw.huffman(path) if coded else raw.string(path)) + b"".join(behind)
        expected = _theirs(theirs, block)
        got = _ours(ours, block)
        if got is not None and got[0][0] == b"refused" and expected is not None:
            # What RFC 9113 calls malformed is judged elsewhere; here it must not be what `hpack` finds well-formed.
            assert expected[0][0] == b"refused" or _strange(expected), (block, expected)
            continue
        assert got == expected, (block, expected)
        if expected is None:
            break


def _strange(fields: list[raw.Field]) -> bool:
    """A table's entry at a place where its value is none: an authority that is no host, two hosts, a wrong length."""
    return any(name in (b"host", b"te", b"expect", b"content-length") for name, _ in fields[2:])
