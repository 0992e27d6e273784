"""The section `aggregates`: several clusters served as one.

Requirements of the servers that use an aggregate are checked in `config.checks.aggregate_access`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import (
    TO_LABEL,
    TO_PRIMARY,
    Aggregate,
    Cache,
    CachedResource,
    Cluster,
    ConflictRule,
    CreateRule,
    ReadAuthorization,
    Reads,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.rule_checks.aggregate_rules import check_cached_resources, check_conflict_rules, check_create_rules
from mcproxy.config.sections.entries import Merged, Named, build_all, references
from mcproxy.config.sections.model_reader import read, texts
from mcproxy.config.suggestions import suggest

_OF_MEMBERS = ("cacheAllowed", "cacheDenied", "staleDecisions")
_KEEPS = "add daemon: {stateDir: /var/lib/mcproxy}, or take it out"


def build_aggregates(
    context: Context, merged: Merged, clusters: Sequence[Named[Cluster]], *, keeps_state: bool
) -> list[Named[Aggregate]]:
    """Return the aggregates with their selectors resolved; `keeps_state`: there is a `daemon.stateDir`."""
    return build_all(
        context, merged, "aggregates", lambda context, place: _aggregate(context, place, clusters, keeps_state)
    )


def _aggregate(
    context: Context, place: Place, clusters: Sequence[Named[Cluster]], keeps_state: bool
) -> Aggregate | None:
    names = [cluster.name for cluster in clusters if cluster.name]
    former = _former_members(context, place)
    members = _members(context, place, clusters, former)
    primary = _primary(context, place.get("primary"), names)
    # A name that is wrong as a member is reported there; where else it is used it counts as one.
    listed = list(texts(place, "clusters"))
    known = tuple(dict.fromkeys(each for each in (*members, *listed) if each not in former))
    cache = _cache(context, place.get("cache"), known, keeps_state)
    create = _create(context, place, known)
    conflicts = _conflicts(context, place, known)
    for rule in (*place.children("create"), *place.children("conflicts")):
        to = rule.get("to")
        if to is not None and to.string == TO_PRIMARY and not place.has("primary"):
            context.error(to, "the aggregate has no primary", "add primary: CLUSTER, or name a member")
    check_create_rules(context, place, create, cache, known)
    check_conflict_rules(context, place, conflicts, cache, known, primary)
    made = read(
        context,
        place,
        Aggregate,
        clusters=members,
        primary=primary,
        reads=_reads(context, place.get("reads"), keeps_state),
        cache=cache,
        create=create,
        conflicts=conflicts,
        listed=tuple(each for each in dict.fromkeys(listed) if each in former or each in members) if former else (),
    )
    return made if made.name else None


def _former_members(context: Context, place: Place) -> tuple[str, ...]:
    """Return those of `clusters` that only keep their place. They need not be defined."""
    written = place.get("formerMembers")
    if written is None:
        return ()
    if place.get("clusters") is None:
        if list(written.items()):
            what = "former members keep their places in clusters, and there is no such list"
            context.error(written, what, "name the members in clusters instead of clusterSelector, or take it out")
        return ()
    listed = list(texts(place, "clusters"))
    for item in written.items():
        if item.string is not None and item.string not in listed:
            what = f"{item.shown} is not in clusters, so it has no place to keep"
            context.error(item, what, "add it to clusters where it was, or take it out")
    return tuple(name for name in _distinct(context, written) if name in listed)


def _members(
    context: Context, place: Place, clusters: Sequence[Named[Cluster]], former: Sequence[str]
) -> tuple[str, ...]:
    written, selector = place.get("clusters"), place.get("clusterSelector")
    if written is not None:
        names = [cluster.name for cluster in clusters if cluster.name]
        listed = references(context, written, [*names, *former], "cluster")
        found = tuple(name for name in listed if name not in former)
        if not found and len(former) == len(list(written.items())):
            context.warn(written, "no-members", "has no members, so every list is empty", "name a cluster")
        return found
    if selector is None:
        return ()
    wanted = {label: value.string for label, value in selector.entries()}
    selected = [cluster for cluster in clusters if cluster.name and wanted.items() <= _labels(cluster.place).items()]
    if not selected and not context.offline:  # a label may be a variable that is not set here
        have = "no cluster has these labels" if clusters else "there are no clusters"
        right = _nearest_labels(wanted, clusters) or "give a cluster these labels, or name clusters"
        context.warn(selector, "no-members", f"{have}, so the aggregate has no members", right)
    return tuple(dict.fromkeys(cluster.name for cluster in selected if cluster.name))


def _labels(cluster: Place) -> dict[str, str | None]:
    labels = cluster.get("labels")
    return {label: value.string for label, value in labels.entries()} if labels is not None else {}


def _nearest_labels(wanted: dict[str, str | None], clusters: Sequence[Named[Cluster]]) -> str | None:
    """Return a remedy for the first label or value that no cluster has."""
    labels = [_labels(cluster.place) for cluster in clusters]
    for label, value in wanted.items():
        values = dict.fromkeys(each[label] or "" for each in labels if label in each)
        if not values:
            known = dict.fromkeys(key for each in labels for key in each)
            return f"no cluster has the label {label}: {suggest(label, known)}"
        if value not in values:
            return f"no cluster has the label {label} with the value {value}: {suggest(value or '', values)}"
    return None


def _primary(context: Context, place: Place | None, names: Sequence[str]) -> str | None:
    if place is None or place.string is None:
        return None
    if place.string not in names:
        context.error(place, f"there is no cluster {place.shown}", suggest(place.string, names))
        return None
    return place.string


def _reads(context: Context, place: Place | None, keeps_state: bool) -> Reads:
    reads = read(context, place, Reads)
    if place is None:
        return reads
    for key in _OF_MEMBERS:
        written = place.get(key)
        if written is not None and reads.authorize is ReadAuthorization.SERVER:
            what = "belongs to authorize: Members, and this is authorize: Server: no member is asked"
            context.warn(written, "no-effect", what, "take it out, or write authorize: Members")
        elif written is not None and key == "staleDecisions" and reads.stale_decisions and not keeps_state:
            what = "a restart forgets the decisions, because there is no daemon.stateDir"
            context.warn(written, "no-state-dir", what, _KEEPS)
    return reads


def _cache(context: Context, place: Place | None, members: Sequence[str], keeps_state: bool) -> Cache:
    entries = list(place.children("resources")) if place is not None else []
    resources = tuple(_resource(context, entry, members) for entry in entries)
    cache = read(context, place, Cache, resources=resources)
    check_cached_resources(context, entries, cache.resources)
    persist = place.get("persistSecrets") if place is not None else None
    if persist is not None and cache.persist_secrets:
        if not any(each.group == "" and each.resource == "secrets" for each in cache.resources):
            what = 'no entry of resources names secrets, and "*" does not take them in'
            context.warn(persist, "no-effect", what, "take it out, or add secrets to resources")
        elif not keeps_state:
            what = "nothing is saved, because there is no daemon.stateDir"
            context.warn(persist, "no-state-dir", what, _KEEPS)
    return cache


def _resource(context: Context, place: Place, members: Sequence[str]) -> CachedResource:
    clusters = place.get("clusters")
    return read(
        context,
        place,
        CachedResource,
        namespaces=_distinct(context, place.get("namespaces")),
        clusters=references(context, clusters, members, "member") if clusters is not None else (),
    )


def _distinct(context: Context, places: Place | None) -> tuple[str, ...]:
    """Return the texts in a list, each once; a doubled one is warned of."""
    found: dict[str, Place] = {}
    for item in places.items() if places is not None else ():
        text = item.string or ""
        if text in found:
            what = f"{item.shown} is in the list already, at {found[text].mark}"
            context.warn(item, "no-effect", what, "keep one of the two")
        found.setdefault(text, item)
    return tuple(found)


def _create(context: Context, place: Place, members: Sequence[str]) -> tuple[CreateRule, ...]:
    return tuple(
        CreateRule(
            api_groups=_distinct(context, entry.get("apiGroups")),
            resources=_distinct(context, entry.get("resources")),
            to=_to(context, entry.get("to"), (*members, TO_PRIMARY, TO_LABEL)),
        )
        for entry in place.children("create")
    )


def _conflicts(context: Context, place: Place, members: Sequence[str]) -> tuple[ConflictRule, ...]:
    return tuple(
        read(
            context,
            entry,
            ConflictRule,
            api_groups=_distinct(context, entry.get("apiGroups")),
            resources=_distinct(context, entry.get("resources")),
            namespaces=_distinct(context, entry.get("namespaces")),
            to=_to(context, entry.get("to"), (*members, TO_PRIMARY)),
        )
        for entry in place.children("conflicts")
    )


def _to(context: Context, place: Place | None, choice: Sequence[str]) -> str:
    to = place.string if place is not None else None
    if place is not None and to is not None and to not in choice:
        context.error(place, f"there is no member {place.shown}", suggest(to, choice))
    return to or ""
