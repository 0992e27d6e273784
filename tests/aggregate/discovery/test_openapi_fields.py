"""Which paths a published schema has: what a field selector may name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.discovery.openapi_documents import SchemaNode, read_schema
from mcproxy.kube.discovery import DiscoveryError
from tests.aggregate.discovery.stage import recorded_response

APPS = recorded_response("openapi/v3-apps-v1").body


def schema(properties: Any, **others: Any) -> SchemaNode:
    kind = {"group": "x.io", "version": "v1", "kind": "Thing"}
    schemas = {"Thing": {"properties": properties, "x-kubernetes-group-version-kind": [kind]}, **others}
    found = read_schema(json.dumps({"components": {"schemas": schemas}}).encode(), "x.io", "v1", "Thing")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("kind", True),
        ("metadata.name", True),
        ("metadata.generation", True),
        ("metadata.creationTimestamp", True),
        ("metadata.labels.app", True),
        ("spec.replicas", True),
        ("spec.strategy.type", True),
        ("spec.strategy.rollingUpdate.maxSurge", True),  # an int-or-string
        ("spec.template.spec.nodeName", True),
        ("spec.template.spec.overhead.cpu", True),  # a quantity
        ("status.readyReplicas", True),
        ("spec.replica", False),
        ("spec.template.spec.nodename", False),
        ("nothing", False),
        ("spec", False),  # no scalar
        ("spec.template.spec.containers", False),
        ("spec.template.spec.containers.name", False),  # a list
        ("metadata.name.x", False),
        ("metadata.labels", False),
        ("", False),
        (".", False),
    ],
)
def test_a_deployment(path: str, expected: bool) -> None:
    deployment = read_schema(APPS, "apps", "v1", "Deployment")
    assert deployment is not None
    assert deployment.has(path) is expected


def test_a_custom_resource() -> None:
    widget = read_schema(recorded_response("openapi/v3-crd").body, "example.com", "v1", "Widget")
    assert widget is not None
    assert widget.has("metadata.namespace") is True
    assert widget.has("spec.size") is True
    assert widget.has("spec.sise") is False


def test_a_kind_without_a_schema_is_unknown() -> None:
    assert read_schema(APPS, "apps", "v1", "Nothing") is None
    assert read_schema(APPS, "apps", "v2", "Deployment") is None


@pytest.mark.parametrize(
    "opened",
    [
        {"type": "object"},
        {},
        {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        {"type": "object", "additionalProperties": True},
        {"oneOf": [{"type": "object"}, {"type": "string"}]},
    ],
)
def test_where_the_schema_does_not_say_all_nothing_is_refused(opened: Any) -> None:
    found = schema({"data": opened})
    assert found.has("data.x.y") is None
    assert found.has("data.x") is None
    assert found.has("other") is False


def test_known_fields_beside_unknown_ones() -> None:
    found = schema({"a": {"x-kubernetes-preserve-unknown-fields": True, "properties": {"b": {"type": "string"}}}})
    assert (found.has("a.b"), found.has("a.c"), found.has("a.b.c")) == (True, None, False)


def test_schemas_that_refer_to_themselves() -> None:
    tree = {"properties": {"child": {"$ref": "#/components/schemas/Tree"}, "name": {"type": "string"}}}
    loop = {"$ref": "#/components/schemas/Loop"}
    found = schema({"tree": {"allOf": [{"$ref": "#/components/schemas/Tree"}]}, "loop": loop}, Tree=tree, Loop=loop)
    assert found.has("tree." + "child." * 50 + "name") is True
    assert found.has("tree." + "child." * 50 + "nome") is False
    assert found.has("loop.x") is None


@pytest.mark.parametrize("broken", [b"", b"\xff", b"{", b'{"a":' * 5000])
def test_what_is_no_document_is_refused(broken: bytes) -> None:
    with pytest.raises(DiscoveryError):
        read_schema(broken, "apps", "v1", "Deployment")


KEYS = ["$ref", "allOf", "oneOf", "properties", "additionalProperties", "type", "x", "Thing"]
SCALARS = st.none() | st.booleans() | st.sampled_from(["object", "string", "array", "#/components/schemas/Thing"])
ANY_JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
)


@given(ANY_JSON)
def test_any_schema_is_read(content: Any) -> None:
    found = schema({"x": content}, Other=content)
    assert found.has("x.x.x") in (True, False, None)
    assert found.has("y") is False
