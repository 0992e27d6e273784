"""The resources, members and namespaces that an aggregate reads from cache. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mcproxy.config.model.aggregates import CachedResource
from mcproxy.kube.discovery import version_order
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import qualified

if TYPE_CHECKING:
    from mcproxy.aggregate.reflector.member_discovery import MemberDiscovery

ALL_NAMESPACES = ""
"""The namespace of a store that holds the objects of all namespaces, or of a cluster-scoped resource."""


class Scope:
    """The entries of `cache.resources`; several entries for one resource are combined."""

    __slots__ = ("_entries",)

    def __init__(self, resources: Sequence[CachedResource]) -> None:
        entries: dict[tuple[str, str], list[CachedResource]] = {}
        for entry in resources:
            entries.setdefault((entry.group, entry.version), []).append(entry)
        self._entries = entries

    def namespaces(self, member: str, resource: APIResource) -> tuple[str, ...]:
        """Return the namespaces of `resource` that are read from the cache of `member`; each has its own store.

        `(ALL_NAMESPACES,)` is the whole collection, `()` is nothing. An entry with namespaces does not cover
        cluster-scoped resources.
        """
        found: list[str] = []
        for entry in self._entries.get(resource.gvr[:2], ()):
            if not entry.names(resource.gvr.group, resource.gvr.resource) or (
                entry.clusters and member not in entry.clusters
            ):
                continue
            if not entry.namespaces:
                return (ALL_NAMESPACES,)
            if resource.namespaced:
                found += (namespace for namespace in entry.namespaces if namespace not in found)
        return tuple(found)

    def names(self, gvr: GroupVersionResource, member: str = "") -> bool:
        """Whether an entry names a resource, explicitly or with "*"; with `member`, only its entries count."""
        return any(
            entry.names(gvr.group, gvr.resource) and (not member or not entry.clusters or member in entry.clusters)
            for entry in self._entries.get(gvr[:2], ())
        )

    def group_versions(self) -> frozenset[tuple[str, str]]:
        """Return the (group, version) pairs that have an entry."""
        return frozenset(self._entries)


# -- differing definitions ------------------------------------------------------------------------------------
#
# Finds members whose definition of a resource differs from the served one: in the versions, or in kind or scope.
#
# A definition is upgraded cluster by cluster. During this time, a version lacks the objects of clusters that do not
# serve it. A Warning in reads, the refusal of a write, and the status document report this.


class Difference(NamedTuple):
    """A member's differing definition of a resource."""

    why: str
    """The reason as text for client and operator, after "its objects are left out: "."""
    other_version: GroupVersionResource | None
    """The resource in the version that the member serves; None if kind or scope differ."""


def agree(one: APIResource, other: APIResource) -> bool:
    """Whether two clusters have the same kind and scope for a resource, so that it can be served as one resource."""
    return one.kind == other.kind and one.namespaced == other.namespaced


def described(resource: APIResource) -> str:
    """Return scope and kind: "namespaced Widget"."""
    return f"{'namespaced' if resource.namespaced else 'cluster-scoped'} {resource.kind}"


def difference(resource: APIResource, discovery: MemberDiscovery) -> Difference | None:
    """Return how a member's definition differs from the served definition. Return None if there is no difference, or if
    the member lacks the resource.
    """
    gvr = resource.gvr
    name = qualified(gvr.group, gvr.resource)
    found = discovery.resources.get(gvr)
    if found is not None:
        if agree(found, resource):
            return None
        return Difference(f"there {name} is a {described(found)}, not a {described(resource)}", None)
    others = [
        other
        for other in discovery.resources.values()
        if other.gvr[::2] == gvr[::2] and agree(other, resource) and other.listable
    ]
    if not others:
        return None
    other = min(others, key=lambda other: version_order(other.gvr.version)).gvr
    return Difference(f"it serves {name} in version {other.version}, not in {gvr.version}", other)
