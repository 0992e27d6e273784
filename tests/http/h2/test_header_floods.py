"""Header blocks that are made to cost: the connection ends with ENHANCE_YOUR_CALM, and it is counted."""

from __future__ import annotations

import pytest

from mcproxy.http.h2.frames import END_STREAM, header_frames
from mcproxy.http.h2.h2_errors import ErrorCode
from tests.http.h2.harness import H2ServerHarness

REQUEST = b"\x82\x87\x04\x02/x\x01\x01a"
NAMES = [b"\x00\x03%03d\x00" % number for number in range(900)]


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (REQUEST + b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 12_000, "large_header_block"),
        (REQUEST + b"\x40\x06cookie\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 60_000, "large_header_block"),
        (REQUEST + b"".join(NAMES[:500]), "many_header_fields"),
    ],
)
def test_a_block_beyond_the_bounds_ends_the_connection(block: bytes, kind: str) -> None:
    harness = H2ServerHarness()
    harness.sends(header_frames(1, block, end_stream=True))
    assert harness.ended_with == ErrorCode.ENHANCE_YOUR_CALM
    assert harness.factory.protection == {kind: 1}
    assert not harness.requests


@pytest.mark.parametrize(
    "more", [b"".join(NAMES[:300]), b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 20], ids=["fields", "size"]
)
def test_a_head_that_is_somewhat_too_large_gets_431(more: bytes) -> None:
    harness = H2ServerHarness()
    harness.sends(header_frames(1, REQUEST + more, end_stream=True))
    head = harness.gets()[0]
    assert (head.stream_id, head.payload[:5], bool(head.flags & END_STREAM)) == (1, b"\x08\x03431", False)
    harness.sends(header_frames(3, REQUEST, end_stream=True))
    assert harness.last.exchange.head.target == b"/x"
    assert not harness.factory.protection
