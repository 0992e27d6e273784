"""Discovery documents, aggregated and legacy, are read into the same types; what is malformed is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.discovery import (
    APIGroupDiscovery,
    APIGroupDiscoveryList,
    APISubresourceDiscovery,
    DiscoveryError,
    ObjectMeta,
    api_resources,
    read_aggregated,
    read_core_versions,
    read_groups,
    read_resources,
    version_order,
)
from mcproxy.kube.resource import APISubresource, GroupVersionResource

GOLDEN = Path(__file__).parents[1] / "golden"


def body(name: str) -> bytes:
    text: str = json.loads((GOLDEN / f"{name}.json").read_text())["response"]["body"]
    return text.encode()


def document(*resources: dict[str, Any], group: str = "example.com", version: str = "v1") -> bytes:
    versions = [{"version": version, "resources": resources, "freshness": "Current"}]
    items = [{"metadata": {"name": group}, "versions": versions}]
    content = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}
    return json.dumps(content).encode()


def resource(**more: Any) -> dict[str, Any]:
    return {
        "resource": "widgets",
        "responseKind": {"group": "example.com", "version": "v1", "kind": "Widget"},
        "scope": "Namespaced",
        "singularResource": "widget",
        "verbs": ["get"],
        **more,
    }


@pytest.mark.parametrize(
    "name",
    [
        "discovery/api-aggregated-v2",
        "discovery/apis-aggregated-v2",
        "discovery/apis-aggregated-v2-west",
        "aggregated-down/apis-aggregated",
    ],
)
def test_an_aggregated_document_is_written_again_byte_for_byte(name: str) -> None:
    recorded = body(name)
    assert msgspec.json.encode(APIGroupDiscoveryList(items=read_aggregated(recorded))) + b"\n" == recorded


@pytest.mark.parametrize(
    ("name", "group", "version"),
    [
        ("api-v1", "", "v1"),
        ("apis-apps-v1", "apps", "v1"),
        ("apis-authorization-v1", "authorization.k8s.io", "v1"),
        ("crd-group-version-v1", "example.com", "v1"),
        ("crd-group-version-v1alpha1", "example.com", "v1alpha1"),
    ],
)
def test_legacy_and_aggregated_documents_say_the_same(name: str, group: str, version: str) -> None:
    legacy = read_resources(body(f"discovery/{name}"), group, version)
    found = api_resources([APIGroupDiscovery(ObjectMeta(group), (legacy,))])
    aggregated = read_aggregated(body(f"discovery/{'apis' if group else 'api'}-aggregated-v2"))
    expected = {gvr: one for gvr, one in api_resources(aggregated).items() if gvr[:2] == (group, version)}
    assert len(expected) >= 1
    assert found == expected


def test_resources() -> None:
    found = api_resources(read_aggregated(body("discovery/apis-aggregated-v2")))
    deployments = found[GroupVersionResource("apps", "v1", "deployments")]
    assert deployments.kind == "Deployment"
    assert deployments.namespaced
    assert deployments.watchable
    assert deployments.short_names == ("deploy",)
    assert deployments.categories == ("all",)
    assert deployments.subresource("scale") == APISubresource(
        "scale", "Scale", "autoscaling", "v1", frozenset({"get", "patch", "update"})
    )
    status = deployments.subresource("status")
    assert status is not None
    assert (status.group, status.version, status.kind) == ("apps", "v1", "Deployment")
    assert not found[GroupVersionResource("example.com", "v1", "widgets")].verbs.isdisjoint({"watch"})


def test_the_freshness_of_a_group_that_is_down() -> None:
    groups = {group.metadata.name: group for group in read_aggregated(body("aggregated-down/apis-aggregated"))}
    assert [(one.version, one.freshness) for one in groups["metrics.k8s.io"].versions] == [("v1beta1", "Stale")]
    assert groups["apps"].versions[0].freshness == "Current"


def test_versions_and_groups_of_legacy_documents() -> None:
    assert read_core_versions(body("discovery/api-legacy")) == ("v1",)
    groups = dict(read_groups(body("discovery/apis-legacy")))
    assert groups["autoscaling"] == ("v2", "v1")
    assert groups["example.com"] == ("v1", "v1alpha1")
    aggregated = read_aggregated(body("discovery/apis-aggregated-v2"))
    assert sorted(groups) == sorted(group.metadata.name for group in aggregated)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"kind":"APIGroupList","apiVersion":"v1","groups":[]}',
        b'{"kind":"APIGroupDiscoveryList","apiVersion":"other/v1"}',
        b'{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":7}}]}',
        b"[" * 100_000,
        b'{"kind":"Status\\r\\nX","apiVersion":"apidiscovery.k8s.io/v2"}',
    ],
)
def test_what_is_no_document_is_refused(broken: bytes) -> None:
    for read in (read_aggregated, read_core_versions, lambda text: read_resources(text, "apps", "v1")):
        with pytest.raises(DiscoveryError) as caught:
            read(broken)
        assert "\n" not in str(caught.value)
    if b"APIGroupList" not in broken:
        with pytest.raises(DiscoveryError):
            read_groups(broken)


def test_the_elements_of_a_document_are_bounded() -> None:
    with pytest.raises(DiscoveryError, match="more than 1000000 elements"):
        read_aggregated(document(resource(verbs=["get"] * 1_000_001)))


def test_the_resources_of_another_group_version_are_refused() -> None:
    with pytest.raises(DiscoveryError, match="expected the APIResourceList of batch/v1"):
        read_resources(body("discovery/apis-apps-v1"), "batch", "v1")


@pytest.mark.parametrize(
    "entry",
    [
        resource(resource="../secrets"),
        resource(resource=".."),
        resource(resource="a/b"),
        resource(resource=""),
        resource(resource="a%2fb"),
        resource(resource="a\r\nb"),
        resource(responseKind={"group": "", "version": "", "kind": 'Pod","x":"'}),
        resource(responseKind={"group": "../..", "version": "", "kind": "Pod"}),
        resource(responseKind={"group": "", "version": "", "kind": ""}),
        resource(responseKind=None),
        resource(scope="Everywhere"),
    ],
)
def test_an_entry_that_could_not_stand_in_a_path_or_an_object_is_left_out(entry: dict[str, Any]) -> None:
    found = api_resources(read_aggregated(document(entry, resource(resource="gadgets"))))
    assert [gvr.resource for gvr in found] == ["gadgets"]


@pytest.mark.parametrize("name", ["..", "a/../b", "", "a b", "x?y", "log\n", "/log"])
def test_a_malformed_subresource_is_left_out(name: str) -> None:
    kind = {"group": "", "version": "", "kind": "Pod"}
    below = [{"subresource": name, "verbs": ["get"]}, {"subresource": "log", "responseKind": kind, "verbs": ["get"]}]
    (group,) = read_aggregated(document(resource(subresources=below)))
    assert group.versions[0].resources[0].subresources == (
        APISubresourceDiscovery(
            "log", msgspec.convert(kind, type(group.versions[0].resources[0].response_kind)), (), ("get",)
        ),
    )


@pytest.mark.parametrize(("group", "version"), [("../x", "v1"), ("a b", "v1"), ("x", ".."), ("x", "v1/x"), ("x", "")])
def test_a_malformed_group_version_is_left_out(group: str, version: str) -> None:
    assert not api_resources(read_aggregated(document(resource(), group=group, version=version)))


def test_the_first_entry_of_a_name_counts() -> None:
    twice = document(resource(scope="Cluster"), resource(scope="Namespaced"))
    (found,) = api_resources(read_aggregated(twice)).values()
    assert not found.namespaced


def test_null_is_empty() -> None:
    nulls = resource(verbs=None, shortNames=None, categories=None, subresources=None)
    (found,) = api_resources(read_aggregated(document(nulls))).values()
    assert (found.verbs, found.short_names, found.subresources) == (frozenset(), (), ())


def test_the_order_of_versions() -> None:
    # The example of the Kubernetes documentation ("Version priority"), and numbers that do not compare as text.
    ordered = ["v11", "v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    assert sorted(sorted(ordered), key=version_order) == ordered


@given(st.lists(st.text(max_size=8) | st.from_regex(r"v[1-9]{1,2}((alpha|beta)[1-9]{1,2})?", fullmatch=True)))
def test_the_order_of_versions_is_total(versions: list[str]) -> None:
    backwards = versions[::-1]
    assert sorted(backwards, key=version_order) == sorted(versions, key=version_order)


KEYS = ["kind", "apiVersion", "items", "metadata", "name", "versions", "resources", "resource", "verbs"]
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
)


@given(ANY_JSON)
def test_any_json_is_read_or_refused(content: Any) -> None:
    if isinstance(content, dict):
        content = {**content, "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}
    try:
        groups = read_aggregated(json.dumps(content).encode())
    except DiscoveryError:
        return
    assert all(isinstance(group, APIGroupDiscovery) for group in groups)
