"""The owner of reflectors: counted by use, kept over reloads, few initial lists at a time, probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, gatherResults

from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from mcproxy.kube.resource import APIResource, GroupVersionResource
from tests.aggregate.reflector.harness import (
    CONFIG_MAPS,
    Site,
    cluster_config,
    config_map,
    names,
    options,
    reads,
)
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

PATH = "/api/v1/configmaps"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def east() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options()) as process:
        yield process


@pytest.fixture
def control(east: SimulatedClusterProcess) -> ControlClient:
    return ControlClient(east.control_url)


async def test_equal_options_share_a_store_and_the_last_release_ends_it(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    mark = control.mark()
    store = site.follow(east, CONFIG_MAPS)
    reflectors = site.reflectors
    assert reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions()) is store
    other = reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions(drop_managed_fields=True))
    assert other is not store
    assert await store.when_synced(60)
    assert await other.when_synced(60)
    reflectors.release(store)
    reflectors.release(other)
    await site.wait(0.1)
    assert len(reads(control, mark, PATH)) == 2
    version = control.create([config_map("a")])
    await site.seen(store, version)
    await site.wait(0.1)
    assert names(other) == []
    reflectors.release(store)
    assert reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions()) is store  # in the same turn
    await site.wait(0.1)
    assert len(reads(control, mark, PATH)) == 2
    reflectors.release(store)
    await site.wait(0.1)
    version = store.version
    control.create([config_map("b")])
    await site.wait(0.2)
    assert store.version == version
    assert [options for _, options in reflectors.stores] == []


async def test_a_reload_that_leaves_a_member_as_it_is_makes_no_request(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    with SimulatedClusterProcess("west", options=options()) as west:
        store = site.follow(east, CONFIG_MAPS)
        assert await store.when_synced(60)
        first = site.clusters[0]
        mark = control.mark()
        second = site.cluster(cluster_config(west))
        site.reflectors.update({"east": first, "west": second})
        added = site.reflectors.acquire("west", CONFIG_MAPS, "", StoreOptions())
        assert site.reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions()) is store
        site.reflectors.release(store)
        assert await added.when_synced(60)
        site.reflectors.update({"east": first})
        site.reflectors.release(added)
        version = control.create([config_map("a")])
        await site.seen(store, version)
        assert reads(control, mark, PATH, probes=True) == []


async def test_other_settings_of_a_cluster_resume_the_watch_without_a_list(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    first = site.clusters[0]
    config = cluster_config(east)
    mark = control.mark()
    second = site.cluster(replace(config, connections=replace(config.connections, connect_timeout=3.0)), first)
    site.reflectors.update({"east": second})
    first.stop(second)
    version = control.create([config_map("a")])
    await site.seen(store, version)
    for query in reads(control, mark, PATH):
        assert f"resourceVersion={store.version - 1}" in query
        assert "sendInitialEvents" not in query


async def test_few_initial_lists_of_a_member_at_a_time(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    site.reflectors = Reflectors(site.shared, max_initial_lists=2)
    resources = [
        APIResource(GroupVersionResource("", "v1", plural), kind, "", True, frozenset({"list", "watch"}))
        for plural, kind in (
            ("configmaps", "ConfigMap"),
            ("pods", "Pod"),
            ("secrets", "Secret"),
            ("services", "Service"),
            ("endpoints", "Endpoints"),
        )
    ]
    paths = [resource.gvr.path() for resource in resources]
    control.fault("blackHole", paths=paths)
    mark = control.mark()
    cluster = site.cluster(cluster_config(east))
    site.reflectors.update({"east": cluster})
    stores = [site.reflectors.acquire("east", resource, "", StoreOptions()) for resource in resources]
    await site.until(lambda: [len(control.audit(mark, path=path)) for path in paths[:2]] == [1, 1])
    await site.wait(0.3)
    assert [len(control.audit(mark, path=path)) for path in paths] == [1, 1, 0, 0, 0]
    control.clear_faults()
    for store in stores:
        assert await store.when_synced(60)


async def test_a_probe_tells_the_version_now_and_the_store_follows_though_nothing_changed(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    before = store.version
    version = control.create([SECRET])
    assert await site.reflectors.probe(store, 30.0) == version
    assert store.version == before
    assert await store.when_current(version, 60)
    assert store.version == before, "a silence was taken for proof"
    sign = store.last_sign
    assert await site.reflectors.probe(store, 30.0) == version
    assert store.last_sign > sign
    mark = control.mark()
    control.reset_connections(0)
    await site.until(lambda: reads(control, mark, PATH))
    assert f"resourceVersion={before}" in reads(control, mark, PATH)[0], "resumed from what no watch has told"


async def test_a_probe_that_is_behind_the_store_shows_that_the_member_was_put_back(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    """A list a moment after etcd was restored was that of before, without a Warning."""
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    present = int(control.stats()["revision"])
    store.progress(present + 50)  # what its watch had told when a backup was restored
    assert await site.reflectors.probe(store, 30.0) == present
    assert not store.synced
    assert await store.when_current(present, 60)
    assert (store.version, store.generation) == (present, 1)
    assert await site.reflectors.probe(store, 30.0) == present
    assert store.generation == 1


async def test_probes_are_shared_by_who_came_before_they_were_sent(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    mark = control.mark()
    probes = [Deferred.fromCoroutine(site.reflectors.probe(store, 30.0)) for _ in range(50)]
    versions = await gatherResults(probes)
    assert set(versions) == {store.version}
    # The first one's, another if the watch has begun meanwhile, and one for all who came after it.
    assert len(reads(control, mark, PATH, probes=True)) in (2, 3)


async def test_a_probe_that_has_no_answer_is_an_error_in_time(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    control.fault("blackHole", paths=[PATH])
    with pytest.raises(MemberError, match=r"within 0\.3 s"):
        await site.reflectors.probe(store, 0.3)
    control.clear_faults()
    control.fault("status", paths=[PATH], code=500)
    with pytest.raises(MemberError):
        await site.reflectors.probe(store, 30.0)


async def test_an_event_behind_a_probe_that_was_presumed_to_be_seen_is_taken_as_any_other(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    store.presume(store.version + 2)  # a probe's answer overtook the watch by more than a tenth of a second
    mark = control.mark()
    version = control.create([config_map("late")])
    await site.until(lambda: names(store) == ["late"])
    assert store.version == version
    assert reads(control, mark, PATH) == [], "listed anew, or resumed"


async def test_a_version_that_no_event_brings_is_proven_by_a_second_watch(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    """As a kube-apiserver, the simulated cluster sends a bookmark 2 s before the deadline."""
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    mark = control.mark()
    version = control.create([SECRET])
    assert await store.when_version(version, 60)
    assert store.version == version
    [query] = reads(control, mark, PATH)
    assert "timeoutSeconds=3" in query
    assert "allowWatchBookmarks=true" in query


async def test_a_definition_that_is_made_is_discovered_before_the_next_poll(
    site: Site, east: SimulatedClusterProcess
) -> None:
    from tests.aggregate.reflector.harness import WIDGETS, crd, send

    definitions = APIResource(
        GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
        "CustomResourceDefinition",
        "customresourcedefinition",
        False,
        frozenset({"list", "watch"}),
    )
    store = site.follow(east, definitions)
    assert await store.when_synced(60)
    member = site.reflectors.member("east")
    await site.until(lambda: member.discovery.known)
    assert send(east, "POST", definitions.gvr.path(), crd())[0] == 201
    await site.until(lambda: WIDGETS.gvr in member.discovery.resources)


async def test_a_member_that_was_removed_and_comes_back_is_followed_anew(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    site.reflectors.update({})
    version = store.version
    control.create([config_map("a")])
    await site.wait(0.2)
    assert store.version == version
    with pytest.raises(MemberError):
        await site.reflectors.probe(store, 1.0)
    with pytest.raises(KeyError):
        site.reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions())
    site.reflectors.update({"east": site.clusters[0]})
    again = site.reflectors.acquire("east", CONFIG_MAPS, "", StoreOptions())
    assert again is not store
    assert await again.when_synced(60)
    assert names(again) == ["a"]
    site.reflectors.release(store)
    await site.wait(0.1)
    version = control.create([config_map("b")])
    await site.seen(again, version)
    site.reflectors.stop()
    site.reflectors.release(again)
