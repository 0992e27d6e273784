"""The merge of discovery documents: what an aggregate serves, from what its primary and its members have. Pure.

- A resource in scope is listed as the first member that has it describes it, with the verbs of all; members that
  disagree with that one on its kind or its scope are a conflict, and add nothing.
- Everything else is listed as the primary has it. What is neither in scope nor at the primary is not listed.
- Groups are in the order of their priority in a kube-apiserver, then by name; versions in Kubernetes' order, the
  preferred one first; resources by name. So the result does not depend on the order of documents, but for who is first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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
"""groupPriorityMinimum of the groups of custom resources."""
_PRIORITIES = {
    "": 18_000,
    "apiregistration.k8s.io": 20_000,
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
    "resource.k8s.io": 16_150,
    "flowcontrol.apiserver.k8s.io": 16_100,
    "internal.apiserver.k8s.io": 16_000,
    "metrics.k8s.io": 100,
    "custom.metrics.k8s.io": 100,
    "external.metrics.k8s.io": 100,
}
"""groupPriorityMinimum of a kube-apiserver's own groups, and of those that extensions register by convention."""
BUILT_IN_GROUPS = frozenset(name for name, priority in _PRIORITIES.items() if priority > _CUSTOM_PRIORITY)
"""Groups of which an unknown version is refused with a Status; of others with a plain text."""


class ServedScope(Protocol):
    """What an aggregate does with a member's resource."""

    def covers(self, member: str, resource: APIResource) -> bool:
        """Whether reads of the resource, if it can be listed, are answered from this member: it is in scope."""

    def creates(self, gvr: GroupVersionResource) -> bool:
        """Whether a rule says where new objects of the resource go."""


class MemberDocuments(NamedTuple):
    """What one cluster has; `fresh` is False for the last known documents of one that cannot be reached."""

    name: str
    groups: tuple[APIGroupDiscovery, ...]
    resources: Mapping[GroupVersionResource, APIResource]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Conflict:
    """Clusters that have another kind or scope for a resource than the first member, whose is served."""

    gvr: GroupVersionResource
    served: str
    kind: str
    others: tuple[tuple[str, str], ...]  # member, and what it has: "cluster-scoped Gadget"


@dataclass(frozen=True, slots=True)
class MergedDiscovery:
    """What an aggregate serves. `owners`: the clusters whose schemas describe a group-version's resources, together.

    One cluster where one has them all, a reachable one if there is one.
    """

    groups: tuple[APIGroupDiscovery, ...]
    conflicts: tuple[Conflict, ...]
    owners: Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(slots=True)
class _Resource:
    """A resource in the making, from the clusters that were merged so far."""

    first: APIResourceDiscovery
    member: str
    verbs: set[str]
    subresources: dict[str, APISubresourceDiscovery]
    others: list[tuple[str, str]] = field(default_factory=list)


class _Version:
    """A group-version in the making."""

    def __init__(self) -> None:
        self.cached: dict[str, _Resource] = {}
        self.forwarded: dict[str, APIResourceDiscovery] = {}
        self.known: dict[str, set[str]] = {}  # cluster -> the resources that it has here and that may be served
        self.fresh: dict[str, bool] = {}  # cluster -> whether its resources can be served now

    def of(self, cluster: str, *, fresh: bool) -> set[str]:
        """Return the names of a cluster's resources, to add to."""
        self.fresh[cluster] = self.fresh.get(cluster, False) or fresh
        return self.known.setdefault(cluster, set())

    def owners(self, unreachable: frozenset[str]) -> tuple[str, ...]:
        """Return the first cluster that has everything, else those of which each has something more."""
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
    scope: ServedScope,
    *,
    serves_stale: bool = False,
    priority: Callable[[str], int | None] = lambda group: None,
) -> MergedDiscovery:
    """Return what an aggregate of `members` (in its order) with this primary serves.

    A group-version that only unreachable clusters have is `STALE`, for clients take none of its resources. With
    `serves_stale` (the last known objects of unreachable members are served) one with resources in scope is not: it can
    be read. `priority` gives the groupPriorityMinimum of a registered group, None for all others.
    """
    versions: dict[tuple[str, str], _Version] = {}
    for member in members:
        for group, version in _versions(member):
            _add_cached(versions, group, version, member, scope, serves_stale=serves_stale)
    if primary is not None:
        for group, version in _versions(primary):
            _add_forwarded(versions, group, version, primary)
    by_group: dict[str, list[str]] = {}
    for group, version_name in versions:
        by_group.setdefault(group, []).append(version_name)
    groups = tuple(
        APIGroupDiscovery(
            ObjectMeta(group),
            tuple(
                _finish(group, name, versions[group, name], scope)
                for name in sorted(by_group[group], key=version_order)
            ),
        )
        for group in sorted(by_group, key=lambda name: (-_priority(name, priority), name))
    )
    clusters = members if primary is None else (*members, primary)
    unreachable = frozenset(cluster.name for cluster in clusters if not cluster.fresh)
    owners = {key: made.owners(unreachable) for key, made in versions.items()}
    return MergedDiscovery(groups, tuple(_conflicts(versions)), owners)


def _priority(group: str, registered: Callable[[str], int | None]) -> int:
    own = registered(group)
    return _PRIORITIES.get(group, _CUSTOM_PRIORITY) if own is None else own


def _versions(cluster: MemberDocuments) -> Iterator[tuple[str, APIVersionDiscovery]]:
    for group in cluster.groups:
        for version in group.versions:
            yield group.metadata.name, version


def _add_cached(
    versions: dict[tuple[str, str], _Version],
    group: str,
    version: APIVersionDiscovery,
    member: MemberDocuments,
    scope: ServedScope,
    *,
    serves_stale: bool,
) -> None:
    """Add a member's resources that are in scope to what was merged before."""
    for entry in version.resources:
        resource = member.resources.get(GroupVersionResource(group, version.version, entry.resource))
        if resource is None or not resource.listable or not scope.covers(member.name, resource):
            continue
        made = versions.setdefault((group, version.version), _Version())
        fresh = member.fresh and version.freshness != STALE
        names = made.of(member.name, fresh=fresh or (serves_stale and resource.watchable))
        known = made.cached.get(entry.resource)
        if known is None:
            below = {one.subresource: one for one in entry.subresources}
            made.cached[entry.resource] = _Resource(entry, member.name, set(entry.verbs), below)
        elif _is_same(known.first, entry, group, version.version):
            known.verbs.update(entry.verbs)
            for one in entry.subresources:
                known.subresources[one.subresource] = _union(known.subresources.get(one.subresource), one)
        else:
            known.others.append((member.name, _described(entry)))
            continue
        names.add(entry.resource)


def _add_forwarded(
    versions: dict[tuple[str, str], _Version], group: str, version: APIVersionDiscovery, primary: MemberDocuments
) -> None:
    """Add what the primary has and no member has in scope."""
    made = versions.setdefault((group, version.version), _Version())
    has: set[str] = set()
    for entry in version.resources:
        known = made.cached.get(entry.resource)
        if known is None:
            made.forwarded[entry.resource] = entry
        if known is None or _is_same(known.first, entry, group, version.version):
            has.add(entry.resource)
        elif all(name != primary.name for name, _ in known.others):
            known.others.append((primary.name, _described(entry)))
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
    """Return a subresource with the verbs of both; one that disagrees on the kind adds nothing."""
    if known is None:
        return other
    if known.response_kind != other.response_kind or set(other.verbs) <= set(known.verbs):
        return known
    verbs = tuple(sorted({*known.verbs, *other.verbs}))
    return APISubresourceDiscovery(known.subresource, known.response_kind, known.accepted_types, verbs)


def _finish(group: str, version: str, made: _Version, scope: ServedScope) -> APIVersionDiscovery:
    entries = dict(made.forwarded)
    for name, resource in made.cached.items():
        creates = scope.creates(GroupVersionResource(group, version, name))
        entries[name] = _served(resource, creates=creates)
    ordered = tuple(entries[name] for name in sorted(entries))
    return APIVersionDiscovery(version, ordered, CURRENT if any(made.fresh.values()) else STALE)


def _served(resource: _Resource, *, creates: bool) -> APIResourceDiscovery:
    """Return a resource in scope with the verbs that the aggregate can do."""
    first, owned = resource.first, frozenset(resource.verbs)
    below: tuple[APISubresourceDiscovery, ...] = ()
    if "watch" in owned:
        verbs = _READS | (owned & _ROUTED) | (owned & _CREATE if creates else frozenset())
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


def _conflicts(found: Mapping[tuple[str, str], _Version]) -> Iterator[Conflict]:
    for (group, version), made in sorted(found.items()):
        for name, resource in sorted(made.cached.items()):
            if resource.others:
                gvr = GroupVersionResource(group, version, name)
                yield Conflict(gvr, resource.member, _described(resource.first), tuple(resource.others))
