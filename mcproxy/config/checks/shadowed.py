"""Policies that are never reached, because earlier ones match all that they match.

The check is sound but not complete: what it calls shadowed is shadowed, but it does not find every shadowed policy.
A rule counts as two, one for resources and one for other URLs, since one earlier policy may cover the first half and
another the second; each half must be covered by a single earlier rule, list by list.

To cover a later rule, an earlier one must have in each list something that covers the first item of the later one's.
Rules are looked up by that, so that a thousand policies are not compared pairwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mcproxy.config.context import Context
from mcproxy.config.model import Policy, Rule
from mcproxy.config.reading.nodes import Place


@dataclass(frozen=True, slots=True)
class _Set:
    """What a list admits: what equals one of its items (which may end in a star), or with `inverted` none of them."""

    items: tuple[str, ...]
    inverted: bool = False

    @property
    def everything(self) -> bool:
        return self.inverted and not self.items

    @property
    def nothing(self) -> bool:
        return not self.inverted and not self.items


_ALL, _NOTHING = _Set((), inverted=True), _Set(())


def _set(items: Sequence[str], empty: _Set) -> _Set:
    if not items:
        return empty
    if "*" in items:
        return _ALL
    plain = tuple(item for item in items if not item.startswith("-"))
    return _Set(plain) if plain else _Set(tuple(item[1:] for item in items), inverted=True)


def _item_covers(one: str, other: str) -> bool:
    """Whether all that `other` stands for, `one` stands for too. */status covers pods/status, a-* covers a-b*."""
    if one == other:
        return True
    if one.startswith("*/"):
        return other.endswith(one[1:]) and other.count("/") == 1
    return one.endswith("*") and other.startswith(one[:-1])


def _apart(one: str, other: str) -> bool:
    """Whether nothing is both. Two patterns with a star at the end are apart unless one begins like the other."""
    return not (_item_covers(one, other) or _item_covers(other, one))


def _covers(one: _Set, other: _Set, *, groups: bool = False) -> bool:
    """Whether all that `other` admits, `one` admits too. With `groups` a list is held against several names at once."""
    if one.everything or other.nothing:
        return True
    if not one.inverted:
        return not other.inverted and all(any(_item_covers(a, b) for a in one.items) for b in other.items)
    if other.inverted:
        return all(any(_item_covers(b, a) for b in other.items) for a in one.items)
    # Who is in a group that is listed may be in one that is excluded as well.
    return not groups and all(_apart(a, b) for a in one.items for b in other.items)


@dataclass(frozen=True, slots=True)
class _Half:
    """A rule as far as it is about resources, or about other URLs: a set for each of its lists."""

    sets: tuple[_Set, ...]
    users: tuple[_Set, ...]  # one of them admits
    groups: _Set

    @property
    def empty(self) -> bool:
        return any(each.nothing for each in self.sets)

    def covers(self, other: _Half) -> bool:
        return (
            all(map(_covers, self.sets, other.sets))
            and _covers(self.groups, other.groups, groups=True)
            and all(any(_covers(mine, theirs) for mine in self.users) for theirs in other.users)
        )


def _halves(rule: Rule) -> tuple[_Half, _Half]:
    """Return a rule for resources and for other URLs."""
    verbs, clusters = _set(rule.verbs, _NOTHING), _set(rule.clusters, _ALL)
    accounts = tuple(_Set((f"system:serviceaccount:{space}:{name}",)) for space, name in rule.service_accounts)
    listed = _set(rule.users, _NOTHING if accounts else _ALL)
    # Item by item, for an earlier rule may have some as users and some as service accounts.
    users = (listed,) if listed.inverted else tuple(_Set((item,)) for item in listed.items)
    groups = _set(rule.user_groups, _ALL)
    resources = (
        verbs,
        clusters,
        _set(rule.api_groups, _NOTHING),
        _set(rule.resources, _NOTHING),
        _set(rule.resource_names, _ALL),
        _set(rule.namespaces, _ALL),
    )
    urls = (verbs, clusters, _set(rule.non_resource_urls, _NOTHING))
    return _Half(resources, (*users, *accounts), groups), _Half(urls, (*users, *accounts), groups)


@dataclass(slots=True)
class _Index:
    """Earlier halves of one kind, to be found by what covers the first item of a list."""

    halves: list[tuple[int, _Half]] = field(default_factory=list)  # numbers of policies
    # For each list: the places of halves that have an item, and of those that may cover any item.
    _by_item: dict[int, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    _broad: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, policy: int, half: _Half) -> None:
        place = len(self.halves)
        self.halves.append((policy, half))
        for number, each in enumerate(_indexed(half)):
            if each is None or each.inverted or any("*" in item for item in each.items):
                self._broad[number].append(place)
            else:
                for item in each.items:
                    self._by_item[number][item].append(place)

    def covering(self, half: _Half) -> int | None:
        """Return the number of the first policy that covers `half`."""
        places: Sequence[Sequence[int]] = [range(len(self.halves))]
        for number, each in enumerate(_indexed(half)):
            if each is None or each.inverted:
                continue
            candidates = [self._by_item[number].get(each.items[0], []), self._broad[number]]
            if sum(map(len, candidates)) < sum(map(len, places)):
                places = candidates
        # Each list of places is in the order of the policies.
        firsts = (next((place for place in some if self.halves[place][1].covers(half)), None) for some in places)
        return min((self.halves[place][0] for place in firsts if place is not None), default=None)


def _indexed(half: _Half) -> Iterator[_Set | None]:
    """Yield the sets by which halves are found; None stands for users of several kinds."""
    yield from half.sets
    yield half.groups
    if any(each.inverted for each in half.users):
        yield None
    else:
        yield _Set(tuple(item for each in half.users for item in each.items))


def warn_of_shadowed(context: Context, places: Sequence[Place], policies: Sequence[Policy]) -> None:
    """Warn of each policy that earlier ones always shadow; `places` are those of the policies."""
    earlier = _Index(), _Index()
    for number, (place, policy) in enumerate(zip(places, policies, strict=True)):
        halves = [(index, half) for rule in policy.rules for index, half in zip(earlier, _halves(rule), strict=True)]
        live = [(index, half) for index, half in halves if not half.empty]
        hiding = {index.covering(half) for index, half in live}
        if hiding and None not in hiding:
            names = [f"{policies[i].name} ({places[i].mark})" for i in sorted(i for i in hiding if i is not None)]
            matches = "matches" if len(names) == 1 else "match"
            what = f"is never reached, because {' and '.join(names)} before it {matches} all that it matches"
            context.warn(place, what, "put it first, narrow the earlier one, or take it out")
        for index, half in live:
            index.add(number, half)
