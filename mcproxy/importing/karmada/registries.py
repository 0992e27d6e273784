"""The resources of each member that all ResourceRegistries together cache: Karmada has one cache for all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mcproxy.importing.fragment import Fragment
from mcproxy.importing.karmada.cluster_affinity import KEYS, affinity
from mcproxy.importing.karmada.member_clusters import Member, plural
from mcproxy.importing.object_files import Fields, Object

_GROUP = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?\Z")
_VERSION = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")

Resource = tuple[str, str, str]
"""Group, version, plural."""


class CacheScope:
    """The cached namespaces for each resource of each member; None means all."""

    def __init__(self) -> None:
        self._scope: dict[Resource, dict[str, set[str] | None]] = {}

    def add(self, resource: Resource, member: str, namespace: str) -> None:
        members = self._scope.setdefault(resource, {})
        known = members.setdefault(member, set())
        if not namespace:
            members[member] = None
        elif known is not None:
            known.add(namespace)

    def entries(self, present: Sequence[str]) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the members, of those that are `present`, and the entries of the aggregate's cache.

        An empty list would mean all, so none is written.
        """
        used = {name for members in self._scope.values() for name in members}
        names = [name for name in present if name in used]
        entries: list[dict[str, Any]] = []
        for (group, version, resource), members in self._scope.items():
            by_namespaces: dict[tuple[str, ...] | None, list[str]] = {}
            for name in names:
                if name in members:
                    wanted = members[name]
                    by_namespaces.setdefault(None if wanted is None else tuple(sorted(wanted)), []).append(name)
            for namespaces, clusters in by_namespaces.items():
                entry: dict[str, Any] = {"group": group, "version": version, "resource": resource}
                if namespaces is not None:
                    entry["namespaces"] = list(namespaces)
                if clusters != names:
                    entry["clusters"] = clusters
                entries.append(entry)
        return names, entries


def add_registry(found: Object, members: Sequence[Member], scope: CacheScope, made: Fragment) -> None:
    """Add the resources that a registry caches to `scope`, and notes to `made`. Raises UnusableError."""
    spec = found.fields.fields("spec")
    for other in spec.others("targetCluster", "resourceSelectors", "backendStore"):
        made.note(other, "is not known to mcproxy")
    if spec.has("backendStore"):
        made.note("spec.backendStore", "is not carried over: mcproxy keeps its caches in memory")
    target = spec.fields("targetCluster")
    for other in target.others(*KEYS):
        made.note(other, "is not known to mcproxy, so the registry is left out: it might select fewer clusters")
        return
    selects = affinity(target)
    selected = [member for member in members if selects(member.facts)]
    if not selected:
        made.note("spec.targetCluster", "selects none of the clusters that are carried over")
        return
    names = ", ".join(member.name for member in selected[:20]) + (", …" if len(selected) > 20 else "")
    made.note("spec.targetCluster", f"is carried over as the clusters that it selects now: {names}")
    for selector in spec.items("resourceSelectors"):
        _add_selector(selector, selected, scope, made)


def _add_selector(selector: Fields, selected: Sequence[Member], scope: CacheScope, made: Fragment) -> None:
    for other in selector.others("apiVersion", "kind", "namespace"):
        made.note(other, "is not known to mcproxy, so the selector is left out: it might select fewer objects")
        return
    api_version, kind, namespace = selector.text("apiVersion"), selector.text("kind"), selector.text("namespace")
    group, _, version = api_version.rpartition("/")
    if not (_GROUP.match(group) and _VERSION.match(version) and kind):
        made.note(selector.path, "is left out: it names no kind of a version")
        return
    if namespace and not _NAMESPACE.match(namespace):
        made.note(selector.at("namespace"), "is no namespace; the selector is left out")
        return
    having = [member for member in selected if member.has(api_version, kind)]
    if without := [member.name for member in selected if member not in having]:
        made.note(
            selector.path, f"{kind} of {api_version} is not served by {', '.join(without[:20])}, as their status says"
        )
    if not having:
        return
    names = {member.name: plural(member, api_version, kind) for member in having}
    known = next(filter(None, names.values()), None)
    if known is None:
        made.note(
            selector.path,
            f"is left out: nothing says what {kind} of {api_version} is called in URLs; add it to cache.resources",
        )
        return
    for name, resource in names.items():
        scope.add((group, version, resource or known), name, namespace)
