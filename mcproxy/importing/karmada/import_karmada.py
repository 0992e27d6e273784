"""Translates all clusters and registries of the input, and adds the aggregate over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcproxy.importing.fragment import Fragment, Note
from mcproxy.importing.karmada import CLUSTER, REGISTRY
from mcproxy.importing.karmada.member_clusters import Member, translate
from mcproxy.importing.karmada.registries import CacheScope, add_registry
from mcproxy.importing.object_files import Object, UnusableError
from mcproxy.importing.output import Complete

_VERSIONS = {"Cluster": "/".join(CLUSTER[:2]), "ResourceRegistry": "/".join(REGISTRY[:2]), "Secret": "v1"}


def translate_all(objects: Iterable[Object], name: str) -> tuple[list[Fragment], list[Note], Complete]:
    """Return clusters, what was left out, and a function that adds the aggregate `name` over the clusters that load.

    Raises UnusableError where there is no Cluster at all.
    """
    found: dict[str, list[Object]] = {kind: [] for kind in _VERSIONS}
    left_out: list[Note] = []
    for each in objects:
        if _VERSIONS.get(each.kind) != each.api_version:
            what = "left out: it is no Cluster, ResourceRegistry or Secret of a known version"
            left_out.append(Note(_origin(each), "", what))
        else:
            found[each.kind].append(each)
    secrets = {(each.namespace, each.name): each for each in found["Secret"]}
    members: dict[str, Member] = {}
    for each in found["Cluster"]:
        try:
            if each.name in members:
                raise UnusableError("there is another of this name before it")
            members[each.name] = translate(each, secrets)
        except UnusableError as error:
            left_out.append(Note(_origin(each), "", f"left out: {error}"))
    if not found["Cluster"]:
        raise UnusableError("there is no Cluster (cluster.karmada.io/v1alpha1) in what was read")
    scope, notes = CacheScope(), Fragment("")
    for each in found["ResourceRegistry"]:
        made = Fragment(_origin(each))
        try:
            add_registry(each, tuple(members.values()), scope, made)
        except UnusableError as error:
            left_out.append(Note(_origin(each), "", f"left out: {error}"))
        notes.notes += made.notes
    return [member.fragment for member in members.values()], left_out, _complete(name, scope, notes)


def _complete(name: str, scope: CacheScope, notes: Fragment) -> Complete:
    def complete(fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        present = [entry["name"] for each in fragments for entry in each.sections.get("clusters", ())]
        members, resources = scope.entries(present)
        made = Fragment(f"aggregate {name}", notes=list(notes.notes))
        if resources:
            made.add(
                "aggregates",
                {
                    "name": name,
                    "clusters": members,
                    "unavailable": "Partial",  # as Karmada, which drops what a cluster had when it is not ready
                    "cache": {"resources": resources},
                },
            )
            made.note("create", "has no rules, so that objects are not created through it; see mcproxy.yaml(5)")
            made.note("primary", "is not set: what no registry names is a 404; Karmada's control plane answered it")
            made.note(
                "",
                "add a server with its backend, its names and its authentication; Karmada's users are not known here",
            )
        else:
            made.note("", "is not made: no registry selects a resource of a cluster that is carried over")
        return [*fragments, made]

    return complete


def _origin(found: Object) -> str:
    return f"{found.kind} {found.name}"[:150]
