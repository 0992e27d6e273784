"""Reads the section `aggregates`: several clusters served as one.

`config.checks.aggregate_access` checks the requirements on servers that use an aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import (
    TO_LABEL,
    TO_PRIMARY,
    Aggregate,
    Cache,
    CachedResource,
    ClusterConfig,
    ConflictRule,
    CreateRule,
    ReadAuthorization,
    ReadsConfig,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, Sections, reference, references
from mcproxy.config.sections.model_reader import read, texts
from mcproxy.config.sections.rule_names import RuleReport, check_cached_resource, check_rule_names
from mcproxy.config.suggestions import suggest

# -- Entries of `cache.resources` and rules of `create` and `conflicts` that have no effect ----------------------------
# An entry has no effect if another entry already selects the same objects. A rule is never reached if an earlier rule
# matches the same objects, and matches nothing if the cache does not read its objects.

_WITHOUT_NAMESPACES = frozenset({"componentstatuses", "namespaces", "nodes", "persistentvolumes"})
"""Cluster-scoped resources of the core group."""


def check_cached_resources(context: Context, places: Sequence[Place], entries: Sequence[CachedResource]) -> None:
    """Warn of each entry that another entry includes, and of names that are unknown in Kubernetes.

    `places` are the places of the entries. Partly overlapping entries add up. Entries with errors are skipped.
    """
    good = [(place, entry) for place, entry in zip(places, entries, strict=True) if _is_good(place)]
    for number, (place, entry) in enumerate(good):
        for other, (other_place, wider) in enumerate(good):
            # Report the second of two equal entries.
            if other != number and has_all(wider, entry) and not (other > number and has_all(entry, wider)):
                what = f"adds nothing: {other_place.key} ({other_place.mark}) has all of it"
                context.warn(place, "no-effect", what, "keep one of the two")
                break
        check_cached_resource(context, place)


def _is_good(place: Place) -> bool:
    return not place.is_broken and all(place.has(key) for key in ("group", "version", "resource"))


def has_all(wider: CachedResource, entry: CachedResource) -> bool:
    """Return whether `wider` selects all objects that `entry` selects."""
    return (
        wider.version == entry.version
        and wider.names(entry.group, entry.resource)
        and _all_of(wider.namespaces, entry.namespaces)
        and _all_of(wider.clusters, entry.clusters)
    )


def _all_of(wider: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether `wider` includes all of `names`; an empty list means all names."""
    return not wider or (bool(names) and set(names) <= set(wider))


def check_create_rules(
    context: Context, aggregate: Place, rules: Sequence[CreateRule], cache: Cache, members: Sequence[str]
) -> None:
    """Warn of rules that are never reached or match nothing, or that create objects in a member that is not read."""
    places, scope = list(aggregate.children("create")), aggregate.get("cache")
    resources = scope.get("resources") if scope is not None else None
    for number, (place, rule) in enumerate(zip(places, rules, strict=True)):
        check_rule_names(RuleReport(context), place)
        if place.is_broken:
            continue
        earlier = [(places[i], one) for i, one in enumerate(rules[:number]) if covers(one, rule)]
        if earlier:
            what = f"is never reached, because {earlier[0][0].key} ({earlier[0][0].mark}) matches all that it matches"
            context.warn(place, "shadowed-rule", what, "put it first, narrow the earlier one, or take it out")
            continue
        matched = [entry for entry in cache.resources if matches(rule, entry)]
        if not matched and resources is not None and not resources.is_broken:
            what = "matches none of cache.resources, and what is not cached goes to the primary without a rule"
            context.warn(place, "matches-nothing", what, "take it out, or add the resource to cache.resources")
            continue
        to = place.get("to")
        is_member = rule.to in members and rule.to not in (TO_PRIMARY, TO_LABEL)
        if (
            matched
            and to is not None
            and is_member
            and not any(not each.clusters or rule.to in each.clusters for each in matched)
        ):
            what = f"what is created in {rule.to} is not seen: no entry of cache.resources reads it from there"
            context.warn(to, "unseen-objects", what, f"name another member, or add {rule.to} to clusters of the entry")


def check_conflict_rules(
    context: Context,
    aggregate: Place,
    rules: Sequence[ConflictRule],
    cache: Cache,
    members: Sequence[str],
    primary: str | None,
) -> None:
    """Report `to: Primary` if the primary is no member; warn of rules that are never reached or match nothing."""
    places, scope = list(aggregate.children("conflicts")), aggregate.get("cache")
    resources = scope.get("resources") if scope is not None else None
    scope_is_known = resources is not None and not resources.is_broken
    for number, (place, rule) in enumerate(zip(places, rules, strict=True)):
        check_rule_names(RuleReport(context), place)
        to = place.get("to")
        if place.is_broken or to is None:
            continue
        if rule.to == TO_PRIMARY and primary is not None and primary not in members:
            what = f"the primary {primary} is no member, so nothing of it is shown here"
            context.error(to, what, "name a member, or add the primary to clusters")
            continue
        earlier = [places[i] for i, one in enumerate(rules[:number]) if conflict_covers(one, rule)]
        if earlier:
            what = f"is never reached, because {earlier[0].key} ({earlier[0].mark}) matches all that it matches"
            context.warn(place, "shadowed-rule", what, "put it first, narrow the earlier one, or take it out")
        elif scope_is_known:
            _check_conflict_scope(context, place, to, rule, cache, members, primary)


def _check_conflict_scope(
    context: Context,
    place: Place,
    to: Place,
    rule: ConflictRule,
    cache: Cache,
    members: Sequence[str],
    primary: str | None,
) -> None:
    """Warn of a rule whose objects are read from fewer than two members, or not from the member that it chooses."""
    if rule.namespaces and set(rule.api_groups) == {""} and _WITHOUT_NAMESPACES.issuperset(rule.resources):
        what = f"{', '.join(rule.resources)}: they are in no namespace"
        context.warn(place, "matches-nothing", what, "take out namespaces")
        return
    matched = [entry for entry in cache.resources if conflict_matches(rule, entry)]
    if not matched:
        what = "matches none of cache.resources, and what is not cached goes to the primary"
        context.warn(place, "matches-nothing", what, "take it out, or add the resource to cache.resources")
        return
    read = [name for name in members if any(not each.clusters or name in each.clusters for each in matched)]
    if len(read) < 2:
        what = f"is for objects that only one member has: {', '.join(read) or 'none'}"
        context.warn(place, "matches-nothing", what, "take it out, or read the resource from more members")
        return
    chosen = primary if rule.to == TO_PRIMARY else rule.to
    if chosen in members and chosen not in read:
        what = f"never decides: no entry of cache.resources reads from {chosen} what it matches"
        context.warn(to, "matches-nothing", what, f"name another member, or add {chosen} to clusters of the entry")


def covers(one: CreateRule | ConflictRule, other: CreateRule | ConflictRule) -> bool:
    """Return whether `one` matches all groups and resources that `other` matches."""
    return all(
        "*" in mine or set(theirs) <= set(mine)
        for mine, theirs in ((one.api_groups, other.api_groups), (one.resources, other.resources))
    )


def conflict_covers(one: ConflictRule, other: ConflictRule) -> bool:
    """Return whether `one` matches all objects that `other` matches."""
    return covers(one, other) and _all_of(one.namespaces, other.namespaces)


def matches(rule: CreateRule | ConflictRule, entry: CachedResource) -> bool:
    """Return whether a rule matches, by group and name, some resource of an entry."""
    if "*" not in rule.api_groups and entry.group not in rule.api_groups:
        return False
    return "*" in rule.resources or any(entry.names(entry.group, resource) for resource in rule.resources)


def conflict_matches(rule: ConflictRule, entry: CachedResource) -> bool:
    """Return whether a rule matches some object of an entry."""
    if rule.namespaces and entry.namespaces and set(rule.namespaces).isdisjoint(entry.namespaces):
        return False
    return matches(rule, entry)


# -- aggregates -------------------------------------------------------------------------------------------------------

_OF_MEMBERS = ("cacheAllowed", "cacheDenied", "staleDecisions")
_KEEPS = "add daemon: {stateDir: /var/lib/mcproxy}, or take it out"


def aggregate(context: Context, place: Place, sections: Sections) -> Aggregate | None:
    """Return the aggregate at `place`, with its selector resolved."""
    keeps_state = sections.merged.setting("daemon", "stateDir") is not None
    former = _former_members(context, place)
    members = _members(context, place, sections.clusters, former)
    primary = reference(context, place.get("primary"), sections.clusters.names, "cluster")
    # A wrong name of a member is reported in `clusters`; other uses of the name count it as a member.
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
    """Return the names in `clusters` that only keep their position. These clusters need not be defined."""
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
    context: Context, place: Place, clusters: ListSection[ClusterConfig], former: Sequence[str]
) -> tuple[str, ...]:
    written, selector = place.get("clusters"), place.get("clusterSelector")
    if written is not None:
        listed = references(context, written, [*clusters.names, *former], "cluster")
        found = tuple(name for name in listed if name not in former)
        if not found and len(former) == len(list(written.items())):
            context.warn(written, "no-members", "has no members, so every list is empty", "name a cluster")
        return found
    if selector is None:
        return ()
    wanted = {label: value.string for label, value in selector.entries()}
    selected = [cluster for cluster in clusters if cluster.name and wanted.items() <= _labels(cluster.place).items()]
    if not selected and not context.offline:  # a label can be a variable that is not set here
        have = "no cluster has these labels" if clusters else "there are no clusters"
        right = _nearest_labels(wanted, clusters) or "give a cluster these labels, or name clusters"
        context.warn(selector, "no-members", f"{have}, so the aggregate has no members", right)
    return tuple(dict.fromkeys(cluster.name for cluster in selected if cluster.name))


def _labels(cluster: Place) -> dict[str, str | None]:
    labels = cluster.get("labels")
    return {label: value.string for label, value in labels.entries()} if labels is not None else {}


def _nearest_labels(wanted: dict[str, str | None], clusters: ListSection[ClusterConfig]) -> str | None:
    """Return a remedy that names the first label or value which no cluster has."""
    labels = [_labels(cluster.place) for cluster in clusters]
    for label, value in wanted.items():
        values = dict.fromkeys(each[label] or "" for each in labels if label in each)
        if not values:
            known = dict.fromkeys(key for each in labels for key in each)
            return f"no cluster has the label {label}: {suggest(label, known)}"
        if value not in values:
            return f"no cluster has the label {label} with the value {value}: {suggest(value or '', values)}"
    return None


def _reads(context: Context, place: Place | None, keeps_state: bool) -> ReadsConfig:
    reads = read(context, place, ReadsConfig)
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
    return read(
        context,
        place,
        CachedResource,
        namespaces=_distinct(context, place.get("namespaces")),
        clusters=references(context, place.get("clusters"), members, "member"),
    )


def _distinct(context: Context, places: Place | None) -> tuple[str, ...]:
    """Return the strings in a list, each once; warn of duplicates."""
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
    reference(context, place, choice, "member")
    return (place.string if place is not None else None) or ""
