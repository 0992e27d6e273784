"""Replaces the objects of a store by those of a new list, and creates watch events from the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.sequence import ObjectSequence, fingerprint_part, key_of


class Relist:
    """Collects the objects of a relist; readers see none of them before `commit`.

    Lists arrive in key order, so each object is compared on arrival, in one pass over the old objects. An unchanged
    object is not kept twice. Set `columns` (JSON of columnDefinitions) before adding objects whose cells were printed
    for these columns.
    """

    def __init__(
        self,
        objects: ObjectSequence,
        columns: bytes | None,
        commit: Callable[[Relist, int], None],
        abort: Callable[[Relist], None],
    ) -> None:
        self.columns = columns
        self._old_columns = columns
        self._old = objects
        self._cursor: Iterator[CachedObject] = iter(objects)
        self._next = next(self._cursor, None)
        self._items: list[CachedObject] = []
        self._fingerprint: int | None = 0  # of the objects added so far; None if unknown
        self._last = ""
        self._unordered: list[CachedObject] = []
        self._deleted: set[str] = set()
        self.unreadable = UnreadableObjects()
        """Objects of the list that cannot be parsed."""
        self.size = 0  # bytes of the objects; correct only after `result`
        self._removed: list[CachedObject] = []
        self._changed: list[tuple[CachedObject | None, CachedObject]] = []
        self._commit = commit
        self._abort = abort

    def __len__(self) -> int:
        return len(self._items) + len(self._unordered)

    def add(self, item: CachedObject) -> None:
        """Add one object of the list."""
        key = key_of(item)
        self._deleted.discard(key)
        self.unreadable.discard(key)
        if key <= self._last:
            self._unordered.append(item)
            return
        self._last = key
        old = self._next
        while old is not None and (old_key := key_of(old)) <= key:
            self._next = next(self._cursor, None)
            if old_key == key:
                break
            self._removed.append(old)
            old = self._next
        else:
            old = None
        kept = self._compared(old, item)
        self._items.append(kept)
        self.size += kept.size
        if self._fingerprint is not None:
            self._fingerprint += fingerprint_part(kept)

    def remove(self, key: str) -> None:
        """Remove an object: in a WatchList a deletion may follow the initial events."""
        self._deleted.add(key)
        self.unreadable.discard(key)

    def leave_out(self, key: str) -> None:
        """Record the key of an object of the list that cannot be parsed."""
        if key <= self._last:  # it may have been added before, in a readable state
            self._deleted.add(key)
        self.unreadable.add(key)

    def commit(self, version: int) -> None:
        """Replace the objects of the store by the list, which has that version. Raises OutOfOrder (see Store)."""
        self._commit(self, version)

    def abort(self) -> None:
        """Drop the relist; the store keeps its objects."""
        self._abort(self)

    def result(self) -> ObjectSequence:
        """Return the new objects. Call this once, before `events`."""
        if self._unordered or self._deleted:
            self._compare_again()
        elif self._next is not None:
            self._removed += [self._next, *self._cursor]
            self._next = None
        return ObjectSequence.from_sorted(self._items, self._fingerprint)

    def greatest_version(self) -> int:
        """Return the greatest version of a changed object, 0 if there is none."""
        return max((item.version for _, item in self._changed), default=0)

    def events(self, known: int) -> Iterator[Event]:
        """Yield the differences as events: first the deletions at the version `known` (the store's last version before
        the list), then the other changes in order of their versions.

        So a client that has seen some of these events can resume at any replica without loss: deleted objects still
        existed at `known`, and the client has seen the changes up to the version from which it resumes.
        """
        for old in self._removed:
            yield Event(EventType.DELETED, known, old.deleted_at(known), old)
        self._changed.sort(key=lambda change: change[1].version)
        for before, item in self._changed:
            event_type = EventType.ADDED if before is None else EventType.MODIFIED
            yield Event(event_type, max(known, item.version), item, before)

    def _compared(self, old: CachedObject | None, item: CachedObject) -> CachedObject:
        if old is None:
            self._changed.append((None, item))
        elif old.uid != item.uid:  # another object of the same name
            self._removed.append(old)
            self._changed.append((None, item))
        elif old.version != item.version:
            self._changed.append((old, item))
        elif self.columns == self._old_columns:
            return old
        return item

    def _compare_again(self) -> None:
        """Compare all objects, since the list was not in key order."""
        old = {key_of(item): item for item in self._old}
        new = {key_of(item): item for item in (*self._items, *self._unordered)}
        for key in self._deleted:
            new.pop(key, None)
        self._changed = []
        self._removed = [item for key, item in old.items() if key not in new]
        self._items = [self._compared(old.get(key), item) for key, item in sorted(new.items())]
        self.size = sum(item.size for item in self._items)
        self._fingerprint = None


# -- objects that cannot be parsed ----------------------------------------------------------------------------
# The keys of a member's objects that cannot be parsed: no answer may say that these objects do not exist.


MAX_UNREADABLE = 10_000


class UnreadableObjects:
    """At most MAX_KEYS keys (`namespace/name`) of objects that cannot be parsed.

    `overflown`: there were more keys, so any object that is not in the store may exist.
    """

    __slots__ = ("_keys", "_namespaces", "overflown")

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys: set[str] = set()
        self._namespaces: dict[str, int] = {}
        self.overflown = False
        for key in keys:
            self.add(key)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._keys))

    def __bool__(self) -> bool:
        return bool(self._keys) or self.overflown

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def may_have(self, namespace: str, name: str) -> bool:
        """Whether an object of that name can be unreadable; `namespace` "": in any namespace, or cluster-scoped."""
        if self.overflown or f"{namespace}/{name}" in self._keys:
            return True
        return not namespace and any(key.endswith(f"/{name}") for key in self._keys)

    def add(self, key: str) -> None:
        """Add the key of an object."""
        if key in self._keys:
            return
        if len(self._keys) >= MAX_UNREADABLE:
            self.overflown = True
            return
        self._keys.add(key)
        namespace = key.partition("/")[0]
        self._namespaces[namespace] = self._namespaces.get(namespace, 0) + 1

    def discard(self, key: str) -> None:
        """Remove the key of an object: the object was deleted, or can be parsed again."""
        if key in self._keys:
            self._keys.discard(key)
            namespace = key.partition("/")[0]
            self._namespaces[namespace] -= 1
            if not self._namespaces[namespace]:
                del self._namespaces[namespace]

    def count(self, namespace: str) -> int:
        """Return the number of keys in a namespace, "" for all namespaces."""
        return len(self._keys) if not namespace else self._namespaces.get(namespace, 0)
