"""The bytes of frames and settings: `hyperframe` reads what is written, and what a peer may not send in SETTINGS."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from mcproxy.http.h2 import frames
from mcproxy.http.h2.frames import ErrorCode, HTTP2ConnectionError, HTTP2StreamError


def read(data: bytes) -> list[Frame]:
    result = []
    while data:
        frame, size = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + size]))
        result.append(frame)
        data = data[9 + size :]
    return result


@pytest.mark.parametrize("end_stream", [False, True])
@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 32768, 32769, 60_000])
def test_a_header_block_is_one_frame_or_several(size: int, end_stream: bool) -> None:
    block = bytes(number % 251 for number in range(size))
    first, *more = read(frames.header_frames(7, block, end_stream=end_stream))
    assert isinstance(first, HeadersFrame)
    assert all(isinstance(frame, ContinuationFrame) for frame in more)
    assert b"".join(frame.data for frame in [first, *more]) == block  # type: ignore[attr-defined]
    assert ("END_STREAM" in first.flags) is end_stream
    assert ["END_HEADERS" in frame.flags for frame in [first, *more]] == [False] * len(more) + [True]
    assert {frame.stream_id for frame in [first, *more]} == {7}
    assert len(more) == max(0, (size - 1) // 16384)


def test_single_frames() -> None:
    data = b"".join(
        [
            frames.rst_stream(5, ErrorCode.CANCEL),
            frames.window_update(0, 2**31 - 1),
            frames.ping(b"12345678"),
            frames.ping(b"12345678", ack=True),
            frames.goaway(2**31 - 1, ErrorCode.NO_ERROR, b"why"),
            frames.encode_settings([(frames.INITIAL_WINDOW_SIZE, 65536), (frames.ENABLE_PUSH, 0)]),
            frames.SETTINGS_ACK,
        ]
    )
    reset, window, ping, pong, goaway, values, acknowledgement = read(data)
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (5, 8)
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (0, 2**31 - 1)
    assert isinstance(ping, PingFrame)
    assert isinstance(pong, PingFrame)
    assert (ping.opaque_data, list(ping.flags), list(pong.flags)) == (b"12345678", [], ["ACK"])
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code, goaway.additional_data) == (2**31 - 1, 0, b"why")
    assert isinstance(values, SettingsFrame)
    assert values.settings == {4: 65536, 2: 0}
    assert isinstance(acknowledgement, SettingsFrame)
    assert list(acknowledgement.flags) == ["ACK"]


class TestSettings:
    def test_what_is_encoded_is_decoded(self) -> None:
        values = [(1, 4096), (2, 0), (3, 250), (4, 65535), (5, 16384), (6, 65536), (8, 1), (9, 1), (0x4242, 7)]
        assert list(frames.decode_settings(frames.encode_settings(values)[9:])) == values

    @pytest.mark.parametrize(
        ("identifier", "value", "code"),
        [
            (frames.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
            (frames.ENABLE_CONNECT_PROTOCOL, 2, ErrorCode.PROTOCOL_ERROR),
            (frames.NO_RFC7540_PRIORITIES, 2**32 - 1, ErrorCode.PROTOCOL_ERROR),
            (frames.INITIAL_WINDOW_SIZE, 2**31, ErrorCode.FLOW_CONTROL_ERROR),
            (frames.MAX_FRAME_SIZE, 16383, ErrorCode.PROTOCOL_ERROR),
            (frames.MAX_FRAME_SIZE, 2**24, ErrorCode.PROTOCOL_ERROR),
        ],
    )
    def test_values_that_no_peer_may_send(self, identifier: int, value: int, code: int) -> None:
        with pytest.raises(HTTP2ConnectionError) as caught:
            list(frames.decode_settings(frames.encode_settings([(identifier, value)])[9:]))
        assert caught.value.code == code

    @pytest.mark.parametrize(
        ("identifier", "value"),
        [
            (frames.HEADER_TABLE_SIZE, 2**32 - 1),
            (frames.ENABLE_PUSH, 1),
            (frames.MAX_CONCURRENT_STREAMS, 0),
            (frames.INITIAL_WINDOW_SIZE, 2**31 - 1),
            (frames.MAX_FRAME_SIZE, 2**24 - 1),
            (0xFFFF, 2**32 - 1),
        ],
    )
    def test_values_at_the_bounds(self, identifier: int, value: int) -> None:
        assert list(frames.decode_settings(frames.encode_settings([(identifier, value)])[9:])) == [(identifier, value)]

    @pytest.mark.parametrize("size", [1, 5, 7, 11])
    def test_a_size_that_is_no_multiple_of_6(self, size: int) -> None:
        with pytest.raises(HTTP2ConnectionError) as caught:
            frames.decode_settings(bytes(size))
        assert caught.value.code == ErrorCode.FRAME_SIZE_ERROR


def test_errors_have_their_code_in_the_text() -> None:
    assert str(HTTP2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too much")) == "ENHANCE_YOUR_CALM: too much"
    assert str(HTTP2StreamError(0x99, "odd")) == "0x99: odd"
