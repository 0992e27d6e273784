"""What API services add to a backend's discovery, and what they never change."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.discovery.api_services import (
    NEVER_READ,
    ServedGroupVersion,
    ServiceDocument,
    hidden,
    with_services,
)
from mcproxy.aggregate.discovery.documents import DiscoveryDocuments
from mcproxy.aggregate.discovery.merge import MergedDiscovery, merge
from mcproxy.aggregate.reflector.member_discovery import Priority
from mcproxy.kube.discovery import APIGroupDiscovery, APIVersionDiscovery, ObjectMeta
from tests.aggregate.discovery.recorded import EVERYTHING, GOLDEN, NOTHING, documents, east, group, resource, west

PODS = ServiceDocument((resource("pods", "PodMetrics", verbs=("get", "list")),), fresh=True)


def registration(
    group_version: str = "metrics.k8s.io/v1beta1",
    *,
    cluster: str = "metrics",
    priority: int = 1000,
    version_priority: int = 100,
) -> ServedGroupVersion:
    group, _, version = group_version.partition("/")
    return ServedGroupVersion(group, version, cluster, priority, version_priority)


def backend(*group_versions: str) -> MergedDiscovery:
    """One cluster with these group-versions, in this order."""
    groups: dict[str, list[str]] = {}
    for group_version in group_versions:
        name, _, version = group_version.rpartition("/")
        groups.setdefault(name, []).append(version)
    made = [
        APIGroupDiscovery(
            ObjectMeta(name),
            tuple(APIVersionDiscovery(one, (resource("things", "Thing"),), "Current") for one in versions),
        )
        for name, versions in groups.items()
    ]
    return merge(documents("core", made), [], NOTHING, own_order=True)


def own(**priorities: tuple[int, int]) -> dict[tuple[str, str], Priority]:
    """Priorities of a backend's APIServices, by their names: `v1_x_io=(1000, 100)`."""
    found = [(name.partition("_"), values) for name, values in priorities.items()]
    made = [Priority(group.replace("_", "."), version, *values) for (version, _, group), values in found]
    return {(each.group, each.version): each for each in made}


def shown(*registered: ServedGroupVersion, document: ServiceDocument = PODS) -> dict[tuple[str, str], ServiceDocument]:
    return {each.group_version: document for each in registered}


def names(merged: MergedDiscovery) -> list[str]:
    return [
        f"{group.metadata.name}/{version.version}".strip("/") for group in merged.groups for version in group.versions
    ]


def test_a_service_stands_beside_the_backend() -> None:
    metrics = registration()
    found = with_services(backend("/v1", "apps/v1"), [metrics], shown(metrics))
    assert names(found) == ["v1", "apps/v1", "metrics.k8s.io/v1beta1"]
    assert found.services == {("metrics.k8s.io", "v1beta1"): "metrics"}
    assert found.owners == {("", "v1"): ("core",), ("apps", "v1"): ("core",)}
    assert found.groups[-1].versions[0].resources == PODS.resources


@pytest.mark.parametrize(
    ("own", "registered", "expected"),
    [
        (["/v1", "b.io/v1"], [registration("a.io/v1", priority=999)], ["v1", "b.io/v1", "a.io/v1"]),
        (["/v1", "b.io/v1"], [registration("a.io/v1", priority=1000)], ["v1", "a.io/v1", "b.io/v1"]),
        (["/v1", "b.io/v1"], [registration("c.io/v1", priority=1001)], ["v1", "c.io/v1", "b.io/v1"]),
        (["/v1", "apps/v1"], [registration("c.io/v1", priority=18_001)], ["c.io/v1", "v1", "apps/v1"]),
        (
            ["b.io/v1"],
            [registration("c.io/v1", priority=5), registration("c.io/v2", priority=2000), registration("d.io/v1")],
            ["c.io/v2", "c.io/v1", "b.io/v1", "d.io/v1"],
        ),
        (["b.io/v1"], [registration("b.io/v2", priority=5), registration("a.io/v1", priority=900)],
         ["b.io/v2", "b.io/v1", "a.io/v1"]),
        (["apps/v1"], [registration("batch.io/v1", priority=20_000), registration("apps/v9", version_priority=1)],
         ["batch.io/v1", "apps/v1", "apps/v9"]),
    ],
)  # fmt: skip
def test_groups_by_group_priority_minimum_then_by_name(
    own: list[str], registered: list[ServedGroupVersion], expected: list[str]
) -> None:
    assert names(with_services(backend(*own), registered, shown(*registered))) == expected


@pytest.mark.parametrize(
    ("own", "registered", "expected"),
    [
        ([], [("v1", 100), ("v2", 100), ("v1beta1", 100), ("v1alpha1", 100), ("v1beta2", 100), ("stable", 100)],
         ["v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "stable"]),
        ([], [("v1", 10), ("v1alpha1", 20)], ["v1alpha1", "v1"]),
        (["v1"], [("v2", 100)], ["v2", "v1"]),
        (["v1"], [("v2", 99)], ["v1", "v2"]),
        (["v1"], [("v1beta1", 101)], ["v1beta1", "v1"]),
        (["v1", "v2"], [("v3", 100)], ["v3", "v1", "v2"]),  # the backend's order among its own stays
        (["v1", "v2"], [("v2", 100)], ["v2", "v1"]),  # hidden, and then in its own place
    ],
)  # fmt: skip
def test_versions_by_version_priority_then_in_the_order_of_kubernetes(
    own: list[str], registered: list[tuple[str, int]], expected: list[str]
) -> None:
    services = [registration(f"x.io/{version}", version_priority=priority) for version, priority in registered]
    found = with_services(backend(*(f"x.io/{version}" for version in own)), services, shown(*services))
    assert names(found) == [f"x.io/{version}" for version in expected]


def test_a_service_replaces_what_the_backend_says_whoever_asks() -> None:
    own = backend("/v1", "metrics.k8s.io/v1beta1", "metrics.k8s.io/v1")
    metrics = registration()
    assert hidden(own, [metrics, registration("a.io/v1")]) == (metrics,)
    found = with_services(own, [metrics], shown(metrics))
    assert found.groups[-1].versions[-1].resources == PODS.resources
    assert names(with_services(own, [metrics], {})) == ["v1", "metrics.k8s.io/v1"]
    assert ("metrics.k8s.io", "v1beta1") not in with_services(own, [metrics], {}).owners


@pytest.mark.parametrize("document", [NEVER_READ, ServiceDocument(PODS.resources, fresh=False)])
def test_an_owner_that_cannot_be_asked_is_stale_with_what_is_known(document: ServiceDocument) -> None:
    metrics = registration()
    found = with_services(backend("/v1"), [metrics], shown(metrics, document=document))
    assert found.groups[-1].versions[0] == APIVersionDiscovery("v1beta1", document.resources, "Stale")
    assert b'"name":"metrics.k8s.io"' in DiscoveryDocuments(found.groups).group_list()


def test_conflicts_of_what_is_hidden_are_none() -> None:
    a = documents("a", [group("x.io", "v1", resource("things", "Thing"))])
    b = documents("b", [group("x.io", "v1", resource("things", "Other"))])
    own = merge(None, [a, b], EVERYTHING)
    assert own.conflicts
    assert not with_services(own, [registration("x.io/v1")], {}).conflicts


RECORDED = merge(east(), [], NOTHING), merge(None, [east(), west()], EVERYTHING)
OWNED = sorted({key for own in RECORDED for key in own.owners if key[0]})
REGISTRATIONS = st.lists(
    st.builds(
        lambda key, cluster, priority, version_priority: ServedGroupVersion(
            key[0], key[1], cluster, priority, version_priority
        ),
        st.sampled_from([*OWNED[:6], ("x.io", "v1"), ("x.io", "v2"), ("apps", "v9"), ("metrics.k8s.io", "v1")]),
        st.sampled_from(["one", "two"]),
        st.integers(1, 20_000),
        st.integers(1, 1000),
    ),
    unique_by=lambda each: each.group_version,
    max_size=8,
)


@given(st.sampled_from(RECORDED), REGISTRATIONS, st.data())
def test_every_registered_group_version_is_there_once_and_core_is_as_it_was(
    own: MergedDiscovery, registered: list[ServedGroupVersion], data: st.DataObject
) -> None:
    visible = data.draw(st.lists(st.sampled_from(registered), unique=True)) if registered else []
    found = with_services(own, registered, shown(*visible))
    listed = names(found)
    assert len(listed) == len(set(listed))
    for each in registered:
        assert ("/".join(each.group_version) in listed) == (each in visible)
    keys = {each.group_version for each in registered}
    before = {(one.metadata.name, version.version): version for one in own.groups for version in one.versions}
    after = {(one.metadata.name, version.version): version for one in found.groups for version in one.versions}
    assert {key: one for key, one in after.items() if key not in keys} == {
        key: one for key, one in before.items() if key not in keys
    }
    assert DiscoveryDocuments(found.groups).aggregated(core=True).body == (
        DiscoveryDocuments(own.groups).aggregated(core=True).body
    )
    shuffled = data.draw(st.permutations(registered))
    assert with_services(own, shuffled, shown(*reversed(visible))).groups == found.groups


def test_the_orders_of_a_recorded_kube_aggregator() -> None:
    recorded = json.loads((GOLDEN / "aggregator" / "order.json").read_text())
    known = [*recorded["apiservices"], *recorded["builtin_apiservices"]]
    own, registered = ["apiregistration.k8s.io/v1"], []
    for each in known:
        version, _, name = each["name"].partition(".")
        if each.get("local"):
            own.append(f"{name}/{version}")
        else:
            registered.append(
                registration(
                    f"{name}/{version}",
                    priority=each["groupPriorityMinimum"],
                    version_priority=each["versionPriority"],
                )
            )
    own.sort(reverse=True)  # the backend's order of versions, which stays
    found = with_services(backend(*own), registered, shown(*registered))
    aggregated = [group for group in found.groups if group.metadata.name]
    assert [group.metadata.name for group in aggregated] == recorded["aggregated_groups"]
    documents = DiscoveryDocuments(found.groups, found.legacy)
    legacy = json.loads(documents.group_list())["groups"]
    assert [group["name"] for group in legacy] == recorded["legacy_/apis_groups"]
    versions = {group.metadata.name: [one.version for one in group.versions] for group in aggregated}
    assert versions == recorded["aggregated_versions"]
    assert {
        group["name"]: [[one["version"] for one in group["versions"]], group["preferredVersion"]["version"]]
        for group in legacy
    } == recorded["legacy_versions_and_preferred"]


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ({}, ["v1", "apps/v1", "a.io/v1", "x.io/v2", "x.io/v1"]),
        ({"v2_x_io": (2000, 100)}, ["v1", "apps/v1", "x.io/v2", "x.io/v1", "a.io/v1"]),
        ({"v1_a_io": (20_000, 15)}, ["a.io/v1", "v1", "apps/v1", "x.io/v2", "x.io/v1"]),
        ({"v1_apps": (10, 15)}, ["v1", "a.io/v1", "x.io/v2", "x.io/v1", "apps/v1"]),
        # Of a version that an API service has: the backend's own object for it is hidden.
        ({"v1_x_io": (20_000, 900)}, ["v1", "apps/v1", "a.io/v1", "x.io/v2", "x.io/v1"]),
        # A version of the backend behind one of the same group that is registered.
        ({"v2_x_io": (1000, 1)}, ["v1", "apps/v1", "a.io/v1", "x.io/v1", "x.io/v2"]),
    ],
)
def test_the_backend_is_ordered_by_its_own_api_services(
    priorities: dict[str, tuple[int, int]], expected: list[str]
) -> None:
    registered = [registration("x.io/v1", priority=100, version_priority=50)]
    merged = with_services(
        backend("/v1", "apps/v1", "a.io/v1", "x.io/v2"), registered, shown(*registered), own(**priorities)
    )
    assert names(merged) == expected
