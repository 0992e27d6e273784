"""Encodes whole objects and PartialObjectMetadata, byte for byte as a kube-apiserver writes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mcproxy.aggregate.cache.decoder import INITIAL_EVENTS_END
from mcproxy.kube.media_types import NegotiatedMediaType
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.encoding.columns import Columns, StoreColumns
    from mcproxy.kube.resource import APIResource

VersionWriter = Callable[[int], bytes]
"""`VersionFormat.object_template`: maps a member's version of an object to the resourceVersion for clients."""
ItemWriter = Callable[[Sequence["CachedObject"]], list[bytes]]
"""Returns the pieces of list items: joined, they are the items' JSON with a comma before each item."""
_END_ANNOTATION = b'"annotations":{"%b":"true"}' % INITIAL_EVENTS_END.encode()


@dataclass(frozen=True, slots=True)
class ListMeta:
    """The metadata of a list; `remaining` is None if remainingItemCount is omitted."""

    resource_version: str
    continue_token: str = ""
    remaining: int | None = None

    def json(self) -> bytes:
        """Return the JSON in Go's order of fields."""
        text = b'{"resourceVersion":' + _text(self.resource_version)
        if self.continue_token:
            text += b',"continue":' + _text(self.continue_token)
        if self.remaining is not None:
            text += b',"remainingItemCount":%d' % self.remaining
        return text + b"}"

    def sorted_json(self) -> bytes:
        """Return the JSON as in lists of custom resources: with sorted keys, always with `continue`."""
        text = b'{"continue":' + _text(self.continue_token)
        if self.remaining is not None:
            text += b',"remainingItemCount":%d' % self.remaining
        return text + b',"resourceVersion":' + _text(self.resource_version) + b"}"


class WithoutColumns:
    """Base of the encoders without Tables: a client can read each line of a watch on its own."""

    __slots__ = ()

    def columns(self, states: Iterable[Snapshot]) -> Columns | None:
        return None

    def definitions(self, columns: StoreColumns, store: Store | None) -> bytes:
        return b""


class ObjectEncoder(WithoutColumns):
    """Encodes whole objects as JSON (`encoder.Encoder`)."""

    __slots__ = ("_api_version", "_custom", "_prefix")

    key: Hashable = "object"

    def __init__(self, resource: APIResource, *, custom: bool) -> None:
        self._api_version = resource.gvr.api_version
        self._custom = custom
        self._prefix = f'"kind":"{resource.kind}","apiVersion":"{self._api_version}",'.encode()

    def single(self, store: Store, obj: CachedObject, version: bytes) -> bytes:
        return obj.json(store.type_prefix, version) + b"\n"

    def envelope(self, metadata: ListMeta, list_kind: str, columns: Columns | None) -> tuple[bytes, bytes]:
        kind, version = _text(list_kind), _text(self._api_version)
        if self._custom:
            tail = b'],"kind":%b,"metadata":%b}\n' % (kind, metadata.sorted_json())
            return b'{"apiVersion":%b,"items":[' % version, tail
        head = b'{"kind":%b,"apiVersion":%b,"metadata":%b,"items":['
        return head % (kind, version, metadata.json()), b"]}\n"

    def items(self, snapshot: Snapshot, version: VersionWriter, columns: Columns | None) -> ItemWriter:
        store = snapshot.store
        opening = b",{" + (store.type_prefix if store.items_typed else b"")
        return lambda objects: [
            piece for obj in objects for piece in (opening, obj.head, version(obj.version), obj.tail)
        ]

    def event(
        self,
        kind: EventType,
        columns: StoreColumns,
        store: Store,
        obj: CachedObject,
        version: bytes,
        sent_definitions: bytes | None,
    ) -> bytes:
        return b'{"type":"%b","object":{%b%b%b%b}\n' % (
            kind.value.encode(),
            store.type_prefix,
            obj.head,
            version,
            obj.tail,
        )

    def bookmark(
        self,
        columns: StoreColumns,
        store: Store | None,
        version: bytes,
        sent_definitions: bytes | None,
        *,
        initial_end: bool,
    ) -> bytes:
        prefix = self._prefix if store is None else store.type_prefix
        return b'{"type":"BOOKMARK","object":%b}\n' % bookmark_object(prefix, version, initial_end=initial_end)


class PartialEncoder(WithoutColumns):
    """Encodes PartialObjectMetadata (`encoder.Encoder`)."""

    __slots__ = ("_api_version", "_prefix", "key")

    def __init__(self, wanted: Representation) -> None:
        self.key: Hashable = ("partial", wanted.version)
        self._api_version = wanted.api_version
        self._prefix = partial_prefix(wanted)

    def single(self, store: Store, obj: CachedObject, version: bytes) -> bytes:
        return b'{%b"metadata":%b}\n' % (self._prefix, obj.metadata_json(version))

    def envelope(self, metadata: ListMeta, list_kind: str, columns: Columns | None) -> tuple[bytes, bytes]:
        head = b'{"kind":"PartialObjectMetadataList","apiVersion":"%b","metadata":%b,"items":['
        return head % (self._api_version, metadata.json()), b"]}\n"

    def items(self, snapshot: Snapshot, version: VersionWriter, columns: Columns | None) -> ItemWriter:
        opening = b',{%b"metadata":' % self._prefix
        return lambda objects: [
            piece
            for obj in objects
            for piece in (
                opening,
                obj.head[obj.metadata_start :],
                version(obj.version),
                obj.tail[: obj.metadata_end],
                b"}",
            )
        ]

    def event(
        self,
        kind: EventType,
        columns: StoreColumns,
        store: Store,
        obj: CachedObject,
        version: bytes,
        sent_definitions: bytes | None,
    ) -> bytes:
        return b'{"type":"%b","object":{%b"metadata":%b}}\n' % (
            kind.value.encode(),
            self._prefix,
            obj.metadata_json(version),
        )

    def bookmark(
        self,
        columns: StoreColumns,
        store: Store | None,
        version: bytes,
        sent_definitions: bytes | None,
        *,
        initial_end: bool,
    ) -> bytes:
        return b'{"type":"BOOKMARK","object":%b}\n' % bookmark_object(self._prefix, version, initial_end=initial_end)


def partial_prefix(wanted: Representation) -> bytes:
    """Return kind and apiVersion of a PartialObjectMetadata, with a comma at the end."""
    return b'"kind":"PartialObjectMetadata","apiVersion":"%b",' % wanted.api_version


def bookmark_object(prefix: bytes, version: bytes, *, initial_end: bool) -> bytes:
    """Return the object of a bookmark; `prefix` has kind and apiVersion, with a comma at its end."""
    metadata = b'"resourceVersion":"%b"' % version
    if initial_end:
        # Custom resources are written with sorted keys.
        pair = (_END_ANNOTATION, metadata) if prefix.startswith(b'"apiVersion"') else (metadata, _END_ANNOTATION)
        metadata = b",".join(pair)
    return b'{%b"metadata":{%b}}' % (prefix, metadata)


def error_event(error: StatusError) -> bytes:
    """Return the line of an ERROR event, after which a watch ends; its object is a Status in every representation."""
    return b'{"type":"ERROR","object":%b}\n' % error.body().rstrip(b"\n")


def _text(text: str) -> bytes:
    return msgspec.json.encode(text)


# -- the requested representation -----------------------------------------------------------------------------
#
# The representation that a client requests: whole objects, a Table or PartialObjectMetadata.

TABLE, PARTIAL, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
NONE, METADATA, OBJECT = "None", "Metadata", "Object"


@dataclass(frozen=True, slots=True)
class Representation:
    """A negotiated representation. `kind` is "" (whole objects), TABLE, PARTIAL or PARTIAL_LIST.

    `version` is that of the group meta.k8s.io; `include_object` (for rows of a Table) is NONE, METADATA or OBJECT.
    """

    kind: str = ""
    version: str = "v1"
    include_object: str = METADATA

    @property
    def api_version(self) -> bytes:
        """The apiVersion of a Table or PartialObjectMetadata."""
        return b"meta.k8s.io/" + self.version.encode()


def requested_representation(accepted: NegotiatedMediaType, include_object: str) -> Representation:
    """Return the negotiated representation; `include_object` is the query parameter. Raises StatusError 400."""
    if accepted.kind == TABLE and include_object not in ("", NONE, METADATA, OBJECT):
        raise StatusError(
            400,
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{include_object}": '
            "must be 'Metadata', 'Object', 'None', or empty",
            indented=True,
        )
    included = include_object if accepted.kind == TABLE and include_object else METADATA
    return Representation(accepted.kind, accepted.version or "v1", included)
