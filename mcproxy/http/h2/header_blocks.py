"""A header block in several frames: HEADERS and its CONTINUATION (RFC 9113 4.3, 6.10), bounded. Pure."""

from __future__ import annotations

from mcproxy.http.h2.errors import ErrorCode, Flood, HTTP2ConnectionError
from mcproxy.http.h2.frames import CONTINUATION, END_HEADERS

MAX_CONTINUATIONS = 8
"""CONTINUATION frames of one header block (CVE-2024-27316)."""


class HeaderBlock:
    """One that is not complete; `flags` are those of its HEADERS frame."""

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
        if self._frames > MAX_CONTINUATIONS:
            raise Flood("continuation_flood", f"a header block of more than {MAX_CONTINUATIONS} CONTINUATION frames")
        if self._size > self._max_size:
            raise Flood("large_header_block", f"a header block of more than {self._max_size} bytes")
        self._fragments.append(payload)
        return b"".join(self._fragments) if flags & END_HEADERS else None
