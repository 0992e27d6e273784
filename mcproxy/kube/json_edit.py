"""Edits of JSON that change nothing but what they are for: every other byte stays as it was written. Pure.

A value that is not edited is only skipped; those of the outermost object of a long text by msgspec, 40 times as fast as
json decodes them. As for a Kubernetes API server keys are case-sensitive; where a key stands
twice, each of them is edited, since the last applies, or both are merged. Bytes that are no UTF-8 are kept. Input is
not trusted: what is no JSON raises `Malformed`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from json import JSONDecodeError
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from mcproxy.kube.metadata_edit import MetadataEdit

MAX_MEMBERS = 10_000
"""Members of one object that is looked into; finding them takes 10 ms. (A value that is only skipped may have more.)"""
_NONE: Mapping[str, str] = MappingProxyType({})
_LONG = 16 * 1024  # characters from which msgspec is the faster way
_MAX_SLOW = 512 * 1024  # characters that are read without it
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BLANK = re.compile(r"[ \t\n\r]*")
_CODEC = ("utf-8", "surrogateescape")
# Numbers are skipped as text: Python refuses to read one of more than 4300 digits.
_decode = json.JSONDecoder(parse_int=len, parse_float=len).raw_decode


class Malformed(ValueError):
    """The bytes are no JSON, or nested too deeply."""


class Member(NamedTuple):
    """A member of an object: its name, and offsets in the text."""

    name: str
    begin: int  # of the name's quotation mark
    value: int
    end: int


class _Change(NamedTuple):
    begin: int
    end: int
    text: str


def edit_metadata(body: bytes, edit: MetadataEdit) -> bytes:
    """Return an object's JSON with its `metadata` edited; unchanged if it has none. Raises Malformed."""
    text = body.decode(*_CODEC)
    return _applied(body, text, _guarded(lambda: _metadata_changes(text, _begin(text), edit, _values(text))))


def edit_rows(body: bytes, edit: MetadataEdit) -> bytes:
    """Return a Table's JSON with the metadata of each row's `object` edited. Raises Malformed."""
    text = body.decode(*_CODEC)

    def changes() -> list[_Change]:
        found: list[_Change] = []
        for rows in _named(text, _begin(text), "rows"):
            for row, _ in elements(text, rows.value):
                found += _row_changes(text, row, edit)
        return found

    return _applied(body, text, _guarded(changes))


def edit_row(row: bytes, edit: MetadataEdit) -> bytes:
    """Return one row of a Table with the metadata of its `object` edited. Raises Malformed."""
    text = row.decode(*_CODEC)
    return _applied(row, text, _guarded(lambda: _row_changes(text, _begin(text), edit)))


def replace(body: bytes, name: str, value: bytes) -> bytes:
    """Return an object's JSON with the values of a member of it replaced by other JSON. Raises Malformed."""
    text = body.decode(*_CODEC)

    def changes() -> list[_Change]:
        found = _named(text, _begin(text), name)
        return [_Change(member.value, member.end, value.decode(*_CODEC)) for member in found]

    return _applied(body, text, _guarded(changes))


def change_string(body: bytes, path: tuple[str, ...], change: Callable[[str], str]) -> bytes:
    """Return JSON with the strings at a path of names changed; what is no string stays. Raises Malformed."""
    text = body.decode(*_CODEC)
    return _applied(body, text, _guarded(lambda: _string_changes(text, _begin(text), path, change, _values(text))))


def string_at(body: bytes, path: tuple[str, ...]) -> str | None:
    """Return the string at a path of names, the last where a name stands twice; None if none does. Raises Malformed."""
    found: list[str] = []

    def keep(value: str) -> str:
        found.append(value)
        return value

    change_string(body, path, keep)
    return found[-1] if found else None


def members(text: str, position: int, values: Mapping[str, str] = _NONE) -> Iterator[Member]:
    """Yield the members of the object that begins at `position`; none if no object does. Raises Malformed.

    `values` are texts of values that are known already, by name.
    """
    if text[position : position + 1] != "{":
        return
    position = _skip_blank(text, position + 1)
    if text[position : position + 1] == "}":
        return
    for _ in range(MAX_MEMBERS):
        begin = position
        if text[begin : begin + 1] != '"':
            raise Malformed("a member without a name")
        name, position = _decode(text, begin)
        position = _skip_blank(text, position)
        if text[position : position + 1] != ":":
            raise Malformed("a name without a value")
        value = _skip_blank(text, position + 1)
        end = _end_of(text, value, values.get(name))
        yield Member(name, begin, value, end)
        position = _skip_blank(text, end)
        if text[position : position + 1] != ",":
            return
        position = _skip_blank(text, position + 1)
    raise Malformed(f"more than {MAX_MEMBERS} members in an object")


def elements(text: str, position: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the elements of the array at `position`; none if no array begins there.

    Raises Malformed.
    """
    if text[position : position + 1] != "[":
        return
    position = _skip_blank(text, position + 1)
    if text[position : position + 1] == "]":
        return
    while True:
        end = _skip_value(text, position)
        yield position, end
        position = _skip_blank(text, end)
        if text[position : position + 1] != ",":
            return
        position = _skip_blank(text, position + 1)


def quoted(value: str) -> str:
    """Return a string as JSON."""
    return json.dumps(value, ensure_ascii=False)


def _row_changes(text: str, position: int, edit: MetadataEdit) -> list[_Change]:
    found = _named(text, position, "object")
    return [change for member in found for change in _metadata_changes(text, member.value, edit)]


def _metadata_changes(text: str, position: int, edit: MetadataEdit, values: Mapping[str, str] = _NONE) -> list[_Change]:
    return [
        change
        for metadata in _named(text, position, "metadata", values)
        if text[metadata.value] == "{"
        for change in _meta_changes(text, metadata, edit)
    ]


def _meta_changes(text: str, metadata: Member, edit: MetadataEdit) -> list[_Change]:
    """Return the changes of one ObjectMeta; if members of it go or come, that is one change of all of it."""
    known = list(members(text, metadata.value))
    maps: dict[str, Mapping[str, str | None]] = {"labels": edit.labels, "annotations": edit.annotations}
    changes: list[_Change] = []
    kept: list[Member] = []
    edited: dict[str, bool] = dict.fromkeys(maps, False)
    for member in known:
        if member.name in maps and text[member.value] == "{":
            after = _edited_map(text, member, maps[member.name], add=not edited[member.name])
            edited[member.name] = edited[member.name] or after is not None
            if after is None:
                continue
            if after != text[member.value : member.end]:
                changes.append(_Change(member.value, member.end, after))
        elif member.name == "resourceVersion" and edit.resource_version is not None and text[member.value] == '"':
            changes += _string_change(text, member, edit.resource_version)
        kept.append(member)
    added = [
        f"{quoted(name)}:{{{_entries(wanted)}}}"
        for name, wanted in maps.items()
        if not edited[name] and any(value is not None for value in wanted.values())
    ]
    if not added and len(kept) == len(known):
        return changes
    return [_rebuilt(text, metadata, known, kept, changes, added)]


def _edited_map(text: str, member: Member, wanted: Mapping[str, str | None], *, add: bool) -> str | None:
    """Return a map of strings edited; None if it is to be removed, because only removed keys stood in it."""
    known = list(members(text, member.value))
    kept: list[Member] = []
    changes: list[_Change] = []
    missing = {key: value for key, value in wanted.items() if value is not None} if add else {}
    for each in known:
        if each.name not in wanted:
            kept.append(each)
        elif each.name in missing:
            changes.append(_Change(each.value, each.end, quoted(missing.pop(each.name))))
            kept.append(each)
    if known and not kept and not missing:
        return None
    added = [_entries(missing)] if missing else []
    return _rebuilt(text, member, known, kept, changes, added).text


def _entries(wanted: Mapping[str, str | None]) -> str:
    return ",".join(f"{quoted(key)}:{quoted(value)}" for key, value in wanted.items() if value is not None)


def _rebuilt(
    text: str, whole: Member, known: list[Member], kept: list[Member], changes: list[_Change], added: list[str]
) -> _Change:
    """Return the change of an object to only the members `kept`, with `changes` inside them, and `added` at its end.

    Each member keeps the blanks and the comma before it; of a removed one they go with it.
    """
    begin = known[0].begin if known else whole.value + 1
    end = known[-1].end if known else begin
    parts = [text[whole.value : begin]]
    before = {member.begin: (known[at - 1].end if at else begin) for at, member in enumerate(known)}
    for member in kept:
        if len(parts) > 1:
            parts.append(text[before[member.begin] : member.begin])
        inside = [change for change in changes if member.begin <= change.begin < member.end]
        parts.append(_spliced(text, member.begin, member.end, inside))
    for each in added:
        if len(parts) > 1:
            parts.append(",")
        parts.append(each)
    parts.append(text[end : whole.end])
    return _Change(whole.value, whole.end, "".join(parts))


def _string_changes(
    text: str, position: int, path: tuple[str, ...], change: Callable[[str], str], values: Mapping[str, str] = _NONE
) -> list[_Change]:
    found: list[_Change] = []
    for member in _named(text, position, path[0], values):
        if len(path) > 1:
            found += _string_changes(text, member.value, path[1:], change)
        elif text[member.value] == '"':
            found += _string_change(text, member, change)
    return found


def _string_change(text: str, member: Member, change: Callable[[str], str]) -> list[_Change]:
    before, _ = _decode(text, member.value)
    after = change(before)
    return [] if after == before else [_Change(member.value, member.end, quoted(after))]


def _named(text: str, position: int, name: str, values: Mapping[str, str] = _NONE) -> list[Member]:
    return [member for member in members(text, position, values) if member.name == name]


def _begin(text: str) -> int:
    return _skip_blank(text, 0)


def _skip_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _end_of(text: str, value: int, known: str | None) -> int:
    """Return the end of a value. `known` is the text of a value of the same name, perhaps of another one."""
    if known is not None and text.startswith(known, value):
        end = value + len(known)
        if text[(begin := _skip_blank(text, end)) : begin + 1] in (",", "}"):
            return end
    return _skip_value(text, value)


def _values(text: str) -> Mapping[str, str]:
    """Return the texts of the values of the outermost object by name, if the text is long."""
    if len(text) < _LONG:
        return _NONE
    try:
        fields = _FIELDS.decode(text.encode(*_CODEC))
        return {name: bytes(value).decode() for name, value in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if len(text) > _MAX_SLOW:
            raise Malformed("no JSON in UTF-8") from None
        return _NONE


def _skip_value(text: str, position: int) -> int:
    return _decode(text, position)[1]


def _guarded(changes: Callable[[], list[_Change]]) -> list[_Change]:
    try:
        return changes()
    except JSONDecodeError as error:
        raise Malformed(str(error)) from None
    except RecursionError:
        raise Malformed("nested too deeply") from None


def _applied(body: bytes, text: str, changes: list[_Change]) -> bytes:
    return _spliced(text, 0, len(text), changes).encode(*_CODEC) if changes else body


def _spliced(text: str, begin: int, end: int, changes: list[_Change]) -> str:
    parts: list[str] = []
    position = begin
    for change in sorted(changes):
        parts += (text[position : change.begin], change.text)
        position = change.end
    parts.append(text[position:end])
    return "".join(parts)
