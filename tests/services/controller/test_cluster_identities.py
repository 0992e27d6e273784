"""ClusterProperties of clusters, and IP families that a cluster lacks, as the controller follows them."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from tests.services.controller_bench import Bench
from tests.services.objects import endpoint, service_of, slice_of
from tests.support.logged import captured_logs

DISCOVERY = model.ServiceDiscovery(enabled=True, clusters=("west", "east"))
SLICE = (FollowedKind.SLICES, "demo", "clusterset-west-s")
SOURCE = "multicluster.kubernetes.io/source-cluster"


@pytest.fixture
def bench() -> Any:
    made = Bench("west", "east", kinds=tuple(FollowedKind))
    west = made.clusters["west"]
    west.put(FollowedKind.SERVICES, service_of("web"))
    west.put(FollowedKind.SLICES, slice_of("web", [endpoint("10.1.0.1", ready=True)]))
    west.put(FollowedKind.EXPORTS, {"metadata": {"name": "web", "namespace": "demo"}})
    yield made
    made.close()


def claim(bench: Bench, cluster: str, value: str, name: str = "cluster.clusterset.k8s.io") -> None:
    bench.clusters[cluster].put(FollowedKind.PROPERTIES, {"metadata": {"name": name}, "spec": {"value": value}})


def source_of(bench: Bench) -> tuple[str, list[str]]:
    """Return the source's id in a label of a slice, and in the status of the import."""
    objects = bench.clusters["east"].objects
    status = objects[FollowedKind.IMPORTS, "demo", "web"]["status"]
    return objects[SLICE]["metadata"]["labels"][SOURCE], [each["cluster"] for each in status["clusters"]]


def test_an_id_that_is_there_at_the_start_is_written_at_once_and_one_that_changes_later_is_too(bench: Bench) -> None:
    claim(bench, "west", "site-7")
    replica = bench.replica(discovery=DISCOVERY)
    bench.list()
    bench.run(5)
    assert source_of(bench) == ("site-7", ["site-7"])
    assert sum(path.endswith("clusterset-west-s") for _, path in bench.clusters["east"].writes) == 1
    claim(bench, "west", "site-8")
    bench.run(3)
    assert source_of(bench) == ("site-8", ["site-8"])
    assert replica.controller.figures()["clusterIds"] == [
        {"cluster": "east", "id": "east", "clusterset": "", "problem": ""},
        {"cluster": "west", "id": "site-8", "clusterset": "", "problem": ""},
    ]
    bench.clusters["west"].remove(FollowedKind.PROPERTIES, "", "cluster.clusterset.k8s.io")
    bench.run(3)
    assert source_of(bench) == ("west", ["west"])


def test_after_a_restart_nothing_is_written_before_the_id_is_known_nor_then(bench: Bench) -> None:
    claim(bench, "west", "site-7")
    first = bench.replica(discovery=DISCOVERY)
    bench.list()
    bench.run(5)
    first.stop()
    bench.members.stores.clear()
    before = bench.requests
    bench.replica(discovery=DISCOVERY)
    bench.run(60)
    bench.list()
    bench.run(60)
    assert bench.requests == before


def test_an_id_that_two_claim_is_nobodys_and_the_log_says_so_once(bench: Bench) -> None:
    claim(bench, "west", "site")
    with captured_logs() as lines:
        bench.replica(discovery=DISCOVERY)
        bench.list()
        bench.run(5)
        assert source_of(bench) == ("site", ["site"])
        claim(bench, "east", "site")
        bench.run(60)
    assert source_of(bench) == ("west", ["west"])
    told = [each for each in lines if each.get("event") == "cluster_id_refused"]
    assert sorted(each["cluster"] for each in told) == ["east", "west"]


def test_members_of_different_clustersets_are_told_of_and_served(bench: Bench) -> None:
    with captured_logs() as lines:
        for cluster, name in (("west", "prod"), ("east", "test")):
            claim(bench, cluster, name, "clusterset.k8s.io")
        bench.replica(discovery=DISCOVERY)
        bench.list()
        bench.run(60)
    (told,) = [each for each in lines if each.get("event") == "clustersets_differ"]
    assert told["cause"] == "west: prod, east: test"
    assert source_of(bench) == ("west", ["west"])


def test_a_cluster_without_the_family_of_a_service_says_so_and_is_asked_again(bench: Bench) -> None:
    west, east = bench.clusters["west"], bench.clusters["east"]
    west.put(FollowedKind.SERVICES, service_of("web", ipFamilies=["IPv6"], clusterIP="fd00::1"))
    message = 'Invalid value: "IPv6": not configured on this cluster'  # golden/services/service/create-ipv6.json
    answer = {"kind": "Status", "code": 422, "message": f'Service "x" is invalid: spec.ipFamilies[0]: {message}'}
    east.refuse = lambda method, path: (422, answer) if path.endswith("services/clusterset-web") else None
    first = bench.replica(discovery=DISCOVERY)
    bench.list()
    bench.run(30)
    (ready,) = east.objects[FollowedKind.IMPORTS, "demo", "web"]["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "IPFamilyNotSupported")
    first.stop()
    bench.members.stores.clear()
    before = bench.writes
    bench.replica(discovery=DISCOVERY)
    bench.list()
    bench.run(600)
    assert bench.writes == before
    east.refuse = lambda method, path: None
    bench.run(301)
    service = east.objects[FollowedKind.SERVICES, "demo", "clusterset-web"]
    east.put(
        FollowedKind.SERVICES,
        {**service, "spec": {**service["spec"], "clusterIP": "fd00::9", "clusterIPs": ["fd00::9"]}},
    )
    bench.run(5)
    (ready,) = east.objects[FollowedKind.IMPORTS, "demo", "web"]["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "Ready")
