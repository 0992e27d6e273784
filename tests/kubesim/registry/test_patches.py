"""JSON patch, merge patch, strategic merge patch and server-side apply on plain objects."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import Registry, ResourceInfo
from kubesim.apimachinery.status import APIError, StatusError
from kubesim.registry import managed_fields, patches, server_side_apply

NOW = "2026-11-21T09:38:02Z"
LATER = "2026-11-21T10:00:00Z"
REGISTRY = Registry()
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3)
documents = st.recursive(
    scalars,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text("abc", max_size=2), below, max_size=3),
    max_leaves=12,
)


def container(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """A container with a few fields."""
    variable = st.fixed_dictionaries({"name": st.sampled_from("xyz"), "value": st.sampled_from("12")})
    more: dict[str, st.SearchStrategy[Any]] = {
        "image": st.sampled_from(["i:1", "i:2"]),
        "env": st.lists(variable, unique_by=lambda item: str(item["name"]), max_size=3),
        "args": st.lists(st.sampled_from("pq"), max_size=2),
    }
    return st.dictionaries(st.sampled_from(sorted(more)), st.none(), max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({"name": st.just(name), **{key: more[key] for key in chosen}})
    )


names = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, max_size=4)
containers = names.flatmap(lambda chosen: st.tuples(*map(container, chosen)).map(list))


def resource(group: str, version: str, plural: str) -> ResourceInfo:
    found = REGISTRY.get(group, version, plural)
    assert found is not None
    return found


CONFIGMAPS = resource("", "v1", "configmaps")
DEPLOYMENTS = resource("apps", "v1", "deployments")
WIDGETS = ResourceInfo(
    group="example.com",
    version="v1",
    kind="Widget",
    plural="widgets",
    singular="widget",
    namespaced=True,
    verbs=("get", "patch"),
    builtin=False,
    crd_version={"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {}}}},
)


def patch(current: Any, body: Any, kind: str, on: ResourceInfo = CONFIGMAPS, **more: Any) -> dict[str, Any]:
    settings = {"field_manager": "lab", "force": False, "now": NOW, **more}
    return patches.apply_patch(current, json.dumps(body).encode(), kind, resource=on, **settings)


def deployment(*items: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {**spec, "template": {"spec": {"containers": list(items)}}},
    }


def containers_of(obj: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = obj["spec"]["template"]["spec"]["containers"]
    return found


# RFC 7386, appendix A.
MERGE_VECTORS: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "change", "expected"), MERGE_VECTORS)
def test_merge_patch_gives_what_the_rfc_lists(target: Any, change: Any, expected: Any) -> None:
    assert patches.merge_patch(target, change) == expected


@given(documents, documents)
def test_merge_patch_twice_is_merge_patch_once(target: Any, change: Any) -> None:
    once = patches.merge_patch(target, change)
    assert patches.merge_patch(once, change) == once


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
        ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["b"]}], {"foo": ["a", ["b"]]}),
        ({"foo": ["a", "b", "c"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "c"]}),
        ({"foo": ["a", "b", "c"]}, [{"op": "remove", "path": "/foo/-1"}], {"foo": ["a", "b"]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
        ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": 1, "m~n": 2}, [{"op": "test", "path": "/a~1b", "value": 1}], {"a/b": 1, "m~n": 2}),
        ({"m~n": 2}, [{"op": "replace", "path": "/m~0n", "value": 3}], {"m~n": 3}),
        ({"foo": None}, [{"op": "test", "path": "/foo", "value": None}], {"foo": None}),
    ],
)
def test_json_patch_operates(document: Any, operations: Any, expected: Any) -> None:
    before = copy.deepcopy(document)
    assert patches.json_patch(document, operations) == expected
    assert document == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/a", "value": True},
        {"op": "remove", "path": "/zzz"},
        {"op": "replace", "path": "/zzz", "value": 1},
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "move", "from": "/o", "path": "/o/p"},
        {"op": "frob", "path": "/a"},
        {"path": "/a"},
        "add",
    ],
)
def test_json_patch_that_does_not_fit_is_422_without_saying_why(operation: Any) -> None:
    with pytest.raises(StatusError) as caught:
        patches.json_patch({"a": 1, "list": [1], "o": {}}, [operation])
    assert (caught.value.code, caught.value.details) == (422, {})
    assert caught.value.message == "the server rejected our request due to an error in our request"


def test_json_patch_must_be_an_array() -> None:
    with pytest.raises(StatusError, match="cannot unmarshal object into Go value of type") as caught:
        patch({}, {}, patches.JSON_PATCH)
    assert caught.value.code == 400


@given(documents, documents)
def test_json_patch_replace_of_the_whole_document_gives_the_value(document: Any, value: Any) -> None:
    assert patches.json_patch(document, [{"op": "add", "path": "", "value": value}]) == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"data":', "error decoding patch: unexpected end of JSON input"),
        (b"", "error decoding patch: unexpected end of JSON input"),
        (b"[1]", "cannot unmarshal array into Go value of type map"),
        (b"{x}", "error decoding patch: invalid character 'x' looking for"),
    ],
)
def test_broken_patch_bodies_are_400(body: bytes, message: str) -> None:
    with pytest.raises(StatusError, match=message) as caught:
        patches.apply_patch({}, body, patches.MERGE_PATCH, resource=CONFIGMAPS, field_manager="x", force=False, now=NOW)
    assert caught.value.code == 400


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/apply-patch+cbor"])
def test_other_media_types_are_415(kind: str) -> None:
    with pytest.raises(StatusError, match="415: Unsupported Media Type") as caught:
        patch({}, {}, kind)
    assert (caught.value.code, caught.value.details) == (415, {})


def test_strategic_patch_of_a_custom_resource_is_415_and_names_the_others() -> None:
    with pytest.raises(
        APIError, match=r"types include: application/json-patch.json, application/merge-patch.json,"
    ) as caught:
        patch({}, {}, patches.STRATEGIC_PATCH, WIDGETS)
    assert caught.value.code == 415


def test_strategic_patch_merges_containers_by_name_and_env_within() -> None:
    current = deployment({"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "2"})
    change = {"spec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}}}}
    result = patch(current, change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert containers_of(result) == [
        {"name": "a", "image": "1", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]},
        {"name": "b", "image": "2"},
    ]


def test_strategic_patch_deletes_an_element() -> None:
    change = {"spec": {"template": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}}}
    result = patch(deployment({"name": "a"}, {"name": "b"}), change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert containers_of(result) == [{"name": "b"}]


def test_strategic_patch_replaces_a_list_and_a_map_on_request() -> None:
    change = {
        "metadata": {"labels": {"$patch": "replace", "new": "1"}},
        "spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}},
    }
    current = deployment({"name": "a"}, {"name": "b"})
    current["metadata"]["labels"] = {"old": "1"}
    result = patch(current, change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert containers_of(result) == [{"name": "z"}]
    assert result["metadata"]["labels"] == {"new": "1"}


def test_strategic_patch_retains_only_named_keys() -> None:
    current = deployment(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}})
    change = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    result = patch(current, change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert result["spec"]["strategy"] == {"type": "Recreate"}


def test_strategic_patch_deletes_from_a_list_of_scalars() -> None:
    current = deployment()
    current["metadata"]["finalizers"] = ["a", "b", "c"]
    change = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["d"]}}
    result = patch(current, change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert result["metadata"]["finalizers"] == ["d", "a", "c"]


def test_strategic_patch_keeps_the_order_that_the_client_names() -> None:
    change = {
        "spec": {
            "template": {
                "spec": {
                    "$setElementOrder/containers": [{"name": "c"}, {"name": "n"}, {"name": "a"}],
                    "containers": [{"name": "n", "image": "i"}],
                }
            }
        }
    }
    current = deployment({"name": "a"}, {"name": "server"}, {"name": "c"})
    result = patch(current, change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert [item["name"] for item in containers_of(result)] == ["server", "c", "n", "a"]


def test_strategic_patch_without_the_merge_key_is_422() -> None:
    change = {"spec": {"template": {"spec": {"containers": [{"image": "i"}]}}}}
    with pytest.raises(StatusError) as caught:
        patch(deployment(), change, patches.STRATEGIC_PATCH, DEPLOYMENTS)
    assert caught.value.code == 422


@settings(max_examples=40)
@given(containers, containers)
def test_strategic_patch_twice_is_once(old: list[Any], new: list[Any]) -> None:
    schema = schemas.of(DEPLOYMENTS)
    once = patches.strategic_merge(schema, deployment(*old), deployment(*new))
    assert patches.strategic_merge(schema, once, deployment(*new)) == once


@settings(max_examples=40)
@given(containers, containers)
def test_patches_leave_the_current_object_alone(old: list[Any], new: list[Any]) -> None:
    current = deployment(*old)
    before = copy.deepcopy(current)
    for kind in (patches.STRATEGIC_PATCH, patches.MERGE_PATCH, patches.APPLY_PATCH):
        patch(current, deployment(*new), kind, DEPLOYMENTS)
    assert current == before


def applied(current: Any, data: dict[str, str], manager: str = "lab", **more: Any) -> dict[str, Any]:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
    return patch(current, config, patches.APPLY_PATCH, field_manager=manager, **more)


def test_apply_creates_and_owns_what_it_names() -> None:
    created = applied(None, {"a": "1"})
    assert created["data"] == {"a": "1"}
    assert created["metadata"]["managedFields"] == [
        {
            "manager": "lab",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": NOW,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}},
        }
    ]


def test_apply_removes_what_it_names_no_more_but_not_what_another_owns() -> None:
    shared = applied(applied(None, {"a": "1", "b": "2"}), {"b": "2", "c": "3"}, "other")
    assert applied(shared, {"a": "1"})["data"] == {"a": "1", "b": "2", "c": "3"}
    assert applied(shared, {"c": "3"})["data"] == {"b": "2", "c": "3"}


def test_what_is_applied_to_status_is_owned_apart() -> None:
    """The object's own apply in between made status keep what was applied no more, and the other way round."""

    def status(*types: str) -> dict[str, Any]:
        conditions = [{"type": each, "status": "True"} for each in types]
        return {"apiVersion": "apps/v1", "kind": "Deployment", "status": {"conditions": conditions}}

    def applied(current: Any, body: Any, subresource: str = "") -> dict[str, Any]:
        return patch(current, body, patches.APPLY_PATCH, DEPLOYMENTS, subresource=subresource)

    found = applied(None, deployment({"name": "a", "image": "i"}, replicas=1, paused=True))
    found = applied(found, status("A", "B"), "status")
    found = applied(found, deployment({"name": "a", "image": "i"}, replicas=2))
    assert "paused" not in found["spec"]
    assert [each["type"] for each in found["status"]["conditions"]] == ["A", "B"]
    found = applied(found, status("B"), "status")
    assert [each["type"] for each in found["status"]["conditions"]] == ["B"]
    assert found["spec"]["replicas"] == 2
    entries = [(each["operation"], each.get("subresource", "")) for each in found["metadata"]["managedFields"]]
    assert sorted(entries) == [("Apply", ""), ("Apply", "status")]


def test_apply_conflicts_with_the_owner_of_a_value() -> None:
    with pytest.raises(StatusError) as caught:
        applied(applied(None, {"b": "1"}, "one"), {"b": "2"}, "two")
    assert caught.value.code == 409
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "one": .data.b'
    assert caught.value.details == {
        "causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.b"}]
    }


def test_apply_lists_several_conflicts_by_manager() -> None:
    current = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1", "b": "1"}}
    managed_fields.update(
        None, current, manager="kubectl", operation="Update", subresource="", now=NOW, resource=CONFIGMAPS
    )
    with pytest.raises(StatusError) as caught:
        applied(current, {"a": "2", "b": "2"})
    assert caught.value.message == (
        f'Apply failed with 2 conflicts: conflicts with "kubectl" using v1 at {NOW}:\n- .data.a\n- .data.b'
    )


def test_forced_apply_takes_the_fields() -> None:
    forced = applied(applied(None, {"a": "1", "b": "1"}, "one"), {"a": "3"}, "two", force=True)
    owners = {entry.manager: entry.fields for entry in managed_fields.read(forced)}
    assert owners == {"one": {("f:data", "f:b")}, "two": {("f:data", "f:a")}}


def test_same_value_is_shared_without_conflict() -> None:
    both = applied(applied(None, {"a": "1"}, "one"), {"a": "1"}, "two")
    assert [entry.manager for entry in managed_fields.read(both)] == ["one", "two"]


def test_apply_needs_a_manager() -> None:
    with pytest.raises(StatusError, match="fieldManager: Required value: is required for apply patch") as caught:
        applied(None, {}, "")
    assert caught.value.code == 422


def test_applied_lists_of_ports_are_keyed_by_protocol_too() -> None:
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}]
    created = patch(None, deployment({"name": "a", "ports": ports}), patches.APPLY_PATCH, DEPLOYMENTS)
    trie = created["metadata"]["managedFields"][0]["fieldsV1"]
    found = trie["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"a"}']["f:ports"]
    assert list(found) == ['k:{"containerPort":53,"protocol":"TCP"}', 'k:{"containerPort":53,"protocol":"UDP"}']


@settings(max_examples=40)
@given(containers)
def test_apply_twice_changes_nothing(items: list[Any]) -> None:
    created = patch(None, deployment(*items), patches.APPLY_PATCH, DEPLOYMENTS)
    assert patch(created, deployment(*items), patches.APPLY_PATCH, DEPLOYMENTS, now=LATER) == created


@settings(max_examples=40)
@given(containers, containers.filter(bool))
def test_apply_alone_ends_with_what_was_applied_last(old: list[Any], new: list[Any]) -> None:
    created = patch(None, deployment(*old), patches.APPLY_PATCH, DEPLOYMENTS)
    result = patch(created, deployment(*new), patches.APPLY_PATCH, DEPLOYMENTS)
    by_name = {item["name"]: item for item in containers_of(result)}
    assert set(by_name) == {item["name"] for item in new}
    for item in new:
        assert {key: value for key, value in by_name[item["name"]].items() if value} == {
            key: value for key, value in item.items() if value
        }


@given(documents.filter(lambda item: isinstance(item, dict)))
def test_field_sets_survive_the_way_to_fields_v1_and_back(document: Any) -> None:
    fields = managed_fields.of_object({}, {"data": document})
    assert managed_fields.from_fields_v1(managed_fields.to_fields_v1(fields)) == fields


def test_yaml_bodies_keep_timestamps_as_strings() -> None:
    assert server_side_apply.load_yaml(b"a: 2026-11-21T09:38:02Z\nb: 2026-11-21") == {
        "a": "2026-11-21T09:38:02Z",
        "b": "2026-11-21",
    }
