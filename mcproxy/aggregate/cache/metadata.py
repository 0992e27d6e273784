"""The split of an object's JSON around its resourceVersion, with the marks of its cluster put into its metadata.

Nothing but the metadata's own fields is decoded. Their places follow from the lengths of keys and values: if these add
up to the length of the text, there is no white space, no escaped key and no key twice, which a search for text, or two
parsers, could read differently. An object where they do not add up is decoded and encoded anew first.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from mcproxy.aggregate.cache.labels import ClusterMarks

MAX_OBJECT_BYTES = 8 * 1024 * 1024
"""etcd takes 1.5 MB an object where it is not configured otherwise."""
MAX_DEPTH = 256
"""Objects and arrays within one another. Python's decoders and encoders end at fewer than 1,000, Go's at 10,000."""
MAX_COMMAS = 1_000_000
"""In one object; each element of JSON may take a hundred bytes while it is decoded, however few it has."""
_NO_OPENING = bytes(byte for byte in range(256) if byte not in b"{[")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"{}[]")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")  # up and down, as signed bytes
_MAX_NAME = 1024
_VERSION = re.compile(rb'"[1-9][0-9]{0,19}"')
_NAME = re.compile(r"[^\x00-\x1f/%\x7f]+")
_MAX_VERSION = 2**64 - 1
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_TIME = msgspec.json.Decoder(datetime | None)
_TEXT = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode
# Built-in objects have the order of apimachinery's `metav1.ObjectMeta` in their metadata, others the alphabet's.
_BEHIND_ANNOTATIONS = frozenset({"ownerReferences", "finalizers", "managedFields"})
_BEHIND_LABELS = _BEHIND_ANNOTATIONS | {"annotations"}


class MalformedObject(ValueError):
    """An object that no kube-apiserver sends. The message says what is wrong with it, without its content."""


class SplitObject(NamedTuple):
    """What `split` found; the fields are those of `CachedObject`."""

    namespace: str
    name: str
    uid: str
    version: int
    head: bytes
    tail: bytes
    metadata_start: int
    metadata_end: int
    labels: dict[str, str]
    created: float


def version_of(raw: bytes) -> int:
    """Return the number of a resourceVersion in JSON. Raises MalformedObject for what is no positive 64-bit integer."""
    if not _VERSION.fullmatch(raw) or (version := int(raw[1:-1])) > _MAX_VERSION:
        raise MalformedObject("its resourceVersion is no positive integer of 64 bits")
    return version


def canonical(item: bytes) -> bytes:
    """Return the same JSON without white space and without keys twice (the last one stays, as in Go and Python)."""
    try:
        return _encode(msgspec.json.decode(item))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedObject(f"it cannot be decoded: {type(error).__name__}") from None


def refuse_crowded(data: bytes, most: int = MAX_COMMAS) -> None:
    """Raise MalformedObject for JSON with so many elements that decoding it takes far more memory than it has bytes,
    and msgspec.DecodeError for what is no JSON.
    """
    if len(data) > 2 * most and data.count(b",") > most:
        msgspec.json.decode(data, type=Raw)  # strings are only found at once in what is valid
        if _STRING.sub(b"", data).count(b",") > most:
            raise MalformedObject(f"it has more than {most} elements")


def checked(item: bytes) -> bytes:
    """Return JSON that a decoder has accepted, in one line. Raises MalformedObject: too large, too deep, not UTF-8."""
    if len(item) > MAX_OBJECT_BYTES:
        raise MalformedObject(f"it has {len(item)} bytes, more than {MAX_OBJECT_BYTES}")
    if not item.isascii():
        try:
            item.decode()
        except UnicodeDecodeError:
            raise MalformedObject("it is not UTF-8") from None
    if b"\n" in item or b"\r" in item:  # between tokens; a watch has an event in a line
        item = canonical(item)
    if len(item.translate(None, _NO_OPENING)) > MAX_DEPTH and _depth(item) > MAX_DEPTH:
        raise MalformedObject(f"it is nested more than {MAX_DEPTH} levels deep")
    return item


def _depth(item: bytes) -> int:
    """Return how deep valid JSON is nested."""
    steps = _STRING.sub(b"", item).translate(_STEPS, _NO_BRACKET)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def split(
    item: bytes, prefixes: tuple[bytes, ...], marks: ClusterMarks, *, drop_managed_fields: bool = False
) -> SplitObject:
    """Split one object. `prefixes` are those that it may begin with (`"kind":"Pod","apiVersion":"v1",`).

    An object without kind and apiVersion, as items of built-in lists are, is taken as well. Raises MalformedObject.
    """
    try:
        refuse_crowded(item)
        fields = _FIELDS.decode(item)
        text = checked(item)
        if text is not item:
            item, fields = text, _FIELDS.decode(text)
        metadata = _FIELDS.decode(fields.get("metadata", b"null"))
        plain = _length(fields) == len(item) and _length(metadata) == len(fields["metadata"])
        prefix = next((prefix for prefix in prefixes if item.startswith(prefix, 1)), b"")
        if not plain or (not prefix and ("kind" in fields or "apiVersion" in fields)):
            item, prefix, plain = _reordered(item, prefixes), prefixes[0], False
            fields = _FIELDS.decode(item)
            metadata = _FIELDS.decode(fields["metadata"])
        return _split(item, len(prefix), fields, metadata, plain, marks, drop_managed_fields)
    except MalformedObject:
        raise
    except (ValueError, RecursionError) as error:  # msgspec's and those of UTF-8 are ValueErrors
        raise MalformedObject(f"it cannot be decoded: {str(error)[:200]}") from None


def _length(fields: dict[str, Raw]) -> int:
    """Return the length of a JSON object with these fields if it has no white space and no escapes in its keys.

    White space, an escape and a key that stands twice each make the text longer, never shorter.
    """
    return sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields) + 1


def _reordered(item: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    """Return an unusual object in the usual form, with the first of the prefixes."""
    found = msgspec.json.decode(item, type=dict[str, Any])
    wanted = msgspec.json.decode(b"{" + prefixes[0].removesuffix(b",") + b"}")
    if any(found.pop(key, value) != value for key, value in wanted.items()):
        raise MalformedObject("its kind or apiVersion is not that of the list or watch")
    return b"{" + prefixes[0] + _encode(found)[1:]


def _split(
    item: bytes,
    prefix_length: int,
    fields: dict[str, Raw],
    metadata: dict[str, Raw],
    plain: bool,
    marks: ClusterMarks,
    drop_managed_fields: bool,
) -> SplitObject:
    start = 1
    for key, value in fields.items():
        start += len(key) + 3 if plain else len(_encode(key)) + 1
        if key == "metadata":
            break
        start += len(value) + 1
    pieces: dict[str, bytes] = {}
    position = start + 1
    for key, value in metadata.items():
        end = position + len(value) + (len(key) + 3 if plain else len(_encode(key)) + 1)
        pieces[key] = item[position:end]
        position = end + 1

    labels, field = marks.labels(bytes(metadata["labels"])) if "labels" in metadata else marks.no_labels
    sorted_keys = next(iter(fields)) == "apiVersion"
    if "annotations" in pieces:
        pieces["annotations"] = marks.annotations(bytes(metadata["annotations"]))
    else:
        pieces = _with(pieces, "annotations", marks.no_annotations, _BEHIND_ANNOTATIONS, sorted_keys)
    if "labels" in pieces:
        pieces["labels"] = field
    else:
        pieces = _with(pieces, "labels", field, _BEHIND_LABELS, sorted_keys)
    if drop_managed_fields:
        pieces.pop("managedFields", None)

    for key in ("name", "resourceVersion"):
        if key not in metadata:
            raise MalformedObject(f"it has no metadata.{key}")
    name = _text(metadata["name"])
    namespace = marks.shared(_text(metadata["namespace"])) if "namespace" in metadata else ""
    for text in (name, namespace) if namespace else (name,):
        if len(text) > _MAX_NAME or not _NAME.fullmatch(text) or text in (".", ".."):
            raise MalformedObject("its name or namespace cannot stand in a path")
    place = list(pieces).index("resourceVersion")
    texts = list(pieces.values())
    head = b"".join((item[1 + prefix_length : start], b"{", b",".join((*texts[:place], b'"resourceVersion":"'))))
    end_of_metadata = b",".join((b'"', *texts[place + 1 :])) + b"}"
    return SplitObject(
        namespace,
        name,
        _text(metadata["uid"]) if "uid" in metadata else "",
        version_of(bytes(metadata["resourceVersion"])),
        head,
        end_of_metadata + item[position:],
        start - 1 - prefix_length,
        len(end_of_metadata),
        labels,
        _created(metadata.get("creationTimestamp")),
    )


def _with(
    pieces: dict[str, bytes], key: str, piece: bytes, behind: frozenset[str], sorted_keys: bool
) -> dict[str, bytes]:
    """Return the fields with one more, at the place where a kube-apiserver writes it."""
    found: dict[str, bytes] = {}
    for other, text in pieces.items():
        if key not in found and (other > key if sorted_keys else other in behind):
            found[key] = piece
        found[other] = text
    found.setdefault(key, piece)
    return found


def _text(raw: Raw) -> str:
    text = bytes(raw)
    if text[:1] == b'"' and b"\\" not in text:
        return text[1:-1].decode()
    return _TEXT.decode(text)


def _created(raw: Raw | None) -> float:
    if raw is None:
        return 0.0
    time = _TIME.decode(raw)
    if time is None:
        return 0.0
    seconds: float = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return seconds
