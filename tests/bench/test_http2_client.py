"""The frames of the floods: what is sent is what RFC 9113 and RFC 7541 say, and only a 200 counts as one."""

from __future__ import annotations

import itertools

import hpack
import pytest

from bench import configs, http2_client, http2_floods
from bench.http2_client import END_STREAM, HEADERS, RST_STREAM


def test_a_get_is_a_header_block_that_any_decoder_reads() -> None:
    decoded = hpack.Decoder().decode(http2_client.get_block(configs.OBJECT_PATH), raw=True)
    assert dict(decoded) == {
        b":method": b"GET",
        b":scheme": b"https",
        b":authority": b"localhost",
        b":path": configs.OBJECT_PATH.encode(),
    }


@pytest.mark.parametrize(
    ("block", "ok"), [(b"\x88\x5f", True), (b"\x20\x88", True), (b"\x8d", False), (b"\x48\x03429", False), (b"", False)]
)
def test_only_200_counts(block: bytes, ok: bool) -> None:
    assert http2_client.is_ok(block) is ok


def test_rapid_reset_resets_each_stream_that_it_begins_and_never_reuses_one() -> None:
    seen = []
    for batch in itertools.islice(http2_floods.FLOODS[0].batches(), 3):
        place = 0
        while place < len(batch):
            size, stream = (
                int.from_bytes(batch[place : place + 3], "big"),
                int.from_bytes(batch[place + 5 : place + 9], "big"),
            )
            seen.append((batch[place + 3], stream))
            place += 9 + size
    assert [type_ for type_, _ in seen] == [HEADERS, RST_STREAM] * (len(seen) // 2)
    assert [stream for type_, stream in seen if type_ == HEADERS] == list(range(1, len(seen), 2))


def test_the_floods_end_no_stream_early() -> None:
    (first,) = itertools.islice(http2_floods.FLOODS[1].batches(), 1)
    assert (first[3], first[4]) == (HEADERS, END_STREAM)  # no END_HEADERS: CONTINUATION follows
