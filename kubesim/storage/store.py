"""The store: the objects of a simulated cluster, with etcd's revisions.

One counter of resourceVersions for the whole cluster; for each resource the current objects and a log of events, from
which any state since the last compaction can be restored (consistent paging, `resourceVersionMatch=Exact`) and watches
are served. Stored objects are never changed in place: a writer stores a new dict, a reader must not change any.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubesim.apimachinery.resources import JSONDict, StorageKey

ObjectKey = tuple[str, str]
"""(namespace, name); the namespace is "" for cluster-scoped objects."""

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


def clone(value: Any) -> Any:
    """Return a deep copy of a JSON value (several times faster than copy.deepcopy)."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


@dataclass(frozen=True)
class StorageOptions:
    """Times of lists and watches, in seconds."""

    bookmark_seconds: float = 60.0
    default_watch_seconds: tuple[float, float] = (1800.0, 3600.0)
    """A watch without timeoutSeconds ends after a random time between these."""
    too_large_wait_seconds: float = 3.0
    """How long a list waits for a future resourceVersion."""


class Compacted(Exception):
    """The resourceVersion was compacted; `.oldest` is the oldest one available."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"compacted up to {oldest}")
        self.oldest = oldest


@dataclass(frozen=True)
class Event:
    """One change. `previous` is the state before (None for ADDED).

    For DELETED `object` is the last state with the deletion's resourceVersion.
    """

    revision: int
    type: str
    key: ObjectKey
    object: JSONDict
    previous: JSONDict | None


@dataclass
class Collection:
    """The objects of one resource and their log."""

    objects: dict[ObjectKey, JSONDict] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    since: int = 0
    """The oldest revision whose state is available, and from which a watch may begin."""
    dropped: int = 0
    """The newest revision whose event is not kept. A compaction drops no events, as it removes none from the watch
    cache of a kube-apiserver: running watches continue."""
    gone: bool = False
    """The CRD was removed: watches end."""
    definition: int = 0
    """Grows when the CRD is changed: watches end, since the API server replaces its storage."""
    _keys: list[ObjectKey] | None = None
    _waiters: set[asyncio.Event] = field(default_factory=set)

    def keys(self) -> list[ObjectKey]:
        """Return the keys in etcd's order, that of `namespace/name`."""
        if self._keys is None:
            self._keys = sorted(self.objects, key=_path)
        return self._keys

    def after(self, revision: int) -> Iterator[Event]:
        """Yield the events after a revision."""
        start = bisect.bisect_right(self.events, revision, key=lambda event: event.revision)
        yield from self.events[start:]

    def at(self, revision: int) -> dict[ObjectKey, JSONDict]:
        """Return the objects as they were at a revision, in key order. Raises `Compacted`."""
        if revision < self.since:
            raise Compacted(self.since)
        later = list(self.after(revision))
        if not later:
            return {key: self.objects[key] for key in self.keys()}
        state = dict(self.objects)
        for event in reversed(later):
            if event.previous is None:
                state.pop(event.key, None)
            else:
                state[event.key] = event.previous
        return {key: state[key] for key in sorted(state, key=_path)}

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set at every change; the watcher clears it, and ends with `unsubscribe`."""
        event = asyncio.Event()
        self._waiters.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._waiters.discard(event)

    def wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    @property
    def watchers(self) -> int:
        """The number of open watches."""
        return len(self._waiters)

    def record(self, event: Event) -> None:
        if event.type != MODIFIED:
            self._keys = None
        self.events.append(event)
        if len(self.events) > MAX_EVENTS:
            cut = len(self.events) // 2
            self.since = self.dropped = self.events[cut - 1].revision
            del self.events[:cut]
        self.wake()


MAX_EVENTS = 20_000
"""The number of events kept for a resource; beyond it the older half is compacted."""


@dataclass(frozen=True)
class Snapshot:
    """A backup: all objects at a revision."""

    revision: int
    objects: Mapping[StorageKey, Mapping[ObjectKey, JSONDict]]


class Store:
    """All objects of one cluster."""

    def __init__(
        self, revision: int = 1, *, options: StorageOptions | None = None, rng: random.Random | None = None
    ) -> None:
        self.revision = revision
        self.options = options or StorageOptions()
        self.random = rng or random.Random()
        self.journal: Journal | None = None
        """Gets every change before it is visible to others."""
        self._collections: dict[StorageKey, Collection] = {}

    def collection(self, storage: StorageKey) -> Collection:
        """Return the collection of a resource, created on first use."""
        found = self._collections.get(storage)
        if found is None:
            found = self._collections[storage] = Collection()
        return found

    def collections(self) -> dict[StorageKey, Collection]:
        """Return all collections that have been used."""
        return self._collections

    def drop(self, storage: StorageKey) -> None:
        """Remove a resource whose CRD was deleted; its watches end."""
        found = self._collections.pop(storage, None)
        if found is not None:
            found.gone = True
            found.wake()

    def end_watches(self, storage: StorageKey) -> None:
        """End the watches of a resource whose CRD was changed."""
        found = self._collections.get(storage)
        if found is not None:
            found.definition += 1
            found.wake()

    def get(self, storage: StorageKey, namespace: str, name: str) -> JSONDict | None:
        return self.collection(storage).objects.get((namespace, name))

    def put(self, storage: StorageKey, obj: JSONDict, *, revision: int | None = None) -> JSONDict:
        """Store an object as the next revision and notify watchers; return the stored object.

        `revision` seeds a store from recordings; within a resource revisions must rise.
        """
        collection = self.collection(storage)
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        previous = collection.objects.get(key)
        number = self._next(revision)
        stored = self._stamp(obj, number)
        collection.objects[key] = stored
        self._record(storage, collection, Event(number, MODIFIED if previous else ADDED, key, stored, previous))
        return stored

    def delete(self, storage: StorageKey, namespace: str, name: str, *, revision: int | None = None) -> JSONDict | None:
        """Remove an object; return its last state with the deletion's resourceVersion, or None if there was none."""
        collection = self.collection(storage)
        key = (namespace, name)
        previous = collection.objects.pop(key, None)
        if previous is None:
            return None
        number = self._next(revision)
        last = self._stamp(previous, number)
        self._record(storage, collection, Event(number, DELETED, key, last, previous))
        return last

    def _record(self, storage: StorageKey, collection: Collection, event: Event) -> None:
        if self.journal is not None:
            self.journal.changed(storage, event)
        collection.record(event)

    def compact(self, revision: int | None = None) -> None:
        """Drop the states before a revision (default: the current one); older watches, lists and tokens get 410."""
        limit = self.revision if revision is None else revision
        for collection in self._collections.values():
            collection.since = max(collection.since, limit)
        if self.journal is not None:
            self.journal.compacted(limit)

    def snapshot(self) -> Snapshot:
        """Return a backup of the present state, for `restore`."""
        found = {storage: dict(collection.objects) for storage, collection in self._collections.items()}
        return Snapshot(self.revision, found)

    def restore(self, backup: Snapshot) -> None:
        """Go back to a backup, its revision included, as a cluster whose etcd was restored; all watches end.

        Changes since then are undone: later changes get the same revisions again. States before the backup are not
        available, as of an apiserver that has just started.
        """
        for storage in list(self._collections):
            self.drop(storage)
        self.revision = backup.revision
        for storage, objects in backup.objects.items():
            self._collections[storage] = Collection(dict(objects), since=backup.revision)
        if self.journal is not None:
            self.journal.restored(backup.revision)

    def _next(self, revision: int | None) -> int:
        if revision is None:
            self.revision += 1
            return self.revision
        self.revision = max(self.revision, revision)
        return revision

    @staticmethod
    def _stamp(obj: JSONDict, revision: int) -> JSONDict:
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}


def _path(key: ObjectKey) -> str:
    return f"{key[0]}/{key[1]}"


class Journal:
    """Appends every change to a file, a line of JSON each, in their order, before the change is visible.

    A cluster that is started with the file has the state in it, like an apiserver with an etcd that kept running. For
    tests it is the complete history of a cluster: neither a compaction nor a restored backup removes entries.

    {"at": seconds, "revision": N, "type": "ADDED", "storage": [group, plural], "object": {...}}
    {"at": seconds, "compacted": N}    {"at": seconds, "restored": N}    {"at": seconds, "started": N}

    `at` is of the machine's monotonic clock. A restored backup undoes the changes with greater revisions, which then
    come again. `started` is the first line of each process.
    """

    def __init__(self, path: Path, clock: Callable[[], float], *, started: int = 0) -> None:
        """`clock` gives seconds; `started` is the revision of the store."""
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock
        self._write({"started": started})

    def begin(self, backup: Snapshot) -> None:
        """Write the objects of the store from before the journal, in the order of the revisions."""
        found = [(storage, obj) for storage, objects in backup.objects.items() for obj in objects.values()]
        found.sort(key=lambda each: int(each[1]["metadata"]["resourceVersion"]))
        for storage, obj in found:
            revision = int(obj["metadata"]["resourceVersion"])
            self._write({"revision": revision, "type": ADDED, "storage": list(storage), "object": obj})

    def changed(self, storage: StorageKey, event: Event) -> None:
        """Write one change."""
        self._write({"revision": event.revision, "type": event.type, "storage": list(storage), "object": event.object})

    def compacted(self, revision: int) -> None:
        """Write that states before a revision are gone."""
        self._write({"compacted": revision})

    def restored(self, revision: int) -> None:
        """Write that the changes after a revision are undone."""
        self._write({"restored": revision})

    def _write(self, line: JSONDict) -> None:
        self._file.write(json.dumps({"at": self._clock(), **line}) + "\n")
        self._file.flush()


def replay(path: Path, store: Store) -> None:
    """Give a store the state at the end of the file; states before it are not available.

    A last line that was cut short, because its writer was killed, is taken off the file.
    """
    changes: list[JSONDict] = []
    revision = 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    for text in whole.splitlines():
        line = json.loads(text)
        if "restored" in line:
            revision = line["restored"]
            changes = [change for change in changes if change["revision"] <= revision]
        elif "revision" in line:
            revision = max(revision, line["revision"])
            changes.append(line)
    objects: dict[StorageKey, dict[ObjectKey, JSONDict]] = {}
    for change in changes:
        group, plural = change["storage"]
        metadata = change["object"]["metadata"]
        found = objects.setdefault((group, plural), {})
        key = metadata.get("namespace", ""), metadata["name"]
        if change["type"] == DELETED:
            found.pop(key, None)
        else:
            found[key] = change["object"]
    store.restore(Snapshot(revision, objects))
