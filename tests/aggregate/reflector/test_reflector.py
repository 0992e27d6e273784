"""A reflector against the simulated cluster: what it asks for, by the cluster's audit, and what the store holds."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector import initial_list
from mcproxy.aggregate.reflector.initial_list import MemberLimits
from mcproxy.aggregate.reflector.reflector import Reflector
from mcproxy.aggregate.reflector.reflectors import StoreOptions
from tests.aggregate.reflector.harness import (
    CONFIG_MAPS,
    SHORT_CHECK,
    WIDGETS,
    Listener,
    Site,
    cluster_config,
    config_map,
    crd,
    names,
    options,
    reads,
    send,
)
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

PATH = "/api/v1/configmaps"
NO_WATCH_LIST: dict[str, Any] = {
    "kind": "status",
    "code": 422,
    "paths": [PATH + "?watch=true&allowWatchBookmarks=true&sendInitial"],
}


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def east() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options("--endpoints", "2", "--bookmark-seconds", "0.5")) as process:
        yield process


@pytest.fixture
def control(east: SimulatedClusterProcess) -> ControlClient:
    return ControlClient(east.control_url)


async def test_a_watch_list_fills_the_store_and_the_watch_goes_on(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map("a"), config_map("b")])
    mark = control.mark()
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    assert names(store) == ["a", "b"]
    assert store.unavailable_since is None
    listener = Listener(store)
    version = control.create([config_map("c")])
    await site.seen(store, version)
    assert names(store) == ["a", "b", "c"]
    send(east, "DELETE", "/api/v1/namespaces/default/configmaps/a")
    await site.until(lambda: names(store) == ["b", "c"])
    assert listener.events == [("ADDED", "c"), ("DELETED", "a")]
    [query] = reads(control, mark, PATH)
    parts = dict(part.split("=") for part in query.split("&"))
    assert parts["resourceVersionMatch"] == "NotOlderThan"
    assert {parts["watch"], parts["sendInitialEvents"], parts["allowWatchBookmarks"]} == {"true"}
    assert 300 <= int(parts["timeoutSeconds"]) <= 600
    found = store.get("default", "b")
    assert found is not None
    assert found.cells is not None, "Tables were not asked for"
    assert store.columns is not None


async def test_where_there_is_no_watch_list_pages_are_listed(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map(f"m{number:04}") for number in range(1201)])
    control.fault(**NO_WATCH_LIST)
    mark = control.mark()
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    assert len(names(store)) == 1201
    lists = reads(control, mark, PATH, watch=False)
    assert ["limit=500" in query for query in lists] == [True, True, True]
    assert ["continue=" in query for query in lists] == [False, True, True]
    version = control.create([config_map("z")])
    await site.seen(store, version)
    tried, watch, *_ = reads(control, mark, PATH, watch=True)  # one more proves the version if the event takes 0.2 s
    assert "sendInitialEvents=true" in tried
    assert f"resourceVersion={version - 1}" in watch
    control.reset_connections(0)
    control.reset_connections(1)
    other = site.reflectors.acquire("east", CONFIG_MAPS, "default", StoreOptions())
    mark = control.mark()
    assert await other.when_synced(60)
    path = "/api/v1/namespaces/default/configmaps"
    assert [query for query in reads(control, mark, path, watch=True) if "sendInitialEvents" in query] == []


async def test_a_broken_watch_is_resumed_without_a_list(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map("a")])
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    listener = Listener(store)
    for number in range(3):
        mark = control.mark()
        before = store.version
        control.reset_connections(0)
        control.reset_connections(1)
        version = control.create([config_map(f"new{number}")])
        await site.seen(store, version)
        assert [f"resourceVersion={before}" in query for query in reads(control, mark, PATH)] == [True]
    assert listener.events == [("ADDED", "new0"), ("ADDED", "new1"), ("ADDED", "new2")]
    assert names(store) == ["a", "new0", "new1", "new2"]


async def test_bookmarks_move_the_version_from_which_a_watch_is_resumed(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}
    version = control.create([secret])
    await site.seen(store, version)  # by a bookmark
    mark = control.mark()
    control.reset_connections(0)
    control.reset_connections(1)
    await site.until(lambda: reads(control, mark, PATH))
    assert f"resourceVersion={version}" in reads(control, mark, PATH)[0]


async def test_a_version_that_was_compacted_is_listed_anew_and_what_was_missed_is_told(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map("a"), config_map("b")])
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    listener = Listener(store)
    control.stop_endpoint(0)
    control.stop_endpoint(1)
    await site.until(lambda: store.unavailable_since is not None)
    assert names(store) == ["a", "b"]
    control.create([config_map("c")])
    control.start_endpoint(0)
    send(east, "DELETE", "/api/v1/namespaces/default/configmaps/a")
    control.compact()
    mark = control.mark()
    await site.until(lambda: names(store) == ["b", "c"])
    assert store.unavailable_since is None
    assert listener.events == [("DELETED", "a"), ("ADDED", "c")]
    assert any("sendInitialEvents" in query for query in reads(control, mark, PATH))


async def test_a_member_that_is_black_holed_is_unavailable_and_comes_back(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    store = site.follow(east, CONFIG_MAPS, health_check=SHORT_CHECK)
    assert await store.when_synced(60)
    listener = Listener(store)
    control.hang_endpoint(0)
    control.hang_endpoint(1)
    await site.until(lambda: store.unavailable_since is not None)
    assert re.search("no connection to east-[01] within 1 s|no answer", store.unavailable_cause)
    mark = control.mark()
    control.resume_endpoint(0)
    control.resume_endpoint(1)
    version = control.create([config_map("later")])
    await site.seen(store, version)
    await site.until(lambda: listener.availability == [False, True])
    assert [query for query in reads(control, mark, PATH) if "sendInitialEvents" in query] == []


async def test_a_member_that_is_stopped_and_killed_and_back(site: Site) -> None:
    with SimulatedClusterProcess("east", options=options()) as east:
        control = ControlClient(east.control_url)
        control.create([config_map("a")])
        store = site.follow(east, CONFIG_MAPS, health_check=SHORT_CHECK)
        assert await store.when_synced(60)
        os.kill(east.pid, signal.SIGSTOP)
        await site.until(lambda: store.unavailable_since is not None)
        os.kill(east.pid, signal.SIGCONT)
        await site.until(lambda: store.unavailable_since is None)
        assert names(store) == ["a"]
        east.kill()
        await site.until(lambda: store.unavailable_since is not None)
        assert names(store) == ["a"]


async def test_another_cluster_behind_the_name_leaves_no_old_object(site: Site, east: SimulatedClusterProcess) -> None:
    with SimulatedClusterProcess("west", options=options()) as west:
        ControlClient(east.control_url).create([config_map("a"), config_map("shared")])
        ControlClient(west.control_url).create([config_map(f"filler{number}") for number in range(20)])
        ControlClient(west.control_url).create([config_map("shared"), config_map("z")])
        store = site.follow(east, CONFIG_MAPS)
        assert await store.when_synced(60)
        listener = Listener(store)
        first = site.clusters[0]
        second = site.cluster(cluster_config(west, name="east"), first)
        site.reflectors.update({"east": second})
        first.stop(second)
        await site.until(lambda: "z" in names(store))
        assert "a" not in names(store)
        assert ("DELETED", "a") in listener.events  # what the other one has is in the snapshot
        assert ("DELETED", "shared") in listener.events


async def test_a_member_whose_versions_go_back_is_listed_anew(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    """The proxy may not read kube-system here, so nothing but the versions shows it."""
    with SimulatedClusterProcess("west", options=options()) as west:
        control.create([config_map(f"m{number}") for number in range(200)])
        other = ControlClient(west.control_url)
        other.create([config_map("only")])
        for cluster in (control, other):
            cluster.fault("status", paths=["/api/v1/namespaces/kube-system"], code=403)
        store = site.follow(east, CONFIG_MAPS)
        assert await store.when_synced(60)
        first = site.clusters[0]
        second = site.cluster(cluster_config(west, name="east"), first)
        site.reflectors.update({"east": second})
        first.stop(second)
        await site.until(lambda: names(store) == ["only"])
        assert store.version < 200


async def test_what_the_proxy_may_not_read_is_unavailable_until_it_may(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    fault = control.fault("status", paths=[PATH], code=403)
    store = site.follow(east, CONFIG_MAPS)
    await site.until(lambda: store.unavailable_since is not None)
    assert store.unavailable_cause == "the cluster does not let the proxy watch configmaps (403)"
    assert not store.synced
    control.clear_faults(fault)
    assert await store.when_synced(60)
    assert store.unavailable_since is None


async def test_a_definition_that_goes_and_comes_back(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert send(east, "POST", definitions, crd())[0] == 201
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "default"}}
    await site.until(lambda: send(east, "POST", "/apis/example.com/v1/namespaces/default/widgets", widget)[0] == 201)
    store = site.follow(east, WIDGETS)
    assert await store.when_synced(60)
    assert names(store) == ["w"]
    member = site.reflectors.member("east")
    await site.until(lambda: WIDGETS.gvr in member.discovery.resources)
    listener = Listener(store)
    send(east, "DELETE", f"{definitions}/widgets.example.com")
    await site.until(lambda: store.unavailable_since is not None)
    await site.until(lambda: names(store) == [])
    assert listener.events == [("DELETED", "w")]
    await site.until(lambda: WIDGETS.gvr not in member.discovery.resources)
    assert "does not serve widgets.example.com" in store.unavailable_cause or not store.synced
    assert send(east, "POST", definitions, crd())[0] == 201
    await site.until(lambda: store.synced and store.unavailable_since is None)


async def test_a_page_that_expires_begins_the_list_anew(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map(f"m{number:04}") for number in range(600)])
    control.fault(**NO_WATCH_LIST)
    control.fault("status", paths=[PATH + "?limit=500&continue"], code=410, count=1)
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    assert len(names(store)) == 600


async def test_a_page_that_is_too_big_is_asked_for_in_parts(
    site: Site, east: SimulatedClusterProcess, control: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial_list, "MAX_PAGE", 200_000)
    control.create([config_map(f"m{number:04}", data="x" * 10_000) for number in range(50)])
    control.fault(**NO_WATCH_LIST)
    mark = control.mark()
    store = site.follow(east, CONFIG_MAPS)
    assert await store.when_synced(60)
    assert len(names(store)) == 50
    limits = [query.split("&")[0] for query in reads(control, mark, PATH, watch=False)]
    assert limits[:3] == ["limit=500", "limit=62", "limit=7"]
    assert set(limits[3:]) == {"limit=7"}


async def test_a_list_in_the_namespace_of_the_scope(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map("a"), config_map("b", "kube-system")])
    mark = control.mark()
    store = site.follow(east, CONFIG_MAPS, "kube-system")
    assert await store.when_synced(60)
    assert names(store) == ["b"]
    assert reads(control, mark, PATH) == []
    assert len(reads(control, mark, "/api/v1/namespaces/kube-system/configmaps")) == 1


@pytest.mark.parametrize("known", [True, False])
async def test_a_store_from_a_file_is_resumed_if_it_is_of_the_same_cluster_and_else_listed(
    site: Site, east: SimulatedClusterProcess, control: ControlClient, known: bool
) -> None:
    control.create([config_map("a")])
    first = site.follow(east, CONFIG_MAPS)
    assert await first.when_synced(60)
    member = site.reflectors.member("east")
    version = first.version
    control.create([config_map("b")])
    store = Store(site.reactor, "east", CONFIG_MAPS)
    store.restore(first.snapshot().objects, version, first.columns)
    mark = control.mark()
    reflector = Reflector(member, store, MemberLimits(4), site.reactor, site.shared.random)
    reflector.start(member.uid if known else "")
    await site.until(lambda: names(store) == ["a", "b"])
    reflector.stop()
    [query] = reads(control, mark, PATH)
    assert ("sendInitialEvents" in query) is not known
    assert (f"resourceVersion={version}" in query) is known


async def test_a_store_from_a_file_of_another_cluster_is_dropped(
    site: Site, east: SimulatedClusterProcess, control: ControlClient
) -> None:
    control.create([config_map("a")])
    first = site.follow(east, CONFIG_MAPS)
    assert await first.when_synced(60)
    send(east, "DELETE", "/api/v1/namespaces/default/configmaps/a")
    store = Store(site.reactor, "east", CONFIG_MAPS)
    store.restore(first.snapshot().objects, first.version, first.columns)
    listener = Listener(store)
    limits = MemberLimits(4)
    reflector = Reflector(site.reflectors.member("east"), store, limits, site.reactor, site.shared.random)
    reflector.start("another-uid")
    await site.until(lambda: names(store) == [])
    await site.until(lambda: store.synced)
    reflector.stop()
    assert ("DELETED", "a") in listener.events


async def test_a_member_that_is_killed_and_made_anew_on_the_same_port(site: Site) -> None:
    """A simulated cluster keeps nothing, not even its authority, so the operator reloads."""
    with SimulatedClusterProcess("east", options=options()) as east:
        ControlClient(east.control_url).create([config_map("lost")])
        store = site.follow(east, CONFIG_MAPS)
        assert await store.when_synced(60)
        port = east.ports[0]
        east.kill()
        await site.until(lambda: store.unavailable_since is not None)
        assert names(store) == ["lost"]
    with SimulatedClusterProcess("east", options=options("--port", str(port))) as back:
        ControlClient(back.control_url).create([config_map("new")])
        first = site.clusters[0]
        second = site.cluster(cluster_config(back), first)
        site.reflectors.update({"east": second})
        first.stop(second)
        await site.until(lambda: names(store) == ["new"])
        await site.until(lambda: store.unavailable_since is None)
