"""Decodes header blocks (RFC 7541), and checks every field (RFC 9113 8.2).

Repeated fields are neither decoded nor checked again. The dynamic table contains checked fields. A literal whose name
is new or from the static table does not depend on the dynamic table, so its field is remembered by the literal's bytes.
`:path` is not remembered, because it seldom recurs.

Most clients send the same block again and again, except for the path. So a connection remembers the results of some
blocks: of whole blocks, or of blocks without the literal of `:path` if that is not indexed (as in nghttp2 and
browsers). These results are valid only while the dynamic table is unchanged; a block that changes it clears them.

All connections with the same `Representations` share remembered fields. A field that the peer has marked as never
indexed, or whose name is that of a credential, is remembered only by its connection, as the entries of the dynamic
table are. So a connection's memory contains no foreign credential, and the time of a request reveals nothing of others'
credentials.
"""

from __future__ import annotations

from typing import Final, TypeVar

from mcproxy.http.h2.frames import ErrorCode, Flood, HTTP2ConnectionError
from mcproxy.http.h2.hpack.checked_field import (
    AUTHORITY,
    BAD_HOST,
    COOKIE,
    EXPECT,
    HOST,
    KINDS,
    LAST_PSEUDO,
    LENGTH,
    MALFORMED,
    METHOD,
    PATH,
    SECRET_NAMES,
    STATIC_FIELDS,
    CheckedField,
    checked,
    checked_path,
)
from mcproxy.http.h2.hpack.remembered import Remembered
from mcproxy.http.h2.hpack.tables import HuffmanError
from mcproxy.http.h2.hpack.tables import decode as huffman_decode
from mcproxy.http.head_rules import MAX_GROUP_LINES, counted_fields

K = TypeVar("K")
V = TypeVar("V")

#: The default of SETTINGS_HEADER_TABLE_SIZE, which mcproxy does not change (bytes as RFC 7541 4.1 counts them).
TABLE_SIZE: Final = 4096
#: A block that exceeds its limit by up to this many bytes (encoded and decoded) is still decoded, so that its request
#: gets a response. A larger block ends the connection. A kube-apiserver accepts heads of that size.
MAX_EXCESS: Final = 1024 * 1024
_MAX_UPDATES: Final = 2  # changes of the table's size at the beginning of a block (RFC 7541 4.2)
_MAX_SHIFT: Final = 21  # integers have at most 4 bytes after the prefix
_MAX_BLOCKS: Final = 8  # remembered blocks of each kind and connection
_MAX_BLOCK: Final = 256  # bytes of a remembered whole block; longer blocks have literals, so they seldom recur
_MAX_REQUEST: Final = 4096  # bytes of a remembered block without the literal of its path
# maximum of bytes of a remembered block's decoded fields: a few octets can encode as many fields as a head can have
_MAX_MEANING: Final = 8192
#: The fields of the static table by the octet that encodes them; there is no index 0 (RFC 7541 6.1).
_STATIC_BY_OCTET = {128 | index: field for index, field in enumerate(STATIC_FIELDS) if index}


class Representations(Remembered[CheckedField]):
    """Literals and their fields, shared by the connections of one owner."""

    __slots__ = ()

    def __init__(self, max_count: int = 2048, max_bytes: int = 1024 * 1024, max_key: int = 2048) -> None:
        super().__init__(max_count, max_bytes, max_key)


#: The memory of connections that have not remembered a field of their own yet.
_NOTHING = Representations(0, 0, -1)


class DecodedFields:
    """The fields of one block.

    `special` has a value or None for each kind of `checked_field`: values of pseudo-header and hop-by-hop fields, and
    the fault of the message in MALFORMED and BAD_HOST. `lines` are all other fields in order, b"name: value\\r\\n"
    each, or joined for a request; crumbs of `cookie` are joined to one field (RFC 9113 8.2.3). `oversize`: the exceeded
    limit, or None. Equal blocks can share an object, so it must not be changed.
    """

    __slots__ = ("lines", "oversize", "special")

    special: list[bytes | None]
    lines: list[bytes]
    oversize: str | None


class _RequestBlock:
    """The decoded fields of a block without the literal of its path, with their size (bytes) and number."""

    __slots__ = ("_count", "_lines", "_size", "_special")

    def __init__(self, fields: DecodedFields, size: int, count: int) -> None:
        self._special = fields.special
        self._lines = [b"".join(fields.lines)]  # joined once
        self._size = size
        self._count = count

    def with_path(self, path: CheckedField, max_size: int, max_fields: int) -> DecodedFields:
        """Return the fields of the block with a path. Raises Flood, as `HPACKDecoder.decode` does."""
        fields = DecodedFields()
        fields.special = special = self._special[:]
        special[PATH] = path[1]
        fields.lines = self._lines
        fields.oversize = _oversize(self._size + path[2], self._count, max_size, max_fields)
        return fields


class HPACKDecoder:
    """One direction of one connection: the peer's encoder determines the state of the dynamic table."""

    __slots__ = ("_blocks", "_limit", "_own", "_remembered", "_requests", "_size", "_table")

    def __init__(self, remembered: Representations) -> None:
        self._remembered = remembered
        self._own = _NOTHING  # the fields that only this connection may remember
        self._table: list[CheckedField] = []  # the dynamic table, the newest entry last
        self._size = 0  # size of the table
        self._limit = TABLE_SIZE  # maximum size of the table, chosen by the peer's encoder
        #: Decoded blocks, valid while the table does not change: whole blocks, and blocks around a path's literal.
        self._blocks: dict[bytes, DecodedFields] = {}
        self._requests: dict[tuple[bytes, bytes], _RequestBlock] = {}

    def decode(self, block: bytes, max_size: int, max_fields: int) -> DecodedFields:
        """Decode one complete block.

        A block that exceeds `max_size` (the sum of RFC 9113 10.5.1) or `max_fields` is `oversize`. It is still decoded
        to its end, so that the dynamic table stays equal to the peer's. Raises HTTP2ConnectionError: COMPRESSION_ERROR
        for a malformed or truncated block, Flood for a size that exceeds the limit by MAX_EXCESS. After an error the
        dynamic table differs from the peer's.
        """
        position, end = 0, len(block)
        blocks, requests = self._blocks, self._requests
        if blocks and end <= _MAX_BLOCK and (same := blocks.get(block)) is not None:
            return same
        special: list[bytes | None] = [None] * KINDS
        lines: list[bytes] = []
        add_line = lines.append
        table = self._table
        remembered = self._remembered.recent.get
        own = self._own.recent.get
        table_size = self._size
        table_limit = self._limit
        total = updates = 0
        others = 0  # number of hop-by-hop fields that are no pseudo-header fields
        decoded = 0  # number of fields that were not remembered, which cost the most time
        hard_fields = 2 * max_fields + MAX_GROUP_LINES
        crumbs: list[bytes] | None = None
        cookie_line = 0
        changes = False  # whether the block changes the table
        around: tuple[bytes, bytes] | None = None  # the parts of the block before and after the literal of its path
        path_size = 0
        try:
            if end > max_size:
                return self._excess(block, 0, special, max_size, f"the request head is longer than {max_size} bytes")
            while position < end:
                octet = block[position]
                if octet >= 128:  # indexed (RFC 7541 6.1)
                    if octet < 190:
                        field = _STATIC_BY_OCTET[octet]
                        position += 1
                    elif octet < 255:
                        field = table[189 - octet]
                        position += 1
                    else:
                        index, position = _integer(block, position, 127)
                        field = table[61 - index]
                elif octet & 0xE0 == 0x20:  # a change of the table's size (6.3)
                    limit, position = _integer(block, position, 31)
                    updates += 1
                    if limit > TABLE_SIZE or total or updates > _MAX_UPDATES:
                        raise HTTP2ConnectionError(ErrorCode.COMPRESSION_ERROR, "change of the dynamic table's size")
                    changes = True
                    table_limit = limit
                    while table_size > limit:
                        table_size -= table.pop(0)[2]
                    continue
                else:  # a literal (6.2)
                    start = position
                    if octet & 64:
                        index = octet & 63
                        position += 1
                        if index == 63:
                            index, position = _integer(block, start, 63)
                    else:
                        index = octet & 15
                        position += 1
                        if index == 15:  # a frequent case, usually with one further octet
                            index += block[position]
                            position += 1
                            if index >= 15 + 128:
                                index, position = _integer(block, start, 15)
                    if not index:
                        name_mark = block[position]
                        size = name_mark & 127
                        position += 1
                        if size == 127:
                            size, position = _integer(block, position - 1, 127)
                        name_start = position
                        position = name_end = position + size
                    value_mark = block[position]
                    size = value_mark & 127
                    position += 1
                    if size == 127:
                        size, position = _integer(block, position - 1, 127)
                    value_start = position
                    position += size
                    if position > end:
                        raise IndexError
                    if 3 < index < 6:
                        decoded += 1
                        value = block[value_start:position]
                        field = checked_path(huffman_decode(value) if value_mark & 128 else value)
                        if octet < 64 and not changes and field[0] == PATH:
                            around = block[:start], block[position:]
                            path_size = field[2]
                            request = requests.get(around)
                            if request is not None:
                                return request.with_path(field, max_size, max_fields)
                    elif index > 61:
                        decoded += 1
                        value = block[value_start:position]
                        field = checked(table[61 - index][3], huffman_decode(value) if value_mark & 128 else value)
                    else:
                        representation = block[start:position]
                        known = own(representation) if 15 < octet < 32 else remembered(representation)
                        if known is not None:
                            field = known
                        else:
                            decoded += 1
                            if index:
                                name = STATIC_FIELDS[index][3]
                            else:
                                name = block[name_start:name_end]
                                if name_mark & 128:
                                    name = huffman_decode(name)
                            value = block[value_start:position]
                            field = self._literal(representation, name, value, value_mark)
                    if decoded > hard_fields:
                        self._size = table_size
                        self._limit = table_limit
                        return self._excess(block, start, special, max_size, f"more than {max_fields} header fields")
                    if octet & 64:
                        changes = True
                        table.append(field)
                        table_size += field[2]
                        while table_size > table_limit:  # also removes a field that is larger than the table (4.4)
                            table_size -= table.pop(0)[2]
                kind, payload, size, _ = field
                total += size
                if kind is None:
                    add_line(payload)
                elif kind <= LAST_PSEUDO:
                    if lines or others or special[kind] is not None:
                        _set_malformed(special, b"a pseudo-header field twice, or behind other fields")
                    special[kind] = payload
                elif kind == COOKIE:
                    if crumbs is None:
                        crumbs = [payload]
                        cookie_line = len(lines)
                        add_line(b"")
                    else:
                        crumbs.append(payload)
                        others += 1
                else:
                    others += 1
                    if special[kind] is None:
                        special[kind] = payload
                    else:
                        _add_repeated(special, kind, payload)
        except LookupError:  # the block is truncated, or an index is 0 or beyond the table
            raise HTTP2ConnectionError(ErrorCode.COMPRESSION_ERROR, "malformed header block") from None
        except HuffmanError as error:
            raise HTTP2ConnectionError(ErrorCode.COMPRESSION_ERROR, f"malformed string: {error}") from None
        self._size = table_size
        self._limit = table_limit
        fields = DecodedFields()
        fields.special = special
        fields.lines = lines
        fields.oversize = None
        count = len(lines) + others + (special[AUTHORITY] is not None)  # counted as in HTTP/1.1
        if total > max_size or count > max_fields:
            if count > max_fields:
                count = counted_fields(count, b"\n" + b"".join(lines))
            fields.oversize = _oversize(total, count, max_size, max_fields)
        if crumbs is not None:  # only after the size check: each octet of 65,000 crumbs can encode 4 KiB of the table
            lines[cookie_line] = b"cookie: %b\r\n" % b"; ".join(crumbs)
        if changes:
            blocks.clear()
            requests.clear()
        elif total <= _MAX_MEANING and fields.oversize is None and special[MALFORMED] is None:
            if around is None:
                if end <= _MAX_BLOCK:
                    _put(blocks, block, fields)
            elif len(around[0]) + len(around[1]) <= _MAX_REQUEST:
                _put(requests, around, _RequestBlock(fields, total - path_size, count))
        return fields

    def _excess(
        self, block: bytes, position: int, special: list[bytes | None], max_size: int, cause: str
    ) -> DecodedFields:
        """Decode the rest of a block from `position` on, after the block was refused because of `cause`.

        Only changes of the table and the method, on which the response depends, are decoded. Raises as `decode` does.
        """
        self._blocks.clear()
        self._requests.clear()
        end, hard_size = len(block), max_size + MAX_EXCESS
        total = end if end > hard_size else 0
        updates = 0 if not position else _MAX_UPDATES
        while position < end and total <= hard_size:
            octet = block[position]
            if octet >= 128:
                index, position = _integer(block, position, 127)
                total += self._entry(index)[2]
                _note_method(special, self._entry(index))
                continue
            if octet & 0xE0 == 0x20:
                limit, position = _integer(block, position, 31)
                updates += 1
                if limit > TABLE_SIZE or total or updates > _MAX_UPDATES:
                    raise HTTP2ConnectionError(ErrorCode.COMPRESSION_ERROR, "change of the dynamic table's size")
                self._limit = limit
                self._evict()
                continue
            index, position = _integer(block, position, 63 if octet & 64 else 15)
            name = b""
            if index:
                name = self._entry(index)[3]
            else:
                start, position, coded = _string(block, position)
                name = block[start:position]
                if coded:
                    name = huffman_decode(name)
            start, position, coded = _string(block, position)
            total += 32 + len(name) + position - start
            if not octet & 64 and name != b":method":
                continue
            value = huffman_decode(block[start:position]) if coded else block[start:position]
            field = checked_path(value) if 3 < index < 6 else checked(name, value)
            _note_method(special, field)
            if octet & 64:
                self._table.append(field)
                self._size += field[2]
                self._evict()
        if total > hard_size:
            raise Flood("large_header_block", f"a header block of more than {hard_size} bytes")
        fields = DecodedFields()
        fields.special = special
        fields.lines = []
        fields.oversize = cause
        return fields

    def _entry(self, index: int) -> CheckedField:
        """Return an entry of the static or dynamic table. Raises IndexError."""
        if not index:
            raise IndexError
        return STATIC_FIELDS[index] if index < 62 else self._table[61 - index]

    def _evict(self) -> None:
        while self._size > self._limit:
            self._size -= self._table.pop(0)[2]

    def _literal(self, representation: bytes, name: bytes, value: bytes, value_mark: int) -> CheckedField:
        """Return the field of a literal that is not among the recently remembered ones, and remember it.

        `value_mark`: the octet before the value, which contains the Huffman bit.
        """
        own = self._own
        field = own.recent.get(representation) or own.find_older(representation)
        if field is None:
            field = self._remembered.find_older(representation)
        if field is not None:
            return field
        field = checked(name, huffman_decode(value) if value_mark & 128 else value)
        if name == b":path":
            return field
        if representation[0] & 0xF0 != 0x10 and name not in SECRET_NAMES:
            self._remembered.add(representation, field)
            return field
        if own is _NOTHING:
            own = self._own = Representations(max_count=32, max_bytes=32 * 1024, max_key=8 * 1024)
        own.add(representation, field)
        return field


def _put(blocks: dict[K, V], key: K, value: V) -> None:
    """Remember a block; if there are too many, forget the oldest one."""
    if len(blocks) >= _MAX_BLOCKS:
        del blocks[next(iter(blocks))]
    blocks[key] = value


def _oversize(size: int, count: int, max_size: int, max_fields: int) -> str | None:
    """Return the limit that fields exceed, or None. Raises Flood for far too many bytes."""
    if size > max_size:
        if size > max_size + MAX_EXCESS:
            raise Flood("large_header_block", f"a header block of more than {max_size + MAX_EXCESS} bytes when decoded")
        return f"the request head is longer than {max_size} bytes"
    return f"more than {max_fields} header fields" if count > max_fields else None


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return an integer whose prefix (RFC 7541 5.1) has the bits of `mask`, and the position after it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        octet = block[position]
        position += 1
        value += (octet & 127) << shift
        if octet < 128:
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            raise HTTP2ConnectionError(ErrorCode.COMPRESSION_ERROR, "an integer of too many bytes")


def _note_method(special: list[bytes | None], field: CheckedField) -> None:
    if field[0] == METHOD and special[METHOD] is None:
        special[METHOD] = field[1]


def _string(block: bytes, position: int) -> tuple[int, int, bool]:
    """Return the begin and the end of a string literal (RFC 7541 5.2), and whether it is Huffman-coded."""
    coded = block[position] >= 128
    size, start = _integer(block, position, 127)
    if start + size > len(block):
        raise IndexError
    return start, start + size, coded


def _set_malformed(special: list[bytes | None], cause: bytes) -> None:
    if special[MALFORMED] is None:
        special[MALFORMED] = cause


def _add_repeated(special: list[bytes | None], kind: int, payload: bytes) -> None:
    """Add a pseudo-header or hop-by-hop field that the block contains already."""
    if kind == LENGTH:
        _set_malformed(special, b"content-length twice")
    elif kind == HOST:
        special[BAD_HOST] = b"host twice"
    elif kind == EXPECT:
        special[EXPECT] = b"twice"
