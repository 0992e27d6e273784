"""Policies that are never reached, because earlier ones match all that they match.

The check is sound but not complete: every policy that it reports is shadowed, but it does not find all shadowed ones.
A rule counts as two, one for resources and one for other URLs, since one earlier policy may cover the first half and
another the second; each half must be covered by a single earlier rule, list by list.

To cover a later rule, an earlier one must have in each list something that covers the first item of the later one's.
Rules are looked up by that, so that a thousand policies are not compared pairwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mcproxy.config.model import Policy
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.rule_checks.rule_sets import NameSet, RuleHalf, halves_of


@dataclass(slots=True)
class _Index:
    """The earlier rule halves of one kind, indexed by what covers the first item of a list."""

    halves: list[tuple[int, RuleHalf]] = field(default_factory=list)  # numbers of policies
    # For each list: the places of halves that have an item, and of those that may cover any item.
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
        # Each list of places is in the order of the policies.
        firsts = (next((place for place in some if self.halves[place][1].covers(half)), None) for some in places)
        return min((self.halves[place][0] for place in firsts if place is not None), default=None)


def _indexed(half: RuleHalf) -> Iterator[NameSet | None]:
    """Yield the sets by which halves are found; None stands for users of several kinds."""
    yield from half.sets
    yield half.groups
    if any(each.inverted for each in half.users):
        yield None
    else:
        yield NameSet(tuple(item for each in half.users for item in each.items))


def warn_of_shadowed(context: Context, places: Sequence[Place], policies: Sequence[Policy]) -> None:
    """Warn of each policy that earlier ones always shadow; `places` are those of the policies."""
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
