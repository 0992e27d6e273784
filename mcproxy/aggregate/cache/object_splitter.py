"""The split of an object's JSON around its resourceVersion, with the marks of its cluster put into its metadata.

Only the metadata's own fields are decoded. Their offsets follow from the lengths of keys and values. If these lengths
add up to the length of the text, the text has no white space, no escaped key and no duplicate key, all of which two
parsers could read differently. If they do not add up, the object is first decoded and encoded again.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL
from mcproxy.kube.nesting import TooDeep, refuse_deep
from mcproxy.kube.numbers import json_float

_LABELS = msgspec.json.Decoder(dict[str, str] | None)
_ANNOTATIONS = msgspec.json.Decoder(dict[str, Raw] | None)
_encode = msgspec.json.Encoder().encode
_MAX_CACHED = 4096
_MAX_CACHED_BYTES = 2048
_MAX_STRINGS = 65_536
_ANNOTATION_KEY = _encode(CLUSTER_ANNOTATION) + b":"


class ClusterMarks:
    """Puts the label and the annotation of one member into its objects' metadata.

    Objects with equal labels share one dictionary and its strings, since labels repeat: most objects are replicas.
    The tables of labels and strings are bounded, so a member that keeps sending new labels does not fill the memory.
    """

    __slots__ = ("_annotation", "_labels", "_member", "_strings", "no_annotations", "no_labels")

    def __init__(self, member: str) -> None:
        self._member = member
        self._annotation = _ANNOTATION_KEY + _encode(member)
        self._labels: dict[bytes, tuple[dict[str, str], bytes]] = {}
        self._strings: dict[str, str] = {}
        self.no_labels = self._with_label({})
        """The labels, and their JSON field `"labels":{…}`, for an object that has no labels of its own."""
        self.no_annotations = b'"annotations":{' + self._annotation + b"}"

    def shared(self, text: str) -> str:
        """Return an equal string, shared with other objects where possible."""
        known = self._strings.get(text)
        if known is None:
            if len(self._strings) >= _MAX_STRINGS:
                self._strings.clear()
            known = self._strings[text] = text
        return known

    def labels(self, raw: bytes) -> tuple[dict[str, str], bytes]:
        """Return the labels with the cluster's label, and `"labels":{…}`; a label of the same name is replaced.

        `raw` is the member's JSON. Raises msgspec.DecodeError if it is not an object of strings.
        """
        known = self._labels.get(raw)
        if known is not None:
            return known
        found = self._with_label(_LABELS.decode(raw) or {})
        if len(raw) <= _MAX_CACHED_BYTES:
            if len(self._labels) >= _MAX_CACHED:
                self._labels.clear()
            self._labels[raw] = found
        return found

    def restored(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the shared dictionary with the same labels, for an object that was read from a file."""
        return self.labels(_encode(labels))[0]

    def annotations(self, raw: bytes) -> bytes:
        """Return `"annotations":{…}` with the cluster's annotation, which replaces one of the same name.

        The bytes of other annotations stay. Raises ValueError (also msgspec.DecodeError) for any other JSON.
        """
        found = _ANNOTATIONS.decode(raw)
        if not found:
            return self.no_annotations
        found.pop(CLUSTER_ANNOTATION, None)
        fields: list[bytes] = []
        missing = True
        for key, value in found.items():
            text = bytes(value)
            if text[:1] != b'"':
                raise ValueError(f"the annotation {key[:64]!r} is no string")
            if missing and key > CLUSTER_ANNOTATION:
                fields.append(self._annotation)
                missing = False
            fields.append(_encode(key) + b":" + text)
        if missing:
            fields.append(self._annotation)
        return b'"annotations":{' + b",".join(fields) + b"}"

    def _with_label(self, found: dict[str, str]) -> tuple[dict[str, str], bytes]:
        found.pop(CLUSTER_LABEL, None)
        labels: dict[str, str] = {}
        for key, value in found.items():
            if key > CLUSTER_LABEL and CLUSTER_LABEL not in labels:
                labels[CLUSTER_LABEL] = self._member
            labels[self.shared(key)] = self.shared(value)
        labels.setdefault(CLUSTER_LABEL, self._member)
        return labels, b'"labels":' + _encode(labels)


MAX_OBJECT_BYTES = 8 * 1024 * 1024
"""etcd accepts 1.5 MB per object by default."""
MAX_DEPTH = 256
"""Maximum nesting depth. Python's decoders and encoders fail before a depth of 1,000 is reached, Go's at 10,000."""
MAX_COMMAS = 1_000_000
"""Maximum number of JSON elements in one object: even a short one can take a hundred bytes while it is decoded."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_BACKSLASH = 0x5C
_MAX_NAME = 1024
_VERSION = re.compile(rb'"[1-9][0-9]{0,19}"')
_NAME = re.compile(r"[^\x00-\x1f/%\x7f]+")
_MAX_VERSION = 2**64 - 1
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Any], float_hook=json_float)
_VALUE = msgspec.json.Decoder(float_hook=json_float)
_NULL = Raw(b"null")
_TIME = msgspec.json.Decoder(datetime | None)
_TEXT = msgspec.json.Decoder(str)
# Metadata fields of built-in objects have the order of apimachinery's `metav1.ObjectMeta`, others are alphabetical.
_BEHIND_ANNOTATIONS = frozenset({"ownerReferences", "finalizers", "managedFields"})
_BEHIND_LABELS = _BEHIND_ANNOTATIONS | {"annotations"}


class MalformedObject(ValueError):
    """An object that no kube-apiserver sends. The message names the fault without the object's content."""


class SplitObject(NamedTuple):
    """The result of `split_object`; the fields are those of `CachedObject`."""

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
    """Return a JSON resourceVersion as a number. Raises MalformedObject if it is no positive 64-bit integer."""
    if not _VERSION.fullmatch(raw) or (version := int(raw[1:-1])) > _MAX_VERSION:
        raise MalformedObject("its resourceVersion is no positive integer of 64 bits")
    return version


def canonical(item: bytes) -> bytes:
    """Return the same JSON without white space and duplicate keys (the last one stays, as in Go and Python)."""
    try:
        return _encode(_VALUE.decode(item))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedObject(f"it cannot be decoded: {type(error).__name__}") from None


def refuse_crowded(data: bytes, most: int = MAX_COMMAS) -> None:
    """Raise MalformedObject for JSON with so many elements that decoding needs far more memory than the JSON's size,
    and msgspec.DecodeError for data that is not JSON.
    """
    if len(data) > 2 * most and data.count(b",") > most:
        msgspec.json.decode(data, type=Raw)  # the search below is right only for valid JSON
        if _STRING.sub(b"", data).count(b",") > most:
            raise MalformedObject(f"it has more than {most} elements")


def checked_object(item: bytes) -> bytes:
    """Return decodable JSON on one line. Raises MalformedObject if it is too large, too deep or not UTF-8."""
    if len(item) > MAX_OBJECT_BYTES:
        raise MalformedObject(f"it has {len(item)} bytes, more than {MAX_OBJECT_BYTES}")
    if not item.isascii():
        try:
            item.decode()
        except UnicodeDecodeError:
            raise MalformedObject("it is not UTF-8") from None
    if b"\n" in item or b"\r" in item:  # line breaks between tokens: each event of a watch must be one line
        item = canonical(item)
    try:
        refuse_deep(item, MAX_DEPTH)
    except TooDeep as error:
        raise MalformedObject(f"it is {error}") from None
    return item


def split_object(
    item: bytes, prefixes: tuple[bytes, ...], marks: ClusterMarks, *, drop_managed_fields: bool = False
) -> SplitObject:
    """Split one object. `prefixes` are the possible first fields of the object (`"kind":"Pod","apiVersion":"v1",`).

    An object without kind and apiVersion, like the items of built-in lists, is accepted, too. Raises MalformedObject.
    """
    try:
        refuse_crowded(item)
        fields = _FIELDS.decode(item)
        text = checked_object(item)
        if text is not item:
            item, fields = text, _FIELDS.decode(text)
        metadata = _FIELDS.decode(fields.get("metadata", _NULL))
        plain = _length(fields) == len(item) and _length(metadata) == len(fields["metadata"])
        prefix = next((prefix for prefix in prefixes if item.startswith(prefix, 1)), b"")
        if not plain or (not prefix and ("kind" in fields or "apiVersion" in fields)):
            item, prefix, plain = _reordered(item, prefixes), prefixes[0], False
            fields = _FIELDS.decode(item)
            metadata = _FIELDS.decode(fields["metadata"])
        return _split(item, len(prefix), fields, metadata, plain, marks, drop_managed_fields)
    except MalformedObject:
        raise
    except (ValueError, RecursionError) as error:  # msgspec's errors and UTF-8 errors are ValueErrors
        raise MalformedObject(f"it cannot be decoded: {str(error)[:200]}") from None


def object_identity(item: Raw | bytes) -> tuple[str, str, int]:
    """Return namespace, name and version of an object; other fields are ignored. Raises ValueError, RecursionError."""
    metadata = _FIELDS.decode(_FIELDS.decode(item).get("metadata", _NULL))
    for key in ("name", "resourceVersion"):
        if key not in metadata:
            raise MalformedObject(f"it has no metadata.{key}")
    names = _text(metadata["namespace"]) if "namespace" in metadata else "", _text(metadata["name"])
    for text in names:
        _check_name(text)
    return (*names, version_of(bytes(metadata["resourceVersion"])))


def _check_name(text: str) -> None:
    if text and (len(text) > _MAX_NAME or not _NAME.fullmatch(text) or text in (".", "..")):
        raise MalformedObject("its name or namespace cannot stand in a path")


def _length(fields: dict[str, Raw]) -> int:
    """Return the length of a JSON object with these fields if it has no white space and no escapes in its keys.

    White space, escapes and duplicate keys each make the text longer, never shorter.
    """
    return sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields) + 1


def _reordered(item: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    """Return an unusual object in the usual form, with the first of the prefixes."""
    found = _OBJECT.decode(item)
    wanted = _OBJECT.decode(b"{" + prefixes[0].removesuffix(b",") + b"}")
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
    """Return the fields with `key` added where a kube-apiserver writes it: before the fields in `behind`, or sorted."""
    found: dict[str, bytes] = {}
    for other, text in pieces.items():
        if key not in found and (other > key if sorted_keys else other in behind):
            found[key] = piece
        found[other] = text
    found.setdefault(key, piece)
    return found


def _text(raw: Raw) -> str:
    text = bytes(raw)
    if text[:1] == b'"' and _BACKSLASH not in text:
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
