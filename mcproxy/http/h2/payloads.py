"""Payloads of received frames (RFC 9113 6): their layouts, and header blocks in several frames. Pure.

Errors are HTTP2ConnectionError.
"""

from __future__ import annotations

from typing import Final

from mcproxy.http.h2.frames import CONTINUATION, END_HEADERS, MAX_STREAM_ID, PADDED, PRIORITY_FLAG
from mcproxy.http.h2.h2_errors import ErrorCode, Flood, HTTP2ConnectionError, HTTP2StreamError

MAX_CONTINUATIONS: Final = 8
"""CONTINUATION frames of one header block that may carry little (CVE-2024-27316)."""

_MUCH: Final = 8192
"""Bytes of a header block that pay for one more."""


def without_padding(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return the bounds of a padded payload's content (RFC 9113 6.1)."""
    if start == stop:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
    if data[start] >= stop - start:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return start + 1, stop - data[start]


def header_fragment(flags: int, stream_id: int, data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return the bounds of the fragment in a HEADERS frame, without padding and priority (RFC 9113 6.2)."""
    if not stream_id:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
    if flags & PADDED:
        start, stop = without_padding(data, start, stop)
    if flags & PRIORITY_FLAG:
        if stop - start < 5:
            raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
        if int.from_bytes(data[start : start + 4], "big") & MAX_STREAM_ID == stream_id:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        start += 5
    return start, stop


def check_priority(stream_id: int, payload: bytes) -> None:
    """Check a PRIORITY frame; nothing else is done with it. Raises HTTP2StreamError, too."""
    if not stream_id:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
    if len(payload) != 5:
        raise HTTP2StreamError(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
    if int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
        raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")


def window_increment(payload: bytes) -> int:
    """Return the increment of a WINDOW_UPDATE; 0 is an error of the stream or the connection."""
    if len(payload) != 4:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
    return int.from_bytes(payload, "big") & MAX_STREAM_ID


def reset_code(payload: bytes) -> int:
    """Return the error code of an RST_STREAM."""
    if len(payload) != 4:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
    return int.from_bytes(payload, "big")


def check_ping(stream_id: int, payload: bytes) -> None:
    if stream_id:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
    if len(payload) != 8:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")


def goaway_fields(stream_id: int, payload: bytes) -> tuple[int, int, bytes]:
    """Return the last stream id, the error code and the debug data of a GOAWAY."""
    if stream_id:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
    if len(payload) < 8:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    return int.from_bytes(payload[:4], "big") & MAX_STREAM_ID, int.from_bytes(payload[4:8], "big"), payload[8:]


class HeaderBlock:
    """A header block whose CONTINUATION is to come (RFC 9113 4.3, 6.10), bounded; `flags` are of its HEADERS frame."""

    __slots__ = ("_fragments", "_frames", "_max_size", "_size", "flags", "stream_id")

    def __init__(self, stream_id: int, flags: int, fragment: bytes, max_size: int) -> None:
        """`max_size` is in bytes."""
        self.stream_id = stream_id
        self.flags = flags
        self._fragments = [fragment]
        self._size = len(fragment)
        self._frames = 0
        self._max_size = max_size

    def add(self, kind: int, flags: int, stream_id: int, payload: bytes) -> bytes | None:
        """Add the next frame of the connection; return the block if it is complete.

        Raises HTTP2ConnectionError for any other frame, and Flood for too many or too long ones.
        """
        if kind != CONTINUATION or stream_id != self.stream_id:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        self._frames += 1
        self._size += len(payload)
        if self._frames > MAX_CONTINUATIONS + self._size // _MUCH:
            raise Flood("continuation_flood", f"{self._frames} CONTINUATION frames for {self._size} bytes of a block")
        if self._size > self._max_size:
            raise Flood("large_header_block", f"a header block of more than {self._max_size} bytes")
        self._fragments.append(payload)
        return b"".join(self._fragments) if flags & END_HEADERS else None
