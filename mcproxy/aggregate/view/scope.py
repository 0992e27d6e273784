"""Which resources of which members, and which of their namespaces, an aggregate reads from cache. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model.aggregates import CachedResource
from mcproxy.kube.resource import APIResource, GroupVersionResource

ALL_NAMESPACES = ""
"""The namespace of a store that holds the objects of all namespaces, or of a resource that has none."""


class Scope:
    """The entries of `cache.resources`; several for one resource add up."""

    __slots__ = ("_entries",)

    def __init__(self, resources: Sequence[CachedResource]) -> None:
        entries: dict[tuple[str, str], list[CachedResource]] = {}
        for entry in resources:
            entries.setdefault((entry.group, entry.version), []).append(entry)
        self._entries = entries

    def namespaces(self, member: str, resource: APIResource) -> tuple[str, ...]:
        """Return the namespaces of `resource` that are read from the cache of `member`: one store for each.

        `(ALL_NAMESPACES,)` where the whole collection is, `()` where nothing is. An entry that names namespaces does
        not cover a resource that has none.
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
        """Whether an entry names a resource, by itself or with "*"; with `member`, an entry that is for it."""
        return any(
            entry.names(gvr.group, gvr.resource) and (not member or not entry.clusters or member in entry.clusters)
            for entry in self._entries.get(gvr[:2], ())
        )

    def group_versions(self) -> frozenset[tuple[str, str]]:
        """Return the (group, version) pairs that have an entry."""
        return frozenset(self._entries)
