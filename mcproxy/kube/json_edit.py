"""Edits JSON and keeps every byte outside the edited values. Pure.

msgspec skips values that are not edited, in linear time; the lengths of the values give the offsets of the members. As
in a Kubernetes API server, keys are case-sensitive. A duplicate key in an object on the edited path is refused, because
parsers interpret it differently. Bytes that are not UTF-8 are kept. Input is not trusted: invalid JSON raises
`MalformedJSON`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import Raw

from mcproxy.kube.nesting import TooDeep, refuse_deep

# An edit of an object's metadata, independent of the object's encoding.

VersionChange = Callable[[str], str]
"""Returns the replacement of a resourceVersion; may raise StatusError."""


@dataclass(frozen=True, slots=True)
class MetadataEdit:
    """Changes of an ObjectMeta; all other parts of the object stay the same.

    `labels` and `annotations`: for each key the value to set, or None to remove it. A map is removed if all its keys
    are removed. `resource_version` is called with each resourceVersion in the metadata; a missing one is not added.
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    resource_version: VersionChange | None = None


MAX_MEMBERS = 5_000
"""Maximum of members of an object that are read one by one, in 5 ms. (A value that is only skipped can have more.)"""
MAX_DEPTH = 256
"""Maximum nesting depth of objects and arrays; readers of a client's body apply a lower limit first."""

_BLANK = re.compile(rb"[ \t\n\r]*+")
_NAME = re.compile(rb'[ \t\n\r]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_BEHIND = re.compile(rb"[ \t\n\r]*+([,}\]])")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # msgspec refuses lone surrogates
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ELEMENTS = msgspec.json.Decoder(list[Raw])
_TEXT = msgspec.json.Decoder(str)


class MalformedJSON(ValueError):
    """The bytes are not JSON."""


class JSONLimitExceeded(MalformedJSON):
    """JSON beyond the limits: nested too deeply, with a duplicate key, or with too many members."""


class JSONMember(NamedTuple):
    """A member of an object: its name, and offsets in the bytes."""

    name: str
    begin: int  # offset of the name's quotation mark
    value: int
    end: int


class _Change(NamedTuple):
    begin: int
    end: int
    text: bytes


def edit_metadata(body: bytes, edit: MetadataEdit) -> bytes:
    """Return an object's JSON with its `metadata` edited; unchanged if it has none. Raises MalformedJSON."""
    text = readable(body)
    return _applied(body, _metadata_changes(text, 0, len(text), edit))


def edit_rows(body: bytes, edit: MetadataEdit) -> bytes:
    """Return a Table's JSON with the metadata of each row's `object` edited. Raises MalformedJSON."""
    text = readable(body)
    rows = _member(text, 0, len(text), "rows", "")
    if rows is None:
        return body
    changes = [change for row in elements(text, rows.value, rows.end) for change in _row_changes(text, *row, edit)]
    return _applied(body, changes)


def edit_row(row: bytes, edit: MetadataEdit) -> bytes:
    """Return one row of a Table with the metadata of its `object` edited. Raises MalformedJSON."""
    text = readable(row)
    return _applied(row, _row_changes(text, 0, len(text), edit))


def replace(body: bytes, name: str, value: bytes) -> bytes:
    """Return an object's JSON, with the value of one member replaced. Raises MalformedJSON."""
    text = readable(body)
    found = _member(text, 0, len(text), name, "")
    return body if found is None else _applied(body, [_Change(found.value, found.end, value)])


def change_string(body: bytes, path: tuple[str, ...], change: Callable[[str], str]) -> bytes:
    """Return JSON with the string at a path of names changed; a value of another type stays. Raises MalformedJSON."""
    text = readable(body)
    found = _at(text, path)
    if found is None or text[found.value] != _QUOTE:
        return body
    return _applied(body, _string_change(text, found, change))


def string_at(body: bytes, path: tuple[str, ...]) -> str | None:
    """Return the string at a path of names, None if there is none. Raises MalformedJSON."""
    text = readable(body)
    found = _at(text, path)
    return None if found is None or text[found.value] != _QUOTE else _string(text, found)


def members(data: bytes, begin: int = 0, end: int | None = None, path: str = "") -> list[JSONMember]:
    """Return the members of the object in `data[begin:end]`; an empty list for a value of another type.

    `path`: the object's path, for messages. Raises MalformedJSON.
    """
    found = _fields(data, begin, len(data) if end is None else end)
    return [] if found is None else _with_offsets(data, found.begin, found.fields, path)


def elements(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the elements of the array in `data[begin:end]`; none if it is not an array.

    Raises MalformedJSON.
    """
    if data[begin : begin + 1] != b"[":
        return
    try:
        found = _ELEMENTS.decode(data[begin:end])
    except (ValueError, RecursionError) as error:
        raise MalformedJSON(str(error)) from None
    if len(found) > MAX_MEMBERS:
        raise JSONLimitExceeded(f"more than {MAX_MEMBERS} elements in an array")
    position = begin + 1
    for each in found:
        position = _skip_blank(data, position)
        yield position, position + len(each)
        behind = _BEHIND.match(data, position + len(each))
        position = behind.end() if behind else end


def quoted(value: str) -> str:
    """Return a string as JSON."""
    return json.dumps(value, ensure_ascii=False)


_QUOTE, _OBJECT = b'"'[0], b"{"[0]


class _Fields(NamedTuple):
    """The offset and values of an object, and whether it has no blanks, no escapes in keys, and no duplicate key."""

    begin: int
    fields: dict[str, Raw]
    plain: bool


def _fields(data: bytes, begin: int, end: int) -> _Fields | None:
    begin = _skip_blank(data, begin)
    if data[begin : begin + 1] != b"{":
        return None
    whole = data[begin:end].rstrip(b" \t\n\r")
    try:
        fields = _FIELDS.decode(whole)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MalformedJSON(str(error)) from None
    # Blanks, escapes, duplicate keys and multi-byte characters in keys each make the object longer than `length`.
    length = sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields) + 1
    return _Fields(begin, fields, length == len(whole) if fields else True)


def _with_offsets(data: bytes, begin: int, fields: dict[str, Raw], path: str) -> list[JSONMember]:
    """Return the members of an object with their offsets. Raises JSONLimitExceeded for a duplicate key.

    The members are in the order of `fields`; with a duplicate key there are more members than fields, or a value
    differs.
    """
    if len(fields) > MAX_MEMBERS:
        raise JSONLimitExceeded(f"more than {MAX_MEMBERS} members in {path or 'an object'}")
    found: list[JSONMember] = []
    position = begin + 1
    names: list[bytes] = []
    for name, value in fields.items():
        match = _NAME.match(data, position)
        if match is None:
            raise _repeated(names, path)
        names.append(match[1])
        end = match.end() + len(value)
        behind = _BEHIND.match(data, end)
        if behind is None or not data.startswith(bytes(value), match.end()):
            raise _repeated(names, path)
        found.append(JSONMember(name, match.start(1), match.end(), end))
        position = behind.end()
    if found and (match := _NAME.match(data, position)) is not None and data[position - 1 : position] == b",":
        raise _repeated([*names, match[1]], path)
    return found


def _repeated(names: list[bytes], path: str) -> JSONLimitExceeded:
    """Return the refusal of a duplicate key, with the message of a kube-apiserver's strict decoding."""
    seen: set[str] = set()
    name = ""
    for each in names:
        name = _TEXT.decode(each)
        if name in seen:
            break
        seen.add(name)
    place = f"{path}.{name}" if path else name
    return JSONLimitExceeded(f'strict decoding error: duplicate field "{place[:200]}"')


def _member(data: bytes, begin: int, end: int, name: str, path: str) -> JSONMember | None:
    """Return one member of an object, None if there is none. Raises MalformedJSON, also for any duplicate key."""
    found = _fields(data, begin, end)
    if found is None or (found.plain and name not in found.fields):
        return None
    return next((each for each in _with_offsets(data, found.begin, found.fields, path) if each.name == name), None)


def _at(data: bytes, path: tuple[str, ...]) -> JSONMember | None:
    found = None
    begin, end = 0, len(data)
    for depth, name in enumerate(path):
        found = _member(data, begin, end, name, ".".join(path[:depth]))
        if found is None:
            return None
        begin, end = found.value, found.end
    return found


def _row_changes(data: bytes, begin: int, end: int, edit: MetadataEdit) -> list[_Change]:
    found = _member(data, begin, end, "object", "")
    return [] if found is None else _metadata_changes(data, found.value, found.end, edit)


def _metadata_changes(data: bytes, begin: int, end: int, edit: MetadataEdit) -> list[_Change]:
    found = _member(data, begin, end, "metadata", "")
    if found is None or data[found.value] != _OBJECT:
        return []
    return _meta_changes(data, found, edit)


def _meta_changes(data: bytes, metadata: JSONMember, edit: MetadataEdit) -> list[_Change]:
    known = members(data, metadata.value, metadata.end, "metadata")
    maps: dict[str, Mapping[str, str | None]] = {"labels": edit.labels, "annotations": edit.annotations}
    missing = {name: wanted for name, wanted in maps.items() if any(value is not None for value in wanted.values())}
    changes: list[_Change] = []
    gone: set[int] = set()
    for place, member in enumerate(known):
        if member.name in maps and data[member.value] == _OBJECT:
            missing.pop(member.name, None)
            inner = _map_changes(data, member, maps[member.name])
            if inner is None:
                gone.add(place)
            else:
                changes += inner
        elif member.name in missing:  # the member is null
            gone.add(place)
        elif member.name == "resourceVersion" and edit.resource_version and data[member.value] == _QUOTE:
            changes += _string_change(data, member, edit.resource_version)
    added = [f"{quoted(name)}:{{{_entries(wanted)}}}" for name, wanted in missing.items()]
    return changes + _member_changes(known, gone, added, metadata.value + 1)


def _map_changes(data: bytes, member: JSONMember, wanted: Mapping[str, str | None]) -> list[_Change] | None:
    """Return the changes of a map of strings; None if the map must be removed, because all its keys are removed."""
    found = _fields(data, member.value, member.end)
    missing = {key: value for key, value in wanted.items() if value is not None}
    if found is None or (found.plain and not missing and not wanted.keys() & found.fields.keys()):
        return []
    known = _with_offsets(data, found.begin, found.fields, f"metadata.{member.name}")
    changes: list[_Change] = []
    gone: set[int] = set()
    for place, each in enumerate(known):
        if each.name not in wanted:
            continue
        value = missing.pop(each.name, None)
        if value is None:
            gone.add(place)
        elif (after := quoted(value).encode()) != data[each.value : each.end]:
            changes.append(_Change(each.value, each.end, after))
    if known and len(gone) == len(known) and not missing:
        return None
    return changes + _member_changes(known, gone, [_entries(missing)] if missing else [], member.value + 1)


def _entries(wanted: Mapping[str, str | None]) -> str:
    return ",".join(f"{quoted(key)}:{quoted(value)}" for key, value in wanted.items() if value is not None)


def _member_changes(known: list[JSONMember], gone: set[int], added: list[str], begin: int) -> list[_Change]:
    """Return the changes that remove some members of an object, and add others at its end.

    A member is removed together with the blanks and the comma before it, or after it at the beginning of the object.
    `begin` is the offset of the first member.
    """
    changes: list[_Change] = []
    kept = False
    for place, member in enumerate(known):
        if place not in gone:
            kept = True
        elif kept:
            changes.append(_Change(known[place - 1].end, member.end, b""))
        else:
            end = known[place + 1].begin if place + 1 < len(known) else member.end
            changes.append(_Change(member.begin, end, b""))
    if added:
        end = known[-1].end if known else begin
        changes.append(_Change(end, end, ("," if kept else "").encode() + ",".join(added).encode()))
    return changes


def _string_change(data: bytes, member: JSONMember, change: Callable[[str], str]) -> list[_Change]:
    before = _string(data, member)
    after = change(before)
    return [] if after == before else [_Change(member.value, member.end, quoted(after).encode())]


def _string(data: bytes, member: JSONMember) -> str:
    try:
        return _TEXT.decode(data[member.value : member.end])
    except ValueError as error:
        raise MalformedJSON(str(error)) from None


def _skip_blank(data: bytes, position: int) -> int:
    match = _BLANK.match(data, position)
    return match.end() if match else position


def readable(data: bytes) -> bytes:
    """Return JSON of the same length that msgspec accepts, with invalid UTF-8 and surrogates replaced.

    Raises JSONLimitExceeded for JSON that is nested too deeply.
    """
    try:
        refuse_deep(data, MAX_DEPTH)
        if b"\\ud" in data or b"\\uD" in data:
            data = _SURROGATE.sub(rb"\\u0020", data)
        if not data.isascii():
            data.decode()
    except TooDeep as error:
        raise JSONLimitExceeded(str(error)) from None
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    return data


def _applied(body: bytes, changes: list[_Change]) -> bytes:
    """Apply changes that do not overlap; return the new bytes."""
    if not changes:
        return body
    parts: list[bytes] = []
    position = 0
    for change in sorted(changes):
        parts += (body[position : change.begin], change.text)
        position = change.end
    parts.append(body[position:])
    return b"".join(parts)
