"""Kubernetes protobuf on the wire: the envelope, and edits of metadata that need no schema. Pure.

Sources: the protobuf encoding guide; k8s.io/apimachinery `pkg/runtime/serializer/protobuf` (the magic number and the
envelope, `runtime.Unknown`), `pkg/apis/meta/v1/generated.proto` for the field numbers. Every object has its ObjectMeta
in field 1. What is not edited stays byte for byte. As in Go the last of repeated strings applies and repeated messages
are merged, so an edit changes each of them. Bodies are not trusted: malformed ones, and those with so many fields that
reading them would hold up others, raise `Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from mcproxy.kube.metadata_edit import MetadataEdit

MAGIC = b"k8s\x00"

# Field numbers.
UNKNOWN_TYPE_META, UNKNOWN_RAW = 1, 2
TYPE_API_VERSION, TYPE_KIND = 1, 2
OBJECT_META = 1
META_NAME, META_RESOURCE_VERSION, META_LABELS, META_ANNOTATIONS = 1, 6, 11, 12
ENTRY_KEY, ENTRY_VALUE = 1, 2

DELETE_OPTIONS_VERSION = (2, 2)
"""Path of `preconditions.resourceVersion` in a DeleteOptions."""
EVICTION_VERSION = (2, 2, 2)
"""Path of `deleteOptions.preconditions.resourceVersion` in an Eviction."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_NUMBER = (1 << 29) - 1  # Go cuts a number to 32 bits, so a greater one could stand for a small one
_MAX_FIELDS = 100_000  # of one message; reading them takes 50 ms


class Malformed(ValueError):
    """The bytes are no protobuf, no envelope of Kubernetes, or more than is read."""


class Field(NamedTuple):
    """One field of a message: number, wire type, and its offsets in the scanned bytes."""

    number: int
    wire: int
    begin: int  # of its tag
    content: int  # of its value; behind the length if it has one
    end: int


class Envelope(NamedTuple):
    """An envelope: what it says of the object, and the offsets of the field that holds the object."""

    api_version: str
    kind: str
    raw: Field


def scan(message: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message in `message[begin:end]`. Raises Malformed."""
    position = begin
    end = len(message) if end is None else end
    count = 0
    while position < end:
        count += 1
        if count > _MAX_FIELDS:
            raise Malformed(f"more than {_MAX_FIELDS} fields in one message")
        start = position
        tag, position = _varint(message, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_NUMBER:
            raise Malformed("no such field number")
        content = position
        if wire == _VARINT:
            _, position = _varint(message, position, end)
        elif wire == _BYTES:
            size, content = _varint(message, position, end)
            position = content + size
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise Malformed(f"wire type {wire}")
        if position > end:
            raise Malformed("truncated")
        yield Field(number, wire, start, content, position)


def values(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message: an integer for a varint, else bytes. Raises Malformed."""
    for number, wire, _, content, end in scan(message):
        yield number, _varint(message, content, end)[0] if wire == _VARINT else message[content:end]


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_bytes(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(content)) + content


def envelope(body: bytes) -> Envelope:
    """Return what an envelope holds. Raises Malformed."""
    if not body.startswith(MAGIC):
        raise Malformed("the body has no k8s envelope")
    api_version = kind = ""
    raw: Field | None = None
    for field in scan(body, len(MAGIC)):
        if field.number == UNKNOWN_TYPE_META:
            _expect_bytes(field)
            for part in scan(body, field.content, field.end):
                if part.number in (TYPE_API_VERSION, TYPE_KIND):
                    _expect_bytes(part)
                    text = _text(body[part.content : part.end])
                    if part.number == TYPE_KIND:
                        kind = text
                    else:
                        api_version = text
        elif field.number == UNKNOWN_RAW:
            _expect_bytes(field)
            raw = field
    if raw is None:
        raise Malformed("the envelope holds no object")
    return Envelope(api_version, kind, raw)


def edit_metadata(body: bytes, edit: MetadataEdit) -> bytes:
    """Return the envelope `body` with the metadata of its object edited. Raises Malformed."""
    return _edit_raw(body, lambda raw: _edit_object(raw, edit))


def change_string(body: bytes, path: tuple[int, ...], change: Callable[[str], str]) -> bytes:
    """Return the envelope `body` with the strings at a path of field numbers in its object changed. Raises Malformed.

    Where there is none, none is added.
    """
    return _edit_raw(body, lambda raw: _change_below(raw, path, change))


def metadata_of(body: bytes) -> tuple[dict[str, str], str]:
    """Return the labels and the resourceVersion of an envelope's object. Raises Malformed."""
    raw = envelope(body).raw
    labels: dict[str, str] = {}
    version = ""
    for field in scan(body, raw.content, raw.end):
        if field.number != OBJECT_META:
            continue
        _expect_bytes(field)
        for part in scan(body, field.content, field.end):
            if part.number == META_RESOURCE_VERSION:
                _expect_bytes(part)
                version = _text(body[part.content : part.end])
            elif part.number == META_LABELS:
                _expect_bytes(part)
                entry = dict(values(body[part.content : part.end]))
                labels[_string(entry.get(ENTRY_KEY, b""))] = _string(entry.get(ENTRY_VALUE, b""))
    return labels, version


def name_of(body: bytes) -> str:
    """Return the name of an envelope's object, "" if it has none. Raises Malformed."""
    raw = envelope(body).raw
    name = ""
    for field in scan(body, raw.content, raw.end):
        if field.number != OBJECT_META:
            continue
        _expect_bytes(field)
        for part in scan(body, field.content, field.end):
            if part.number == META_NAME:
                _expect_bytes(part)
                name = _text(body[part.content : part.end])
    return name


def _edit_raw(body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    raw = envelope(body).raw
    before = body[raw.content : raw.end]
    after = change(before)
    if after == before:
        return body
    return body[: raw.begin] + encode_bytes(UNKNOWN_RAW, after) + body[raw.end :]


def _edit_object(raw: bytes, edit: MetadataEdit) -> bytes:
    fields = list(scan(raw))
    found = [field for field in fields if field.number == OBJECT_META]
    if not found:
        added = _edit_meta(b"", edit, last=True)
        return encode_bytes(OBJECT_META, added) + raw if added else raw

    def changed(field: Field) -> bytes:
        if field.number != OBJECT_META:
            return raw[field.begin : field.end]
        _expect_bytes(field)
        before = raw[field.content : field.end]
        after = _edit_meta(before, edit, last=field is found[-1])
        return raw[field.begin : field.end] if after == before else encode_bytes(OBJECT_META, after)

    return b"".join(map(changed, fields))


def _edit_meta(meta: bytes, edit: MetadataEdit, *, last: bool) -> bytes:
    """Return an edited ObjectMeta; values are only set in the `last` one, removed in all."""
    maps: dict[int, Mapping[str, str | None]] = {META_LABELS: edit.labels, META_ANNOTATIONS: edit.annotations}
    parts: list[tuple[int, bytes]] = []  # by field number
    for field in scan(meta):
        if field.number in maps:
            _expect_bytes(field)
            key = _string(dict(values(meta[field.content : field.end])).get(ENTRY_KEY, b""))
            if key in maps[field.number]:
                continue
        elif field.number == META_RESOURCE_VERSION and edit.resource_version is not None:
            _expect_bytes(field)
            before = _text(meta[field.content : field.end])
            after = edit.resource_version(before)
            if after != before:
                parts.append((field.number, encode_bytes(field.number, after.encode())))
                continue
        parts.append((field.number, meta[field.begin : field.end]))
    if last:
        for number, changes in maps.items():
            entries = [(number, _entry(number, key, value)) for key, value in changes.items() if value is not None]
            # Behind the fields with lower numbers, where Go's encoder puts them.
            index = next((at for at, (other, _) in enumerate(parts) if other > number), len(parts))
            parts[index:index] = entries
    return b"".join(part for _, part in parts)


def _entry(number: int, key: str, value: str) -> bytes:
    return encode_bytes(number, encode_bytes(ENTRY_KEY, key.encode()) + encode_bytes(ENTRY_VALUE, value.encode()))


def _change_below(message: bytes, path: tuple[int, ...], change: Callable[[str], str]) -> bytes:
    parts = []
    for field in scan(message):
        whole = message[field.begin : field.end]
        if field.number == path[0]:
            _expect_bytes(field)
            before = message[field.content : field.end]
            after = _change_below(before, path[1:], change) if len(path) > 1 else change(_text(before)).encode()
            if after != before:
                whole = encode_bytes(field.number, after)
        parts.append(whole)
    return b"".join(parts)


def _varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Malformed("truncated, or a varint of more than ten bytes")


def _expect_bytes(field: Field) -> None:
    if field.wire != _BYTES:
        raise Malformed(f"field {field.number} has wire type {field.wire}")


def _string(value: int | bytes) -> str:
    if isinstance(value, int):
        raise Malformed("an integer where a string should stand")
    return _text(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Malformed("a string that is no UTF-8") from None
