"""Create rules of an aggregate that never apply, or whose objects the aggregate would not show."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.context import Context
from mcproxy.config.model import TO_LABEL, TO_PRIMARY, Cache, CachedResource, CreateRule
from mcproxy.config.reading.nodes import Place


def check_create_rules(
    context: Context, aggregate: Place, rules: Sequence[CreateRule], cache: Cache, members: Sequence[str]
) -> None:
    """Warn of rules that are never reached, that match nothing, and that create where nothing is read from."""
    places, scope = list(aggregate.children("create")), aggregate.get("cache")
    resources = scope.get("resources") if scope is not None else None
    for number, (place, rule) in enumerate(zip(places, rules, strict=True)):
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


def covers(one: CreateRule, other: CreateRule) -> bool:
    """Whether `one` matches all that `other` does."""
    return all(
        "*" in mine or set(theirs) <= set(mine)
        for mine, theirs in ((one.api_groups, other.api_groups), (one.resources, other.resources))
    )


def matches(rule: CreateRule, entry: CachedResource) -> bool:
    """Whether a rule matches some resource of an entry."""
    if "*" not in rule.api_groups and entry.group not in rule.api_groups:
        return False
    return "*" in rule.resources or any(entry.names(entry.group, resource) for resource in rule.resources)
