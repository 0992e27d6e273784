"""The frames between a worker and the keeper. Pure.

    length of the payload (4 bytes) | kind (1) | stream (8) | payload         integers are little-endian

A stream is one request to an aggregate or one access review; the worker numbers the streams. A frame is applied
completely or not at all, so whole events of a watch never arrive in part, even if the connection breaks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

_HEADER = Struct("<IBQ")
_COUNT = Struct("<I")
_ID = "Q"
_MAX_PAYLOAD = 1 << 30
HEADER_SIZE = _HEADER.size


class FrameType:
    """The types of frames. Payloads are those of `wire`, unless noted."""

    # worker to keeper
    OPEN: Final = 1  # Opened: a request
    BODY: Final = 2  # bytes of its body
    BODY_END: Final = 3  # Trailers
    CANCEL: Final = 4  # the client has disconnected; the stream is no longer needed
    PAUSE: Final = 5  # the client reads slowly
    RESUME: Final = 6
    DECIDED: Final = 7  # Decision: the answer to DECIDE
    REVIEW: Final = 8  # Review: does a member allow a user's read?
    # keeper to worker
    RESPOND: Final = 32  # Response
    WHOLE: Final = 33  # Whole: a response with its body; the last frame
    DATA: Final = 34  # bytes of the response
    SHARED: Final = 35  # the same bytes for several streams (`encode_shared`); the stream is 0
    END: Final = 36  # Trailers: the response is complete; the last frame
    ABORT: Final = 37  # the access log's reason: the response is broken off; the last frame
    INTERIM: Final = 38  # Interim
    REFUSE: Final = 39  # Refusal: no response, the worker refuses the request; the last frame
    FORWARD: Final = 40  # Forwarding: the worker forwards the request to a member; the last frame
    READ_BODY: Final = 41  # send the request's body
    PAUSE_BODY: Final = 42
    RESUME_BODY: Final = 43
    NOTE: Final = 44  # Note: for the access log
    LASTING: Final = 45  # the response is a watch: session limits apply, and it can end between any two frames
    DECIDE: Final = 46  # a number: decide about the members again
    REVIEWED: Final = 47  # Reviewed: the last frame of a review
    SERVING: Final = 48  # the keeper has a configuration in force: send requests now; the stream is 0


class FrameError(Exception):
    """The peer violates the protocol: this is a bug, or the peer is another version of this program."""


def encode(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEADER.pack(len(payload), kind, stream) + payload


def header(kind: int, stream: int, size: int) -> bytes:
    """Return the header of a frame whose payload of `size` bytes follows it."""
    return _HEADER.pack(size, kind, stream)


def encode_shared(streams: Sequence[int], data: bytes) -> bytes:
    """Return a SHARED frame: `data` for all of `streams`."""
    ids = array(_ID, streams).tobytes()
    size = _COUNT.size + len(ids) + len(data)
    return b"%b%b%b%b" % (_HEADER.pack(size, FrameType.SHARED, 0), _COUNT.pack(len(streams)), ids, data)


def decode_shared(payload: bytes) -> tuple[Sequence[int], bytes]:
    """Return the streams and the bytes of a SHARED frame. Raises FrameError."""
    streams = array(_ID)
    count = _COUNT.unpack_from(payload)[0] if len(payload) >= _COUNT.size else -1
    begin = _COUNT.size + count * streams.itemsize
    if count < 0 or begin > len(payload):
        raise FrameError("a shared frame is too short")
    streams.frombytes(payload[_COUNT.size : begin])
    return streams, payload[begin:]


class KeeperFrameReader:
    """Splits received data into frames; a payload that arrives in pieces is copied once."""

    __slots__ = ("_begun", "_missing", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self._begun: tuple[int, int] | None = (
            None  # the frame with an incomplete payload; None: the pieces begin a header
        )
        self._missing = 0  # bytes of that payload

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the frames that are complete with `data`: kind, stream, payload. Raises FrameError."""
        position = 0
        pieces, begun = self._pieces, self._begun
        if begun is not None:
            position = self._missing
            if len(data) < position:
                pieces.append(data)
                self._missing -= len(data)
                return
            pieces.append(memoryview(data)[:position])
            self._pieces, self._begun = [], None
            yield *begun, b"".join(pieces)
        elif pieces:
            data = b"".join((*pieces, data))
            self._pieces = []
        end = len(data)
        while end - position >= HEADER_SIZE:
            length, kind, stream = _HEADER.unpack_from(data, position)
            if length > _MAX_PAYLOAD:
                raise FrameError(f"a frame of {length} bytes")
            begin = position + HEADER_SIZE
            position = begin + length
            if position > end:
                self._begun, self._missing, self._pieces = (kind, stream), position - end, [memoryview(data)[begin:]]
                return
            yield kind, stream, data[begin:position]
        if position < end:
            self._pieces = [data[position:]]
