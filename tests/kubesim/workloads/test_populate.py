"""The fixtures of a simulated cluster, and the activity in it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kubesim.cluster import SimulatedCluster
from kubesim.workloads import controllers, populate

PODS = ("", "pods")


def everything(cluster: SimulatedCluster, key: tuple[str, str]) -> list[dict[str, Any]]:
    return list(cluster.store.collection(key).objects.values())


def test_fixtures_are_deterministic_and_reconciled() -> None:
    def summary(name: str) -> list[tuple[str, str, str]]:
        made = SimulatedCluster(name)
        populate.bootstrap(made)
        populate.populate(made)
        assert not controllers.reconcile(made)
        return [
            (plural, namespace, name)
            for (_, plural), kept in made.store.collections().items()
            for namespace, name in kept.objects
        ]

    first = summary("east")
    assert first == summary("east")
    assert first != summary("west")
    assert len(first) >= 250


def test_activity_changes_objects(small_cluster: SimulatedCluster) -> None:
    populate.populate(small_cluster)
    before = small_cluster.store.revision
    rng = random.Random(2)
    for _ in range(90):
        populate.tick(small_cluster, rng)
    tick = small_cluster.store.get(("", "configmaps"), "default", "tick")
    assert tick is not None
    assert tick["data"]["count"] == "90"
    assert small_cluster.store.revision > before + 90
    assert any(
        item["restartCount"]
        for pod in everything(small_cluster, PODS)
        for item in pod["status"].get("containerStatuses") or ()
    )


def test_activity_ends_when_it_is_cancelled(small_cluster: SimulatedCluster) -> None:
    async def run() -> None:
        task = asyncio.create_task(populate.run_activity(small_cluster))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
