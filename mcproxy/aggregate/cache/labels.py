"""Labels and annotations of a member's object, with those of its cluster put in."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcproxy.aggregate.cache.object import CLUSTER_ANNOTATION, CLUSTER_LABEL

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
    Both tables are bounded, so a member that sends ever new labels costs nothing but its objects.
    """

    __slots__ = ("_annotation", "_labels", "_member", "_strings", "no_annotations", "no_labels")

    def __init__(self, member: str) -> None:
        self._member = member
        self._annotation = _ANNOTATION_KEY + _encode(member)
        self._labels: dict[bytes, tuple[dict[str, str], bytes]] = {}
        self._strings: dict[str, str] = {}
        self.no_labels = self._with_label({})
        """The labels, and the field of an object, that has none of its own."""
        self.no_annotations = b'"annotations":{' + self._annotation + b"}"

    def shared(self, text: str) -> str:
        """Return an equal string that other objects may hold, too."""
        known = self._strings.get(text)
        if known is None:
            if len(self._strings) >= _MAX_STRINGS:
                self._strings.clear()
            known = self._strings[text] = text
        return known

    def labels(self, raw: bytes) -> tuple[dict[str, str], bytes]:
        """Return the labels with the cluster's, and `"labels":{…}`; one of the same name is replaced.

        `raw` is the member's JSON. Raises msgspec.DecodeError for what is no object of strings.
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
        """Return equal labels that other objects share: for those that were read from a file."""
        return self.labels(_encode(labels))[0]

    def annotations(self, raw: bytes) -> bytes:
        """Return `"annotations":{…}` with the cluster's; one of the same name is replaced, the others stay as bytes.

        Raises ValueError (also msgspec.DecodeError) for what is no object of strings.
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
