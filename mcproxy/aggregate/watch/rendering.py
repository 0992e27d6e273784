"""Events as lines of a watch response, in the representation that the client asked for. Pure.

Source: Kubernetes API concepts ("Efficient detection of changes", "Receiving resources as Tables"), and recordings of a
kube-apiserver 1.36 for the order of the fields.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from mcproxy.aggregate.cache.decoder import INITIAL_EVENTS_END
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject, EventType
    from mcproxy.aggregate.cache.store import Store

_END_ANNOTATION = b'"annotations":{"%b":"true"}' % INITIAL_EVENTS_END.encode()


class Rendering(Protocol):
    """One representation. Watches whose `key` is equal get the same bytes."""

    @property
    def key(self) -> Hashable: ...

    def event(self, kind: EventType, store: Store, obj: CachedObject, version: bytes, *, first: bool) -> bytes:
        """Return the line of a change; `first`: of the first one that the client gets."""

    def bookmark(self, store: Store | None, version: bytes, *, initial_end: bool, first: bool) -> bytes:
        """Return the line of a bookmark; `store` is one of the view, None where it has none."""


class ObjectRendering:
    """The objects themselves, as JSON."""

    __slots__ = ("_prefix",)

    key: Hashable = "object"

    def __init__(self, kind: str, api_version: str) -> None:
        self._prefix = f'"kind":"{kind}","apiVersion":"{api_version}",'.encode()

    def event(self, kind: EventType, store: Store, obj: CachedObject, version: bytes, *, first: bool) -> bytes:
        return b'{"type":"%b","object":{%b%b%b%b}\n' % (
            kind.value.encode(),
            store.type_prefix,
            obj.head,
            version,
            obj.tail,
        )

    def bookmark(self, store: Store | None, version: bytes, *, initial_end: bool, first: bool) -> bytes:
        prefix = self._prefix if store is None else store.type_prefix
        return b'{"type":"BOOKMARK","object":%b}\n' % bookmark_object(prefix, version, initial_end=initial_end)


class PartialRendering:
    """PartialObjectMetadata; `version` is that of meta.k8s.io."""

    __slots__ = ("_prefix", "key")

    def __init__(self, version: str = "v1") -> None:
        self.key: Hashable = ("partial", version)
        self._prefix = f'"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{version}",'.encode()

    def event(self, kind: EventType, store: Store, obj: CachedObject, version: bytes, *, first: bool) -> bytes:
        return b'{"type":"%b","object":{%b"metadata":%b}}\n' % (
            kind.value.encode(),
            self._prefix,
            obj.metadata_json(version),
        )

    def bookmark(self, store: Store | None, version: bytes, *, initial_end: bool, first: bool) -> bytes:
        return b'{"type":"BOOKMARK","object":%b}\n' % bookmark_object(self._prefix, version, initial_end=initial_end)


def bookmark_object(prefix: bytes, version: bytes, *, initial_end: bool) -> bytes:
    """Return the object of a bookmark; `prefix` has kind and apiVersion, with a comma at its end."""
    metadata = b'"resourceVersion":"%b"' % version
    if initial_end:
        # Custom resources are written in the order of the alphabet.
        pair = (_END_ANNOTATION, metadata) if prefix.startswith(b'"apiVersion"') else (metadata, _END_ANNOTATION)
        metadata = b",".join(pair)
    return b'{%b"metadata":{%b}}' % (prefix, metadata)


def error_line(error: StatusError) -> bytes:
    """Return an ERROR event, after which the response ends; a Status in every representation."""
    return b'{"type":"ERROR","object":%b}\n' % error.body().rstrip(b"\n")
