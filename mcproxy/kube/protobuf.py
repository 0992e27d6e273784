"""Reads the envelope of Kubernetes' protobuf, and edits metadata in it without a schema. Pure.

Sources: the protobuf encoding guide; k8s.io/apimachinery `pkg/runtime/serializer/protobuf` (the magic number and the
envelope, `runtime.Unknown`), `pkg/apis/meta/v1/generated.proto` for the field numbers. Field 1 of every object is its
ObjectMeta. All other bytes are kept. As in Go, the last of repeated strings applies and repeated messages are merged.
But duplicate metadata, and duplicate fields in it, are refused. Bodies are not trusted: `MalformedProtobuf` is raised
for malformed bodies, and for bodies with so many fields that parsing would delay other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from mcproxy.kube.json_edit import MetadataEdit

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
SERVICE_SELECTOR = (2, 2)
"""Path of `spec.selector`, a map, in a Service."""

BYTES = 2
"""The wire type of length-delimited fields."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, BYTES, 5
_MAX_NUMBER = (1 << 29) - 1  # Go truncates a field number to 32 bits, so a greater one could mean a small one
_MAX_FIELDS = 10_000  # maximum of fields of a message that are skipped, in 5 ms
_MAX_PARTS = 1_000  # maximum of fields of a message that are parsed one by one, also in 5 ms
_MAX_ENVELOPE = 16  # maximum of fields of an envelope; Go writes four
_ONCE = {META_NAME: "metadata.name", META_RESOURCE_VERSION: "metadata.resourceVersion"}
_MAPS = {META_LABELS: "metadata.labels", META_ANNOTATIONS: "metadata.annotations"}


class MalformedProtobuf(ValueError):
    """The bytes are not protobuf, not a Kubernetes envelope, or beyond the limits."""


class Field(NamedTuple):
    """One field of a message: number, wire type, and its offsets in the scanned bytes."""

    number: int
    wire: int
    begin: int  # offset of the tag
    content: int  # offset of the value, after the length if there is one
    end: int


class Envelope(NamedTuple):
    """An envelope: the object's type, and the offsets of the field that holds the object."""

    api_version: str
    kind: str
    raw: Field


def only(number: int, message: bytes, begin: int = 0, end: int | None = None) -> list[Field]:
    """Return the fields with this number in the message `message[begin:end]`. Raises MalformedProtobuf."""
    found: list[Field] = []
    position = begin
    end = len(message) if end is None else end
    for _ in range(_MAX_FIELDS):
        if position >= end:
            return found
        start, tag = position, message[position]
        if tag & 0x87 == _BYTES and tag > _BYTES and start + 1 < end and message[start + 1] < 0x80:
            position = start + 2 + message[start + 1]  # nearly all fields have a short tag and a short length
            if position > end:
                raise MalformedProtobuf("truncated")
            if tag >> 3 == number:
                found.append(Field(number, _BYTES, start, start + 2, position))
            continue
        if tag & 0x87 == _VARINT and tag > 7 and start + 1 < end and message[start + 1] < 0x80:
            position = start + 2
            if tag >> 3 == number:
                found.append(Field(number, _VARINT, start, start + 1, position))
            continue
        field = next(scan(message, start, end))
        position = field.end
        if field.number == number:
            found.append(field)
    if position >= end:
        return found
    raise MalformedProtobuf(f"more than {_MAX_FIELDS} fields in one message")


def scan(message: bytes, begin: int = 0, end: int | None = None, most: int = _MAX_PARTS) -> Iterator[Field]:
    """Yield the fields of the message `message[begin:end]`. Raises MalformedProtobuf, also for more than `most`."""
    position = begin
    end = len(message) if end is None else end
    count = 0
    while position < end:
        count += 1
        if count > most:
            raise MalformedProtobuf(f"more than {most} fields in one message")
        start = position
        tag, position = _varint(message, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_NUMBER:
            raise MalformedProtobuf("no such field number")
        content = position
        if wire == _VARINT:
            _, position = _varint(message, position, end)
        elif wire == _BYTES:
            size, content = _varint(message, position, end)
            position = content + size
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise MalformedProtobuf(f"wire type {wire}")
        if position > end:
            raise MalformedProtobuf("truncated")
        yield Field(number, wire, start, content, position)


def values(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message; the value of a varint is an int, other values are bytes.

    Raises MalformedProtobuf.
    """
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
    """Parse an envelope. Raises MalformedProtobuf."""
    if not body.startswith(MAGIC):
        raise MalformedProtobuf("the body has no k8s envelope")
    api_version = kind = ""
    raw: Field | None = None
    for field in scan(body, len(MAGIC), most=_MAX_ENVELOPE):
        if field.number == UNKNOWN_TYPE_META:
            _expect_bytes(field)
            for part in scan(body, field.content, field.end, _MAX_ENVELOPE):
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
        raise MalformedProtobuf("the envelope holds no object")
    return Envelope(api_version, kind, raw)


def edit_metadata(body: bytes, edit: MetadataEdit) -> bytes:
    """Return the envelope `body` with the metadata of its object edited. Raises MalformedProtobuf."""
    return _edit_raw(body, lambda raw: _edit_object(raw, edit))


def change_string(body: bytes, path: tuple[int, ...], change: Callable[[str], str]) -> bytes:
    """Return the envelope `body` with the strings at a path of field numbers in its object changed.

    Raises MalformedProtobuf. A missing string is not added; a body with a duplicate string is refused.
    """
    return _edit_raw(body, lambda raw: _change_below(raw, path, change))


def without_entry(body: bytes, path: tuple[int, ...], key: str) -> bytes:
    """Return the envelope `body` without the entries `key` in the map at a path of field numbers.

    Raises MalformedProtobuf.
    """
    return _edit_raw(body, lambda raw: _without_entry(raw, path, key))


def metadata_of(body: bytes) -> tuple[dict[str, str], str]:
    """Return the labels and the resourceVersion of an envelope's object. Raises MalformedProtobuf."""
    raw = envelope(body).raw
    labels: dict[str, str] = {}
    version = ""
    for field, key, value in _meta_of(body, raw.content, raw.end):
        if field.number == META_RESOURCE_VERSION:
            version = _text(body[field.content : field.end])
        elif field.number == META_LABELS:
            labels[key] = _string(value)
    return labels, version


def name_of(body: bytes) -> str:
    """Return the name of an envelope's object, "" if it has none. Raises MalformedProtobuf."""
    raw = envelope(body).raw
    found = [field for field, _, _ in _meta_of(body, raw.content, raw.end) if field.number == META_NAME]
    return _text(body[found[0].content : found[0].end]) if found else ""


def _meta_of(message: bytes, begin: int, end: int) -> Iterator[tuple[Field, str, int | bytes]]:
    """Yield the fields of an object's metadata, as `_meta_fields` does."""
    metas = only(OBJECT_META, message, begin, end)
    for field in metas:
        _expect_bytes(field)
    if len(metas) > 1:
        raise _repeated("metadata")
    if metas:
        yield from _meta_fields(message, metas[0].content, metas[0].end)


def _meta_fields(message: bytes, begin: int, end: int) -> Iterator[tuple[Field, str, int | bytes]]:
    """Yield the fields of an ObjectMeta; labels and annotations as pairs.

    Raises MalformedProtobuf, also for a duplicate.
    """
    seen: set[tuple[int, str]] = set()
    for field in scan(message, begin, end):
        key = ""
        value: int | bytes = b""
        if field.number in _MAPS:
            _expect_bytes(field)
            entry = dict(values(message[field.content : field.end]))
            key, value = _string(entry.get(ENTRY_KEY, b"")), entry.get(ENTRY_VALUE, b"")
        elif field.number in _ONCE:
            _expect_bytes(field)
        if field.number in _MAPS or field.number in _ONCE:
            if (field.number, key) in seen:
                name = _ONCE.get(field.number) or f"{_MAPS[field.number]}.{key[:200]}"
                raise _repeated(name)
            seen.add((field.number, key))
        yield field, key, value


def _repeated(name: str) -> MalformedProtobuf:
    return MalformedProtobuf(f'strict decoding error: duplicate field "{name}"')


def _edit_raw(body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    raw = envelope(body).raw
    before = body[raw.content : raw.end]
    after = change(before)
    if after == before:
        return body
    return body[: raw.begin] + encode_bytes(UNKNOWN_RAW, after) + body[raw.end :]


def _edit_object(raw: bytes, edit: MetadataEdit) -> bytes:
    found = only(OBJECT_META, raw)
    if not found:
        added = _edit_meta(b"", edit)
        return encode_bytes(OBJECT_META, added) + raw if added else raw

    if len(found) > 1:
        raise _repeated("metadata")
    (meta,) = found
    _expect_bytes(meta)
    before = raw[meta.content : meta.end]
    after = _edit_meta(before, edit)
    if after == before:
        return raw
    return raw[: meta.begin] + encode_bytes(OBJECT_META, after) + raw[meta.end :]


def _edit_meta(meta: bytes, edit: MetadataEdit) -> bytes:
    """Return an edited ObjectMeta."""
    maps: dict[int, Mapping[str, str | None]] = {META_LABELS: edit.labels, META_ANNOTATIONS: edit.annotations}
    parts: list[tuple[int, bytes]] = []  # by field number
    for field, key, _ in _meta_fields(meta, 0, len(meta)):
        if field.number in maps and key in maps[field.number]:
            continue
        if field.number == META_RESOURCE_VERSION and edit.resource_version is not None:
            before = _text(meta[field.content : field.end])
            after = edit.resource_version(before)
            if after != before:
                parts.append((field.number, encode_bytes(field.number, after.encode())))
                continue
        parts.append((field.number, meta[field.begin : field.end]))
    for number, changes in maps.items():
        entries = [(number, _entry(number, key, value)) for key, value in changes.items() if value is not None]
        # Added after the fields with lower numbers, as in Go's encoder.
        index = next((at for at, (other, _) in enumerate(parts) if other > number), len(parts))
        parts[index:index] = entries
    return b"".join(part for _, part in parts)


def _entry(number: int, key: str, value: str) -> bytes:
    return encode_bytes(number, encode_bytes(ENTRY_KEY, key.encode()) + encode_bytes(ENTRY_VALUE, value.encode()))


def _change_below(message: bytes, path: tuple[int, ...], change: Callable[[str], str]) -> bytes:
    found = only(path[0], message)
    if not found:
        return message
    if len(found) > 1:
        raise MalformedProtobuf(f"field {path[0]} stands twice where a resourceVersion is looked for")
    (field,) = found
    _expect_bytes(field)
    before = message[field.content : field.end]
    after = _change_below(before, path[1:], change) if len(path) > 1 else change(_text(before)).encode()
    if after == before:
        return message
    return message[: field.begin] + encode_bytes(field.number, after) + message[field.end :]


def _without_entry(message: bytes, path: tuple[int, ...], key: str) -> bytes:
    parts = []
    for field in scan(message):
        whole = message[field.begin : field.end]
        if field.number == path[0]:
            _expect_bytes(field)
            before = message[field.content : field.end]
            if len(path) == 1:
                if _string(dict(values(before)).get(ENTRY_KEY, b"")) == key:
                    continue
            elif (after := _without_entry(before, path[1:], key)) != before:
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
    raise MalformedProtobuf("truncated, or a varint of more than ten bytes")


def _expect_bytes(field: Field) -> None:
    if field.wire != _BYTES:
        raise MalformedProtobuf(f"field {field.number} has wire type {field.wire}")


def _string(value: int | bytes) -> str:
    if isinstance(value, int):
        raise MalformedProtobuf("an integer where a string should stand")
    return _text(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedProtobuf("a string that is no UTF-8") from None
