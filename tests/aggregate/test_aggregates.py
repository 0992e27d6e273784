"""The owner of live state: what a reload keeps, starts and ends, and that preparing one changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from mcproxy.aggregate import state_file
from mcproxy.aggregate.aggregates import Aggregates
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.member_caches import MemberCaches
from mcproxy.config import model
from mcproxy.kube.discovery import (
    APIGroupDiscovery,
    APIResourceDiscovery,
    APIVersionDiscovery,
    GroupVersionKind,
    ObjectMeta,
)
from mcproxy.kube.status import StatusError
from mcproxy.upstream.cluster import Cluster
from tests.support.clock import Clock
from tests.support.processor_time import processor_time
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context

KINDS = tuple(f"Kind{number}" for number in range(20))


def groups(kinds: tuple[str, ...]) -> list[APIGroupDiscovery]:
    """The core group, with resources that can be listed and watched."""
    resources = tuple(
        APIResourceDiscovery(
            resource=f"{kind.lower()}s",
            response_kind=GroupVersionKind("", "v1", kind),
            scope="Namespaced",
            singular_resource=kind.lower(),
            verbs=("get", "list", "watch"),
        )
        for kind in kinds
    )
    return [APIGroupDiscovery(ObjectMeta(""), (APIVersionDiscovery("v1", resources),))]


class Bench:
    """Aggregates of clusters that nobody answers for; what each has is known from the last run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.shared = make_upstream_context(self.clock)
        self.caches = MemberCaches(self.shared, self.in_thread, self.clock.seconds)
        self.owner = Aggregates(self.shared, self.caches, self.in_thread)
        self.clusters: dict[str, Cluster] = {}

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(function, *arguments)

    def stop(self) -> None:
        self.owner.stop()
        self.caches.stop()

    def known(self, name: str, kinds: tuple[str, ...] = KINDS[:2]) -> None:
        payload = msgspec.msgpack.encode({"uid": f"u-{name}", "groups": groups(kinds)})
        state_file.write(self.folder / "members" / name, "member", 1, payload)

    def config(
        self,
        members: tuple[str, ...],
        *,
        used: bool = True,
        primary: str | None = None,
        resources: tuple[model.CachedResource, ...] = (model.CachedResource(group="", version="v1", resource="*"),),
    ) -> model.Config:
        names = dict.fromkeys((*members, *([primary] if primary else ())))
        for name in names:
            if name not in self.clusters:
                config = cluster_config(endpoint_config(host=f"{name}.test"), name=name)
                self.clusters[name] = Cluster(config, self.shared)
        backend: model.Backend = (
            model.AggregateBackendConfig("fleet", members, primary) if used else model.ClusterBackend(members[0])
        )
        aggregate = model.Aggregate(
            name="fleet", clusters=members, primary=primary, cache=model.Cache(resources=resources)
        )
        server = model.Server(name="fleet", listeners=("l",), backend=backend)
        return model.Config(
            clusters=tuple(self.clusters[name].config for name in names),
            aggregates=(aggregate,),
            servers=(server,),
            daemon=model.DaemonConfig(state_dir=str(self.folder)),
        )

    def prepare(self, config: model.Config) -> Any:
        return self.owner.prepare(config, self.clusters, lambda _: cast(Any, None))

    def apply(self, config: model.Config) -> Any:
        prepared = self.prepare(config)
        prepared.activate()
        return prepared

    @property
    def stores(self) -> dict[tuple[str, str, str], Store]:
        return {(store.member, store.resource.gvr.resource, store.namespace): store for store, _ in self.caches.stores}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "state")
    for name in ("east", "west"):
        bench.known(name)
    yield bench
    bench.stop()
    assert not bench.caches.members


def test_preparing_changes_nothing(bench: Bench) -> None:
    bench.prepare(bench.config(("east", "west")))
    assert not bench.caches.members
    assert bench.stores == {}
    bench.apply(bench.config(("east",)))
    before = bench.stores
    bench.prepare(bench.config(("east", "west")))
    assert bench.stores == before
    assert list(bench.caches.members) == ["east"]


def test_every_member_and_resource_is_followed(bench: Bench) -> None:
    bench.apply(bench.config(("east", "west"), primary="third"))
    assert set(bench.stores) == {(member, f"kind{n}s", "") for member in ("east", "west") for n in (0, 1)}
    assert list(bench.caches.members) == ["east", "west", "third"]  # the primary's discovery is shown
    assert bench.caches.members["west"].uid == "u-west"
    assert not bench.caches.complete  # nothing is known of the primary


def test_an_aggregate_that_no_server_uses_follows_nothing(bench: Bench) -> None:
    prepared = bench.apply(bench.config(("east", "west"), used=False))
    assert prepared.handlers == {}
    assert bench.stores == {}


def test_a_reload_keeps_each_store_that_is_not_affected(bench: Bench) -> None:
    bench.apply(bench.config(("east", "west")))
    before = bench.stores
    bench.apply(bench.config(("east",)))
    bench.clock.advance(0)
    after = bench.stores
    assert set(after) == {key for key in before if key[0] == "east"}
    assert all(after[key] is before[key] for key in after)
    resources = (
        model.CachedResource(group="", version="v1", resource="kind0s"),
        model.CachedResource(group="", version="v1", resource="kind1s", namespaces=("demo",)),
    )
    bench.apply(bench.config(("east", "west"), resources=resources))
    bench.clock.advance(0)
    assert set(bench.stores) == {
        (member, *store) for member in ("east", "west") for store in (("kind0s", ""), ("kind1s", "demo"))
    }
    assert bench.stores["east", "kind0s", ""] is before["east", "kind0s", ""]


def test_the_handler_stays_and_ends_with_its_aggregate(bench: Bench) -> None:
    first = bench.apply(bench.config(("east",))).handlers["fleet"]
    assert bench.apply(bench.config(("east", "west"))).handlers["fleet"] is first
    bench.apply(bench.config(("east",), used=False))
    bench.clock.advance(0)
    assert bench.stores == {}
    result: list[Any] = []
    Deferred.fromCoroutine(first.handle(cast(Any, None))).addErrback(lambda failure: result.append(failure.value))
    [refusal] = result
    assert isinstance(refusal, StatusError)
    assert refusal.code == 503


def test_layouts_are_remembered_over_reloads_and_restarts(bench: Bench) -> None:
    """Also if the process is killed right after the reload: an informer would list anew, and a write be 409."""
    bench.apply(bench.config(("east", "west")))
    bench.apply(bench.config(("east",)))
    history = bench.caches.histories["fleet"]
    assert [layout.names for layout in history] == [("east",), ("east", "west")]
    other = Bench(bench.folder)
    other.apply(other.config(("west",)))
    assert [layout.names for layout in other.caches.histories["fleet"]] == [("west",), ("east",), ("east", "west")]
    other.stop()


def test_a_reload_of_50_members_with_20_resources_that_changes_one_is_short(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state")
    names = tuple(f"member-{number}" for number in range(50))
    for name in (*names, "another"):
        bench.known(name, KINDS)
    bench.apply(bench.config(names))
    assert len(bench.stores) == 1000
    before = bench.stores
    config = bench.config((*names[:-1], "another"))
    with processor_time() as taken:
        bench.apply(config)
    assert sum(store is before.get(key) for key, store in bench.stores.items()) >= 980
    assert taken.seconds < 0.2
    bench.stop()
