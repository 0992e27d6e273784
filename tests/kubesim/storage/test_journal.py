"""The file of a cluster's data: what is in it, and the cluster that is started with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubesim.cluster import SimulatedCluster
from kubesim.storage.store import Compacted, Journal, Store, replay

MAPS, SECRETS = ("", "configmaps"), ("", "secrets")


def _put(store: Store, name: str, n: int, storage: tuple[str, str] = MAPS) -> None:
    store.put(storage, {"metadata": {"namespace": "demo", "name": name}, "data": {"n": str(n)}})


def _state(store: Store) -> dict[str, Any]:
    found = store.collections().items()
    return {str(storage): dict(collection.objects) for storage, collection in found if collection.objects}


def _journal(store: Store, path: Path) -> None:
    store.journal = Journal(path, lambda: 7.0, started=store.revision)


def test_each_change_is_a_line_and_a_compaction_takes_none_away(tmp_path: Path) -> None:
    store = Store()
    _journal(store, tmp_path / "data")
    _put(store, "one", 1)
    _put(store, "one", 2)
    store.compact()
    store.delete(MAPS, "demo", "one")
    lines = [json.loads(line) for line in (tmp_path / "data").read_text().splitlines()]
    assert all(line.pop("at") == 7.0 for line in lines)
    assert lines[0] == {"started": 1}
    assert [(line.get("type"), line.get("revision"), line.get("compacted")) for line in lines[1:]] == [
        ("ADDED", 2, None),
        ("MODIFIED", 3, None),
        (None, None, 3),
        ("DELETED", 4, None),
    ]
    assert lines[4]["object"]["metadata"]["resourceVersion"] == "4"


def test_a_store_that_reads_the_file_has_the_same_state_and_no_states_before_it(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "data"
    _put(store, "before", 1)
    recorder = Journal(path, lambda: 0.0, started=store.revision)
    recorder.begin(store.snapshot())
    store.journal = recorder
    _put(store, "one", 1)
    _put(store, "secret", 1, SECRETS)
    store.delete(MAPS, "demo", "before")
    with path.open("a") as file:
        file.write('{"at": 1, "revision": 99, "type": "ADD')
    other = Store()
    _put(other, "of a fresh cluster", 1)
    replay(path, other)
    assert _state(other) == _state(store)
    assert other.revision == store.revision
    assert path.read_text().endswith("\n")
    with pytest.raises(Compacted):
        other.collection(MAPS).at(other.revision - 1)
    assert other.collection(MAPS).at(other.revision).keys() == {("demo", "one")}


def test_a_restored_backup_undoes_what_came_after_it_and_the_revisions_come_again(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "data"
    _journal(store, path)
    _put(store, "one", 1)
    backup = store.snapshot()
    state, waiter = _state(store), store.collection(MAPS).subscribe()
    _put(store, "one", 2)
    _put(store, "two", 1)
    old = store.collection(MAPS)
    store.restore(backup)
    assert store.revision == 2
    assert _state(store) == state
    assert old.gone
    assert waiter.is_set()
    _put(store, "three", 1)
    assert store.revision == 3
    other = Store()
    replay(path, other)
    assert _state(other) == _state(store)
    assert other.revision == 3
    assert {"restored": 2}.items() <= json.loads(path.read_text().splitlines()[4]).items()


def test_a_cluster_without_a_journal_keeps_none() -> None:
    cluster = SimulatedCluster("east")
    _put(cluster.store, "one", 1)
    cluster.store.restore(cluster.store.snapshot())
    assert cluster.store.get(MAPS, "demo", "one") is not None
