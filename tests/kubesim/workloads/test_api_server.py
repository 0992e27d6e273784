"""The API server of the demo: metrics of nodes and pods that move, and a custom API whose objects grow."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubesim.cluster import SimulatedCluster
from kubesim.workloads import api_server
from mcproxy.apiservices import role_template

NODE = {"metadata": {"name": "east-node-1", "labels": {"a": "b"}}}


def pod(name: str, phase: str = "Running", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop", "labels": labels, "uid": "not-taken"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "app"}]}, "status": {"phase": phase}}


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 23, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> SimulatedCluster:
    made = SimulatedCluster("apis", now=clock, rng=random.Random(1))
    api_server.fill(made)
    return made


def stored(server: SimulatedCluster, storage: tuple[str, str]) -> dict[str, dict[str, Any]]:
    return {name: each for (_, name), each in server.store.collection(storage).objects.items()}


def test_it_serves_its_two_groups_and_nothing_else(server: SimulatedCluster) -> None:
    assert sorted(server.resources.groups()) == ["garden.example.com", "metrics.k8s.io"]
    for version in ("v1beta1", "v1"):
        assert {info.plural: info.verbs for info in server.resources.resources("metrics.k8s.io", version)} == {
            "nodes": ("get", "list"),
            "pods": ("get", "list"),
        }


def test_clients_without_a_name_read_its_discovery_as_they_list_what_it_has(server: SimulatedCluster) -> None:
    bindings = stored(server, (api_server.RBAC, "clusterrolebindings")).values()
    (found,) = [
        each
        for each in bindings
        if each["roleRef"]["name"] == "system:discovery"
        and "system:unauthenticated" in [subject["name"] for subject in each["subjects"]]
    ]
    assert found["roleRef"]["kind"] == "ClusterRole"


def test_metrics_are_of_what_there_is_and_move(server: SimulatedCluster, clock: Clock) -> None:
    api_server.sample(server, [NODE], [pod("a", tier="web"), pod("b"), pod("waits", "Pending")])
    first = stored(server, api_server.NODES)["east-node-1"]
    assert re.fullmatch(r"\d+n", first["usage"]["cpu"])
    assert re.fullmatch(r"\d+Ki", first["usage"]["memory"])
    assert (first["timestamp"], first["window"]) == ("2026-11-23T00:00:00Z", "10s")
    pods = stored(server, api_server.PODS)
    assert set(pods) == {"a", "b"}
    assert pods["a"]["metadata"]["labels"] == {"tier": "web"}
    assert [each["name"] for each in pods["a"]["containers"]] == ["app"]
    clock.now += timedelta(seconds=5)
    api_server.sample(server, [NODE], [pod("b")])
    assert stored(server, api_server.NODES)["east-node-1"]["usage"] != first["usage"]
    assert set(stored(server, api_server.PODS)) == {"b"}


def test_plants_with_water_grow(server: SimulatedCluster) -> None:
    rng = random.Random(1)
    for _ in range(20):
        api_server.grow(server, rng)
    heights = {
        name: each.get("status", {}).get("centimetres", 0) for name, each in stored(server, api_server.PLANTS).items()
    }
    assert heights["cactus"] == 0
    assert heights["basil"] > 5
    assert heights["fern"] > 5


def test_what_it_publishes_is_taken_whole(server: SimulatedCluster) -> None:
    content = api_server.templates("garden.example.com")
    assert content is not None
    parts, refused = role_template.published_roles(content["items"], "garden.example.com")
    assert (len(parts), refused) == (2, ())
    assert api_server.templates("metrics.k8s.io") is None
