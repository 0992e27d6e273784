"""kubectl and resources that only one cluster of an aggregate has: listed, explained, applied, watched for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.aggregate.reflector.harness import crd
from tests.e2e.aggregate_environment import RESOURCES, AggregateEnvironment
from tests.e2e.processes import Kubectl, wait_until

CLUSTER = "mcproxy.io/cluster"
SCOPE = """\
        - {group: west.example.com, version: v1, resource: "*"}
        - {group: example.com, version: v1, resource: "*"}
"""


def gizmos() -> dict[str, Any]:
    """A definition with a schema."""
    definition = crd("gizmos", "Gizmo", "west.example.com")
    weight = {"type": "integer", "description": "How heavy it is."}
    spec = {"type": "object", "properties": {"weight": weight, "color": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    definition["spec"]["versions"][0]["schema"] = schema
    return definition


def gizmo(name: str, **spec: Any) -> str:
    metadata = {"name": name, "namespace": "demo", "labels": {CLUSTER: "west"}}
    return json.dumps({"apiVersion": "west.example.com/v1", "kind": "Gizmo", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, kubectl: str) -> Iterator[AggregateEnvironment]:
    environment = AggregateEnvironment(tmp_path_factory.mktemp("custom"))
    environment.resources = RESOURCES + SCOPE
    try:
        environment.start()
        environment.kubectl(kubectl, "west").good("create", "-f", "-", stdin=json.dumps(gizmos()))
        kube = environment.kubectl(kubectl)
        wait_until("the definition is known", lambda: "gizmos" in kube.good("api-resources", "-o", "name"))
        yield environment
    finally:
        environment.stop()


@pytest.fixture
def kube(environment: AggregateEnvironment, kubectl: str) -> Kubectl:
    return environment.kubectl(kubectl)


def test_it_is_listed_and_explained(kube: Kubectl) -> None:
    shown = kube.good("api-resources", "--api-group=west.example.com", "--no-headers", "-o", "wide").split()
    assert shown[:4] == ["gizmos", "west.example.com/v1", "true", "Gizmo"]
    assert "create" in shown[4].split(",")
    assert "How heavy it is." in kube.good("explain", "gizmos.spec.weight")
    assert kube.good("get", "gizmos") == ""


def test_server_side_apply(kube: Kubectl, environment: AggregateEnvironment, kubectl: str) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kube.good(*apply, stdin=gizmo("applied", weight=1))
    kube.good(*apply, stdin=gizmo("applied", weight=2, color="red"))
    assert kube.good("get", "gizmo", "applied", "-o", "jsonpath={.spec.weight} {.spec.color}") == "2 red"
    direct = json.loads(environment.kubectl(kubectl, "west").good("get", "gizmo", "applied", "-o", "json"))
    assert CLUSTER not in direct["metadata"].get("labels", {})
    kube.good("delete", "gizmo", "applied")


def test_client_side_apply_and_validation(kube: Kubectl) -> None:
    kube.good("apply", "-f", "-", stdin=gizmo("plain", weight=1))
    assert "unchanged" in kube.good("apply", "-f", "-", stdin=gizmo("plain", weight=1))
    refused = kube("apply", "-f", "-", stdin=gizmo("plain", weigth=1))
    assert refused.status == 1
    assert 'unknown field "spec.weigth"' in refused.stderr
    refused = kube("apply", "-f", "-", stdin=gizmo("plain", weight="heavy"))
    assert refused.status == 1
    kube.good("delete", "gizmo", "plain")


def test_field_selectors_know_the_schema(kube: Kubectl) -> None:
    for name, color in (("one", "red"), ("two", "blue")):
        kube.good("apply", "-f", "-", stdin=gizmo(name, color=color))
    assert kube.good("get", "gizmos", "--field-selector", "spec.color=red", "-o", "name").split() == [
        "gizmo.west.example.com/one"
    ]
    refused = kube("get", "gizmos", "--field-selector", "spec.colour=red")
    assert refused.status == 1
    assert "BadRequest" in refused.stderr
    kube.good("delete", "gizmos", "--all")


def test_the_cluster_of_the_definition_goes_away_and_its_objects_stay_readable(
    environment: AggregateEnvironment, kube: Kubectl
) -> None:
    kube.good("apply", "-f", "-", stdin=gizmo("last", weight=1))
    environment.clusters["west"].kill()
    wait_until("west is unavailable", lambda: "cluster west" in kube("get", "gizmos").stderr)
    assert "gizmos.west.example.com" in kube.good("api-resources", "-o", "name")
    assert "last" in kube.good("get", "gizmos")
    assert "How heavy it is." in kube.good("explain", "gizmos.spec.weight")
    verbose = kube.good("get", "--raw", "/readyz?verbose")
    assert "[+]cluster/east ok\n[-]cluster/west not needed: it cannot be reached\n" in verbose
