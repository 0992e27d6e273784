"""SPDY/3.1 framing."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.demo.streaming.spdy_frames import (
    DICTIONARY,
    Data,
    GoAway,
    Ping,
    Reset,
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
    events = [*receiver.feed(whole[:cut]), *receiver.feed(whole[cut:])]
    assert events == [
        SynStream(1, HEADERS, False),
        Data(1, b"x" * 100, False),
        Data(1, b"", True),
        Ping(7),
        WindowUpdate(1, 1000),
        Reset(1, 5),
        GoAway(1),
    ]


@pytest.mark.parametrize("data", [b"\x80\x02\x00\x01" + bytes(4), b"\x80\x03\x00\x01\x00\x00\x00\x0c" + b"x" * 12])
def test_what_is_not_spdy_is_refused(data: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdySession().feed(data))
