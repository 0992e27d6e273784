"""WebSocket framing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.websocket_frames import (
    BINARY,
    CLOSE,
    TEXT,
    WebSocketError,
    WebSocketFrameReader,
    WebSocketMessage,
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
    reader = WebSocketFrameReader()
    assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == [
        WebSocketMessage(BINARY, payload),
        WebSocketMessage(CLOSE, b"\x03\xe8"),
    ]


@pytest.mark.parametrize("size", [125, 126, 65535, 65536])
def test_every_form_of_length_is_read(size: int) -> None:
    assert list(WebSocketFrameReader().feed(masked(BINARY, bytes(size)))) == [WebSocketMessage(BINARY, bytes(size))]


def test_fragments_become_one_message() -> None:
    data = masked(TEXT, b"ab", final=False) + masked(0, b"c", final=False) + masked(0, b"d")
    assert list(WebSocketFrameReader().feed(data)) == [WebSocketMessage(TEXT, b"abcd")]


def test_an_unmasked_frame_is_refused() -> None:
    with pytest.raises(WebSocketError):
        list(WebSocketFrameReader().feed(frame(BINARY, b"x")))


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_a_client_writes_masked_frames_that_a_server_reads(payload: bytes, mask: bytes) -> None:
    assert frame(BINARY, payload, mask) == masked(BINARY, payload, mask=mask)
    assert list(WebSocketFrameReader().feed(frame(BINARY, payload, mask))) == [WebSocketMessage(BINARY, payload)]


def test_a_client_reads_unmasked_frames_alone() -> None:
    reader = WebSocketFrameReader(masked=False)
    assert list(reader.feed(frame(BINARY, b"ab") + frame(CLOSE, b""))) == [
        WebSocketMessage(BINARY, b"ab"),
        WebSocketMessage(CLOSE, b""),
    ]
    with pytest.raises(WebSocketError):
        list(reader.feed(masked(BINARY, b"x")))


@pytest.mark.parametrize(
    "data",
    [
        frame(BINARY, bytes(101)),
        b"\x82\x7f" + b"\xff" * 8,  # its length alone is refused
        b"\x02\x64" + bytes(100) + b"\x00\x01\x00",  # in fragments
        b"\x00\x01x",  # the rest of nothing
        b"\x02\x01x" + frame(BINARY, b"x"),  # a message in another
        frame(3, b""),
        b"\x09\x01x",  # a PING in fragments
        frame(CLOSE, bytes(126)),
    ],
)
def test_what_a_server_must_not_send_is_refused(data: bytes) -> None:
    with pytest.raises(WebSocketError):
        list(WebSocketFrameReader(masked=False, limit=100).feed(data))


def test_empty_fragments_take_no_memory() -> None:
    reader = WebSocketFrameReader(masked=False, limit=100)
    assert list(reader.feed(b"\x02\x00" + b"\x00\x00" * 10_000 + b"\x80\x01x")) == [WebSocketMessage(BINARY, b"x")]
