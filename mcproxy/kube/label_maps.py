"""Removes one label key from the maps of labels in an object's JSON, at any depth. Pure.

Maps of labels are the values of `labels`, `matchLabels` and `selector`: in an object or a pod template, and in the
selector of a Service or Deployment. Data is kept whatever its keys are: the top-level `data`, `binaryData` and
`stringData`, and annotations. Only values that contain the key are parsed, level by level and without recursion,
because input is not trusted.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from mcproxy.kube import json_edit
from mcproxy.kube.json_edit import JSONLimitExceeded, JSONMember

LABEL_MAPS = frozenset({"labels", "matchLabels", "selector"})
DATA = frozenset({"data", "binaryData", "stringData"})
"""Members of the top-level object whose values contain no labels."""
_MAX_PLACES = 1000
"""Maximum of occurrences of the key in a text."""
_MAX_READ, _FREE = 20, 100_000
"""At most `_FREE` bytes plus `_MAX_READ` times the length of the text are read, because each level of nesting is read
again. The key usually occurs at about ten levels.
"""


def is_label_map(path: Sequence[str]) -> bool:
    """Return whether the map at a path of names is a map of labels rather than data."""
    return bool(path) and path[-1] in LABEL_MAPS and not is_data(path)


def is_data(path: Sequence[str]) -> bool:
    """Return whether the value at a path of names is data."""
    return bool(path) and (path[0] in DATA or "annotations" in path)


def without(body: bytes, key: str, path: Sequence[str] = (), *, keep_null: bool = False) -> bytes:
    """Return JSON without the entry `key` in maps of labels; `path` is the path of the value in its object.

    `keep_null`: keep an entry with null, which removes the key in a merge patch. Raises MalformedJSON; raises
    JSONLimitExceeded for JSON that is nested too deeply or contains the key too often, and for an object with a
    duplicate key.
    """
    if is_data(path) or not (places := [match.start() for match in _pattern(key).finditer(body)]):
        return body
    if len(places) > _MAX_PLACES:
        raise JSONLimitExceeded(f"it has {key!r} more than {_MAX_PLACES} times")
    text = json_edit.readable(body)
    cuts: list[tuple[int, int]] = []
    waiting = [(0, len(text), tuple(path))]
    left = _FREE + _MAX_READ * len(text)
    while waiting:
        begin, end, at = waiting.pop()
        left -= end - begin
        if left < 0:
            raise JSONLimitExceeded(f"{key!r} is nested too deeply in it")
        parts: list[tuple[int, int, str]]
        if text[begin : begin + 1] == b"[":
            parts = [(*each, "") for each in json_edit.elements(text, begin, end)]
        else:
            members = json_edit.members(text, begin, end, ".".join(at))
            if is_label_map(at):
                cuts += _cuts(text, members, key, keep_null=keep_null)
            parts = [(member.value, member.end, member.name) for member in members]
        for first, last, name in parts:
            within = bisect_left(places, first) < bisect_left(places, last)
            if within and not is_data(inner := (*at, name)):
                waiting.append((first, last, inner))
    pieces, position = [], 0
    for first, last in sorted(cuts):
        if first >= position:
            pieces.append(body[position:first])
        position = max(position, last)
    return b"".join((*pieces, body[position:])) if cuts else body


def _pattern(key: str) -> re.Pattern[bytes]:
    """Return a pattern that finds a key, each character plain or escaped; it may also match within strings."""
    escaped = {"/": rb"|\\/"}
    characters = (
        rb"(?:%b|\\u00(?i:%02x)%b)" % (re.escape(each).encode(), ord(each), escaped.get(each, b"")) for each in key
    )
    return re.compile(rb'"' + b"".join(characters) + rb'"[ \t\n\r]*+:')


def _cuts(text: bytes, members: list[JSONMember], key: str, *, keep_null: bool) -> list[tuple[int, int]]:
    """Return the cuts that remove an entry with the comma before it, or after it for the first entry."""
    for place, member in enumerate(members):
        if member.name == key and not (keep_null and text.startswith(b"null", member.value)):
            if place:
                return [(members[place - 1].end, member.end)]
            return [(member.begin, members[1].begin if len(members) > 1 else member.end)]
    return []
