"""One cached object, with what selectors and tables need of it, and the changes of a store."""

from __future__ import annotations

from enum import Enum

import msgspec

CLUSTER_LABEL = "mcproxy.io/cluster"
CLUSTER_ANNOTATION = "resource.karmada.io/cached-from-cluster"
"""Label and annotation with the member's name; the annotation is Karmada's."""


class CachedObject(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An object of one member. `{` + [type prefix] + `head` + resource version + `tail` is its JSON.

    `gc=False` keeps 100,000 objects out of every garbage collection; an object refers to nothing that could refer to
    it. Objects with equal labels share one `labels` dictionary: do not change it.
    """

    namespace: str
    name: str
    uid: str
    version: int
    """The member's own resourceVersion; for a deleted object, the resourceVersion of its deletion."""
    head: bytes
    """JSON after the type prefix, up to and including `"resourceVersion":"`. The proxy's label and annotation with the
    member's name are in the object's metadata.
    """
    tail: bytes
    """JSON from the quote after the version to the object's closing brace."""
    metadata_start: int
    """Where the value of `metadata` begins in `head`."""
    metadata_end: int
    """Where the value of `metadata` ends in `tail`."""
    labels: dict[str, str]
    created: float
    """creationTimestamp, seconds since 1970; 0.0 without one."""
    cells: bytes | None
    """JSON array of the Table cells as the member printed them; None if it gave no Table."""
    printed: float
    """When the member printed the cells, seconds since 1970."""

    @property
    def key(self) -> str:
        """The sort key of lists, `namespace/name`: a kube-apiserver lists objects in the order of their etcd keys."""
        return f"{self.namespace}/{self.name}"

    @property
    def size(self) -> int:
        """Bytes of the object's JSON and Table cells."""
        return len(self.head) + len(self.tail) + (len(self.cells) if self.cells else 0)

    def json(self, type_prefix: bytes, version: bytes) -> bytes:
        """Return the whole object as JSON; `type_prefix` ends with a comma, or is b"" for items of built-in lists."""
        return b"".join((b"{", type_prefix, self.head, version, self.tail))

    def metadata_json(self, version: bytes) -> bytes:
        """Return the value of `metadata` alone."""
        return b"".join((self.head[self.metadata_start :], version, self.tail[: self.metadata_end]))

    def deleted_at(self, version: int) -> CachedObject:
        """Return the object with the version of its deletion, as a DELETED event carries it."""
        return self if version == self.version else msgspec.structs.replace(self, version=version)


class EventType(Enum):
    """The type of a change. Source: k8s.io/apimachinery `pkg/watch`."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One change of a store. A watch that has seen the event resumes from `version`.

    In a DELETED event, `object` is the last state, with the version of the deletion. `previous` is the object's state
    before the event, None for ADDED.
    """

    type: EventType
    version: int
    object: CachedObject
    previous: CachedObject | None


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event in a store's log (`event_log`)."""

    event: Event
    shown_at: int
    """A client at this version has seen the event: its own version, or that of the relist that found the change."""
    size: int
    """Bytes that only the event keeps in memory, since the store no longer holds them."""
    at: float
    """When the event arrived, seconds."""
