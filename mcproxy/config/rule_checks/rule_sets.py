"""The lists of rules as sets of names: whether one covers another, and whether they intersect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcproxy.config.model import Rule


@dataclass(frozen=True, slots=True)
class NameSet:
    """The names that a list matches: those that match one of its items, or none of them with `inverted`."""

    items: tuple[str, ...]
    inverted: bool = False

    @property
    def everything(self) -> bool:
        return self.inverted and not self.items

    @property
    def nothing(self) -> bool:
        return not self.inverted and not self.items


ALL, NOTHING = NameSet((), inverted=True), NameSet(())


def name_set(items: Sequence[str], empty: NameSet) -> NameSet:
    if not items:
        return empty
    if "*" in items:
        return ALL
    plain = tuple(item for item in items if not item.startswith("-"))
    return NameSet(plain) if plain else NameSet(tuple(item[1:] for item in items), inverted=True)


def _item_covers(one: str, other: str) -> bool:
    """Whether item `one` matches everything that `other` does: */status covers pods/status, a-* covers a-b*."""
    if one == other:
        return True
    if one.startswith("*/"):
        return other.endswith(one[1:]) and other.count("/") == 1
    return one.endswith("*") and other.startswith(one[:-1])


def _apart(one: str, other: str) -> bool:
    """Whether no name matches both items. Two patterns are apart unless one is a prefix of the other."""
    return not (_item_covers(one, other) or _item_covers(other, one))


def covers(one: NameSet, other: NameSet, *, groups: bool = False) -> bool:
    """Whether `one` matches everything that `other` does; with `groups`, of a user who may have several names."""
    if one.everything or other.nothing:
        return True
    if not one.inverted:
        return not other.inverted and all(any(_item_covers(a, b) for a in one.items) for b in other.items)
    if other.inverted:
        return all(any(_item_covers(b, a) for b in other.items) for a in one.items)
    # A user in a listed group may be in an excluded one as well.
    return not groups and all(_apart(a, b) for a in one.items for b in other.items)


def intersect(one: NameSet, other: NameSet, *, groups: bool = False) -> bool:
    """Whether some name is in both sets; with `groups`, whether a user in several groups matches both."""
    if one.nothing or other.nothing:
        return False
    if one.inverted and other.inverted:
        return True  # there are more names than both exclude
    if one.inverted or other.inverted:
        excluded, listed = (one, other) if one.inverted else (other, one)
        return any(not any(_item_covers(out, item) for out in excluded.items) for item in listed.items)
    return groups or any(not _apart(a, b) for a in one.items for b in other.items)


@dataclass(frozen=True, slots=True)
class RuleHalf:
    """The part of a rule for resource requests, or the part for other URLs: a set for each of its lists."""

    sets: tuple[NameSet, ...]
    users: tuple[NameSet, ...]  # one of them must match
    groups: NameSet

    @property
    def empty(self) -> bool:
        return any(each.nothing for each in self.sets)

    def covers(self, other: RuleHalf) -> bool:
        return (
            all(map(covers, self.sets, other.sets))
            and covers(self.groups, other.groups, groups=True)
            and all(any(covers(mine, theirs) for mine in self.users) for theirs in other.users)
        )

    def intersects(self, other: RuleHalf) -> bool:
        """Whether some request matches both."""
        return (
            all(map(intersect, self.sets, other.sets))
            and intersect(self.groups, other.groups, groups=True)
            and any(intersect(mine, theirs) for mine in self.users for theirs in other.users)
        )


def halves_of(rule: Rule) -> tuple[RuleHalf, RuleHalf]:
    """Return the halves of a rule: for resources, and for other URLs."""
    verbs, clusters = name_set(rule.verbs, NOTHING), name_set(rule.clusters, ALL)
    accounts = tuple(NameSet((f"system:serviceaccount:{space}:{name}",)) for space, name in rule.service_accounts)
    listed = name_set(rule.users, NOTHING if accounts else ALL)
    # Item by item, because another rule may list some as users and some as service accounts.
    users = (listed,) if listed.inverted else tuple(NameSet((item,)) for item in listed.items)
    groups = name_set(rule.user_groups, ALL)
    resources = (
        verbs,
        clusters,
        name_set(rule.api_groups, NOTHING),
        name_set(rule.resources, NOTHING),
        name_set(rule.resource_names, ALL),
        name_set(rule.namespaces, ALL),
    )
    urls = (verbs, clusters, name_set(rule.non_resource_urls, NOTHING))
    return RuleHalf(resources, (*users, *accounts), groups), RuleHalf(urls, (*users, *accounts), groups)
