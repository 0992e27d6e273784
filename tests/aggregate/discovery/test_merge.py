"""The merge of discovery documents: what is listed, from whom, with which verbs, in which order."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.aggregate.discovery.merge import MemberDocuments, MergedDiscovery, ResourceConflict, merge
from mcproxy.kube.discovery import (
    APIGroupDiscovery,
    APIGroupDiscoveryList,
    APIResourceDiscovery,
    APISubresourceDiscovery,
    APIVersionDiscovery,
    GroupVersionKind,
    ObjectMeta,
    api_resources,
    version_order,
)
from mcproxy.kube.resource import APIResource, GroupVersionResource
from tests.aggregate.discovery.recorded import (
    ALL_VERBS,
    EVERYTHING,
    NOTHING,
    FakeScope,
    body,
    documents,
    east,
    group,
    resource,
    west,
)

WIDGETS = GroupVersionResource("example.com", "v1", "widgets")
GADGETS = GroupVersionResource("east.example.com", "v1beta1", "gadgets")
GIZMOS = GroupVersionResource("west.example.com", "v1beta1", "gizmos")
PODS = GroupVersionResource("", "v1", "pods")


def found(merged: MergedDiscovery) -> dict[GroupVersionResource, APIResource]:
    return api_resources(merged.groups)


def freshness(merged: MergedDiscovery) -> dict[tuple[str, str], str]:
    return {
        (one.metadata.name, version.version): version.freshness for one in merged.groups for version in one.versions
    }


@pytest.mark.parametrize(
    ("name", "member"), [("discovery/apis-aggregated-v2", east()), ("discovery/apis-aggregated-v2-west", west())]
)
@pytest.mark.parametrize("scope", [EVERYTHING, NOTHING, FakeScope(("apps", "*"), ("example.com", "*"))])
def test_one_cluster_that_is_primary_and_member_is_served_as_it_is(
    name: str, member: MemberDocuments, scope: FakeScope
) -> None:
    merged = merge(member, [member], scope)
    named = tuple(one for one in merged.groups if one.metadata.name)
    assert msgspec.json.encode(APIGroupDiscoveryList(items=named)) + b"\n" == body(name)
    core = tuple(one for one in merged.groups if not one.metadata.name)
    assert msgspec.json.encode(APIGroupDiscoveryList(items=core)) + b"\n" == body("discovery/api-aggregated-v2")
    assert merged.conflicts == ()


def test_the_union_of_two_clusters() -> None:
    merged = merge(east(), [east(), west()], EVERYTHING)
    assert set(found(merged)) == set(east().resources) | set(west().resources)
    assert found(merged)[GIZMOS] == west().resources[GIZMOS]
    assert merged.conflicts == ()
    assert merged.owners["west.example.com", "v1beta1"] == ("west",)
    assert merged.owners["", "v1"] == ("east",)


def test_what_is_neither_in_scope_nor_at_the_primary_is_not_listed() -> None:
    merged = merge(None, [east(), west()], FakeScope(("", "pods"), ("west.example.com", "*")))
    assert set(found(merged)) == {PODS, GIZMOS}
    merged = merge(west(), [east(), west()], FakeScope(("", "pods")))
    assert GADGETS not in found(merged)
    assert GIZMOS in found(merged)


def test_a_resource_that_cannot_be_listed_is_never_in_scope() -> None:
    reviews = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews")
    assert reviews not in found(merge(None, [east()], EVERYTHING))
    assert found(merge(east(), [west()], EVERYTHING))[reviews].verbs == {"create"}


def test_verbs_in_scope() -> None:
    reader = documents("reader", [group("a.io", "v1", resource("things", "Thing", verbs=("list", "watch", "patch")))])
    merged = found(merge(None, [reader], EVERYTHING))[GroupVersionResource("a.io", "v1", "things")]
    assert merged.verbs == {"get", "list", "watch", "patch"}


@pytest.mark.parametrize(("creates", "expected"), [(True, set(ALL_VERBS)), (False, set(ALL_VERBS) - {"create"})])
def test_create_needs_a_rule(creates: bool, expected: set[str]) -> None:
    scope = FakeScope(("*", "*"), targets=None if creates else ())
    merged = found(merge(None, [east()], scope))
    assert merged[WIDGETS].verbs == expected
    assert merged[PODS].verbs == expected


def test_create_is_not_invented() -> None:
    only = documents("m", [group("a.io", "v1", resource("things", "Thing", verbs=("get", "list", "watch")))])
    assert "create" not in found(merge(None, [only], EVERYTHING))[GroupVersionResource("a.io", "v1", "things")].verbs


def test_outside_the_scope_the_verbs_are_those_of_the_primary() -> None:
    scope = FakeScope(("", "pods"), targets=())
    assert found(merge(east(), [west()], scope))[WIDGETS].verbs == east().resources[WIDGETS].verbs


def test_what_cannot_be_watched_can_be_read() -> None:
    statuses = GroupVersionResource("", "v1", "componentstatuses")
    nodes = group("metrics.k8s.io", "v1beta1", resource("nodes", "NodeMetrics", verbs=("delete", "get", "list")))
    merged = found(merge(None, [documents("a", [*east().groups, nodes])], EVERYTHING))
    assert merged[statuses].verbs == {"get", "list"}
    assert merged[GroupVersionResource("metrics.k8s.io", "v1beta1", "nodes")].verbs == {"get", "list"}


def test_a_conflict_of_kinds_or_scopes() -> None:
    first = documents("a", [group("x.io", "v1", resource("things", "Thing", verbs=("get", "list", "watch")))])
    other = documents("b", [group("x.io", "v1", resource("things", "Gadget"))])
    third = documents("c", [group("x.io", "v1", resource("things", "Thing", scope="Cluster"))])
    merged = merge(None, [first, other, third], EVERYTHING)
    gvr = GroupVersionResource("x.io", "v1", "things")
    assert found(merged)[gvr] == first.resources[gvr]
    others = (("b", "namespaced Gadget"), ("c", "cluster-scoped Thing"))
    assert merged.conflicts == (ResourceConflict(gvr, "a", "namespaced Thing", others),)
    assert merged.owners["x.io", "v1"] == ("a",)


@pytest.mark.parametrize("is_member", [False, True])
def test_a_conflict_with_the_primary(is_member: bool) -> None:
    first = documents("a", [group("x.io", "v1", resource("things", "Thing"))])
    primary = documents("p", [group("x.io", "v1", resource("things", "Gadget"))])
    merged = merge(primary, [first, primary] if is_member else [first], EVERYTHING)
    (conflict,) = merged.conflicts
    assert conflict.others == (("p", "namespaced Gadget"),)
    assert found(merged)[conflict.gvr].kind == "Thing"
    assert merged.owners["x.io", "v1"] == ("a",)


def test_an_explicit_group_version_of_a_kind_is_no_conflict() -> None:
    entry = resource("things", "Thing")
    explicit = msgspec.structs.replace(entry, response_kind=GroupVersionKind("x.io", "v1", "Thing"))
    members = [documents("a", [group("x.io", "v1", entry)]), documents("b", [group("x.io", "v1", explicit)])]
    assert merge(None, members, EVERYTHING).conflicts == ()


def test_subresources_are_united() -> None:
    def with_(*below: APISubresourceDiscovery) -> APIResourceDiscovery:
        return msgspec.structs.replace(resource("things", "Thing"), subresources=below)

    status = APISubresourceDiscovery("status", None, (), ("get",))
    more = APISubresourceDiscovery("status", None, (), ("get", "patch"))
    scale = APISubresourceDiscovery("scale", GroupVersionKind("autoscaling", "v1", "Scale"), (), ("get",))
    members = [
        documents("a", [group("x.io", "v1", with_(status))]),
        documents("b", [group("x.io", "v1", with_(scale, more))]),
    ]
    (merged,) = merge(None, members, EVERYTHING).groups
    assert merged.versions[0].resources[0].subresources == (more, scale)


def test_a_group_version_that_no_reachable_cluster_has_is_stale() -> None:
    merged = merge(east(), [east(), west(fresh=False)], EVERYTHING)
    states = freshness(merged)
    assert states.pop(("west.example.com", "v1beta1")) == "Stale"
    assert set(states.values()) == {"Current"}
    assert GIZMOS in found(merged)


def test_what_is_served_from_cache_while_its_member_is_away_is_not_stale() -> None:
    statuses = group("x.io", "v1", resource("statuses", "Status", verbs=("get", "list")))
    away = documents("away", [group("y.io", "v1", resource("things", "Thing")), statuses], fresh=False)
    states = freshness(merge(None, [away], EVERYTHING, serves_stale=True))
    assert states == {("y.io", "v1"): "Current", ("x.io", "v1"): "Stale"}


def test_what_a_member_calls_stale_is_so_unless_another_has_it() -> None:
    things = resource("things", "Thing")
    stale = documents("a", [group("x.io", "v1", things, freshness="Stale")])
    assert freshness(merge(None, [stale], EVERYTHING)) == {("x.io", "v1"): "Stale"}
    assert freshness(merge(None, [stale], EVERYTHING, serves_stale=True)) == {("x.io", "v1"): "Current"}
    merged = merge(None, [stale, documents("b", [group("x.io", "v1", things)])], EVERYTHING)
    assert freshness(merged) == {("x.io", "v1"): "Current"}


def test_a_stale_entry_of_the_primary_stays() -> None:
    down = group("metrics.k8s.io", "v1beta1", freshness="Stale")
    merged = merge(documents("p", [down]), [], NOTHING)
    assert freshness(merged) == {("metrics.k8s.io", "v1beta1"): "Stale"}


@pytest.mark.parametrize("fresh", [True, False])
def test_the_primary_makes_nothing_current_that_is_read_from_members(fresh: bool) -> None:
    """It has the same resources, which are not read there; nor does its stale empty entry make them stale."""
    things = resource("things", "Thing")
    member = documents("m", [group("x.io", "v1", things)], fresh=fresh)
    for own in (group("x.io", "v1", things), group("x.io", "v1", freshness="Stale")):
        merged = merge(documents("p", [own]), [member], EVERYTHING)
        assert freshness(merged) == {("x.io", "v1"): "Current" if fresh else "Stale"}
        assert merged.owners == {("x.io", "v1"): ("m",)}


def test_a_stale_empty_version_of_a_member_adds_nothing() -> None:
    v1, v2 = group("x.io", "v1", resource("things", "Thing")), group("x.io", "v2", freshness="Stale")
    both = APIGroupDiscovery(v1.metadata, (*v2.versions, *v1.versions))
    merged = merge(None, [documents("a", [both]), documents("b", [v1])], EVERYTHING)
    assert freshness(merged) == {("x.io", "v1"): "Current"}
    assert merged.owners == {("x.io", "v1"): ("a",)}


def test_owners_are_the_clusters_that_describe_all() -> None:
    a = documents("a", [group("x.io", "v1", resource("as", "A"), resource("both", "Both"))])
    b = documents("b", [group("x.io", "v1", resource("bs", "B"), resource("both", "Both"))])
    both = documents("c", [group("x.io", "v1", *a.groups[0].versions[0].resources, *b.groups[0].versions[0].resources)])
    assert merge(None, [a, b], EVERYTHING).owners == {("x.io", "v1"): ("a", "b")}
    assert merge(None, [a, b, both], EVERYTHING).owners == {("x.io", "v1"): ("c",)}
    away = both._replace(fresh=False)
    assert merge(None, [away, both._replace(name="d")], EVERYTHING).owners == {("x.io", "v1"): ("d",)}


def test_groups_are_in_the_order_of_their_priority() -> None:
    names = ["zoo.io", "apps", "metrics.k8s.io", "", "batch", "ant.io", "apiregistration.k8s.io"]
    cluster = documents("a", [group(name, "v1", resource("things", "Thing")) for name in names])
    ordered = [one.metadata.name for one in merge(cluster, [], NOTHING).groups]
    assert ordered == ["apiregistration.k8s.io", "", "apps", "batch", "ant.io", "zoo.io", "metrics.k8s.io"]


def test_versions_of_a_primary_alone_stay_in_its_order() -> None:
    versions = tuple(group("x.io", version, resource("things", "Thing")).versions[0] for version in ("v1beta1", "v1"))
    cluster = documents("a", [APIGroupDiscovery(ObjectMeta("x.io"), versions)])
    (only,) = merge(cluster, [], NOTHING, own_order=True).groups
    assert [one.version for one in only.versions] == ["v1beta1", "v1"]


def test_versions_are_in_the_order_of_kubernetes() -> None:
    members = [
        documents(name, [group("x.io", version, resource("things", "Thing"))])
        for name, version in (("a", "v1beta2"), ("b", "v1"), ("c", "v2"), ("d", "stable"), ("e", "v1beta10"))
    ]
    (merged,) = merge(None, members, EVERYTHING).groups
    assert [one.version for one in merged.versions] == ["v2", "v1", "v1beta10", "v1beta2", "stable"]


RESOURCES = st.builds(
    resource,
    st.sampled_from(["as", "bs", "cs"]),
    st.sampled_from(["A", "B"]),
    scope=st.sampled_from(["Namespaced", "Cluster"]),
    verbs=st.sets(st.sampled_from(ALL_VERBS)).map(lambda verbs: tuple(sorted(verbs))),
)
VERSIONS = st.builds(
    APIVersionDiscovery,
    st.sampled_from(["v1", "v2", "v1beta1"]),
    st.lists(RESOURCES, max_size=3, unique_by=lambda one: one.resource).map(tuple),
    st.sampled_from(["Current", "Stale"]),
)
GROUPS = st.builds(
    APIGroupDiscovery,
    st.sampled_from(["", "apps", "x.io", "y.io"]).map(ObjectMeta),
    st.lists(VERSIONS, max_size=3, unique_by=lambda one: one.version).map(tuple),
)
DOCUMENTS = st.lists(GROUPS, max_size=4, unique_by=lambda one: one.metadata.name)


def clusters(lists: list[list[APIGroupDiscovery]]) -> list[MemberDocuments]:
    return [documents(f"m{index}", groups, fresh=index % 3 != 2) for index, groups in enumerate(lists)]


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(DOCUMENTS, max_size=4), st.none() | DOCUMENTS, st.booleans())
def test_nothing_is_invented(
    lists: list[list[APIGroupDiscovery]], primary: list[APIGroupDiscovery] | None, all_: bool
) -> None:
    scope = EVERYTHING if all_ else FakeScope(("x.io", "as"), ("apps", "*"), targets=())
    members = clusters(lists)
    first = None if primary is None else documents("p", primary)
    merged = merge(first, members, scope)
    known = list(members) if first is None else [*members, first]
    for gvr, served in found(merged).items():
        sources = [one.resources[gvr] for one in known if gvr in one.resources]
        assert (served.kind, served.namespaced) in {(one.kind, one.namespaced) for one in sources}
        assert served.verbs <= {"get", "watch", "list"}.union(*(one.verbs for one in sources))
        if "watch" in served.verbs:
            assert any("watch" in one.verbs for one in sources)
    for key, owners in merged.owners.items():
        assert len(set(owners)) == len(owners)
        listed = {gvr for gvr in found(merged) if gvr[:2] == key}
        assert listed <= set(itertools.chain(*(one.resources for one in known if one.name in owners)))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(DOCUMENTS, max_size=4))
def test_the_order_of_a_members_documents_does_not_matter(lists: list[list[APIGroupDiscovery]]) -> None:
    members = clusters(lists)
    shuffled = []
    for member in members:
        groups = [
            APIGroupDiscovery(one.metadata, tuple(sorted(one.versions, key=lambda v: version_order(v.version))))
            for one in sorted(member.groups, key=lambda one: one.metadata.name, reverse=True)
        ]
        shuffled.append(documents(member.name, groups, fresh=member.fresh))
    assert merge(None, members, EVERYTHING) == merge(None, shuffled, EVERYTHING)


def joined(merged: MergedDiscovery) -> MemberDocuments:
    """A merge as the documents of one cluster."""
    return documents("joined", merged.groups)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(DOCUMENTS, min_size=3, max_size=3))
def test_the_merge_is_associative(lists: list[list[APIGroupDiscovery]]) -> None:
    """Merging the first two, or the last two, and then the other one, is merging all three."""
    a, b, c = (documents(f"m{index}", groups) for index, groups in enumerate(lists))

    def listed(merged: MergedDiscovery) -> set[tuple[GroupVersionResource, str, bool]]:
        return {(gvr, one.kind, one.namespaced) for gvr, one in found(merged).items()}

    whole = listed(merge(None, [a, b, c], EVERYTHING))
    assert listed(merge(None, [joined(merge(None, [a, b], EVERYTHING)), c], EVERYTHING)) == whole
    assert listed(merge(None, [a, joined(merge(None, [b, c], EVERYTHING))], EVERYTHING)) == whole
