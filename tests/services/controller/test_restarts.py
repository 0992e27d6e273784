"""A restart on a slow machine: caches are filled one after the other, and a service that has taken long rests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.aggregate.cache.sequence import ObjectSequence
from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.controller import export_controller
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.exports.desired_state import desired_of
from mcproxy.services.exports.export_types import Desired
from mcproxy.services.exports.object_keys import ServiceKey
from tests.services.controller_bench import Bench, Replica
from tests.services.objects import endpoint, service_of, slice_of

EXPORT = model.ServiceExport(name="web", namespace="demo", service="web", from_clusters=("west",), to=("east", "north"))
WEB = ServiceKey("demo", "web")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Clusters in which everything is as it has to be."""
    made = Bench("west", "east", "north")
    west = made.clusters["west"]
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.1", ready=True)]))
    first = made.replica(EXPORT)
    made.list()
    made.run(5)
    first.stop()
    made.members.stores.clear()
    assert made.requests == 4
    yield made
    made.close()


def restarted(bench: Bench) -> Replica:
    """Return a replica that leads, and has read nothing yet."""
    replica = bench.replica(EXPORT)
    bench.run(20)
    assert all(target.elector.leads for target in replica.controller._targets.values())
    return replica


def list_only(bench: Bench, cluster: str, kind: FollowedKind) -> None:
    """Fill one of the caches of a cluster."""
    server = bench.clusters[cluster]
    stores = bench.members.stores
    bench.members.stores = {place: store for place, store in stores.items() if place[1] == kind.resource}
    server.list()
    bench.members.stores = stores


@pytest.fixture
def slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 0.1 s to work out a service, since other processes have the processors."""

    def slowly(*arguments: Any) -> Desired:
        bench.clock.rightNow += 0.1
        return desired_of(*arguments)

    monkeypatch.setattr(export_controller, "desired_of", slowly)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("first", [("west",), ("north",), ("west", "north")])
def test_an_importing_cluster_that_is_read_while_a_service_rests_keeps_what_it_has(
    bench: Bench, first: tuple[str, ...]
) -> None:
    restarted(bench)
    bench.list(*first)
    bench.run(0.05)
    bench.list("east")
    bench.run(30)
    bench.list()
    bench.run(30)
    assert bench.requests == 4


@pytest.mark.parametrize(
    "order", [(FollowedKind.SLICES, FollowedKind.SERVICES), (FollowedKind.SERVICES, FollowedKind.SLICES)]
)
def test_what_is_compared_before_the_caches_tell_of_their_second_list_is_kept(
    bench: Bench, order: tuple[FollowedKind, ...]
) -> None:
    replica = restarted(bench)
    bench.list("west", "north")
    bench.run(2)
    list_only(bench, "east", order[0])
    bench.run(2)
    replica.controller.write_ended(WEB, False)  # a comparison is due in the turn in which the list has come
    list_only(bench, "east", order[1])
    bench.run(30)
    assert bench.requests == 4


@pytest.mark.usefixtures("slow")
def test_objects_that_were_not_told_of_when_a_service_was_worked_out_are_kept(bench: Bench) -> None:
    replica = restarted(bench)
    bench.list("north")
    bench.run(3)
    replica.controller.services_changed([ClusterServiceKey("north", "demo", "web")])
    bench.clock.rightNow += 0.01
    bench.list("east")  # known when the service is worked out, which is before the caches tell of its objects
    bench.run(30)
    assert bench.requests == 4
    bench.clusters["west"].remove(FollowedKind.SLICES, "demo", "s")
    bench.list("west")
    bench.run(5)
    assert [method for method, _ in bench.clusters["east"].writes[2:]] == ["DELETE"]


def test_a_restored_cache_is_written_from_only_when_it_has_caught_up(bench: Bench) -> None:
    """It is available as soon as its watch is answered, and the watch sends what changed meanwhile only later."""
    west, members = bench.clusters["west"], bench.members

    def put(address: str) -> None:
        west.put(FollowedKind.SLICES, slice_of("web", [endpoint(address, ready=True)]))
        bench.run(5)

    replica = restarted(bench)
    bench.list()
    bench.run(5)
    version = members.versions
    saved = {place: list(store.snapshot()) for place, store in members.stores.items() if place[0] == "west"}
    put("10.1.0.2")
    assert bench.requests == 6
    replica.stop()
    members.stores.clear()

    members.away = True
    restarted(bench)
    for place, items in saved.items():
        members.stores[place].restore(ObjectSequence.from_sorted(items), version, None)
        members.stores[place].available()
    bench.list("east", "north")
    bench.run(30)
    for place in saved:
        members.stores[place].unavailable("refused")
    asked = members.probes
    bench.run(30)
    assert members.probes == asked  # only the reflector asks a cluster that is away
    for place in saved:
        members.stores[place].available()
    members.away = False
    bench.run(5)
    assert bench.requests == 6

    put("10.1.0.2")
    for place in saved:
        members.stores[place].progress(members.versions)
    bench.run(5)
    assert bench.requests == 6
    put("10.1.0.3")
    assert bench.requests == 8
