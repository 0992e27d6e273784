"""Watches that run while the past is forgotten."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from kubesim.cluster import SimulatedCluster
from kubesim.storage import store as storage
from kubesim.storage.list_watch import Change, events
from mcproxy.kube.list_options import ListOptions
from tests.kubesim.storage.test_lists import filled, put, resource


def watched(cluster: SimulatedCluster, since: int, *changes: str) -> list[Change]:
    """Return what a watch sends that could not run during these changes; "" is a compaction."""

    async def run() -> list[Change]:
        options = ListOptions(watch=True, resource_version=str(since), timeout=30)
        async with aclosing(events(cluster.store, resource(cluster), "", options)) as watch, asyncio.timeout(20):
            first = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            for name in changes:
                if name:
                    put(cluster, name)
                else:
                    cluster.store.compact()
            found = [await first]
            while found[-1][0] != "ERROR" and len(found) < len([name for name in changes if name]):
                found.append(await anext(watch))
            return found

    return asyncio.run(run())


def test_a_compaction_takes_no_event_from_a_watch_that_has_not_sent_it_yet() -> None:
    cluster = filled("a/1")
    since = cluster.store.revision
    found = watched(cluster, since, "a/2", "", "a/3")
    assert [(kind, obj["metadata"]["name"]) for kind, obj in found] == [("ADDED", "2"), ("ADDED", "3")]
    assert [(kind, obj["code"]) for kind, obj in watched(cluster, since)] == [("ERROR", 410)]


def test_a_watch_behind_what_is_kept_ends_with_410(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MAX_EVENTS", 4)
    cluster = filled("a/1")
    found = watched(cluster, cluster.store.revision, *(f"a/{number}" for number in range(2, 8)))
    assert [(kind, obj["code"]) for kind, obj in found] == [("ERROR", 410)]
