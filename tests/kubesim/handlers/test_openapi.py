"""OpenAPI documents: completeness, and changes by CRDs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubesim.apimachinery import schemas
from kubesim.cluster import SimulatedCluster
from kubesim.handlers import openapi
from kubesim.registry import crd
from kubesim.workloads import demo_objects

GOLDEN = Path(__file__).parents[2] / "golden"


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


def test_custom_resources_take_no_strategic_merge_patch(cluster: SimulatedCluster) -> None:
    """As recorded; kubectl apply would send one otherwise, which is 415."""
    recorded = json.loads(json.loads((GOLDEN / "openapi" / "v3-crd.json").read_text())["response"]["body"])
    path = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"
    custom, builtin = openapi.openapi_v3(cluster, "apis/example.com/v1"), openapi.openapi_v3(cluster, "apis/apps/v1")
    assert custom is not None
    assert builtin is not None
    types = set(custom["paths"][path]["patch"]["requestBody"]["content"])
    assert types == set(recorded["paths"][path]["patch"]["requestBody"]["content"])
    deployment = builtin["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]
    strategic = "application/strategic-merge-patch+json"
    assert set(deployment["patch"]["requestBody"]["content"]) == types | {strategic}
    assert strategic not in openapi.openapi_v2(cluster)["paths"][path]["patch"]["consumes"]


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
