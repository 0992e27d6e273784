"""SETTINGS (RFC 9113 6.5): identifiers, encoding, and the values that a peer may send."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from mcproxy.http.h2.frames import ACK, MAX_FRAME, MAX_WINDOW, SETTINGS, frame
from mcproxy.http.h2.h2_errors import ErrorCode, HTTP2ConnectionError

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
ACKNOWLEDGEMENT = frame(SETTINGS, ACK, 0)


def encode(settings: list[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(*setting) for setting in settings]))


def decode(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield identifier and value of each setting in the payload of a frame without ACK, in their order.

    Those with an unknown identifier are yielded too and to be ignored. Raises HTTP2ConnectionError before the first one
    for a size that is no multiple of 6, and at a value that RFC 9113 6.5.2 forbids.
    """
    if len(payload) % _SETTING.size:
        raise HTTP2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a size that is no multiple of 6")
    return _checked(payload)


def _checked(payload: bytes) -> Iterator[tuple[int, int]]:
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
