"""OpenAPI documents: completeness, and changes by CRDs."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.demo.apimachinery import schemas
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.discovery import openapi
from mcproxy.demo.fixtures import demo_objects
from mcproxy.demo.registry import crd


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster("east")
    definition = demo_objects.widget_definition()
    made.resources.add(crd.resource_infos(definition))
    return made


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(item) for item in value.values()), set())
    if isinstance(value, list):
        return set().union(*(references(item) for item in value), set())
    return set()


def test_every_document_of_the_index_is_complete_in_itself(cluster: SimulatedCluster) -> None:
    root = openapi.openapi_v3_root(cluster)
    assert {"api/v1", "apis/apps/v1", "apis/example.com/v1"} <= set(root["paths"])
    for path, entry in root["paths"].items():
        document = openapi.openapi_v3(cluster, path)
        assert document is not None
        known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        assert references(document) <= known, path
        assert entry["serverRelativeURL"] == f"/openapi/v3/{path}?hash={openapi.openapi_v3_hash(cluster, path)}"


def test_paths_carry_what_kubectl_looks_for(cluster: SimulatedCluster) -> None:
    document = openapi.openapi_v3(cluster, "apps/v1")
    assert document is not None
    patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert {"dryRun", "fieldValidation", "force"} <= {item["name"] for item in patch["parameters"]}
    assert patch["operationId"] == "patchAppsV1NamespacedDeployment"


def test_an_unserved_group_version_has_no_document(cluster: SimulatedCluster) -> None:
    assert openapi.openapi_v3(cluster, "apis/nope/v1") is None
    assert openapi.openapi_v3_hash(cluster, "apis/nope/v1") is None


def test_v2_is_complete_and_without_defaults(cluster: SimulatedCluster) -> None:
    document = openapi.openapi_v2(cluster)
    assert references(document) <= {schemas.PREFIX + name for name in document["definitions"]}
    widget = document["definitions"]["com.example.v1.Widget"]
    assert "default" not in widget["properties"]["spec"]["properties"]["size"]
    assert "default" not in document["definitions"]["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"]


def test_the_documents_of_a_deleted_crd_are_removed(cluster: SimulatedCluster) -> None:
    assert openapi.openapi_v3(cluster, "example.com/v1") is not None
    cluster.resources.remove("example.com", "widgets")
    assert openapi.openapi_v3(cluster, "example.com/v1") is None
    assert "com.example.v1.Widget" not in openapi.openapi_v2(cluster)["definitions"]


def test_int_or_string_and_quantities_take_numbers_in_v3(cluster: SimulatedCluster) -> None:
    document = openapi.openapi_v3(cluster, "v1")
    assert document is not None
    found = document["components"]["schemas"]
    assert "type" not in found["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]
    assert found["io.k8s.apimachinery.pkg.api.resource.Quantity"]["oneOf"] == [{"type": "string"}, {"type": "number"}]
