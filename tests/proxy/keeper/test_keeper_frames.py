"""Frames arrive as they were sent, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.proxy.keeper.keeper_frames import (
    HEADER_SIZE,
    FrameError,
    FrameType,
    KeeperFrameReader,
    decode_shared,
    encode,
    encode_shared,
    header,
)

FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=200)), min_size=1, max_size=8
)


@given(FRAMES, st.lists(st.integers(0, 1700), max_size=12))
def test_any_cut(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    data = b"".join(encode(*frame) for frame in frames)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = KeeperFrameReader()
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


def test_byte_by_byte() -> None:
    data = encode(FrameType.DATA, 7, b"some") + encode(FrameType.END, 7)
    reader = KeeperFrameReader()
    found = [frame for byte in data for frame in reader.feed(bytes([byte]))]
    assert found == [(FrameType.DATA, 7, b"some"), (FrameType.END, 7, b"")]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.binary(max_size=100))
def test_shared(streams: list[int], data: bytes) -> None:
    [(kind, stream, payload)] = KeeperFrameReader().feed(encode_shared(streams, data))
    assert (kind, stream) == (FrameType.SHARED, 0)
    numbers, received = decode_shared(payload)
    assert (list(numbers), received) == (streams, data)


@pytest.mark.parametrize("payload", [b"", b"\1\0\0", b"\2\0\0\0" + bytes(15)])
def test_a_shared_frame_that_is_cut_off(payload: bytes) -> None:
    with pytest.raises(FrameError):
        decode_shared(payload)


def test_a_length_that_nobody_sends() -> None:
    with pytest.raises(FrameError, match="bytes"):
        list(KeeperFrameReader().feed(header(FrameType.DATA, 1, 2**31)))


def test_the_header_is_what_it_says() -> None:
    assert len(header(FrameType.DATA, 1, 5)) == HEADER_SIZE == len(encode(FrameType.DATA, 1))
