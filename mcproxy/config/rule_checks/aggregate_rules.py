"""Entries and rules of an aggregate that have no effect: entries of `cache.resources`, `create` and `conflicts` rules.

An entry adds nothing where another one already selects the same objects. A rule is never reached where an earlier one
matches all that it matches, and matches nothing where the cache does not read what it is for.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import TO_LABEL, TO_PRIMARY, Cache, CachedResource, ConflictRule, CreateRule
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.rule_checks.rule_names import RuleReport, check_cached_resource, check_rule_names

_WITHOUT_NAMESPACES = frozenset({"componentstatuses", "namespaces", "nodes", "persistentvolumes"})
"""Cluster-scoped resources of the core group."""


def check_cached_resources(context: Context, places: Sequence[Place], entries: Sequence[CachedResource]) -> None:
    """Warn of each entry that another entry includes, and of names that Kubernetes does not have.

    `places` are those of the entries. Entries that overlap in part add up. Entries with errors are skipped.
    """
    good = [(place, entry) for place, entry in zip(places, entries, strict=True) if _is_good(place)]
    for number, (place, entry) in enumerate(good):
        for other, (other_place, wider) in enumerate(good):
            # Of two equal entries the second is reported.
            if other != number and has_all(wider, entry) and not (other > number and has_all(entry, wider)):
                what = f"adds nothing: {other_place.key} ({other_place.mark}) has all of it"
                context.warn(place, "no-effect", what, "keep one of the two")
                break
        check_cached_resource(context, place)


def _is_good(place: Place) -> bool:
    return not place.is_broken and all(place.has(key) for key in ("group", "version", "resource"))


def has_all(wider: CachedResource, entry: CachedResource) -> bool:
    """Return whether `wider` includes `entry`, for any set of resources, namespaces and members."""
    return (
        wider.version == entry.version
        and wider.names(entry.group, entry.resource)
        and _all_of(wider.namespaces, entry.namespaces)
        and _all_of(wider.clusters, entry.clusters)
    )


def _all_of(wider: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a list includes all names of another; an empty list means all names."""
    return not wider or (bool(names) and set(names) <= set(wider))


def check_create_rules(
    context: Context, aggregate: Place, rules: Sequence[CreateRule], cache: Cache, members: Sequence[str]
) -> None:
    """Warn of rules that are never reached or match nothing, and of rules that create in a member that is not read."""
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
    """Report `to: Primary` where the primary is no member; warn of rules that are never reached or match nothing."""
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
    """Warn of a rule for objects that are read from fewer than two members, or not from the member that it chooses."""
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
        what = f"is for what one member alone has: {', '.join(read) or 'none'}"
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
    """Return whether a rule matches some resource of an entry, by group and resource."""
    if "*" not in rule.api_groups and entry.group not in rule.api_groups:
        return False
    return "*" in rule.resources or any(entry.names(entry.group, resource) for resource in rule.resources)


def conflict_matches(rule: ConflictRule, entry: CachedResource) -> bool:
    """Return whether a rule matches some object of an entry."""
    if rule.namespaces and entry.namespaces and set(rule.namespaces).isdisjoint(entry.namespaces):
        return False
    return matches(rule, entry)
