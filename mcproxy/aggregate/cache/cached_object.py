"""One cached object: its JSON split around `metadata.resourceVersion`, and what selectors and tables need of it."""

from __future__ import annotations

from enum import Enum

import msgspec

CLUSTER_LABEL = "mcproxy.io/cluster"
CLUSTER_ANNOTATION = "resource.karmada.io/cached-from-cluster"
"""Both have the name of the member; the annotation is the one that Karmada's clients know."""


class CachedObject(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An object of one member. `{` + [type prefix] + `head` + resource version + `tail` is its JSON.

    `gc=False` keeps 100,000 of them out of every garbage collection; an object refers to nothing that could refer to
    it. `labels` is shared between objects that have the same: it is not changed.
    """

    namespace: str
    name: str
    uid: str
    version: int
    """The member's own resourceVersion; of a deleted object that of its deletion."""
    head: bytes
    """JSON behind the type prefix, to and with `"resourceVersion":"`; label and annotation of the cluster are in it."""
    tail: bytes
    """JSON from the quote behind the version to the object's closing brace."""
    metadata_start: int
    """Where the value of `metadata` begins in `head`."""
    metadata_end: int
    """Where it ends in `tail`."""
    labels: dict[str, str]
    created: float
    """creationTimestamp, seconds since 1970; 0.0 without one."""
    cells: bytes | None
    """JSON array of the Table cells as the member printed them; None if it gave no Table."""
    printed: float
    """When it printed them, seconds since 1970."""

    @property
    def key(self) -> str:
        """The order of objects in lists: that of their keys in etcd, as a kube-apiserver lists them."""
        return f"{self.namespace}/{self.name}"

    @property
    def size(self) -> int:
        """Bytes of its JSON and cells."""
        return len(self.head) + len(self.tail) + (len(self.cells) if self.cells else 0)

    def json(self, type_prefix: bytes, version: bytes) -> bytes:
        """Return the whole object; `type_prefix` has a comma at its end or is b"" (items of built-in lists)."""
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
    """One change of a store. `version` is where a watch that has seen it resumes.

    DELETED: `object` is the last state, with the deletion's version; `previous` the state before, as for MODIFIED.
    """

    type: EventType
    version: int
    object: CachedObject
    previous: CachedObject | None


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event in a store's log (`event_log`)."""

    event: Event
    shown_at: int
    """A client at this version has seen the event: the event's own version, or that of the list that showed it."""
    size: int
    """Bytes that the store itself no longer holds because of the event."""
    at: float
    """When it came, seconds."""
