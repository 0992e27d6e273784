"""The caches of the process and their readers: a member as long as one uses it, a store as long as one reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from mcproxy.aggregate.member_caches import MemberCaches
from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.upstream.cluster import Cluster
from tests.support.clock import Clock
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context

SLICES = APIResource(
    GroupVersionResource("discovery.k8s.io", "v1", "endpointslices"),
    "EndpointSlice",
    "endpointslice",
    namespaced=True,
    verbs=frozenset({"list", "watch"}),
)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.shared = make_upstream_context(self.clock)
        self.caches = MemberCaches(self.shared, self.in_thread, self.clock.seconds)
        self.clusters = {name: self.cluster(name) for name in ("east", "west", "north")}

    def cluster(self, name: str) -> Cluster:
        return Cluster(cluster_config(endpoint_config(host=f"{name}.test"), name=name), self.shared)

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(function, *arguments)

    def use(self, reader: str, *names: str) -> None:
        self.caches.use(reader, names, self.clusters, str(self.folder))

    @property
    def members(self) -> list[str]:
        return list(self.caches.members)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "state")
    yield bench
    bench.caches.stop()
    assert not bench.caches.members


def test_a_cluster_is_a_member_as_long_as_a_reader_uses_it(bench: Bench) -> None:
    bench.use("aggregates", "east", "west")
    bench.use("services", "west", "north")
    assert bench.members == ["east", "west", "north"]
    west = bench.caches.members["west"]
    bench.use("aggregates")
    assert bench.members == ["west", "north"]
    assert bench.caches.members["west"] is west
    bench.use("services", "west")
    assert bench.members == ["west"]
    bench.use("services")
    assert bench.members == []


def test_a_cluster_that_a_configuration_has_no_longer_is_no_member_whoever_used_it(bench: Bench) -> None:
    bench.use("aggregates", "east")
    bench.use("services", "west")
    del bench.clusters["west"]
    bench.use("aggregates", "east")
    assert bench.members == ["east"]


def test_a_reload_of_one_reader_has_the_members_of_the_other_follow_their_new_clusters(bench: Bench) -> None:
    bench.use("aggregates", "east")
    bench.use("services", "west")
    bench.clusters = {name: bench.cluster(name) for name in bench.clusters}
    bench.use("aggregates", "east")
    for name in ("east", "west"):
        assert bench.caches.members[name].cluster is bench.clusters[name]


@pytest.mark.parametrize("options", [StoreOptions(), StoreOptions(drop_managed_fields=True, persist=False)])
@pytest.mark.parametrize("namespace", ["", "demo"])
def test_a_store_that_another_reader_has_is_read_whatever_its_options(
    bench: Bench, namespace: str, options: StoreOptions
) -> None:
    bench.use("aggregates", "east")
    store = bench.caches.reflectors.acquire("east", SLICES, namespace, options)
    assert bench.caches.reflectors.acquire_any("east", SLICES, "demo") is store
    assert len(list(bench.caches.stores)) == 1
    bench.caches.reflectors.release(store)
    bench.clock.advance(0)
    assert [each for each, _ in bench.caches.stores] == [store]  # the second reader has it still
    bench.caches.reflectors.release(store)
    bench.clock.advance(0)
    assert not list(bench.caches.stores)


def test_a_store_of_one_namespace_is_none_of_another(bench: Bench) -> None:
    bench.use("services", "east", "west")
    demo = bench.caches.reflectors.acquire_any("east", SLICES, "demo")
    assert bench.caches.reflectors.acquire_any("east", SLICES, "other") is not demo
    assert bench.caches.reflectors.acquire_any("east", SLICES, "") is not demo
    assert bench.caches.reflectors.acquire_any("west", SLICES, "demo") is not demo
    assert {options.drop_managed_fields for _, options in bench.caches.stores} == {True}
