"""Message body framing of HTTP/1.1 (RFC 9112 sections 6 and 7). Pure: no reactor, no buffering.

A reader is fed bytes; it returns the content in them and the bytes after the end of the body. Content is passed on in
the pieces in which it arrives; only an incomplete line of chunk framing is buffered.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from mcproxy.http.head_rules import MAX_TRAILERS, may_pass_as_trailer
from mcproxy.http.messages import Header

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_FIELD_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")

#: Maximum of bytes of a chunk's size line with its extension.
MAX_SIZE_LINE: Final = 256


class FramingError(Exception):
    """The framing of a body is invalid; no byte after this point can be trusted."""


class BodyReader(Protocol):
    """Finds the end of a body."""

    complete: bool
    trailers: list[Header]

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the content in `data`, in order, and the bytes after the body's end. Raises FramingError."""


class LengthReader:
    """Reads a body of a known length of at least one byte."""

    __slots__ = ("_remaining", "complete", "trailers")

    def __init__(self, length: int) -> None:
        self._remaining = length
        self.complete = False
        self.trailers: list[Header] = []

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        size = len(data)
        if size < self._remaining:
            self._remaining -= size
            return [data], b""
        end = self._remaining
        self._remaining = 0
        self.complete = True
        return ([data], b"") if size == end else ([data[:end]], data[end:])


class UntilCloseReader:
    """Reads a response body that ends with its connection."""

    __slots__ = ("complete", "trailers")

    def __init__(self) -> None:
        self.complete = False
        self.trailers: list[Header] = []

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        return [data], b""


class ChunkedReader:
    """Reads a chunked body: (size line, data, CRLF)*; a last chunk of size 0; trailer fields; an empty line.

    Strict: sizes are plain hex digits, lines end in CRLF, extensions are skipped but must be printable.
    """

    __slots__ = ("_held", "_remaining", "_state", "complete", "trailers")

    def __init__(self) -> None:
        self._state = _SIZE
        self._remaining = 0  # bytes of the current chunk still to arrive
        self._held = b""  # an incomplete line
        self.complete = False
        self.trailers: list[Header] = []

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        pieces: list[bytes] = []
        if self._held:
            data = self._held + data
            self._held = b""
        position, end = 0, len(data)
        while position < end:
            if self._state == _DATA:
                stop = min(position + self._remaining, end)
                pieces.append(data[position:stop])
                self._remaining -= stop - position
                position = stop
                if not self._remaining:
                    self._state = _DATA_END
                continue
            if self._state == _DATA_END:
                if not b"\r\n".startswith(data[position : position + 2]):
                    raise FramingError("a chunk's data is longer than its size")
                if end - position < 2:
                    self._held = data[position:]
                    break
                position += 2
                self._state = _SIZE
                continue
            line_end = data.find(b"\n", position)
            line = data[position : line_end + 1] if line_end >= 0 else data[position:]
            self._check_line(line, line_end >= 0)
            if line_end < 0:
                self._held = line
                break
            position = line_end + 1
            self._take_line(line[:-2])
            if self.complete:
                break
        return pieces, data[position:] if self.complete else b""

    def _check_line(self, line: bytes, whole: bool) -> None:
        if len(line) > (MAX_SIZE_LINE if self._state == _SIZE else MAX_TRAILERS):
            raise FramingError("a line of the chunked body is too long")
        carriage_return = line.find(b"\r")
        if whole and (carriage_return < 0 or carriage_return != len(line) - 2):
            raise FramingError("a line of the chunked body does not end in CRLF")
        if not whole and carriage_return not in (-1, len(line) - 1):
            raise FramingError("a carriage return inside a line of the chunked body")

    def _take_line(self, line: bytes) -> None:
        if self._state == _SIZE:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise FramingError("malformed chunk size")
            self._remaining = int(match[1], 16)
            if self._remaining > 2**63 - 1:
                raise FramingError("malformed chunk size")
            self._state = _DATA if self._remaining else _TRAILERS
        elif not line:
            self.complete = True
        else:
            self._take_trailer(line)

    def _take_trailer(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise FramingError("malformed trailer field")
        self._remaining += len(line)  # while reading trailers: the number of their bytes so far
        if self._remaining > MAX_TRAILERS:
            raise FramingError("too many trailer fields")
        if may_pass_as_trailer(name):
            self.trailers.append((name, value))


_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)


def encode_chunk(data: bytes) -> bytes:
    """Return `data` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def encode_last_chunk(trailers: list[Header]) -> bytes:
    """Return the end of a chunked body with its trailer fields."""
    if not trailers:
        return b"0\r\n\r\n"
    return b"0\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % field for field in trailers])
