"""Roles made from the discovery document of a group-version (APIResourceList). Pure.

As Kubernetes' own view, edit and admin have it: who may view reads objects, who may edit writes what is in a namespace
and reads and writes its subresources (a shell may be behind one), and nobody but controllers writes a status. What is
in no namespace is written by administrators alone, so the role for that is aggregated to none: who has admin in a
namespace must not get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mcproxy.apiservices.roles.role_rules import RESOURCE, RefusedError, refuse_built_in
from mcproxy.apiservices.roles.template import RBAC, Part, cluster_role, quoted

MAX_RESOURCES = 1000
_READS = ("get", "list", "watch")
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
_STATUS = "status"
_HARMLESS = (_STATUS, "scale", "log")
"""Subresources of which Kubernetes' own view reads those of pods and workloads."""


class _Resource(NamedTuple):
    name: str
    namespaced: bool
    verbs: frozenset[str]

    @property
    def is_status(self) -> bool:
        return self.name.endswith(f"/{_STATUS}")

    @property
    def is_viewed(self) -> bool:
        _, slash, subresource = self.name.partition("/")
        return not slash or subresource in _HARMLESS


def roles(document: Mapping[str, Any], group: str, version: str) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return the roles, and a sentence for each resource that was left out. Raises RefusedError."""
    refuse_built_in(group)
    resources, left_out = _resources(document, f"{group}/{version}")
    name = f"{version}.{group}"
    written = [each for each in resources if not each.is_status]
    viewed = _rules(group, (each for each in resources if each.is_viewed), _READS)
    hidden = _rules(group, (each for each in written if not each.is_viewed and each.namespaced), _READS)
    unspaced = _rules(group, (each for each in written if not each.is_viewed and not each.namespaced), _READS)
    edited = _rules(group, (each for each in written if each.namespaced), _WRITES)
    administered = _rules(group, (each for each in written if not each.namespaced), _WRITES)
    controlled = _rules(group, (each for each in resources if each.is_status), _WRITES)
    found = []
    for kind, about, aggregated, rules in (
        ("view", "Added to the roles view, edit and admin: reads objects.", ("view", "edit", "admin"), viewed),
        (
            "edit",
            "Added to the roles edit and admin: writes what is in a namespace.",
            ("edit", "admin"),
            hidden + edited,
        ),
        ("admin", "Added to none, bind it by hand: writes what is in no namespace.", (), unspaced + administered),
        ("controller", "Added to none, for its controllers: writes the status.", (), controlled),
    ):
        if rules:
            labels = {f"{RBAC}/aggregate-to-{role}": "true" for role in aggregated}
            found.append(Part((about,), cluster_role(f"{name}:{kind}", rules, labels)))
    if not found:
        found.append(Part(("It has no resources that anybody could read or write.",)))
    return tuple(found), left_out


def _resources(document: Mapping[str, Any], group_version: str) -> tuple[list[_Resource], tuple[str, ...]]:
    if document.get("kind") != "APIResourceList" or document.get("groupVersion") != group_version:
        raise RefusedError(f"its discovery is no APIResourceList of {quoted(group_version)}")
    listed = document.get("resources") or []
    if not isinstance(listed, list) or len(listed) > MAX_RESOURCES:
        raise RefusedError(f"its discovery has no list of at most {MAX_RESOURCES} resources")
    found: dict[str, _Resource] = {}
    left_out: dict[str, None] = {}
    for entry in listed:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        verbs = entry.get("verbs") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not RESOURCE.fullmatch(name) or not isinstance(verbs, list):
            left_out[f"its discovery has a resource {quoted(name)}, which is none"] = None
            continue
        known = frozenset(verb for verb in verbs if isinstance(verb, str)).intersection((*_READS, *_WRITES))
        found.setdefault(name, _Resource(name, entry.get("namespaced") is True, known))
    return list(found.values()), tuple(left_out)[:20]


def _rules(group: str, resources: Iterable[_Resource], verbs: Iterable[str]) -> list[dict[str, list[str]]]:
    """Return a rule for each set of verbs that resources have of `verbs`."""
    by_verbs: dict[tuple[str, ...], list[str]] = {}
    for resource in resources:
        if granted := tuple(verb for verb in verbs if verb in resource.verbs):
            by_verbs.setdefault(granted, []).append(resource.name)
    return [
        {"apiGroups": [group], "resources": sorted(names), "verbs": list(granted)}
        for granted, names in sorted(by_verbs.items(), key=lambda item: min(item[1]))
    ]
