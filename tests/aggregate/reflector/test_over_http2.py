"""Reflectors of a member that speaks HTTP/2: how many connections they need, and what becomes of watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.kube.resource import APIResource, GroupVersionResource
from tests.aggregate.reflector.harness import (
    CONFIG_MAPS,
    SHORT_CHECK,
    Listener,
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
CORE = (
    *(("configmaps", "ConfigMap"), ("pods", "Pod"), ("secrets", "Secret"), ("services", "Service")),
    *(("endpoints", "Endpoints"), ("events", "Event"), ("serviceaccounts", "ServiceAccount")),
    *(("persistentvolumeclaims", "PersistentVolumeClaim"), ("resourcequotas", "ResourceQuota")),
    *(("limitranges", "LimitRange"), ("podtemplates", "PodTemplate")),
    ("replicationcontrollers", "ReplicationController"),
)
RESOURCES = [
    APIResource(GroupVersionResource("", "v1", plural), kind, "", True, frozenset({"list", "watch"}))
    for plural, kind in CORE
]


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def east() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options("--http2", "--bookmark-seconds", "0.5")) as process:
        yield process


@pytest.fixture
def control(east: SimulatedClusterProcess) -> ControlClient:
    return ControlClient(east.control_url)


async def followed(site: Site, process: SimulatedClusterProcess, **fields: Any) -> Store:
    store = site.follow(process, CONFIG_MAPS, **fields)
    assert await store.when_synced(60)
    await site.until(lambda: watches(site, store))
    return store


def watches(site: Site, store: Store) -> bool:
    """Whether the watch behind the initial state is followed."""
    return site.reflectors._by_store[store].reflector.stream is not None


async def test_three_members_with_twelve_resources_need_three_connections_each(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    """One for the watches, one for short requests, and one for the lists of the start; the latter closes when idle."""
    clusters = {name: site.cluster(cluster_config(east, name=name)) for name in ("east", "west", "north")}
    site.reflectors.update(clusters)
    stores = [
        site.reflectors.acquire(name, resource, "", StoreOptions()) for name in clusters for resource in RESOURCES
    ]
    for store in stores:
        assert await store.when_synced(60)
        await site.until(lambda store=store: watches(site, store))  # type: ignore[misc]
    assert len(stores) == 36
    # A health check is a stream, too, while it lasts.
    await site.until(lambda: sorted(control.http2_stats()["streams"])[-3:] == [12, 12, 12])
    stats = control.stats()
    assert stats["endpoints"][0]["http2"]["connections"] <= 9
    assert stats["connections"] == stats["http2Connections"], "some are of HTTP/1.1"
    for name, cluster in clusters.items():
        (pool,) = cluster.endpoints[0].pools
        assert pool.counts()["HTTP/1.1"] == (0, 0), name
        assert pool.counts()["HTTP/2.0"][0] <= 3


async def test_the_initial_state_comes_over_another_connection_than_the_watch_behind_it(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map("a")])
    mark = control.mark()
    store = await followed(site, east)
    initial, watch = [record for record in control.audit(mark, path=PATH) if "watch=true" in record["path"]]
    assert "sendInitialEvents=true" in initial["path"]
    assert f"resourceVersion={store.version}&" in watch["path"]
    assert initial["connection"] != watch["connection"]
    listener = Listener(store)
    await site.seen(store, control.create([config_map("b")]))
    assert (names(store), listener.events) == (["a", "b"], [("ADDED", "b")])
    await site.until(lambda: control.http2_stats()["streams"].count(1) == 1, why="the list's stream was not ended")


async def test_a_probe_travels_on_the_connection_of_the_watch(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = await followed(site, east)
    mark = control.mark()
    for _ in range(3):
        await site.reflectors.probe(store, 30.0)
    probes = {record["connection"] for record in control.audit(mark, path=PATH)}
    [watch] = [record for record in control.audit(path=PATH) if "resourceVersion=" in record["path"]][-1:]
    assert probes == {watch["connection"]}


async def test_pages_come_over_a_connection_of_their_own_too(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.fault("status", code=422, paths=[PATH + "?watch=true&allowWatchBookmarks=true&sendInitial"])
    control.create([config_map(f"c{number}") for number in range(3)])
    mark = control.mark()
    store = await followed(site, east)
    assert names(store) == ["c0", "c1", "c2"]
    records = [record for record in control.audit(mark, path=PATH) if not record["path"].endswith("?limit=1")]
    refused, page, watch = records
    assert refused["connection"] == page["connection"] != watch["connection"]


async def test_a_watch_whose_connection_is_taken_out_of_service_goes_on_and_is_resumed_without_a_list(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = await followed(site, east)
    mark = control.mark()
    control.goaway()
    await site.reflectors.probe(store, 30.0)
    assert reads(control, mark, PATH) == []
    await site.seen(store, control.create([config_map("on-the-old-connection")]))
    control.reset_connections(0)
    await site.seen(store, control.create([config_map("on-a-new-one")]))
    queries = reads(control, mark, PATH)
    assert queries
    assert all("resourceVersion=" in query and "sendInitialEvents" not in query for query in queries), queries
    assert names(store) == ["on-a-new-one", "on-the-old-connection"]


async def test_a_connection_lost_by_a_stream_of_its_own_ends_no_other_watch(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    """A reset of one watch is that watch's alone."""
    store = await followed(site, east)
    secrets = site.reflectors.acquire("east", RESOURCES[2], "", StoreOptions())
    assert await secrets.when_synced(60)
    await site.until(lambda: watches(site, secrets))
    mark = control.mark()
    site.reflectors.release(secrets)
    await site.until(lambda: control.http2_stats()["streams"].count(1) == 1)
    await site.seen(store, control.create([config_map("a")]))
    assert reads(control, mark, PATH) == []


async def test_a_member_that_takes_one_stream_a_connection_is_followed_all_the_same(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.http2(max_concurrent_streams=1)
    store = await followed(site, east)
    version = control.create([config_map("a")])
    assert await site.reflectors.probe(store, 30.0) >= version
    await site.seen(store, version)


async def test_a_member_that_wants_its_watches_over_http1_gets_them_so(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.fault("refuseStream", paths=[PATH], errorCode=13)
    store = await followed(site, east)
    mark = control.mark()
    await site.seen(store, control.create([config_map("a")]))
    assert reads(control, mark, PATH) == []
    assert {record["protocol"] for record in control.audit(path=PATH)} == {"HTTP/1.1"}


async def test_an_endpoint_that_goes_out_takes_its_watches_with_it_at_once(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = await followed(site, east, health_check=SHORT_CHECK)
    control.hang_endpoint(0)
    await site.until(lambda: store.unavailable_since is not None)
    control.resume_endpoint(0)
    await site.until(lambda: store.unavailable_since is None)
    await site.seen(store, control.create([config_map("back")]))
