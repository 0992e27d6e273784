"""HTTP/2 frames as a peer of any kind may send them, right or wrong, and what came back, frame by frame.

Nothing here checks what it writes, and nothing is taken from the package under test (RFC 9113 4, 6; HPACK by `hpack`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import hpack
from hpack.hpack import encode_integer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
ENDS = END_STREAM | END_HEADERS

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)

MAX_WINDOW = 2**31 - 1

Field = tuple[bytes, bytes]


class Frame(NamedTuple):
    """One frame that came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The payload as one integer: the code of a RST_STREAM, the increment of a WINDOW_UPDATE."""
        return int.from_bytes(self.payload, "big")

    @property
    def code(self) -> int:
        """The error code of a RST_STREAM or a GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload, "big")

    @property
    def ends(self) -> bool:
        return self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """`length`: what the header says, if that is to differ from the payload's size."""
    size = len(payload) if length is None else length
    return struct.pack(">IBI", size << 8 | kind, flags, stream) + payload


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *value) for value in values))


SETTINGS_ACK = frame(SETTINGS, ACK)


def ping(data: bytes = b"\0" * 8, flags: int = 0) -> bytes:
    return frame(PING, flags, 0, data)


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def rst_stream(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last: int = 0, code: int = NO_ERROR, text: bytes = b"", stream: int = 0) -> bytes:
    return frame(GOAWAY, 0, stream, struct.pack(">II", last, code) + text)


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream, payload)


def headers(stream: int, block: bytes, flags: int = ENDS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def continuation(stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(CONTINUATION, flags, stream, block)


def dependency(on: int, weight: int = 16, *, exclusive: bool = False) -> bytes:
    """The payload of PRIORITY, and what HEADERS with the flag begins with."""
    return struct.pack(">IB", on | exclusive << 31, weight - 1)


def priority(stream: int, on: int = 0, weight: int = 16, *, exclusive: bool = False) -> bytes:
    return frame(PRIORITY, 0, stream, dependency(on, weight, exclusive=exclusive))


def padded(payload: bytes, size: int) -> bytes:
    """A payload for the flag PADDED, with `size` bytes of padding."""
    return bytes((size,)) + payload + bytes(size)


# -- HPACK ---------------------------------------------------------------------------------------------------------


def string(value: bytes) -> bytes:
    return bytes(encode_integer(len(value), 7)) + value


def literal(name: bytes, value: bytes) -> bytes:
    """A field that does not enter the table, with its name written out (RFC 7541 6.2.2)."""
    return b"\x00" + string(name) + string(value)


def never_indexed(name: bytes, value: bytes) -> bytes:
    return b"\x10" + string(name) + string(value)


def indexing(name: bytes, value: bytes) -> bytes:
    """A field that enters the table, with its name written out (RFC 7541 6.2.1)."""
    return b"\x40" + string(name) + string(value)


def indexed(index: int) -> bytes:
    out = encode_integer(index, 7)
    out[0] |= 0x80
    return bytes(out)


def table_size(size: int) -> bytes:
    """A dynamic table size update (RFC 7541 6.3)."""
    out = encode_integer(size, 5)
    out[0] |= 0x20
    return bytes(out)


def huffman(value: bytes) -> bytes:
    coded: bytes = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    ).encode(value)
    out = encode_integer(len(coded), 7)
    out[0] |= 0x80
    return bytes(out) + coded


def fields(*pairs: Field) -> bytes:
    return b"".join(literal(*pair) for pair in pairs)


def request(
    *more: Field,
    method: bytes | None = b"GET",
    scheme: bytes | None = b"https",
    authority: bytes | None = b"k8s.test",
    path: bytes | None = b"/",
) -> bytes:
    """A request's block of literals; a pseudo-header field that is None is left out."""
    pseudo = ((b":method", method), (b":scheme", scheme), (b":authority", authority), (b":path", path))
    return fields(*((name, value) for name, value in pseudo if value is not None), *more)


GET = request()
POST = request(method=b"POST")


# -- what came -----------------------------------------------------------------------------------------------------


def parse(received: bytes) -> tuple[list[Frame], bytes]:
    """Return the whole frames, and the bytes behind them."""
    frames = []
    at = 0
    while len(received) - at >= 9:
        size_kind, flags, stream = struct.unpack_from(">IBI", received, at)
        end = at + 9 + (size_kind >> 8)
        if end > len(received):
            break
        frames.append(Frame(size_kind & 0xFF, flags, stream, received[at + 9 : end]))
        at = end
    return frames, received[at:]


def steps(sent: bytes) -> list[bytes]:
    """Return the frames one by one, those of a header block together, with what is no whole frame at the end."""
    frames, rest = parse(sent)
    found: list[bytes] = []
    at = 0
    within = False
    for one in frames:
        end = at + 9 + len(one.payload)
        if within:
            found[-1] += sent[at:end]
        else:
            found.append(sent[at:end])
        if one.kind in (HEADERS, CONTINUATION):
            within = not one.flags & END_HEADERS
        at = end
    if rest and within:
        found[-1] += rest
    elif rest:
        found.append(rest)
    return found


class Seen:
    """What a peer has received, in order; the header blocks are decoded as they come."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.heads: dict[int, list[list[Field]]] = {}  # stream: header lists, interim ones and trailers too
        self._decoder = hpack.Decoder(max_header_list_size=1 << 20)
        self._rest = b""
        self._block = b""

    def take(self, received: bytes) -> None:
        frames, self._rest = parse(self._rest + received)
        for one in frames:
            self.frames.append(one)
            if one.kind in (HEADERS, CONTINUATION):
                self._block += one.payload
                if one.flags & END_HEADERS:
                    head = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(self._block, raw=True)]
                    self.heads.setdefault(one.stream, []).append(head)
                    self._block = b""

    def of(self, kind: int, stream: int | None = None) -> list[Frame]:
        return [one for one in self.frames if one.kind == kind and stream in (None, one.stream)]

    def status(self, stream: int) -> int:
        """The status of the final response; 0 if there is none."""
        statuses = [int(value) for head in self.heads.get(stream, []) for name, value in head if name == b":status"]
        return statuses[-1] if statuses and statuses[-1] >= 200 else 0

    def body(self, stream: int) -> bytes:
        return b"".join(one.payload for one in self.of(DATA, stream))

    def ended(self, stream: int) -> bool:
        """Whether the stream's response came to its end in an orderly way."""
        return any(one.ends for one in self.frames if one.stream == stream)

    def reset(self, stream: int) -> int | None:
        """The code of the stream's RST_STREAM, None without one."""
        resets = self.of(RST_STREAM, stream)
        return resets[0].code if resets else None

    @property
    def resets(self) -> dict[int, int]:
        return {one.stream: one.code for one in self.of(RST_STREAM)}

    @property
    def goaway(self) -> int | None:
        """The code of the last GOAWAY, None without one."""
        sent = self.of(GOAWAY)
        return sent[-1].code if sent else None

    @property
    def settings(self) -> dict[int, int]:
        """The values of the first SETTINGS."""
        payload = next(one.payload for one in self.frames if one.kind == SETTINGS and not one.flags & ACK)
        return dict(struct.iter_unpack(">HI", payload))

    def ponged(self, payload: bytes) -> bool:
        return any(one.flags & ACK and one.payload == payload for one in self.of(PING))


def increments(frames: Iterable[Frame], stream: int) -> int:
    """The sum of the credit given for a stream, or for the connection (0)."""
    return sum(one.number for one in frames if one.kind == WINDOW_UPDATE and one.stream == stream)
