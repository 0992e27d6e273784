"""The layout of frames (RFC 9113 4.1 and 6): types, flags, the header, and the bytes of those that we send."""

from __future__ import annotations

from struct import Struct
from typing import Final

#: What a client sends first (RFC 9113 3.4).
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

# Flags; which frame types have which: RFC 9113 6.
END_STREAM: Final = 0x1
ACK: Final = 0x1  # of SETTINGS and PING
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

#: Size of a frame's header in bytes.
HEADER_SIZE: Final = 9
#: A frame's header as three numbers: length << 8 | type, flags, stream id. The reserved bit of a received stream id
#: must be masked (RFC 9113 4.1).
HEADER = Struct(">IBI")
#: The greatest payload that any peer accepts, and the greatest that we announce (bytes; RFC 9113 4.2).
MAX_FRAME: Final = 16384
MAX_STREAM_ID: Final = 2**31 - 1
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65535

_TWO_INTS = Struct(">II")


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return HEADER.pack(len(payload) << 8 | frame_type, flags, stream_id) + payload


def header_frames(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """Return a header block as HEADERS and, if it is longer than a frame, CONTINUATION (RFC 9113 6.2, 6.10)."""
    size = len(block)
    flags = END_STREAM if end_stream else 0
    if size <= MAX_FRAME:
        return HEADER.pack(size << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    pieces = [frame(HEADERS, flags, stream_id, block[:MAX_FRAME])]
    for start in range(MAX_FRAME, size, MAX_FRAME):
        last = END_HEADERS if start + MAX_FRAME >= size else 0
        pieces.append(frame(CONTINUATION, last, stream_id, block[start : start + MAX_FRAME]))
    return b"".join(pieces)


def rst_stream(stream_id: int, code: int) -> bytes:
    return HEADER.pack(4 << 8 | RST_STREAM, 0, stream_id) + code.to_bytes(4, "big")


def window_update(stream_id: int, increment: int) -> bytes:
    return HEADER.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id) + increment.to_bytes(4, "big")


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    """Return a PING; `payload` has 8 bytes."""
    return HEADER.pack(8 << 8 | PING, ACK if ack else 0, 0) + payload


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_INTS.pack(last_stream_id, code) + debug)
