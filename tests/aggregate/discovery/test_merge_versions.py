"""Preferred versions, create rules whose target lacks the resource, and what users see of members that disagree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mcproxy.aggregate.discovery.documents import DiscoveryDocuments
from mcproxy.aggregate.discovery.merge import MemberDocuments, MergedDiscovery, merge, served
from mcproxy.config.model.aggregates import CreateRule
from mcproxy.kube.discovery import APIGroupDiscovery, APIVersionDiscovery, ObjectMeta, api_resources
from mcproxy.kube.resource import GroupVersionResource
from tests.aggregate.discovery.recorded import EVERYTHING, FakeScope, documents, group, resource
from tests.aggregate.discovery.stage import FakeSource, ask, discovery_of, fleet, now, source

KINDS = {"widgets": "Widget", "gadgets": "Gadget"}
V1, V2 = GroupVersionResource("x.io", "v1", "widgets"), GroupVersionResource("x.io", "v2", "widgets")


def having(name: str, **versions: str) -> MemberDocuments:
    """A member with the resources of each version of x.io."""
    found = tuple(
        APIVersionDiscovery(version, tuple(resource(each, KINDS[each]) for each in names.split()))
        for version, names in versions.items()
    )
    return documents(name, [APIGroupDiscovery(ObjectMeta("x.io"), found)] if found else [])


def order(merged: MergedDiscovery) -> list[str]:
    [found] = merged.groups
    preferred = json.loads(DiscoveryDocuments(merged.groups).group("x.io"))["preferredVersion"]["version"]
    assert preferred == found.versions[0].version, "the forms differ"
    return [version.version for version in found.versions]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([{"v1": "widgets", "v2": "widgets"}], ["v2", "v1"]),
        ([{"v1": "widgets", "v2": "widgets"}, {"v1": "widgets"}], ["v1", "v2"]),
        ([{"v1": "widgets"}, {"v1": "widgets", "v2": "widgets"}], ["v1", "v2"]),
        ([{"v1": "widgets", "v2": "widgets"}, {}], ["v2", "v1"]),
        ([{"v1": "widgets", "v2": "widgets", "v3": "widgets"}, {"v1": "widgets", "v2": "widgets"}], ["v2", "v3", "v1"]),
        # nothing that all serve: the highest
        ([{"v2": "widgets"}, {"v1": "widgets"}], ["v2", "v1"]),
        # v2 has another resource there, and not this one
        ([{"v1": "widgets", "v2": "widgets gadgets"}, {"v1": "widgets", "v2": "gadgets"}], ["v1", "v2"]),
        # v1 lacks nothing that v2 has, and clients go on to v1 for what v2 does not have
        ([{"v1": "widgets", "v2": "gadgets"}, {"v1": "widgets", "v2": "gadgets"}], ["v2", "v1"]),
        ([{"v1": "gadgets", "v2": "widgets"}, {"v1": "gadgets"}], ["v1", "v2"]),
    ],
)
def test_the_preferred_version_is_the_highest_that_hides_no_members_objects(
    members: list[dict[str, str]], expected: list[str]
) -> None:
    found = [having(f"m{number}", **versions) for number, versions in enumerate(members)]
    assert order(merge(None, found, EVERYTHING)) == expected


def test_a_version_that_only_the_primary_serves_here_hides_the_members_objects() -> None:
    """The scope names v1 alone; v2 goes to the primary, which knows nothing of the others."""

    class OnlyV1(FakeScope):
        def covers(self, member: str, resource: Any) -> bool:
            return bool(resource.gvr.version == "v1")

    both = [having(name, v1="widgets", v2="widgets") for name in ("a", "b")]
    assert order(merge(both[0], both, OnlyV1())) == ["v1", "v2"]
    assert order(merge(both[0], [], OnlyV1())) == ["v2", "v1"]


@pytest.mark.parametrize(
    ("targets", "creates"),
    [
        (None, {V1, V2}),
        ((), set()),
        (("a",), {V1, V2}),
        (("b",), {V1}),
        (("hub",), {V1}),
        (("unknown",), set()),
    ],
)
def test_create_is_listed_where_the_target_of_the_rule_has_the_resource(
    targets: Sequence[str] | None, creates: set[GroupVersionResource]
) -> None:
    a, b, hub = having("a", v1="widgets", v2="widgets"), having("b", v1="widgets"), having("hub", v1="widgets")
    found = api_resources(merge(hub, [a, b], FakeScope(("*", "*"), targets=targets)).groups)
    assert {gvr for gvr, one in found.items() if "create" in one.verbs} == creates


def test_create_is_not_listed_where_the_target_has_another_scope_or_cannot_create() -> None:
    a = having("a", v1="widgets")
    wide = documents("b", [group("x.io", "v1", resource("widgets", "Widget", scope="Cluster"))])
    reading = documents("b", [group("x.io", "v1", resource("widgets", "Widget", verbs=("get", "list", "watch")))])
    for b in (wide, reading):
        [found] = api_resources(merge(None, [a, b], FakeScope(("*", "*"), targets=("b",))).groups).values()
        assert "create" not in found.verbs


# -- what different users see ---------------------------------------------------------------------------------------


def disagreeing() -> tuple[FakeSource, FakeSource]:
    """One definition, namespaced in east and cluster-wide in west."""
    return (
        source("east", [group("x.io", "v1", resource("widgets", "Widget"))]),
        source("west", [group("x.io", "v1", resource("widgets", "Widget", scope="Cluster"))]),
    )


def listed(shown: Sequence[str], **config: Any) -> dict[str, bool]:
    served_ = discovery_of(*disagreeing(), config=fleet(**config))
    response = now(ask(served_.serve, "/apis/x.io/v1", members=shown))
    resources = json.loads(response.body)["resources"] if response.status == 200 else []
    return {entry["name"]: entry["namespaced"] for entry in resources}


def test_who_is_first_does_not_depend_on_the_user() -> None:
    """Requests go by the first member's scope, whoever asks; so nobody is told of another one."""
    assert listed(["east", "west"]) == listed(["east"]) == {"widgets": True}
    assert listed(["west"]) == {}
    assert listed(["west"], clusters=("east",), primary="west") == {}, "it is not forwarded either"


def test_a_member_whose_resource_can_be_watched_is_first() -> None:
    reading = documents("a", [group("x.io", "v1", resource("widgets", "Old", verbs=("get", "list")))])
    b = having("b", v1="widgets")
    assert served([reading, b], EVERYTHING)[V1].kind == "Widget"
    merged = merge(None, [reading, b], EVERYTHING)
    assert api_resources(merged.groups)[V1].kind == "Widget"
    assert [conflict.others for conflict in merged.conflicts] == [(("a", "namespaced Old"),)]


def test_create_rules_of_the_configuration() -> None:
    """The first rule that matches decides, and Primary is the aggregate's."""
    east, west = (source(name, [group("x.io", "v1", resource("widgets", "Widget"))]) for name in ("east", "west"))
    hub = source("hub", [])

    def creates(*to: str) -> bool:
        rules = tuple(CreateRule(api_groups=("x.io",), resources=("*",), to=each) for each in to)
        config = fleet(clusters=("east", "west"), primary="hub", create=rules)
        served_ = discovery_of(east, west, hub, config=config)
        [entry] = json.loads(now(ask(served_.serve, "/apis/x.io/v1")).body)["resources"]
        return "create" in entry["verbs"]

    assert creates("west")
    assert creates("Label")
    assert not creates("Primary"), "the primary lacks the resource"
    assert not creates("Primary", "west"), "the first rule decides"
    assert creates("west", "Primary")
    hub.discovery.change(groups=east.discovery.groups)
    assert creates("Primary")
