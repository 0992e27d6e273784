"""From a change in a source cluster to writes in others, over clusters in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.controller import export_controller
from mcproxy.services.exports.desired_state import desired_of
from mcproxy.services.exports.export_types import Desired
from mcproxy.services.exports.object_keys import ServiceKey
from tests.services.controller_bench import Bench
from tests.services.objects import endpoint, service_of, slice_of
from tests.support.logged import captured_logs

EXPORT = model.ServiceExport(name="web", namespace="demo", service="web", from_clusters=("west",), to=("east", "north"))
SLICE = (FollowedKind.SLICES, "demo", "imported-west-s")
SERVICE = (FollowedKind.SERVICES, "demo", "derived-web")


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench("west", "east", "north")
    west = made.clusters["west"]
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.1", ready=True)]))
    yield made
    made.close()


def addresses(bench: Bench, cluster: str, name: str = "imported-west-s") -> list[str]:
    found = bench.clusters[cluster].objects.get((FollowedKind.SLICES, "demo", name))
    return [] if found is None else [each for one in found["endpoints"] for each in one["addresses"]]


def test_a_service_and_its_endpoints_are_in_each_importing_cluster(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run()
    for name in ("east", "north"):
        assert addresses(bench, name) == ["10.1.0.1"]
        assert SERVICE in bench.clusters[name].objects
    assert not bench.clusters["west"].requests


def test_nothing_is_written_when_nothing_has_changed_after_a_restart_or_with_another_leader(bench: Bench) -> None:
    first = bench.replica(EXPORT)
    bench.list()
    bench.run(60)
    before = bench.requests
    assert before == 4
    second = bench.replica(EXPORT)
    bench.run(60)
    first.stop()
    bench.run(60)
    assert all(target.elector.leads for target in second.controller._targets.values())
    assert bench.requests == before
    second.use(EXPORT)  # a reload
    bench.run(60)
    assert bench.requests == before


def test_a_change_is_one_write_in_each_cluster(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(30)
    before = bench.requests
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.2", ready=True)]))
    bench.run(0.2)
    assert addresses(bench, "east") == addresses(bench, "north") == ["10.1.0.2"]
    bench.run(30)
    assert bench.requests == before + 2


def test_many_changes_of_one_slice_are_a_write_a_second_and_the_last_one_holds(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(30)
    before = len(bench.clusters["east"].requests)
    for number in range(100):
        bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint(f"10.1.1.{number}", ready=True)]))
        bench.run(0.1)
    bench.run(2)
    assert addresses(bench, "east") == ["10.1.1.99"]
    assert len(bench.clusters["east"].requests) - before <= 12


def test_what_goes_away_takes_its_import_with_it(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    bench.clusters["west"].remove(FollowedKind.SLICES, "demo", "s")
    bench.run(2)
    assert SLICE not in bench.clusters["east"].objects
    assert SERVICE in bench.clusters["east"].objects
    bench.clusters["west"].remove(FollowedKind.SERVICES, "demo", "web")
    bench.run(2)
    assert not [key for key in bench.clusters["east"].objects if key[0] is not FollowedKind.NAMESPACES]


def test_an_export_that_a_reload_removes_takes_its_imports_with_it(bench: Bench) -> None:
    replica = bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    replica.use(model.ServiceExport(name="web", namespace="demo", service="web", from_clusters=("west",), to=("east",)))
    bench.run(2)
    assert SERVICE in bench.clusters["east"].objects


def test_a_source_that_is_away_or_was_never_read_loses_nothing(bench: Bench) -> None:
    first = bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    first.stop()
    bench.members.stores.clear()
    bench.replica(EXPORT)
    bench.list("east", "north")  # west has not answered since the restart
    bench.run(60)
    assert addresses(bench, "east") == ["10.1.0.1"]
    assert bench.requests == 4
    bench.clusters["west"].remove(FollowedKind.SLICES, "demo", "s")
    bench.list("west")
    bench.run(5)
    assert addresses(bench, "east") == []


def lose(bench: Bench, cluster: str) -> None:
    for (name, _, _), store in bench.members.stores.items():
        if name == cluster:
            store.unavailable("no route to host")


def test_a_source_that_cannot_be_reached_loses_its_imports_only_after_a_time_that_is_configured(bench: Bench) -> None:
    removes = replace(EXPORT, unreachable=model.Unreachable.REMOVE, after=600.0)
    replica = bench.replica(removes)
    bench.list()
    bench.run(5)
    lose(bench, "west")
    bench.run(595)
    assert addresses(bench, "east") == ["10.1.0.1"]
    (shown,) = replica.controller.figures()["exports"]
    assert (shown["stale"], shown["staleCauses"]) == (["west"], {"west": "no route to host"})
    assert shown["staleSince"]["west"].endswith("Z")
    bench.run(10)
    assert SLICE not in bench.clusters["east"].objects
    assert SERVICE not in bench.clusters["north"].objects
    assert [each.kind.value for each in replica.controller.problems()] == ["Unreachable"]
    bench.list("west")
    bench.run(5)
    assert addresses(bench, "east") == addresses(bench, "north") == ["10.1.0.1"]
    assert not replica.controller.problems()
    lose(bench, "west")
    bench.run(400)
    bench.list("west")  # each time anew
    bench.run(5)
    lose(bench, "west")
    bench.run(400)
    assert addresses(bench, "east") == ["10.1.0.1"]


def test_of_two_sources_the_one_that_is_away_too_long_goes_and_the_other_one_stays(bench: Bench) -> None:
    removes = replace(
        EXPORT, from_clusters=("west", "north"), to=("east",), unreachable=model.Unreachable.REMOVE, after=60.0
    )
    north = bench.clusters["north"]
    north.put(FollowedKind.SERVICES, service_of("web"))
    north.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.3.0.1", ready=True)], name="n"))
    bench.replica(removes)
    bench.list()
    bench.run(5)
    lose(bench, "north")
    bench.run(70)
    assert addresses(bench, "east") == ["10.1.0.1"]
    assert (FollowedKind.SLICES, "demo", "imported-north-n") not in bench.clusters["east"].objects


def test_a_jump_of_the_wall_clock_removes_nothing(bench: Bench) -> None:
    bench.replica(replace(EXPORT, unreachable=model.Unreachable.REMOVE, after=600.0))
    bench.list()
    bench.run(5)
    lose(bench, "west")
    bench.run(5)
    bench.clock.jumped += 86400
    bench.run(5)
    assert addresses(bench, "east") == ["10.1.0.1"]


def test_a_source_that_is_not_reached_after_a_restart_counts_from_there(bench: Bench) -> None:
    removes = replace(EXPORT, unreachable=model.Unreachable.REMOVE, after=60.0)
    first = bench.replica(removes)
    bench.list()
    bench.run(5)
    first.stop()
    bench.members.stores.clear()
    bench.replica(removes)
    bench.list("east", "north")
    bench.run(50)
    assert addresses(bench, "east") == ["10.1.0.1"]
    bench.run(30)
    assert SLICE not in bench.clusters["east"].objects


def test_an_importing_cluster_that_was_never_read_is_not_written_to(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list("west", "north")
    bench.run(30)
    assert not bench.clusters["east"].requests
    assert addresses(bench, "north") == ["10.1.0.1"]


def test_what_is_not_ours_is_left_alone(bench: Bench) -> None:
    east = bench.clusters["east"]
    foreign = east.put(FollowedKind.SERVICES, service_of("derived-web"))
    replica = bench.replica(EXPORT)
    bench.list()
    bench.run(30)
    assert east.objects[SERVICE] is foreign
    assert [(each.kind.value, each.cluster) for each in replica.controller.problems()] == [("ForeignObject", "east")]
    east.remove(*SERVICE)
    bench.run(5)
    assert east.objects[SERVICE]["metadata"]["labels"]
    assert not replica.controller.problems()


def test_a_slice_of_another_that_has_the_name_is_left_alone_and_reported(bench: Bench) -> None:
    east = bench.clusters["east"]
    foreign = east.put(FollowedKind.SLICES, slice_of("other", [endpoint("10.9.0.1")], name="imported-west-s"))
    replica = bench.replica(EXPORT)
    bench.list()
    with captured_logs() as logged:
        bench.run(120)
    assert east.objects[SLICE] is foreign
    assert len(east.requests) == 1  # the Service
    assert figures_of(replica, "east")["refusals"][0]["object"] == "endpointslices demo/imported-west-s"
    (line,) = [each for each in logged if each.get("event") == "export_problem"]
    assert (line["reason"], line["cluster"], line["service"]) == ("ForeignObject", "east", "demo/web")
    assert "imported-west-s in namespace demo" in line["cause"]
    east.remove(*SLICE)
    bench.run(35)
    assert addresses(bench, "east") == ["10.1.0.1"]
    assert figures_of(replica, "east")["refusedObjects"] == 0


def test_what_was_in_the_way_of_an_export_is_forgotten_with_it(bench: Bench) -> None:
    east = bench.clusters["east"]
    foreign = east.put(FollowedKind.SLICES, slice_of("other", [endpoint("10.9.0.1")], name="imported-west-s"))
    other = model.ServiceExport(name="o", namespace="demo", service="o", from_clusters=("west",), to=("east",))
    replica = bench.replica(EXPORT, other)
    bench.list()
    bench.run(30)
    assert figures_of(replica, "east")["refusedObjects"] == 1
    replica.use(other)
    bench.run(30)
    assert figures_of(replica, "east")["refusedObjects"] == 0
    assert east.objects[SLICE] is foreign


def test_what_somebody_creates_in_the_same_moment_is_left_alone(bench: Bench) -> None:
    east = bench.clusters["east"]
    east.delay_events = True
    replica = bench.replica(EXPORT)
    bench.list()
    foreign = east.put(FollowedKind.SERVICES, service_of("derived-web"))  # the cache does not show it yet
    bench.run(30)
    assert east.objects[SERVICE] is foreign
    east.show()
    bench.run(30)
    assert east.objects[SERVICE] is foreign
    assert [each.kind.value for each in replica.controller.problems()] == ["ForeignObject"]


def test_what_loses_its_label_in_the_same_moment_is_not_written_any_more(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    east = bench.clusters["east"]
    east.delay_events = True
    mine = east.objects[SLICE]
    theirs = east.put(FollowedKind.SLICES, {**mine, "metadata": {**mine["metadata"], "labels": {"theirs": "yes"}}})
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.7", ready=True)]))
    bench.run(5)
    assert east.objects[SLICE] is theirs
    bench.clusters["west"].remove(FollowedKind.SLICES, "demo", "s")
    bench.run(5)
    assert east.objects[SLICE] is theirs


def test_what_somebody_takes_away_or_deletes_is_mended(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    east = bench.clusters["east"]
    mine = east.objects[SLICE]
    east.put(FollowedKind.SLICES, {key: value for key, value in mine.items() if key != "endpoints"})
    bench.run(3)
    assert addresses(bench, "east") == ["10.1.0.1"]
    east.remove(*SLICE)
    bench.run(3)
    assert addresses(bench, "east") == ["10.1.0.1"]


def test_what_another_manager_has_set_is_reported_and_never_forced(bench: Bench) -> None:
    replica = bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    east, west = bench.clusters["east"], bench.clusters["west"]
    theirs = east.put(FollowedKind.SLICES, {**east.objects[SLICE], "endpoints": [endpoint("10.9.0.1")]})
    before = len(east.requests)
    with captured_logs() as logged:
        bench.run(900)
    assert east.objects[SLICE] is theirs
    assert len(east.requests) == before + 1  # asked once, and again at the next change
    (refusal,) = figures_of(replica, "east")["refusals"]
    assert refusal["object"] == "endpointslices demo/imported-west-s"
    assert 'conflict with "putter"' in refusal["cause"]
    assert [each["event"] for each in logged if each.get("event") == "export_write_refused"] == ["export_write_refused"]
    west.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.9", ready=True)]))
    bench.run(5)
    assert len(east.requests) == before + 2
    assert addresses(bench, "north") == ["10.1.0.9"]  # another cluster's are not held up
    east.remove(*SLICE)
    bench.run(5)
    assert addresses(bench, "east") == ["10.1.0.9"]
    assert not figures_of(replica, "east")["refusals"]


def test_slices_are_owned_by_the_derived_service_and_go_with_it(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    east = bench.clusters["east"]

    def owner() -> dict[str, str]:
        (found,) = east.objects[SLICE]["metadata"]["ownerReferences"]
        return {key: found[key] for key in ("apiVersion", "kind", "name", "uid")}

    def service() -> dict[str, str]:
        uid = east.objects[SERVICE]["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Service", "name": "derived-web", "uid": uid}

    first = service()
    assert owner() == first
    east.remove(*SERVICE)
    assert SLICE not in east.objects
    bench.run(5)
    assert owner() == service() != first


def test_no_slice_is_written_while_its_service_cannot_be(bench: Bench) -> None:
    east = bench.clusters["east"]
    east.refuse = lambda method, path: (422, {"message": "no"}) if "/services/" in path else None
    bench.replica(EXPORT)
    bench.list()
    bench.run(30)
    assert SLICE not in east.objects
    east.refuse = lambda method, path: None
    bench.run(60)
    assert addresses(bench, "east") == ["10.1.0.1"]


def test_a_field_that_a_cluster_does_not_know_stops_no_other_object(bench: Bench) -> None:
    east = bench.clusters["east"]
    unknown = {
        "kind": "Status",
        "message": "failed to create typed patch object (demo/x): field not declared",
    }
    east.refuse = lambda method, path: (500, unknown) if "derived-web" in path else None
    other = model.ServiceExport(name="api", namespace="demo", service="api", from_clusters=("west",), to=("east",))
    bench.clusters["west"].put(FollowedKind.SERVICES, service_of("api"))
    bench.replica(EXPORT, other)
    bench.list()
    bench.run(2)
    assert (FollowedKind.SERVICES, "demo", "derived-api") in east.objects


def test_what_is_deleted_before_the_cache_has_shown_it_is_created_again(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    east = bench.clusters["east"]
    east.delay_events = True
    bench.run(2)
    east.remove(*SLICE)
    east._unseen = [each for each in east._unseen if each != SLICE]  # the watch tells neither
    east.show()
    bench.run(30)
    assert SLICE in east.objects


def test_while_the_cache_is_behind_nothing_is_written_twice(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    for each in bench.clusters.values():
        each.delay_events = True
    bench.run(2)
    assert bench.requests == 4
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.3", ready=True)]))
    bench.clusters["west"].show()
    bench.run(5)
    assert addresses(bench, "east") == ["10.1.0.3"]  # over the version that was answered
    assert bench.requests == 6


def test_a_namespace_that_is_not_there_is_asked_for_seldom_and_followed_when_it_comes(bench: Bench) -> None:
    east = bench.clusters["east"]
    east.namespaces.clear()
    replica = bench.replica(EXPORT)
    bench.list()
    bench.run(300)
    assert len(east.requests) < 60
    assert figures_of(replica, "east")["refusedObjects"] > 0
    other = model.ServiceExport(name="o", namespace="demo", service="o", from_clusters=("west",), to=("east",))
    replica.use(other)
    bench.run(1)
    assert figures_of(replica, "east")["refusedObjects"] == 0  # they are not wanted any more
    replica.use(EXPORT)
    bench.run(31)
    assert figures_of(replica, "east")["refusedObjects"] > 0
    east.namespaces.add("demo")
    bench.run(31)
    assert addresses(bench, "east") == ["10.1.0.1"]
    assert figures_of(replica, "east")["refusedObjects"] == 0


def test_a_namespace_is_created_once_where_the_export_says_so(bench: Bench) -> None:
    east, north = bench.clusters["east"], bench.clusters["north"]
    east.namespaces.clear()
    with captured_logs() as logged:
        bench.replica(replace(EXPORT, create_namespaces=True))
        bench.list()
        bench.run(5)
    assert addresses(bench, "east") == ["10.1.0.1"]
    created = ("POST", "/api/v1/namespaces?fieldManager=mcproxy&timeout=5s")
    assert (east.requests.count(created), north.requests.count(created)) == (1, 0)
    assert [each["cluster"] for each in logged if each.get("event") == "export_namespace_created"] == ["east"]


def test_a_namespace_that_may_not_be_created_is_reported_with_the_right_that_is_missing(bench: Bench) -> None:
    east = bench.clusters["east"]
    east.namespaces.clear()
    message = 'namespaces is forbidden: User "p" cannot create resource "namespaces" in API group ""'
    east.refuse = lambda method, path: (403, {"message": message}) if method == "POST" else None
    replica = bench.replica(replace(EXPORT, create_namespaces=True))
    bench.list()
    bench.run(120)
    assert figures_of(replica, "east")["refusals"][0]["cause"] == message
    assert len(east.requests) < 40
    east.refuse = lambda method, path: None
    bench.run(31)
    assert addresses(bench, "east") == ["10.1.0.1"]


def test_an_object_that_is_refused_is_tried_seldom_and_another_one_at_once(bench: Bench) -> None:
    east = bench.clusters["east"]
    refused = {"kind": "Status", "message": "endpoints[0]: Invalid value"}
    east.refuse = lambda method, path: (422, refused) if "imported-west-s" in path else None
    bench.replica(EXPORT)
    bench.list()
    bench.run(600)
    assert len(east.requests) < 15
    assert SERVICE in east.objects
    east.refuse = lambda method, path: None
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.9", ready=True)]))
    bench.run(2)
    assert addresses(bench, "east") == ["10.1.0.9"]


def test_a_cluster_that_is_away_gets_what_it_has_missed(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    east = bench.clusters["east"]
    east.away = True
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.4", ready=True)]))
    bench.run(60)
    assert addresses(bench, "north") == ["10.1.0.4"]
    east.away = False
    bench.run(31)
    assert addresses(bench, "east") == ["10.1.0.4"]


def test_a_replica_that_loses_its_lease_sends_nothing_more(bench: Bench) -> None:
    first = bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    first.lease_apis["east"].down = True
    bench.run(11)
    before = len(bench.clusters["east"].requests)
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.5", ready=True)]))
    bench.run(5)
    assert len(bench.clusters["east"].requests) == before
    assert addresses(bench, "north") == ["10.1.0.5"]
    bench.replica(EXPORT)
    bench.run(30)
    assert addresses(bench, "east") == ["10.1.0.5"]


def test_the_lease_may_have_another_name_and_a_reload_moves_it(bench: Bench) -> None:
    where = model.LeaseName(namespace="mcproxy", name="writers")
    replica = bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    replica.use(replace(EXPORT, lease=where))
    bench.run(5)
    assert {name: each.lease.holder for name, each in bench.leases.items() if each.lease} == {"east": "", "north": ""}
    moved = {cluster: each.lease.holder for (cluster, _), each in bench.other_leases.items() if each.lease}
    assert moved == {"east": "r0", "north": "r0"}
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.8", ready=True)]))
    bench.run(5)
    assert addresses(bench, "east") == ["10.1.0.8"]


def test_a_shutdown_frees_the_leases_but_not_while_a_write_is_on_its_way(bench: Bench) -> None:
    from twisted.internet.defer import Deferred

    replica = bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    bench.clusters["east"].hung = []
    bench.clusters["west"].put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.6", ready=True)]))
    bench.run(1)
    Deferred.fromCoroutine(replica.controller.retire())
    replica.stopped = True
    replica.caches.stop()
    leases = {name: each.lease.holder for name, each in bench.leases.items() if each.lease is not None}
    assert leases == {"east": "r0", "north": ""}


def test_another_address_family_or_a_headless_service_replaces_the_object(bench: Bench) -> None:
    bench.replica(EXPORT)
    bench.list()
    bench.run(5)
    west = bench.clusters["west"]
    east = bench.clusters["east"]
    before = east.objects[SERVICE]["metadata"]["uid"]
    west.put(FollowedKind.SERVICES, service_of("web", clusterIP="None"))
    bench.run(5)
    assert east.objects[SERVICE]["spec"]["clusterIP"] == "None"
    assert east.objects[SERVICE]["metadata"]["uid"] != before


def figures_of(replica: Any, cluster: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = replica.controller.figures()["exportTargets"]
    return next(each for each in found if each["cluster"] == cluster)


def test_a_service_that_takes_long_rests_and_has_no_other_one_wait_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes to a source cluster makes a service gigantic and changes it all the time."""
    other = model.ServiceExport(name="api", namespace="demo", service="api", from_clusters=("west",), to=("east",))
    bench.replica(EXPORT, other)
    west = bench.clusters["west"]
    bench.list()
    west.put(FollowedKind.SERVICES, service_of("api"))
    bench.run(30)
    busy = 0.0

    def slow(key: ServiceKey, *arguments: Any) -> Desired:
        nonlocal busy
        if key.service == "web":
            busy += 0.1
            bench.clock.rightNow += 0.1
        return desired_of(key, *arguments)

    monkeypatch.setattr(export_controller, "desired_of", slow)
    began = bench.clock.elapsed
    for number in range(1, 200):
        west.put(FollowedKind.SLICES, slice_of("web", [endpoint(f"10.1.1.{number}", ready=True)]))
        if number == 150:
            west.put(FollowedKind.SLICES, slice_of("api", [endpoint("10.1.0.7", ready=True)], name="api"))
        bench.run(0.1)
        if number == 155:
            assert addresses(bench, "east", "imported-west-api") == ["10.1.0.7"]
    assert busy < 0.12 * (bench.clock.elapsed - began)
    bench.run(3)
    assert addresses(bench, "east") == ["10.1.1.199"]
