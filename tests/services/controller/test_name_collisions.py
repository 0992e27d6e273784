"""Names with a short hash: a hostile source may search for a service whose derived one has another one's name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.exports.export_types import ProblemKind
from tests.services.controller_bench import Bench
from tests.services.objects import endpoint, service_of, slice_of

LONG = "s" * 50


@pytest.fixture
def collision(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Two services whose derived ones have one name: somebody has searched for 50 bits of a hash."""
    alike = SimpleNamespace(sha256=lambda data: hashlib.sha256(b""))
    monkeypatch.setattr("mcproxy.services.exports.object_keys.hashlib", alike)
    bench = Bench("west", "east", kinds=tuple(FollowedKind))
    for service, address in ((f"{LONG}-victim", "10.1.0.1"), (f"{LONG}-attack", "10.9.9.9")):
        bench.clusters["west"].put(FollowedKind.SERVICES, service_of(service))
        bench.clusters["west"].put(
            FollowedKind.SLICES, slice_of(service, [endpoint(address, ready=True)], name=service)
        )
    yield bench
    bench.close()


def exported(service: str) -> model.ServiceExport:
    return model.ServiceExport(name=service, namespace="demo", service=service, from_clusters=("west",), to=("east",))


def test_who_has_found_a_service_with_the_same_short_hash_takes_nothing_away_and_adds_nothing(
    collision: Bench,
) -> None:
    victim, attack = f"{LONG}-victim", f"{LONG}-attack"
    replica = collision.replica(exported(victim))
    collision.list()
    collision.run(5)
    east = collision.clusters["east"]
    before = dict(east.objects)
    assert len([key for key in before if key[0] is FollowedKind.SLICES]) == 1
    replica.use(exported(attack), exported(victim))  # its name is the first by the alphabet
    collision.run(30)
    assert east.objects == before
    (problem,) = replica.controller.problems()
    assert (problem.key.service, problem.kind) == (attack, ProblemKind.NAME_TAKEN)
    replica.stop()
    collision.members.stores.clear()
    again = collision.replica(exported(attack), exported(victim))
    collision.list()
    collision.run(30)
    assert east.objects == before
    again.use(exported(attack))  # now it is free
    collision.run(30)
    (found,) = [each for key, each in east.objects.items() if key[0] is FollowedKind.SLICES]
    assert found["endpoints"][0]["addresses"] == ["10.9.9.9"]
    assert not again.controller.problems()


def test_a_discovered_service_with_the_same_short_hash_has_no_import_with_the_others_address(collision: Bench) -> None:
    west, east = collision.clusters["west"], collision.clusters["east"]
    west.put(FollowedKind.EXPORTS, {"metadata": {"name": f"{LONG}-victim", "namespace": "demo"}})
    collision.replica(discovery=model.ServiceDiscovery(enabled=True, clusters=("west", "east")))
    collision.list()
    collision.run(5)
    before = dict(east.objects)
    assert (FollowedKind.IMPORTS, "demo", f"{LONG}-victim") in before
    west.put(FollowedKind.EXPORTS, {"metadata": {"name": f"{LONG}-attack", "namespace": "demo"}})
    collision.run(60)
    assert east.objects == before
