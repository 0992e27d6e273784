"""WebSocket framing, server side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.demo.streaming.websocket_frames import (
    BINARY,
    CLOSE,
    TEXT,
    FrameReader,
    Message,
    WebSocketError,
    accept_key,
    frame,
)


def masked(opcode: int, payload: bytes, *, final: bool = True, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    """Return a masked frame, as of a client."""
    plain = frame(opcode, payload)
    size = 2 if len(payload) < 126 else 4 if len(payload) < 1 << 16 else 10
    head = bytes((plain[0] if final else plain[0] & 0x7F, plain[1] | 0x80)) + plain[2:size]
    return head + mask + bytes(value ^ mask[index % 4] for index, value in enumerate(payload))


def test_the_accept_key_is_that_of_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@given(st.binary(max_size=300), st.integers(0, 400))
def test_messages_do_not_depend_on_where_the_bytes_are_cut(payload: bytes, cut: int) -> None:
    data = masked(BINARY, payload) + masked(CLOSE, b"\x03\xe8")
    reader = FrameReader()
    assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == [
        Message(BINARY, payload),
        Message(CLOSE, b"\x03\xe8"),
    ]


@pytest.mark.parametrize("size", [125, 126, 65535, 65536])
def test_every_form_of_length_is_read(size: int) -> None:
    assert list(FrameReader().feed(masked(BINARY, bytes(size)))) == [Message(BINARY, bytes(size))]


def test_fragments_become_one_message() -> None:
    data = masked(TEXT, b"ab", final=False) + masked(0, b"c", final=False) + masked(0, b"d")
    assert list(FrameReader().feed(data)) == [Message(TEXT, b"abcd")]


def test_an_unmasked_frame_is_refused() -> None:
    with pytest.raises(WebSocketError):
        list(FrameReader().feed(frame(BINARY, b"x")))
