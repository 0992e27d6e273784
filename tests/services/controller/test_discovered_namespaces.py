"""A cluster that lacks the namespace of a service: it imports when it has that (KEP-1645)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.services.cache_scopes import MULTICLUSTER, FollowedKind
from tests.services.controller_bench import Bench
from tests.services.objects import endpoint, service_of, slice_of
from tests.support.logged import captured_logs


@pytest.fixture
def bench() -> Any:
    made = Bench("west", "east", kinds=tuple(FollowedKind))
    yield made
    made.close()


DISCOVERY = model.ServiceDiscovery(enabled=True, clusters=("west", "east"))
FROM_FILE = model.ServiceExport(name="w", namespace="demo", service="web", from_clusters=("west",), to=("east",))


@pytest.mark.parametrize("declared", ["by the file", "by a ServiceExport"])
def test_it_is_asked_for_nothing_and_imports_at_once_when_its_namespace_comes(bench: Bench, declared: str) -> None:
    west, east = bench.clusters["west"], bench.clusters["east"]
    east.namespaces.clear()
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.1", ready=True)]))
    if declared == "by the file":
        bench.replica(FROM_FILE)
        found = (FollowedKind.SERVICES, "demo", "derived-web")
    else:
        west.put(FollowedKind.EXPORTS, {"metadata": {"name": "web", "namespace": "demo"}})
        bench.replica(discovery=DISCOVERY)
        found = (FollowedKind.IMPORTS, "demo", "web")
    bench.list()
    bench.run(600)
    assert not east.requests
    east.namespaces.add("demo")
    bench.run(2)
    assert found in east.objects
    assert any(kind is FollowedKind.SLICES for kind, _, _ in east.objects)
    east.namespaces.discard("demo")
    bench.run(2)
    before = len(east.requests)
    bench.run(600)
    assert len(east.requests) == before
    east.namespaces.add("demo")
    bench.run(2)
    assert found in east.objects


def test_a_namespace_is_created_where_the_export_says_so_though_it_is_known_that_there_is_none(bench: Bench) -> None:
    west, east = bench.clusters["west"], bench.clusters["east"]
    east.namespaces.clear()
    west.put(FollowedKind.SERVICES, service_of("web"))
    bench.replica(replace(FROM_FILE, create_namespaces=True))
    bench.list()
    bench.run(5)
    assert "demo" in east.namespaces
    assert (FollowedKind.SERVICES, "demo", "derived-web") in east.objects


def test_what_waits_for_a_namespace_is_written_at_once_when_it_is_seen(bench: Bench) -> None:
    """The caches are behind: the namespace has gone, and come again, while writes were refused for its lack."""
    west, east = bench.clusters["west"], bench.clusters["east"]
    bench.replica(FROM_FILE)
    bench.list()
    bench.run(5)
    east.delay_events = True
    east.namespaces.clear()
    west.put(FollowedKind.SERVICES, service_of("web"))
    bench.run(60)
    assert east.requests
    east.show()
    bench.run(1)
    east.namespaces.add("demo")
    east.delay_events = False
    east.show()
    bench.run(2)
    assert (FollowedKind.SERVICES, "demo", "derived-web") in east.objects


def test_without_the_right_to_list_namespaces_it_is_asked_for_seldom_and_nobody_is_told() -> None:
    bench = Bench("west", "east", kinds=MULTICLUSTER)
    west, east = bench.clusters["west"], bench.clusters["east"]
    east.namespaces.clear()
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.EXPORTS, {"metadata": {"name": "web", "namespace": "demo"}})
    with captured_logs() as lines:
        replica = bench.replica(discovery=DISCOVERY)
        bench.list()
        bench.run(1800)
    assert len(east.requests) < 20
    assert not [each for each in lines if each.get("event") == "export_write_refused"]
    assert not replica.controller.problems()
    assert not any(target.writer.problems for target in replica.controller._targets.values())
    east.namespaces.add("demo")
    bench.run(301)
    assert (FollowedKind.IMPORTS, "demo", "web") in east.objects
    assert (FollowedKind.SERVICES, "demo", "clusterset-web") in east.objects
    bench.close()


def test_the_status_says_which_clusters_export_a_discovered_service(bench: Bench) -> None:
    west = bench.clusters["west"]
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.EXPORTS, {"metadata": {"name": "web", "namespace": "demo"}})
    replica = bench.replica(discovery=model.ServiceDiscovery(enabled=True, clusters=("west", "east")))
    bench.list()
    bench.run(5)
    (shown,) = replica.controller.figures()["exports"]
    assert (shown["service"], shown["sources"], shown["importers"]) == ("web", ["west"], ["east", "west"])
    assert set(shown["stale"]) <= {"west"}
    west.remove(FollowedKind.EXPORTS, "demo", "web")
    bench.run(5)
    assert not any(each["sources"] for each in replica.controller.figures()["exports"])


@pytest.mark.parametrize("names", [("west",), ("east",), ("west", "east")])
def test_nothing_is_removed_while_the_kinds_of_the_mcs_api_are_not_known_yet(
    bench: Bench, names: tuple[str, ...]
) -> None:
    west, east = bench.clusters["west"], bench.clusters["east"]
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.1", ready=True)]))
    bench.members.serve(
        kinds=(FollowedKind.SLICES, FollowedKind.SERVICES, FollowedKind.NAMESPACES)
    )  # the clusters do not have the CRDs
    export = model.ServiceExport(name="w", namespace="demo", service="web", from_clusters=("west",), to=("east",))
    bench.replica(export, discovery=model.ServiceDiscovery(enabled=True, clusters=("west", "east")))
    bench.list()
    bench.run(30)
    assert (FollowedKind.SERVICES, "demo", "derived-web") in east.objects
    before = bench.requests
    bench.members.serve(
        *names, kinds=tuple(FollowedKind)
    )  # somebody creates them; they are not listed yet, or may not be
    bench.run(60)
    assert bench.requests == before
    bench.list()
    bench.run(30)
    assert bench.requests == before
