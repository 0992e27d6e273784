"""Encodes header blocks (RFC 7541), without state: it adds no entries to the peer's dynamic table.

So one encoder serves many connections, whatever table size their peers announce, and the length of a block reveals no
repetition of a field (CRIME; RFC 7541 7.1). Names and fields of the static table are encoded as indices. Every other
field is a never-indexed literal: a field that a peer has marked so must stay so (RFC 7541 6.2.3), but the encoder does
not know these marks. Strings are plain: a fifth longer than with Huffman's code, but cheaper to write and to read.

The encodings of recurring lines, and of recurring blocks of requests, are remembered. Credentials are not, except in
the last block with one, because every request to a cluster contains the proxy's own credential.
"""

from __future__ import annotations

from typing import Final

from mcproxy.http.h2.hpack.checked_field import SECRET_NAMES
from mcproxy.http.h2.hpack.remembered import Remembered
from mcproxy.http.h2.hpack.tables import NAME_INDEX, STATIC_TABLE
from mcproxy.http.messages import HOP_BY_HOP, Header

#: Sent once before the next block if the peer announces a HEADER_TABLE_SIZE below 4096: its decoder waits for a change
#: of the table's size. After this change to 0 no further one is needed (RFC 9113 4.3.1).
NO_TABLE: Final = b"\x20"

_NEVER_INDEXED: Final = 0x10
_PREFIX: Final = 15
_METHODS = {b"GET": b"\x82", b"POST": b"\x83"}
_SCHEMES = {b"http": b"\x86", b"https": b"\x87"}
_STATUSES = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}
_NONE: dict[bytes, bytes] = {}
#: The octets of the static table's fields, by name and value.
_INDEXED = {
    name: {
        value: b"%c" % (0x80 | index) for index, (other, value) in enumerate(STATIC_TABLE) if other == name and value
    }
    for name, value in STATIC_TABLE
    if value
}
# Connection-specific fields (RFC 9113 8.2.2). The engines remove them; this is the last check before HTTP/2.
_REMOVED = HOP_BY_HOP - {b"te"}
_MAX_LINE: Final = 1024
_MAX_BLOCK: Final = 4096


class HPACKEncoder:
    """Encodes for all connections of its owner."""

    __slots__ = ("_authorities", "_blocks", "_last_secret", "_lines", "_names")

    def __init__(self) -> None:
        self._lines: Remembered[bytes] = Remembered(1024, 256 * 1024, _MAX_LINE)
        self._names: Remembered[_Name] = Remembered(256, 128 * 1024, _MAX_LINE)
        self._blocks: Remembered[bytes] = Remembered(512, 512 * 1024, _MAX_BLOCK)
        self._authorities: Remembered[bytes] = Remembered(256, 64 * 1024, _MAX_LINE)
        self._last_secret = (b"", b"")  # a block with a credential, and its encoding

    def request(self, method: bytes, scheme: bytes, path: bytes, authority: bytes, blocks: tuple[bytes, ...]) -> bytes:
        """Return the header block of a request; `blocks` has the form of `RequestHead.fields`: lines "Name: value"."""
        size = len(path)
        host = self._authorities.recent.get(authority)
        if host is None:
            host = self._authorities.find_older(authority)
            if host is None:
                host = b"\x11" + _string(authority)
                self._authorities.add(authority, host)
        remembered = self._blocks.recent.get
        encoded = [
            _METHODS.get(method) or b"\x12" + _string(method),
            _SCHEMES[scheme],
            host,
            b"\x14%c%b" % (size, path) if size < 127 else b"\x14" + _string(path),
        ]
        secret, secret_encoded = self._last_secret
        for block in blocks:
            known = remembered(block)
            if known is None:
                known = secret_encoded if block == secret else self._block(block)
            encoded.append(known)
        return b"".join(encoded)

    def response(self, status: int, *blocks: bytes) -> bytes:
        """Return the header block of a final or interim response.

        A whole block of response fields hardly ever recurs (Date, ids), but its lines do.
        """
        encoded = [_STATUSES.get(status) or b"\x08\x03%03d" % status]
        remembered = self._lines.recent.get
        for block in blocks:
            for line in block[:-2].split(b"\r\n"):
                known = remembered(line)
                encoded.append(self._line(line) if known is None else known)
        return b"".join(encoded)

    def trailers(self, trailers: list[Header]) -> bytes:
        """Return the block of trailer fields."""
        return b"".join([self._name(name).field(value) for name, value in trailers])

    def _block(self, block: bytes) -> bytes:
        encoded = self._blocks.find_older(block)
        if encoded is not None:
            return encoded
        encoded = b""
        secret = False
        remembered = self._lines.recent.get
        for line in block[:-2].split(b"\r\n"):
            field = remembered(line)
            if field is None:
                field = self._line(line)
                secret = secret or self._name(line[: line.find(b":")]).secret
            encoded += field
        if not secret:
            self._blocks.add(block, encoded)
        elif len(block) <= _MAX_BLOCK:
            self._last_secret = block, encoded
        return encoded

    def _line(self, line: bytes) -> bytes:
        encoded = self._lines.find_older(line)
        if encoded is None:
            written, _, value = line.partition(b":")
            name = self._name(written)
            encoded = name.field(value.strip(b" \t"))
            if not name.secret:
                self._lines.add(line, encoded)
        return encoded

    def _name(self, written: bytes) -> _Name:
        """Return the prepared form of a name, looked up by its original spelling."""
        name = self._names.recent.get(written) or self._names.find_older(written)
        if name is None:
            name = _Name(written.lower())
            self._names.add(written, name)
        return name


class _Name:
    """A field's name, ready to be sent."""

    __slots__ = ("_encoded", "_indexed", "_left_out", "secret")

    def __init__(self, name: bytes) -> None:
        self.secret = name in SECRET_NAMES
        self._left_out = not name or name in _REMOVED
        self._indexed = _INDEXED.get(name, _NONE)
        index = NAME_INDEX.get(name)
        if index is None:
            self._encoded = b"%c%b" % (_NEVER_INDEXED, _string(name))
        elif index < _PREFIX:
            self._encoded = b"%c" % (_NEVER_INDEXED | index)
        else:
            self._encoded = b"%c%c" % (_NEVER_INDEXED | _PREFIX, index - _PREFIX)

    def field(self, value: bytes) -> bytes:
        """Return the field with this name and a value."""
        if self._left_out:
            return b""
        return self._indexed.get(value) or self._encoded + _string(value)


def content_length(size: int) -> bytes:
    """Return the field content-length, to be added to a header block."""
    digits = b"%d" % size
    return b"\x1f\x0d%c%b" % (len(digits), digits)


def _string(value: bytes) -> bytes:
    """Return a string without Huffman's code (RFC 7541 5.2)."""
    size = len(value)
    if size < 127:
        return b"%c%b" % (size, value)
    size -= 127
    if size < 128:
        return b"\x7f%c%b" % (size, value)
    if size < 16384:
        return b"\x7f%c%c%b" % (size & 127 | 128, size >> 7, value)
    out = bytearray(b"\x7f")
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + value
