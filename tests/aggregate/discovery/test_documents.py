"""The bytes of discovery documents: for one cluster those of the recorded kube-apiserver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.aggregate.discovery.documents import DiscoveryDocuments, PageNotFound, VersionUnavailable
from mcproxy.aggregate.discovery.merge import MemberDocuments, merge
from mcproxy.kube.discovery import APIGroupDiscovery, ObjectMeta, read_aggregated
from mcproxy.kube.status import StatusError
from tests.aggregate.discovery.recorded import EVERYTHING, NOTHING, body, documents, east, group, resource, west


def of(*members: MemberDocuments) -> DiscoveryDocuments:
    merged = merge(members[0], members, EVERYTHING)
    return DiscoveryDocuments(merged.groups, merged.legacy)


def without_hashes(content: bytes) -> bytes:
    """Remove storageVersionHash, which aggregated documents do not have."""
    document = json.loads(content)
    for entry in document["resources"]:
        entry.pop("storageVersionHash", None)
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "member", "core"),
    [
        ("discovery/api-aggregated-v2", east(), True),
        ("discovery/apis-aggregated-v2", east(), False),
        ("discovery/apis-aggregated-v2-west", west(), False),
    ],
)
def test_aggregated(name: str, member: MemberDocuments, core: bool) -> None:
    assert of(member).aggregated(core=core).body == body(name)


def test_the_etag_is_of_the_content() -> None:
    one, same, other = (of(member).aggregated(core=False) for member in (east(), east(), west()))
    assert one.etag == same.etag != other.etag
    assert one.etag.startswith(b'"')
    assert len(one.etag) == 130
    assert of(east()).aggregated(core=True).etag != one.etag


@pytest.mark.parametrize(
    ("name", "group_name", "version"),
    [
        ("api-v1", "", "v1"),
        ("apis-apps-v1", "apps", "v1"),
        ("apis-authorization-v1", "authorization.k8s.io", "v1"),
        ("apis-apiextensions-v1", "apiextensions.k8s.io", "v1"),
        ("crd-group-version-v1", "example.com", "v1"),
        ("crd-group-version-v1alpha1", "example.com", "v1alpha1"),
    ],
)
def test_resource_list(name: str, group_name: str, version: str) -> None:
    assert of(east()).resource_list(group_name, version) == without_hashes(body(f"discovery/{name}"))


@pytest.mark.parametrize(("name", "group_name"), [("apis-apps", "apps"), ("crd-group", "example.com")])
def test_group(name: str, group_name: str) -> None:
    assert of(east()).group(group_name) == body(f"discovery/{name}")


def test_group_list() -> None:
    served, recorded = json.loads(of(east()).group_list()), json.loads(body("discovery/apis-legacy"))

    def by_name(document: dict[str, Any]) -> dict[str, Any]:
        return {entry["name"]: entry for entry in document["groups"]}

    assert by_name(served) == by_name(recorded)
    assert [entry["name"] for entry in served["groups"]] == [entry["name"] for entry in recorded["groups"]]


def test_a_group_whose_server_is_down() -> None:
    groups = read_aggregated(body("aggregated-down/apis-aggregated"))
    served = DiscoveryDocuments(merge(documents("p", groups), [], NOTHING).groups)
    assert served.group("metrics.k8s.io") == body("aggregated-down/group")
    assert json.loads(served.group_list())["groups"][-1]["name"] == "metrics.k8s.io"
    with pytest.raises(VersionUnavailable):
        served.resource_list("metrics.k8s.io", "v1beta1")


def test_a_stale_empty_version_beside_another_is_unavailable_alone() -> None:
    versions = (
        *group("x.io", "v1", resource("things", "Thing")).versions,
        *group("x.io", "v2", freshness="Stale").versions,
        *group("x.io", "v3", resource("things", "Thing"), freshness="Stale").versions,
        *group("x.io", "v4").versions,
    )
    cluster = documents("p", [APIGroupDiscovery(ObjectMeta("x.io"), versions)])
    served = DiscoveryDocuments(merge(cluster, [], NOTHING).groups)
    assert [entry["version"] for entry in json.loads(served.group("x.io"))["versions"]] == ["v4", "v3", "v2", "v1"]
    for version, names in (("v1", ["things"]), ("v3", ["things"]), ("v4", [])):
        listed = json.loads(served.resource_list("x.io", version))
        assert [each["name"] for each in listed["resources"]] == names
    with pytest.raises(VersionUnavailable):
        served.resource_list("x.io", "v2")


def test_the_preferred_version_is_the_first_also_while_it_is_down() -> None:
    groups = (*group("x.io", "v1").versions, *group("x.io", "v2", freshness="Stale").versions)
    cluster = documents("p", [type(group("x.io", "v1"))(group("x.io", "v1").metadata, groups)])
    served = json.loads(DiscoveryDocuments(merge(cluster, [], NOTHING).groups).group("x.io"))
    assert [entry["version"] for entry in served["versions"]] == ["v2", "v1"]
    assert served["preferredVersion"] == {"groupVersion": "x.io/v2", "version": "v2"}  # recorded: two-backends/b-down


def test_the_address_is_the_one_that_was_asked() -> None:
    assert of(east()).core_versions("192.0.2.10:16443") == body("discovery/api-legacy")
    served = json.loads(of(east()).core_versions('a"b'))
    assert served["serverAddressByClientCIDRs"][0]["serverAddress"] == 'a"b'


def test_404() -> None:
    served = of(east())
    for group_name, version in (("", "v2"), ("apps", "v9")):
        with pytest.raises(StatusError) as caught:
            served.resource_list(group_name, version)
        assert caught.value.body() == body("discovery/unknown-version-of-group")
    for group_name in ("nope.example.org", "example.com", "batch.example.com"):
        with pytest.raises(PageNotFound):
            served.resource_list(group_name, "v9")
    with pytest.raises(PageNotFound):
        served.group("nope.example.org")
    with pytest.raises(PageNotFound):
        served.group("")


def test_a_group_that_nobody_has_is_unknown_whatever_its_name() -> None:
    only = DiscoveryDocuments(merge(None, [documents("a", [])], EVERYTHING).groups)
    with pytest.raises(PageNotFound):
        only.resource_list("apps", "v1")
    assert json.loads(only.group_list())["groups"] == []
    assert json.loads(only.aggregated(core=False).body)["items"] == []


def test_documents_are_made_once() -> None:
    served = of(east())
    assert served.aggregated(core=False) is served.aggregated(core=False)
    assert served.resource_list("apps", "v1") is served.resource_list("apps", "v1")
    assert served.group_list() is served.group_list()


def test_paths() -> None:
    recorded = set(json.loads(body("probes/root"))["paths"])
    paths = of(east()).paths()
    assert len(paths) == len(set(paths))
    assert set(paths) == {path for path in recorded if path.startswith("/api")}
