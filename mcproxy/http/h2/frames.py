"""HTTP/2 frames (RFC 9113 4 to 7): types, flags, header, error codes, SETTINGS, payloads, and encoding.

Pure. Violations by a peer raise HTTP2ConnectionError or HTTP2StreamError.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

#: The client's connection preface (RFC 9113 3.4).
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

# Flags. RFC 9113 6 defines which frame types have them.
END_STREAM: Final = 0x1
ACK: Final = 0x1  # for SETTINGS and PING
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

#: Size of a frame's header in bytes.
HEADER_SIZE: Final = 9
#: A frame's header as three numbers: length << 8 | type, flags, stream id. The reserved bit must be masked in a
#: received stream id (RFC 9113 4.1).
HEADER = Struct(">IBI")
#: Maximum payload in bytes that every peer accepts, and that mcproxy announces (RFC 9113 4.2).
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


# Error codes of HTTP/2, and the two kinds of errors: of the connection and of a stream (RFC 9113 5.4 and 7).


class ErrorCode:
    """The codes of RST_STREAM and GOAWAY (RFC 9113 7), as plain ints."""

    NO_ERROR: Final = 0x0
    PROTOCOL_ERROR: Final = 0x1
    INTERNAL_ERROR: Final = 0x2
    FLOW_CONTROL_ERROR: Final = 0x3
    SETTINGS_TIMEOUT: Final = 0x4
    STREAM_CLOSED: Final = 0x5
    FRAME_SIZE_ERROR: Final = 0x6
    REFUSED_STREAM: Final = 0x7
    CANCEL: Final = 0x8
    COMPRESSION_ERROR: Final = 0x9
    CONNECT_ERROR: Final = 0xA
    ENHANCE_YOUR_CALM: Final = 0xB
    INADEQUATE_SECURITY: Final = 0xC
    HTTP_1_1_REQUIRED: Final = 0xD


_NAMES = {code: name for name, code in vars(ErrorCode).items() if name.isupper()}


def code_name(code: int) -> str:
    """Return the name of an error code for the log, or the number of an unknown code."""
    return _NAMES.get(code) or f"0x{code:x}"


class HTTP2ConnectionError(Exception):
    """The connection ends with GOAWAY and this code (RFC 9113 5.4.1); `cause` is for the log and the debug data."""

    def __init__(self, code: int, cause: str) -> None:
        super().__init__(f"{code_name(code)}: {cause}")
        self.code = code
        self.cause = cause


class Flood(HTTP2ConnectionError):
    """The peer floods the connection; `kind` is the kind of flood in the counts."""

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, cause)
        self.kind = kind


class HTTP2StreamError(Exception):
    """The stream ends with RST_STREAM and this code (RFC 9113 5.4.2); `cause` is for the log."""

    def __init__(self, code: int, cause: str) -> None:
        super().__init__(f"{code_name(code)}: {cause}")
        self.code = code
        self.cause = cause


# SETTINGS (RFC 9113 6.5): identifiers, encoding, and the checks of a peer's values.

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6
ENABLE_CONNECT_PROTOCOL: Final = 0x8  # RFC 8441
NO_RFC7540_PRIORITIES: Final = 0x9  # RFC 9218

_LARGEST_FRAME = 2**24 - 1
_SETTING = Struct(">HI")

#: The acknowledgement of the peer's SETTINGS.
SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def encode_settings(settings: list[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(*setting) for setting in settings]))


def decode_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield identifier and value of each setting in the payload of a frame without ACK, in order.

    Settings with unknown identifiers are yielded too; the caller must ignore them. Raises HTTP2ConnectionError before
    the first setting if the size is no multiple of 6, and at a value that RFC 9113 6.5.2 forbids.
    """
    if len(payload) % _SETTING.size:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a size that is no multiple of 6")
    return _checked_settings(payload)


def _checked_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    for identifier, value in _SETTING.iter_unpack(payload):
        if identifier == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise HTTP2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
        elif identifier == MAX_FRAME_SIZE:
            if not MAX_FRAME <= value <= _LARGEST_FRAME:
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}")
        elif identifier in (ENABLE_PUSH, ENABLE_CONNECT_PROTOCOL, NO_RFC7540_PRIORITIES) and value > 1:
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"setting {identifier} is {value}, neither 0 nor 1")
        yield identifier, value


# Payloads of received frames (RFC 9113 6): their layouts, and header blocks in several frames.

MAX_CONTINUATIONS: Final = 8
"""Maximum of CONTINUATION frames of a small header block (CVE-2024-27316)."""

_MUCH: Final = 8192
"""Bytes of a header block that permit one more CONTINUATION frame."""


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
    """Check a PRIORITY frame, which has no other effect. Also raises HTTP2StreamError."""
    if not stream_id:
        raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
    if len(payload) != 5:
        raise HTTP2StreamError(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
    if int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
        raise HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")


def window_increment(payload: bytes) -> int:
    """Return the increment of a WINDOW_UPDATE; the caller must treat 0 as an error of the stream or connection."""
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
    """A bounded header block that awaits CONTINUATION (RFC 9113 4.3, 6.10); `flags` are those of its HEADERS frame."""

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
