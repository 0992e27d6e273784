"""Compares the lists of rules as sets of names: whether one set covers or intersects another.

The comparisons find policies that requests can bypass, or that are never reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mcproxy.config.model import Policy, Rule
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place


@dataclass(frozen=True, slots=True)
class NameSet:
    """The names that match one of a list's items or, with `inverted`, that match no item."""

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
    """Whether item `one` matches all names that `other` matches: */status covers pods/status, a-* covers a-b*."""
    if one == other:
        return True
    if one.startswith("*/"):
        return other.endswith(one[1:]) and other.count("/") == 1
    return one.endswith("*") and other.startswith(one[:-1])


def _apart(one: str, other: str) -> bool:
    """Whether no name matches both items, which is true unless one covers the other."""
    return not (_item_covers(one, other) or _item_covers(other, one))


def covers(one: NameSet, other: NameSet, *, groups: bool = False) -> bool:
    """Whether `one` matches all names that `other` matches; with `groups`, for users with several names."""
    if one.everything or other.nothing:
        return True
    if not one.inverted:
        return not other.inverted and all(any(_item_covers(a, b) for a in one.items) for b in other.items)
    if other.inverted:
        return all(any(_item_covers(b, a) for b in other.items) for a in one.items)
    # A user in a listed group can also be in an excluded group.
    return not groups and all(_apart(a, b) for a in one.items for b in other.items)


def intersect(one: NameSet, other: NameSet, *, groups: bool = False) -> bool:
    """Whether some name is in both sets; with `groups`, whether a user in several groups can match both."""
    if one.nothing or other.nothing:
        return False
    if one.inverted and other.inverted:
        return True  # infinitely many names remain
    if one.inverted or other.inverted:
        excluded, listed = (one, other) if one.inverted else (other, one)
        return any(not any(_item_covers(out, item) for out in excluded.items) for item in listed.items)
    return groups or any(not _apart(a, b) for a in one.items for b in other.items)


@dataclass(frozen=True, slots=True)
class RuleHalf:
    """The half of a rule for resource requests, or the half for other URLs, with a set for each of its lists."""

    sets: tuple[NameSet, ...]
    users: tuple[NameSet, ...]  # one of these sets must match
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
    # Item by item, because another rule can list some of them as users and others as service accounts.
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


# -- Policies that reject requests by name or namespace, although a request over all names or namespaces passes --------
# A list request has the name "", and a list over all namespaces has the namespace "". So a rule with `namespaces:
# [kube-system]` or `resourceNames: [x]` does not match it, and the response has the objects that the policy protects.

_NO_NAME = NameSet(("",))
_READS = ("get", "list", "watch")


def warn_of_partial_rejects(context: Context, places: Sequence[Place], policies: Sequence[Policy]) -> None:
    """Warn of names and namespaces in rejecting policies that requests over all names or namespaces bypass.

    `places` are the places of the policies.
    """
    if not any(_is_partial(rule) for policy in policies if policy.reject is not None for rule in policy.rules):
        return
    serving = _Serving(policies)
    for place, policy in zip(places, policies, strict=True):
        if policy.reject is None:
            continue
        for rule_place, rule in zip(place.children("rules"), policy.rules, strict=True):
            for key, verb, wide in _wide_requests(rule):
                number = serving.first(wide)
                written = rule_place.get(key)
                if number is None or written is None:
                    continue
                over = "all namespaces" if key == "namespaces" else "all names"
                server = f"{policies[number].name} ({places[number].mark})"
                what = f"keeps nothing back: {server} lets a {verb} over {over} pass"
                context.warn(written, "partial-reject", what, f'add "" to {key}, which stands for such requests')
                break


def _is_partial(rule: Rule) -> bool:
    return any(names and not covers(name_set(names, ALL), _NO_NAME) for names in (rule.resource_names, rule.namespaces))


def _wide_requests(rule: Rule) -> Iterator[tuple[str, str, RuleHalf]]:
    """Yield key, verb and requests over all names or namespaces that return or delete objects of the rule."""
    verbs = name_set(rule.verbs, NOTHING)
    for key, names in (("resourceNames", rule.resource_names), ("namespaces", rule.namespaces)):
        if covers(name_set(names, ALL), _NO_NAME):
            continue
        wide = replace(rule, resource_names=("",))
        undone = ["list", "watch"] if any(covers(verbs, NameSet((verb,))) for verb in _READS) else []
        if key == "namespaces":
            wide = replace(wide, namespaces=("",))
        elif any(covers(verbs, NameSet((verb,))) for verb in ("delete", "deletecollection")):
            undone.append("deletecollection")  # only in one namespace: Kubernetes has none over all namespaces
        for verb in undone:
            yield key, verb, halves_of(replace(wide, verbs=(verb,)))[0]


class _Serving:
    """Finds the policy that serves requests over all names; equal requests are looked up once."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._found: dict[RuleHalf, int | None] = {}
        self._policies: list[tuple[int, bool, list[RuleHalf]]] = []  # policy number, whether it rejects, rules
        for number, policy in enumerate(policies):
            # A rejecting rule with names cannot cover requests without one.
            rules = [rule for rule in policy.rules if policy.reject is None or not _is_partial(rule)]
            if rules:
                self._policies.append((number, policy.reject is not None, [halves_of(rule)[0] for rule in rules]))

    def first(self, wide: RuleHalf) -> int | None:
        """Return the number of the first policy that serves some of these requests, unless all are rejected before."""
        if wide not in self._found:
            self._found[wide] = self._first(wide)
        return self._found[wide]

    def _first(self, wide: RuleHalf) -> int | None:
        for number, rejects, rules in self._policies:
            if rejects and any(rule.covers(wide) for rule in rules):
                return None
            if not rejects and any(rule.intersects(wide) for rule in rules):
                return number
        return None


# -- Policies that are never reached, because earlier policies match all their requests --------------------------------
# The check is sound but not complete: every reported policy is shadowed, but not all shadowed policies are found. A
# rule has two halves, for resources and for other URLs, since different earlier policies can cover them. A single
# earlier rule must cover each half, list by list.
#
# To cover a later rule, an earlier one must have in each list an item that covers the first item of the later rule's
# list. An index of these items avoids the pairwise comparison of a thousand policies.


@dataclass(slots=True)
class _Index:
    """The earlier rule halves of one kind, indexed by the items of their lists."""

    halves: list[tuple[int, RuleHalf]] = field(default_factory=list)  # numbers of policies
    # For each list: positions of halves with a given item, and positions of halves that can cover any item.
    _by_item: dict[int, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    _broad: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, policy: int, half: RuleHalf) -> None:
        place = len(self.halves)
        self.halves.append((policy, half))
        for number, each in enumerate(_indexed(half)):
            if each is None or each.inverted or any("*" in item for item in each.items):
                self._broad[number].append(place)
            else:
                for item in each.items:
                    self._by_item[number][item].append(place)

    def covering(self, half: RuleHalf) -> int | None:
        """Return the number of the first policy that covers `half`."""
        places: Sequence[Sequence[int]] = [range(len(self.halves))]
        for number, each in enumerate(_indexed(half)):
            if each is None or each.inverted:
                continue
            candidates = [self._by_item[number].get(each.items[0], []), self._broad[number]]
            if sum(map(len, candidates)) < sum(map(len, places)):
                places = candidates
        # Each list of positions is in the order of the policies.
        firsts = (next((place for place in some if self.halves[place][1].covers(half)), None) for some in places)
        return min((self.halves[place][0] for place in firsts if place is not None), default=None)


def _indexed(half: RuleHalf) -> Iterator[NameSet | None]:
    """Yield the sets by which halves are indexed; None if users are inverted."""
    yield from half.sets
    yield half.groups
    if any(each.inverted for each in half.users):
        yield None
    else:
        yield NameSet(tuple(item for each in half.users for item in each.items))


def warn_of_shadowed(context: Context, places: Sequence[Place], policies: Sequence[Policy]) -> None:
    """Warn of each policy that earlier policies shadow; `places` are the places of the policies."""
    earlier = _Index(), _Index()
    for number, (place, policy) in enumerate(zip(places, policies, strict=True)):
        halves = [(index, half) for rule in policy.rules for index, half in zip(earlier, halves_of(rule), strict=True)]
        live = [(index, half) for index, half in halves if not half.empty]
        hiding = {index.covering(half) for index, half in live}
        if hiding and None not in hiding:
            names = [f"{policies[i].name} ({places[i].mark})" for i in sorted(i for i in hiding if i is not None)]
            matches = "matches" if len(names) == 1 else "match"
            what = f"is never reached, because {' and '.join(names)} before it {matches} all that it matches"
            context.warn(place, "shadowed-policy", what, "put it first, narrow the earlier one, or take it out")
        for index, half in live:
            index.add(number, half)
