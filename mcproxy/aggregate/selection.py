"""Label and field selectors over cached objects. Pure.

Label selectors match the decoded dictionary of each object. A field selector can name any scalar path of any resource.
A path that is not an attribute of the cached object is read from its JSON, but only if the JSON contains the text of
the value. The values of one of Kubernetes' own field labels are kept with the objects (`FieldColumn`): a kube-apiserver
has an index for the most frequent list of this kind, that of each node's pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mcproxy.aggregate.cache.sequence import LONGEST_VALUE
from mcproxy.kube.field_labels import FIELD_LABELS, METADATA, FieldLabel, unknown_field_label
from mcproxy.kube.selectors import (
    FieldTerm,
    Requirement,
    label_matcher,
    parse_field_selector,
    parse_label_selector,
)
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.cache.sequence import ObjectSequence
    from mcproxy.kube.resource import GroupVersionResource

KnownField = Callable[[str], bool | None]
"""Returns whether the published schema of a resource has a dotted field path; None if the schema is not known."""

DECODING = 50
"""The cost (`Selection.cost`) of a term that is read from the JSON."""
KEPT = 20
"""The cost of a term whose values are kept, when they are read for the first time."""
MAX_TERMS = 64
"""Maximum number of terms in a field selector; each term can require decoding every object."""
MAX_DEPTH = 32
"""Maximum number of fields in one path."""
_PLAIN = re.compile(r"[A-Za-z0-9._:/-]+\Z")
"""Matches values that a kube-apiserver's JSON encoder writes without an escape."""
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_NULL = msgspec.Raw(b"null")

ObjectMatcher = Callable[["CachedObject"], bool]


class Selection:
    """The label and field selectors of a list or watch.

    `name` and `namespace` are the values that the field selector requires (None: any), so a reader can look them up;
    they are also matched. `impossible`: the selector requires two different names or namespaces.
    """

    __slots__ = ("_fields", "_kept", "_labels", "cost", "impossible", "name", "namespace")

    def __init__(self, requirements: tuple[Requirement, ...] = (), terms: Sequence[tuple[FieldTerm, FieldLabel]] = ()):
        self._labels = label_matcher(requirements)
        kept = [each for each in terms if each[1] in _READERS and len(each[0].value) <= LONGEST_VALUE][:1]
        self._kept = kept[0] if kept else None
        self.cost = 1 + len(requirements) + DECODING * (len(terms) - len(kept)) + KEPT * len(kept)
        """The maximum cost of matching one object, in units of about 0.1 microseconds; clients choose the length of a
        selector.
        """
        # The field whose values are kept is the first.
        self._fields = [_field_matcher(*each) for each in (*kept, *(each for each in terms if each not in kept))]
        names = _demanded(terms, "metadata.name")
        namespaces = _demanded(terms, "metadata.namespace")
        self.impossible = len(names) > 1 or len(namespaces) > 1
        self.name = names[0] if names else None
        self.namespace = namespaces[0] if namespaces else None

    def __bool__(self) -> bool:
        """Whether an object can fail to match."""
        return self._labels is not None or bool(self._fields)

    @property
    def by_chunk(self) -> bool:
        """Whether `filter_chunk` reads less than `filter`: there are labels, or a term whose values are kept."""
        return self._labels is not None or self._kept is not None

    def matches(self, obj: CachedObject) -> bool:
        """Return whether an object is selected."""
        labels = self._labels
        return (labels is None or labels(obj.labels)) and all(field(obj) for field in self._fields)

    def filter(self, objects: Sequence[CachedObject]) -> list[CachedObject]:
        """Return the selected objects. This is faster than `matches` for each object.

        Replicas are neighbours in a list and share their labels, so these labels are matched only once.
        """
        found = list(objects) if self._labels is None else []
        if self._labels is not None:
            match, last, selected = self._labels, None, False
            for obj in objects:
                labels = obj.labels
                if labels is not last:
                    last = labels
                    selected = match(labels)
                if selected:
                    found.append(obj)
        return self._filter_fields(found, self._fields)

    def filter_chunk(self, objects: ObjectSequence, index: int) -> list[CachedObject]:
        """Return the selected objects of a chunk, with what is kept of its objects' labels and fields."""
        chunk, match, kept = objects.chunks[index], self._labels, self._kept
        found: list[CachedObject] = []
        if match is not None:
            runs = objects.label_runs(index)
            start = 0
            for labels, end in zip(runs.labels, runs.ends, strict=True):
                if match(labels):
                    found += chunk[start:end]
                start = end
            return self._filter_fields(found, self._fields)
        if kept is None:
            return self._filter_fields(list(chunk), self._fields)
        term, label = kept
        value, negated = term.value, term.negated
        texts = objects.field_values(index, label, _READERS[label])
        if negated:
            found = [obj for obj, text in zip(chunk, texts, strict=True) if text != value]
        elif value in texts:
            found = [obj for obj, text in zip(chunk, texts, strict=True) if text == value]
        return self._filter_fields(found, self._fields[1:])

    def _filter_fields(self, found: list[CachedObject], fields: Sequence[ObjectMatcher]) -> list[CachedObject]:
        for field in fields:
            found = [obj for obj in found if field(obj)]
        return found


def parse_selection(
    label_selector: str,
    field_selector: str,
    gvr: GroupVersionResource,
    *,
    custom: bool = False,
    known_field: KnownField | None = None,
) -> Selection:
    """Parse both selectors. Raises StatusError 400 with Kubernetes' messages.

    `custom`: for a custom resource, which changes the message. Field labels that Kubernetes supports for the resource
    are always accepted; any other path is rejected if `known_field` returns False.
    """
    requirements = parse_label_selector(label_selector)
    parsed = parse_field_selector(field_selector)
    if len(parsed) > MAX_TERMS:
        raise StatusError(400, f"fieldSelector: {len(parsed)} terms, at most {MAX_TERMS} are possible")
    own = {**METADATA, **FIELD_LABELS.get((gvr.group, gvr.resource), {})}
    terms = []
    for term in parsed:
        label = own.get(term.field)
        if label is None:
            label = FieldLabel((term.field,))
            parts = term.field.split(".")
            bad = not all(parts) or len(parts) > MAX_DEPTH
            if bad or (known_field is not None and known_field(term.field) is False):
                raise StatusError(400, unknown_field_label(term.field, list(own), custom=custom))
        terms.append((term, label))
    return Selection(requirements, terms)


def _demanded(terms: Sequence[tuple[FieldTerm, FieldLabel]], field: str) -> list[str]:
    return sorted({term.value for term, _ in terms if term.field == field and not term.negated})


def _field_matcher(term: FieldTerm, label: FieldLabel) -> ObjectMatcher:
    value, negated = term.value, term.negated
    if term.field == "metadata.name":
        return lambda obj: (obj.name == value) is not negated
    if term.field == "metadata.namespace":
        return lambda obj: (obj.namespace == value) is not negated
    paths = [tuple(path.split(".")) for path in label.paths]
    default = label.default

    def found(obj: CachedObject) -> str:
        document = obj.json(b"", b"%d" % obj.version)
        return next((text for path in paths if (text := scalar_at(document, path))), default)

    if value == default or not _PLAIN.match(value) or term.field == "metadata.resourceVersion":
        return lambda obj: (found(obj) == value) is not negated
    needle = value.encode()

    def matches(obj: CachedObject) -> bool:
        # The text of the value must be in the JSON; this check excludes most objects.
        if obj.tail.find(needle) < 0 and obj.head.find(needle) < 0:
            return negated
        return (found(obj) == value) is not negated

    return matches


def _reader(label: FieldLabel) -> Callable[[CachedObject], str]:
    """Return a function that reads the value of one of Kubernetes' own field labels, in one pass over the JSON."""
    decoders = [_path_decoder(path.split(".")) for path in label.paths]
    depths, default = [path.count(".") for path in label.paths], label.default

    def read(obj: CachedObject) -> str:
        document = obj.json(b"", b"%d" % obj.version)
        for decoder, depth in zip(decoders, depths, strict=True):
            try:
                found: Any = decoder.decode(document)
                for _ in range(depth + 1):
                    found = found.value
                text = _scalar(bytes(found))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                text = ""
            if text:
                return text
        return default

    return read


def _path_decoder(path: list[str]) -> msgspec.json.Decoder[Any]:
    """Return a decoder of documents that reads one path: a structure with `value` for each of its fields."""
    last, *others = reversed(path)
    found: Any = msgspec.defstruct("Field", [("value", msgspec.Raw, msgspec.field(default=_NULL, name=last))], gc=False)
    for name in others:
        found = msgspec.defstruct(
            "Field", [("value", found, msgspec.field(default_factory=found, name=name))], gc=False
        )
    return msgspec.json.Decoder(found)


_READERS = {label: _reader(label) for labels in FIELD_LABELS.values() for label in labels.values()}
"""Readers of the field labels whose values are kept."""


def scalar_at(document: bytes, path: Sequence[str]) -> str:
    """Return the scalar at a path of a JSON object, as a field selector writes it; "" if there is none."""
    raw = document
    try:
        for part in path:
            found = _FIELDS.decode(raw).get(part)
            if found is None:
                return ""
            raw = bytes(found)
        return _scalar(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _scalar(raw: bytes) -> str:
    """Return a JSON value as a field selector writes it; "" for null, lists and objects. Raises as msgspec does."""
    if raw[:1] == b'"':
        return _TEXT.decode(raw)
    return "" if raw[:1] in (b"{", b"[") or raw == b"null" else raw.decode("ascii", "replace")
