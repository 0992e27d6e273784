"""Normalizes the paths of requests for the rules of ingresses. Pure.

A path with a segment `..`, encoded or not, is refused: clients resolve such segments themselves (RFC 3986 5.2.4), and
send one only to leave a rule's prefix. Rules match the *canonical path*: segments `.` removed, each element decoded.
Literal slashes separate elements, so an encoded slash (%2F) is a part of its element (RFC 3986 2.2).

Some servers interpret paths differently: they take %2F or a backslash for a slash, or several slashes for one, or cut
off the part after a semicolon, in any combination. The results are the path's other *readings*. A request with a
reading that matches another rule is refused (`router`), so that no spelling evades a rule. A path with a reading that
has a dot segment is refused too: the pod would resolve it and leave the prefix of the rule.

The pod gets the path byte for byte as the client sent it (signatures cover it, and %2F is data to many applications),
except segments `.`, which are removed so that the pod resolves none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: Matches any path that differs from its canonical form, or has a second reading.
_UNUSUAL = re.compile(rb"[%;\\]|//|/\.\.?(?:/|$)")
_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")
_MALFORMED = re.compile(rb"%(?![0-9A-Fa-f]{2})|%00")
_KEPT = {b"%2F": b"%2F", b"%25": b"%25"}  # stay encoded, so that no two elements have the same canonical form
_ENCODED_DOTS = re.compile(rb"(?i)^(?:\.|%2e){1,2}$")
_SLASHES = re.compile(rb"/+")
_PARAMETERS = re.compile(rb";[^/]*")
_DOT_SEGMENT = re.compile(rb"(?:\A|/)\.\.?(?:/|\Z)")
_ENCODED_DOT_SEGMENT = re.compile(rb"(?i)/(?:\.|%2e){1,2}(?:/|\Z)")
_MOST_READINGS = 64
_MOST_BYTES = 64 * 1024
"""Maximum of readings of a path, because each request takes time for all of them."""


class BadPath(Exception):
    """A path that is invalid, or that servers interpret differently."""


class Path:
    """The path of a request, in the forms for rules and for the pod."""

    __slots__ = ("canonical", "readings", "sent")

    def __init__(self, sent: bytes, canonical: bytes, readings: frozenset[bytes] = frozenset()) -> None:
        self.sent = sent
        """The path that the pod gets, without the query."""
        self.canonical = canonical
        """The path that rules match."""
        self.readings = readings
        """The other readings: paths for which a pod can take this path."""


unusual = _UNUSUAL.search
"""``unusual(path)`` returns None for a canonical path without a second reading."""


def parse(path: bytes) -> Path:
    """Return the readings of a path that begins with a slash and has no query. Raises BadPath."""
    if _UNUSUAL.search(path) is None:
        return Path(path, path)
    if _MALFORMED.search(path):
        raise BadPath("malformed percent-encoding in the path")
    sent = _without_dot_segments(path)
    canonical = _canonical(sent)
    readings = _readings(sent)
    if any(map(_DOT_SEGMENT.search, readings)):
        raise BadPath("a dot segment in the path that servers read differently")
    return Path(sent, canonical, readings - {canonical, sent})


def canonical_rule(path: str) -> bytes:
    """Return the canonical form of a rule's path. Raises BadPath for a path that no request can have."""
    raw = path.encode()
    if _MALFORMED.search(raw):
        raise BadPath("malformed percent-encoding in the path")
    path_of_rule = _canonical(raw)
    if _DOT_SEGMENT.search(path_of_rule):
        raise BadPath("a dot segment in the path")
    return path_of_rule


def canonical_path(path: bytes) -> bytes:
    """Return the canonical form of a request's path that `parse` accepts."""
    return _canonical(path)


def _without_dot_segments(path: bytes) -> bytes:
    """Return the path without segments `.`; an encoded dot is a dot (RFC 3986 6.2.2.2). Raises BadPath for `..`."""
    if _ENCODED_DOT_SEGMENT.search(path) is None:
        return path
    elements = path.split(b"/")
    kept: list[bytes] = []
    for each in elements[1:]:
        if _ENCODED_DOTS.match(each) is None:
            kept.append(each)
        elif len(each.lower().replace(b"%2e", b".")) == 2:
            raise BadPath("a segment .. in the path: clients resolve it themselves")
    if _ENCODED_DOTS.match(elements[-1]):
        kept.append(b"")  # a final dot segment names a directory, so a slash remains
    return b"/" + b"/".join(kept)


def _decoded(match: re.Match[bytes]) -> bytes:
    return _KEPT.get(match[0].upper()) or bytes((int(match[1], 16),))


def _decoded_loosely(match: re.Match[bytes]) -> bytes:
    return b"%25" if match[1] == b"25" else bytes((int(match[1], 16),))


def _readings(path: bytes) -> frozenset[bytes]:
    """Return the readings of a path by these steps in any order. Raises BadPath if there are too many."""
    found = {path}
    todo = [path]
    size = len(path)
    while todo:
        each = todo.pop()
        for step in _STEPS:
            reading = step(each)
            if reading not in found:
                size += len(reading)
                if len(found) >= _MOST_READINGS or size > _MOST_BYTES:
                    raise BadPath("a path that servers read differently")
                found.add(reading)
                todo.append(reading)
    return frozenset(found)


def _canonical(path: bytes) -> bytes:
    return _ENCODED.sub(_decoded, path) if b"%" in path else path


def _all_decoded(path: bytes) -> bytes:
    return _ENCODED.sub(_decoded_loosely, path)


def _without_parameters(path: bytes) -> bytes:
    return _PARAMETERS.sub(b"", path)


def _with_slashes(path: bytes) -> bytes:
    return path.replace(b"\\", b"/")


def _with_single_slashes(path: bytes) -> bytes:
    return _SLASHES.sub(b"/", path)


_STEPS: tuple[Callable[[bytes], bytes], ...] = (
    _canonical,
    _all_decoded,
    _without_parameters,
    _with_slashes,
    _with_single_slashes,
)
