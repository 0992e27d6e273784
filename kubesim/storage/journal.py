"""The file of a cluster's data: every change, a line of JSON each, in their order.

A cluster that is started with the file has the state in it, like an apiserver with an etcd that kept running. For tests
it is the complete history of a cluster: neither a compaction nor a restored backup removes entries.

{"at": seconds, "revision": N, "type": "ADDED", "storage": [group, plural], "object": {...}}
{"at": seconds, "compacted": N}    {"at": seconds, "restored": N}    {"at": seconds, "started": N}

`at` is of the machine's monotonic clock. A restored backup undoes the changes with greater revisions, which then come
again. `started` is the first line of each process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubesim.apimachinery.resources import StorageKey
from kubesim.storage.store import ADDED, DELETED, Event, ObjectKey, Snapshot, Store

JSONDict = dict[str, Any]


class Journal:
    """Appends to the file; each line is written before the change is visible."""

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

    def close(self) -> None:
        self._file.close()

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
