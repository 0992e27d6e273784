"""Header blocks that are made to cost: the connection ends with ENHANCE_YOUR_CALM, and it is counted."""

from __future__ import annotations

import pytest

from mcproxy.http.h2.frames import END_STREAM, ErrorCode, header_frames
from tests.http.h2.harness import H2ServerHarness
from tests.http.h2.hpack.test_decoder import literal

REQUEST = b"\x82\x87\x04\x02/x\x01\x01a"
NAMES = [b"\x00\x03%03d\x00" % number for number in range(900)]


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (REQUEST + b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 12_000, "large_header_block"),
        (REQUEST + b"\x40\x06cookie\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 60_000, "large_header_block"),
    ],
)
def test_a_block_beyond_the_bounds_ends_the_connection(block: bytes, kind: str) -> None:
    harness = H2ServerHarness()
    harness.sends(header_frames(1, block, end_stream=True))
    assert harness.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert harness.factory.protection == {kind: 1}
    assert not harness.requests


@pytest.mark.parametrize(
    "more",
    [
        b"".join(NAMES[:300]),
        b"".join(NAMES[:900]),
        b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 20,
        literal(b"x-long", b"v" * 70_000),
        literal(b"x-long", b"v" * 900_000),
        literal(b"authorization", b"Bearer " + b"v" * 70_000, 0x10),
    ],
    ids=["fields", "many fields", "size", "70 KB", "900 KB", "token"],
)
def test_a_head_that_is_too_large_gets_431_and_the_connection_goes_on(more: bytes) -> None:
    harness = H2ServerHarness()
    harness.sends(header_frames(1, REQUEST, end_stream=True))
    watch = harness.last
    harness.sends(header_frames(3, REQUEST + literal(b"x-new", b"1", 0x40) + more, end_stream=True))
    head = next(each for each in harness.gets() if each.stream_id == 3)
    assert (head.payload[:5], bool(head.flags & END_STREAM)) == (b"\x08\x03431", False)
    table_names_it = b"\xbf" if more[:1] == b"\x40" else b"\xbe"
    harness.sends(header_frames(5, REQUEST + table_names_it, end_stream=True))
    assert harness.last.exchange.head.fields == b"x-new: 1\r\n"
    assert not watch.cancellations
    assert not harness.factory.protection


@pytest.mark.parametrize("name", [b"impersonate-group", b"x-remote-group"])
def test_a_user_of_many_groups_is_served(name: bytes) -> None:
    harness = H2ServerHarness()
    groups = b"".join([literal(name, b"g%d" % number) for number in range(1000)])
    harness.sends(header_frames(1, REQUEST + groups, end_stream=True))
    assert harness.last.exchange.head.fields.count(name) == 1000
