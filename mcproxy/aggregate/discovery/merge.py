"""The merge of discovery documents: the resources of an aggregate, from those of its primary and its members. Pure.

- The first member that has a resource in scope defines it; the verbs of all members are listed. A member with another
  kind or scope is in conflict and adds nothing. The first member is the same for all users, since requests use its
  definition. Resources out of scope are listed as the primary defines them; resources that it lacks are not listed.
- `create` is listed if the target cluster of the resource's create rule has the resource.
- Groups are sorted by their priority in a kube-apiserver, then by name. Versions are in Kubernetes' order, except that
  the preferred version is first (`_preferred`). Resources are sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mcproxy.aggregate.view.scope import Scope, agree
from mcproxy.config.model import TO_LABEL, TO_PRIMARY, CreateRule
from mcproxy.kube.discovery import (
    CURRENT,
    STALE,
    APIGroupDiscovery,
    APIResourceDiscovery,
    APISubresourceDiscovery,
    APIVersionDiscovery,
    GroupVersionKind,
    ObjectMeta,
    version_order,
)
from mcproxy.kube.resource import APIResource, GroupVersionResource

_READS = frozenset({"get", "list", "watch"})
_FAN_OUT = frozenset({"get", "list"})
_ROUTED = frozenset({"delete", "deletecollection", "patch", "update"})
_CREATE = frozenset({"create"})

_CUSTOM_PRIORITY = 1000
"""groupPriorityMinimum of custom resources' groups."""
_PRIORITIES = {
    "": 18_000,
    "apiregistration.k8s.io": 20_001,  # always the first group
    "apps": 17_800,
    "events.k8s.io": 17_750,
    "authentication.k8s.io": 17_700,
    "authorization.k8s.io": 17_600,
    "autoscaling": 17_500,
    "batch": 17_400,
    "certificates.k8s.io": 17_300,
    "networking.k8s.io": 17_200,
    "policy": 17_100,
    "rbac.authorization.k8s.io": 17_000,
    "storage.k8s.io": 16_800,
    "storagemigration.k8s.io": 16_750,
    "admissionregistration.k8s.io": 16_700,
    "apiextensions.k8s.io": 16_700,
    "scheduling.k8s.io": 16_600,
    "coordination.k8s.io": 16_500,
    "node.k8s.io": 16_300,
    "discovery.k8s.io": 16_200,
    "resource.k8s.io": 16_200,
    "flowcontrol.apiserver.k8s.io": 16_100,
    "internal.apiserver.k8s.io": 16_000,
    "metrics.k8s.io": 100,
    "custom.metrics.k8s.io": 100,
    "external.metrics.k8s.io": 100,
}
"""groupPriorityMinimum of a kube-apiserver's own groups, and of groups that extensions register by convention."""
BUILT_IN_GROUPS = frozenset(name for name, priority in _PRIORITIES.items() if priority > _CUSTOM_PRIORITY)
"""Groups whose unknown versions are answered with a Status; unknown versions of other groups get plain text."""


class AggregateScope:
    """The scope of an aggregate: how it serves its members' resources."""

    def __init__(self, cached: Scope, create: Sequence[CreateRule], primary: str | None) -> None:
        self._cached = cached
        self._create = create
        self._primary = primary

    def covers(self, member: str, resource: APIResource) -> bool:
        """Whether reads of the resource are answered from this member's objects."""
        return bool(self._cached.namespaces(member, resource))

    def create_targets(self, gvr: GroupVersionResource) -> Sequence[str] | None:
        """Return the clusters that get new objects of the resource, () without a rule, or None for any member."""
        rule = next((rule for rule in self._create if rule.matches(gvr.group, gvr.resource)), None)
        if rule is None:
            return ()
        if rule.to == TO_LABEL:
            return None
        name = self._primary if rule.to == TO_PRIMARY else rule.to
        return () if name is None else (name,)


class MemberDocuments(NamedTuple):
    """The documents of one cluster; `fresh` is False for last known documents of an unreachable cluster."""

    name: str
    groups: tuple[APIGroupDiscovery, ...]
    resources: Mapping[GroupVersionResource, APIResource]
    fresh: bool


@dataclass(frozen=True, slots=True)
class ResourceConflict:
    """Clusters whose kind or scope of a resource differs from the served definition of the first member."""

    gvr: GroupVersionResource
    served: str
    kind: str
    others: tuple[tuple[str, str], ...]  # member, and its definition: "cluster-scoped Gadget"


@dataclass(frozen=True, slots=True)
class MergedDiscovery:
    """The result of a merge. `owners`: the clusters whose schemas together describe a group-version's resources.

    A single cluster is the owner if it has all these resources, preferably a reachable one. `services`: the clusters of
    the API services' group-versions (`api_services`), which `owners` does not contain.
    """

    groups: tuple[APIGroupDiscovery, ...]
    conflicts: tuple[ResourceConflict, ...]
    owners: Mapping[tuple[str, str], tuple[str, ...]]
    services: Mapping[tuple[str, str], str] = field(default_factory=dict)
    legacy: tuple[str, ...] = ()
    """The names of the groups in the order of the legacy document, if that order differs (`legacy_order`)."""


@dataclass(slots=True)
class _Resource:
    """A resource during the merge, as merged from the clusters so far."""

    first: APIResourceDiscovery
    member: str
    verbs: set[str]
    subresources: dict[str, APISubresourceDiscovery]


class _Version:
    """A group-version during the merge."""

    def __init__(self) -> None:
        self.cached: dict[str, _Resource] = {}
        self.forwarded: dict[str, APIResourceDiscovery] = {}
        self.known: dict[str, set[str]] = {}  # cluster -> its resources in this group-version that may be served
        self.held: dict[str, set[str]] = {}  # member -> its resources in scope in this group-version
        self.disagreeing: dict[str, list[tuple[str, str]]] = {}  # resource -> cluster, and its different definition
        self.fresh: dict[str, bool] = {}  # cluster -> whether its resources can be served now

    def of(self, cluster: str, *, fresh: bool) -> set[str]:
        """Return the set of a cluster's resource names; the caller adds to it."""
        self.fresh[cluster] = self.fresh.get(cluster, False) or fresh
        return self.known.setdefault(cluster, set())

    def owners(self, unreachable: frozenset[str]) -> tuple[str, ...]:
        """Return the first cluster that has all resources, else the clusters that each add some."""
        served = {*self.cached, *self.forwarded}
        order = sorted(self.known, key=lambda cluster: cluster in unreachable)
        for cluster in order:
            if served <= self.known[cluster]:
                return (cluster,)
        found = []
        for cluster in order:
            if served & self.known[cluster]:
                found.append(cluster)
                served -= self.known[cluster]
        return tuple(found)


def merge(
    primary: MemberDocuments | None,
    members: Sequence[MemberDocuments],
    scope: AggregateScope,
    *,
    serves_stale: bool = False,
    winners: Mapping[GroupVersionResource, APIResource] | None = None,
    own_order: bool = False,
) -> MergedDiscovery:
    """Return the merged discovery of an aggregate with this primary and these `members` (in the aggregate's order).

    A group-version that only unreachable clusters have is `STALE`, so that clients ignore its resources. With
    `serves_stale` (the last known objects of unreachable members are served), a group-version with resources in scope
    is not `STALE`, since it can be read. `winners` are the served definitions of the resources in scope (`served`);
    they are needed if the aggregate has members that are not in `members`. `own_order`: versions keep the order of the
    primary, which is the only cluster and knows their priorities.
    """
    if winners is None:
        winners = served(members, scope)
    versions: dict[tuple[str, str], _Version] = {}
    for member in members:
        for group, version in _versions(member):
            _add_cached(versions, group, version, member, scope, winners, serves_stale=serves_stale)
    if primary is not None:
        for group, version in _versions(primary):
            _add_forwarded(versions, group, version, primary, winners)
    clusters = {cluster.name: cluster for cluster in (*members, *(() if primary is None else (primary,)))}
    by_group: dict[str, list[str]] = {}
    for group, version_name in versions:
        by_group.setdefault(group, []).append(version_name)
    groups = tuple(
        APIGroupDiscovery(
            ObjectMeta(group),
            tuple(
                _finish(group, name, versions[group, name], scope, clusters)
                for name in (
                    _ordered({name: versions[group, name] for name in by_group[group]})
                    if not own_order
                    else by_group[group]
                )
            ),
        )
        for group in sorted(by_group, key=lambda name: (-group_priority(name), name))
    )
    unreachable = frozenset(name for name, cluster in clusters.items() if not cluster.fresh)
    owners = {key: made.owners(unreachable) for key, made in versions.items()}
    legacy = legacy_order(groups, lambda name, _: group_priority(name))
    return MergedDiscovery(groups, tuple(_conflicts(versions)), owners, legacy=legacy)


def served(members: Sequence[MemberDocuments], scope: AggregateScope) -> dict[GroupVersionResource, APIResource]:
    """Return the served definition of each resource in scope; `members` are in the aggregate's order. The first member
    where the resource can be watched defines it, else the first member that has it, as in views.
    """
    found: dict[GroupVersionResource, APIResource] = {}
    for member in members:
        for gvr, resource in member.resources.items():
            known = found.get(gvr)
            if known is not None and (known.watchable or not resource.watchable):
                continue
            if resource.listable and scope.covers(member.name, resource):
                found[gvr] = resource
    return found


def _ordered(versions: Mapping[str, _Version]) -> list[str]:
    """Return the versions of a group in Kubernetes' order, but the preferred one first."""
    ordered = sorted(versions, key=version_order)
    preferred = _preferred(ordered, versions)
    return [preferred, *(name for name in ordered if name != preferred)]


def _preferred(ordered: Sequence[str], versions: Mapping[str, _Version]) -> str:
    """Return the highest version that every member with a resource of the group serves.

    kubectl requests the preferred version. While a definition is upgraded cluster by cluster, the objects of the other
    clusters must not vanish. So a version that a member serves for only some of its resources in the group is not
    preferred either, if there is a better version. (If no member has a resource in the preferred version, clients use
    the next version.)
    """
    holdings: dict[str, set[str]] = {}
    for made in versions.values():
        for member, names in made.held.items():
            holdings.setdefault(member, set()).update(names)

    def hides(name: str) -> bool:
        made = versions[name]
        listed = {*made.cached, *made.forwarded}
        return any(names & listed - made.held.get(member, set()) for member, names in holdings.items())

    def lacking(name: str) -> bool:
        return any(not versions[name].held.get(member) for member in holdings)

    return min(ordered, key=lambda name: (hides(name), lacking(name), ordered.index(name)))


def legacy_order(groups: Sequence[APIGroupDiscovery], priority: Callable[[str, str], int]) -> tuple[str, ...]:
    """Return the group names in the order of the legacy /apis; `priority` returns that of a group and version.

    Order: highest groupPriorityMinimum of a group's APIServices, then this APIService's name `version.group` (in the
    aggregated document: the group's name). Source: kube-aggregator `pkg/apis/apiregistration/v1/helper`.
    """

    def place(group: APIGroupDiscovery) -> tuple[int, str]:
        name = group.metadata.name
        return min((-priority(name, one.version), f"{one.version}.{name}") for one in group.versions)

    return tuple(group.metadata.name for group in sorted(groups, key=place))


def group_priority(group: str) -> int:
    """Return the groupPriorityMinimum that a kube-apiserver registers for a group of its own."""
    return _PRIORITIES.get(group, _CUSTOM_PRIORITY)


def _versions(cluster: MemberDocuments) -> Iterator[tuple[str, APIVersionDiscovery]]:
    for group in cluster.groups:
        for version in group.versions:
            yield group.metadata.name, version


def _add_cached(
    versions: dict[tuple[str, str], _Version],
    group: str,
    version: APIVersionDiscovery,
    member: MemberDocuments,
    scope: AggregateScope,
    winners: Mapping[GroupVersionResource, APIResource],
    *,
    serves_stale: bool,
) -> None:
    """Add a member's resources in scope to the merged versions."""
    for entry in version.resources:
        gvr = GroupVersionResource(group, version.version, entry.resource)
        resource = member.resources.get(gvr)
        if resource is None or not resource.listable or not scope.covers(member.name, resource):
            continue
        made = versions.setdefault((group, version.version), _Version())
        known = made.cached.get(entry.resource)
        same = known is None or _is_same(known.first, entry, group, version.version)
        if not same or not agree(winners[gvr], resource):
            made.disagreeing.setdefault(entry.resource, []).append((member.name, _described(entry)))
            continue
        fresh = member.fresh and version.freshness != STALE
        made.held.setdefault(member.name, set()).add(entry.resource)
        names = made.of(member.name, fresh=fresh or (serves_stale and resource.watchable))
        if known is None:
            below = {one.subresource: one for one in entry.subresources}
            made.cached[entry.resource] = _Resource(entry, member.name, set(entry.verbs), below)
        else:
            known.verbs.update(entry.verbs)
            for one in entry.subresources:
                known.subresources[one.subresource] = _union(known.subresources.get(one.subresource), one)
        names.add(entry.resource)


def _add_forwarded(
    versions: dict[tuple[str, str], _Version],
    group: str,
    version: APIVersionDiscovery,
    primary: MemberDocuments,
    winners: Mapping[GroupVersionResource, APIResource],
) -> None:
    """Add the primary's resources that no member has in scope."""
    made = versions.setdefault((group, version.version), _Version())
    has: set[str] = set()
    for entry in version.resources:
        known = made.cached.get(entry.resource)
        if known is None:
            if GroupVersionResource(group, version.version, entry.resource) in winners:
                continue  # the resource is served only from members that this user may not discover
            made.forwarded[entry.resource] = entry
        if known is None or _is_same(known.first, entry, group, version.version):
            has.add(entry.resource)
        else:
            others = made.disagreeing.setdefault(entry.resource, [])
            if all(name != primary.name for name, _ in others):
                others.append((primary.name, _described(entry)))
    if made.forwarded or not made.cached:
        made.of(primary.name, fresh=primary.fresh and version.freshness != STALE).update(has)


def _is_same(one: APIResourceDiscovery, other: APIResourceDiscovery, group: str, version: str) -> bool:
    return one.scope == other.scope and _kind(one, group, version) == _kind(other, group, version)


def _kind(entry: APIResourceDiscovery, group: str, version: str) -> GroupVersionKind:
    kind = entry.response_kind or GroupVersionKind()
    return kind if kind.version else GroupVersionKind(group, version, kind.kind)


def _described(entry: APIResourceDiscovery) -> str:
    kind = entry.response_kind.kind if entry.response_kind else ""
    return f"{'namespaced' if entry.scope == 'Namespaced' else 'cluster-scoped'} {kind}"


def _union(known: APISubresourceDiscovery | None, other: APISubresourceDiscovery) -> APISubresourceDiscovery:
    """Return the subresource `known` with the verbs of both; if `other` has a different kind, it adds nothing."""
    if known is None:
        return other
    if known.response_kind != other.response_kind or set(other.verbs) <= set(known.verbs):
        return known
    verbs = tuple(sorted({*known.verbs, *other.verbs}))
    return APISubresourceDiscovery(known.subresource, known.response_kind, known.accepted_types, verbs)


def _finish(
    group: str, version: str, made: _Version, scope: AggregateScope, clusters: Mapping[str, MemberDocuments]
) -> APIVersionDiscovery:
    entries = dict(made.forwarded)
    for name, resource in made.cached.items():
        gvr = GroupVersionResource(group, version, name)
        targets = scope.create_targets(gvr)
        if targets is None:
            creates = "create" in resource.verbs
        else:
            own = clusters[resource.member].resources[gvr]
            there = [clusters[target].resources.get(gvr) for target in targets if target in clusters]
            creates = any(found is not None and "create" in found.verbs and agree(found, own) for found in there)
        entries[name] = _served(resource, creates=creates)
    ordered = tuple(entries[name] for name in sorted(entries))
    return APIVersionDiscovery(version, ordered, CURRENT if any(made.fresh.values()) else STALE)


def _served(resource: _Resource, *, creates: bool) -> APIResourceDiscovery:
    """Return a resource in scope with the verbs that the aggregate supports."""
    first, owned = resource.first, frozenset(resource.verbs)
    below: tuple[APISubresourceDiscovery, ...] = ()
    if "watch" in owned:
        verbs = _READS | (owned & _ROUTED) | (_CREATE if creates else frozenset())
        below = tuple(resource.subresources.values())
    else:
        verbs = owned & _FAN_OUT
    return APIResourceDiscovery(
        resource=first.resource,
        response_kind=first.response_kind,
        scope=first.scope,
        singular_resource=first.singular_resource,
        verbs=first.verbs if verbs == set(first.verbs) else tuple(sorted(verbs)),
        short_names=first.short_names,
        categories=first.categories,
        subresources=below,
    )


def _conflicts(found: Mapping[tuple[str, str], _Version]) -> Iterator[ResourceConflict]:
    for (group, version), made in sorted(found.items()):
        for name, others in sorted(made.disagreeing.items()):
            resource = made.cached.get(name)
            if resource is not None:
                gvr = GroupVersionResource(group, version, name)
                yield ResourceConflict(gvr, resource.member, _described(resource.first), tuple(others))
