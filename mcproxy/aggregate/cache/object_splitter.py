"""The split of an object's JSON around its resourceVersion, with the marks of its cluster put into its metadata.

Only the metadata's own fields are decoded. Their offsets follow from the lengths of keys and values. If these lengths
add up to the length of the text, the text has no white space, no escaped key and no duplicate key, all of which two
parsers could read differently. If they do not add up, the object is first decoded and encoded again.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL, CachedObject
from mcproxy.kube.nesting import TooDeep, refuse_deep
from mcproxy.kube.numbers import json_float

_LABELS = msgspec.json.Decoder(dict[str, str] | None)
_ANNOTATIONS = msgspec.json.Decoder(dict[str, Raw] | None)
_encode = msgspec.json.Encoder().encode
_MAX_CACHED = 4096
_MAX_CACHED_BYTES = 2048
_MAX_STRINGS = 65_536
_LONGEST_SHARED = 1024  # characters; a kube-apiserver accepts no longer name, label or value
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
        if known is None and len(text) <= _LONGEST_SHARED:
            if len(self._strings) >= _MAX_STRINGS:
                self._strings.clear()
            self._strings[text] = text
        return text if known is None else known

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


MAX_OBJECT_BYTES: Final = 8 * 1024 * 1024
"""etcd accepts 1.5 MB per object by default."""
MAX_DEPTH: Final = 256
"""Maximum nesting depth. Python's decoders and encoders fail before a depth of 1,000 is reached, Go's at 10,000."""
MAX_COMMAS: Final = 1_000_000
"""Maximum number of JSON elements in one object: even a short one can take a hundred bytes while it is decoded."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_MAX_NAME: Final = 1024
_QUOTE: Final = 0x22
_ZERO: Final = 0x30
_LONGEST_VERSION: Final = 22  # bytes, with quotes
_NAME = re.compile(r"[^\x00-\x1f/%\x7f]+")
_MAX_VERSION: Final = 2**64 - 1
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


def version_of(raw: bytes) -> int:
    """Return a JSON resourceVersion as a number. Raises MalformedObject if it is no positive 64-bit integer."""
    if 2 < len(raw) <= _LONGEST_VERSION and raw[0] == raw[-1] == _QUOTE and raw[1] != _ZERO:
        digits = raw[1:-1]
        if digits.isdigit() and (version := int(digits)) <= _MAX_VERSION:
            return version
    raise MalformedObject("its resourceVersion is no positive integer of 64 bits")


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
    if item.find(b"\n") >= 0 or item.find(b"\r") >= 0:  # between tokens: each event of a watch must be one line
        item = canonical(item)
    try:
        refuse_deep(item, MAX_DEPTH)
    except TooDeep as error:
        raise MalformedObject(f"it is {error}") from None
    return item


def split_object(
    item: bytes,
    prefixes: tuple[bytes, ...],
    marks: ClusterMarks,
    cells: bytes | None,
    printed: float,
    *,
    drop_managed_fields: bool = False,
) -> CachedObject:
    """Split one object. `prefixes` are the possible first fields of the object (`"kind":"Pod","apiVersion":"v1",`).

    An object without kind and apiVersion, like the items of built-in lists, is accepted, too. `cells` and `printed`
    are those of `CachedObject`. Raises MalformedObject.
    """
    try:
        refuse_crowded(item)
        fields = _FIELDS.decode(item)
        text = checked_object(item)
        if text is not item:
            item, fields = text, _FIELDS.decode(text)
        prefix = _prefix(item, prefixes)
        found: CachedObject | None = None
        if prefix or ("kind" not in fields and "apiVersion" not in fields):
            found = _split(item, len(prefix), fields, True, marks, cells, printed, drop_managed_fields)
        if found is None:
            item = _reordered(item, prefixes)
            fields = _FIELDS.decode(item)
            found = _split(item, len(prefixes[0]), fields, False, marks, cells, printed, drop_managed_fields)
        if found is None:
            raise MalformedObject("it cannot be split")
        return found
    except MalformedObject:
        raise
    except (ValueError, RecursionError) as error:  # msgspec's errors and UTF-8 errors are ValueErrors
        raise MalformedObject(f"it cannot be decoded: {str(error)[:200]}") from None


def _prefix(item: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    """Return the prefix with which the object begins; b"" if it begins with none."""
    for prefix in prefixes:
        if item.startswith(prefix, 1):
            return prefix
    return b""


def object_identity(item: Raw | bytes) -> tuple[str, str, int]:
    """Return namespace, name and version of an object; other fields are ignored. Raises ValueError, RecursionError."""
    metadata = _FIELDS.decode(_FIELDS.decode(item).get("metadata", _NULL))
    for key in ("name", "resourceVersion"):
        if key not in metadata:
            raise MalformedObject(f"it has no metadata.{key}")
    names = _text(metadata["namespace"]) if "namespace" in metadata else "", _text(metadata["name"])
    for text in names:
        if text:
            _check_name(text)
    return (*names, version_of(bytes(metadata["resourceVersion"])))


def _check_name(text: str) -> None:
    if len(text) > _MAX_NAME or not _NAME.fullmatch(text) or text in (".", ".."):
        raise MalformedObject("its name or namespace cannot stand in a path")


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
    plain: bool,
    marks: ClusterMarks,
    cells: bytes | None,
    printed: float,
    drop_managed_fields: bool,
) -> CachedObject | None:
    """Split an object that begins with a prefix of this length.

    `plain`: the text is taken to have no white space, no escaped key and no duplicate key. Each of these makes it
    longer than the sum of its keys and values, never shorter; then the result is None.
    """
    start = position = 1
    for key, value in fields.items():
        position += len(key) + 3 if plain else len(_encode(key)) + 1
        if key == "metadata":
            start = position
        position += len(value) + 1
    if position != len(item):  # the last field has a brace behind it, not a comma
        return None
    metadata = _FIELDS.decode(fields.get("metadata", _NULL))
    for key in ("name", "resourceVersion"):
        if key not in metadata:
            raise MalformedObject(f"it has no metadata.{key}")
    labels, labels_field = marks.labels(bytes(metadata["labels"])) if "labels" in metadata else marks.no_labels
    annotations = metadata.get("annotations")
    annotations_field = marks.no_annotations if annotations is None else marks.annotations(bytes(annotations))
    missing: list[tuple[str, bytes, frozenset[str]]] = []
    if annotations is None:
        missing.append(("annotations", annotations_field, _BEHIND_ANNOTATIONS))
    if "labels" not in metadata:
        missing.append(("labels", labels_field, _BEHIND_LABELS))
    sorted_keys = next(iter(fields)) == "apiVersion"
    if not sorted_keys:
        missing.reverse()

    # Fields that stay as they are, one behind the other, are one text.
    texts: list[bytes] = []
    place = 0
    begin = position = start + 1
    for key, value in metadata.items():
        end = position + len(value) + (len(key) + 3 if plain else len(_encode(key)) + 1)
        while missing and (key > missing[0][0] if sorted_keys else key in missing[0][2]):
            if begin < position:
                texts.append(item[begin : position - 1])
                begin = position
            texts.append(missing.pop(0)[1])
        changed = key in ("resourceVersion", "labels", "annotations") or (
            drop_managed_fields and key == "managedFields"
        )
        if changed:
            if begin < position:
                texts.append(item[begin : position - 1])
            begin = end + 1
            if key == "resourceVersion":
                place = len(texts)
            elif key == "labels":
                texts.append(labels_field)
            elif key == "annotations":
                texts.append(annotations_field)
        position = end + 1
    if position != start + len(fields["metadata"]):
        return None
    if begin < position:
        texts.append(item[begin : position - 1])
    texts += [field for _, field, _ in missing]

    name = _text(metadata["name"])
    namespace = marks.shared(_text(metadata["namespace"])) if "namespace" in metadata else ""
    for part in (name, namespace) if namespace else (name,):
        _check_name(part)
    head = b"".join((item[1 + prefix_length : start], b"{", b",".join((*texts[:place], b'"resourceVersion":"'))))
    end_of_metadata = b",".join((b'"', *texts[place:])) + b"}"
    return CachedObject(
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
        cells,
        printed,
    )


def _text(raw: Raw) -> str:
    text = bytes(raw)
    if text[:1] == b'"' and text.find(b"\\") < 0:
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
