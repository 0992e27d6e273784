"""SPDY/3.1 framing."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.spdy_frames import (
    DICTIONARY,
    Data,
    GoAway,
    Ping,
    RstStream,
    SpdyError,
    SpdySession,
    SynReply,
    SynStream,
    WindowUpdate,
)

RECORDED = bytes.fromhex(
    "800300010000003e00000001000000000000"
    "78f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45e01c60616061c0c0c0c0590489c64c50f2663400000000ffff"
)
"""A SYN_STREAM of kubectl port-forward."""
HEADERS = {"streamtype": "error", "port": "8080", "requestid": "0"}


def test_the_header_dictionary_is_the_one_of_the_protocol() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_reads_what_kubectl_sends() -> None:
    assert list(SpdySession().feed(RECORDED)) == [SynStream(1, HEADERS, False)]


def test_reads_the_reply_that_it_writes() -> None:
    assert list(SpdySession().feed(SpdySession().syn_reply(1, HEADERS))) == [SynReply(1, HEADERS, False)]


@given(st.integers(0, 400))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cut: int) -> None:
    frames = [
        RECORDED,
        SpdySession.data(1, b"x" * 100),
        SpdySession.data(1, b"", fin=True),
        SpdySession.ping(7),
        SpdySession.window_update(1, 1000),
        SpdySession.reset(1, 5),
        SpdySession.go_away(1),
    ]
    whole = b"".join(frames)
    receiver = SpdySession()
    events: list[object] = []
    for event in (*receiver.feed(whole[:cut]), *receiver.feed(whole[cut:])):
        before = events[-1] if events else None
        if isinstance(event, Data) and isinstance(before, Data) and event.payload:  # two parts of one payload
            events[-1] = Data(event.stream, before.payload + event.payload, event.fin)
        else:
            events.append(event)
    assert events == [
        SynStream(1, HEADERS, False),
        Data(1, b"x" * 100, False),
        Data(1, b"", True),
        Ping(7),
        WindowUpdate(1, 1000),
        RstStream(1, 5),
        GoAway(1),
    ]


def test_a_payload_is_passed_on_as_it_arrives_and_ends_once() -> None:
    receiver = SpdySession()
    data = SpdySession.data(3, b"abc", fin=True)
    pieces = [event for byte in data for event in receiver.feed(bytes((byte,)))]
    assert pieces == [Data(3, b"a", False), Data(3, b"b", False), Data(3, b"c", True)]


def test_reads_the_stream_that_it_begins() -> None:
    client, server = SpdySession(), SpdySession()
    for number, headers in ((1, HEADERS), (3, HEADERS | {"streamtype": "data"})):
        assert list(server.feed(client.syn_stream(number, headers))) == [SynStream(number, headers, False)]


def test_headers_that_nobody_reads_keep_the_compression_in_step() -> None:
    """HEADERS have no event, but share the compression of all that follow."""
    sender, receiver = SpdySession(), SpdySession()
    frame = bytearray(sender.syn_reply(1, {"a": "b"}))
    frame[2:4] = b"\x00\x08"
    assert list(receiver.feed(bytes(frame))) == []
    assert list(receiver.feed(sender.syn_reply(1, {"a": "b"}))) == [SynReply(1, {"a": "b"}, False)]


def control(kind: int, payload: bytes) -> bytes:
    return b"\x80\x03" + kind.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload


def reply_with(block: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    return control(2, bytes(4) + packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH))


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_bytes_that_are_not_spdy_end_in_one_error_alone(pieces: list[bytes]) -> None:
    receiver = SpdySession()
    try:
        for piece in pieces:
            list(receiver.feed(piece))
    except SpdyError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02\x00\x01" + bytes(4),
        b"\x80\x03\x00\x01\x00\x00\x00\x0c" + b"x" * 12,
        b"\x80\x03\x00\x02\x00\x01\x00\x01",  # its length alone is refused
        reply_with(bytes(1 << 20)),  # expands
        reply_with(b"\xff\xff\xff\xff"),  # 4 billion headers
        reply_with(b"\x00\x00\x00\x01" + b"\xff\xff\xff\xff" + b"x"),
        control(4, b"\x7f\xff\xff\xff"),  # as many settings
        control(6, b"x"),
    ],
)
def test_what_is_not_spdy_is_refused(data: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdySession().feed(data))
