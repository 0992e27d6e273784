"""Chooses the member whose object a name refers to when several have it (an aggregate's `conflicts` rules). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.sequence import key_of
from mcproxy.config.model import TO_PRIMARY, Show

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot
    from mcproxy.config.model import Aggregate, ConflictRule
    from mcproxy.kube.resource import GroupVersionResource


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The rules for one resource, in the order of the file."""

    rules: tuple[ConflictRule, ...] = ()
    primary: str | None = None

    @property
    def shows_one(self) -> bool:
        """Whether lists and watches may have to hide objects."""
        return any(rule.show is Show.ONE for rule in self.rules)

    def shows_one_in(self, namespace: str) -> bool:
        """Whether they may have to in a namespace; "" is all of them, or a resource that has none."""
        return self.shows_one and (not namespace or self.shown(namespace) is not None)

    @property
    def all_shown(self) -> tuple[str, ...]:
        """The members whose objects are shown alone, each once, in the order of the rules."""
        return tuple(dict.fromkeys(self._member(rule) for rule in self.rules if rule.show is Show.ONE))

    def chosen(self, namespace: str) -> str | None:
        """Return the member whose object a name in a namespace means, where it has one; None without a rule.

        `namespace` is "" for a resource that has none. A rule whose member is not part of a request does not apply; the
        caller must check that.
        """
        rule = self._rule(namespace)
        return None if rule is None else self._member(rule)

    def shown(self, namespace: str) -> str | None:
        """Return the chosen member if only its object is shown in lists and watches; None: all are shown."""
        rule = self._rule(namespace)
        return self._member(rule) if rule is not None and rule.show is Show.ONE else None

    def _rule(self, namespace: str) -> ConflictRule | None:
        return next((rule for rule in self.rules if rule.matches_namespace(namespace)), None)

    def _member(self, rule: ConflictRule) -> str:
        return rule.to if rule.to != TO_PRIMARY else self.primary or ""


NO_RULES = Conflicts()


def conflicts_of(aggregate: Aggregate, gvr: GroupVersionResource) -> Conflicts:
    """Return the rules for a resource."""
    rules = tuple(rule for rule in aggregate.conflicts if rule.matches(gvr.group, gvr.resource))
    return Conflicts(rules, aggregate.primary) if rules else NO_RULES


# -- names that several members have --------------------------------------------------------------------------


_BEHIND_SLASH = "0"  # the character after the slash
_BEHIND_KEY = "\0"  # nothing stands between a key and the key with this behind it


class DuplicateNames:
    """Finds names that several states have, in steps that each look at one range of keys in all states.

    `places` has, for each key (`namespace/name`) of which several states have an object, their places in the order
    of the states; complete when `step` has returned False.
    """

    __slots__ = ("_ranges", "_snapshots", "places")

    def __init__(self, snapshots: Sequence[Snapshot], namespace: str = "", name: str = "") -> None:
        """`namespace` and `name`: only those; "" is all. A name needs its namespace, if the resource has them."""
        self.places: dict[str, list[int]] = {}
        self._snapshots = tuple(snapshots)
        self._ranges = self._all_ranges(namespace, name) if len(self._snapshots) > 1 else iter(())

    def step(self) -> bool:
        """Look at one more range; return whether there may be another."""
        found = next(self._ranges, None)
        if found is None:
            return False
        start, end = found
        first: dict[str, int] = {}
        for place, snapshot in enumerate(self._snapshots):
            for item in snapshot.objects.between(start, end):
                key = key_of(item)
                before = first.setdefault(key, place)
                if before != place:
                    self.places.setdefault(key, [before]).append(place)
        return True

    def _all_ranges(self, namespace: str, name: str) -> Iterator[tuple[str, str | None]]:
        """Yield ranges of keys that have at most about one chunk of each state."""
        if name:
            key = f"{namespace}/{name}"
            yield key, key + _BEHIND_KEY
            return
        start, end = (f"{namespace}/", namespace + _BEHIND_SLASH) if namespace else ("", None)
        firsts = {key_of(chunk[0]) for snapshot in self._snapshots for chunk in snapshot.objects.chunks[1:]}
        edges = sorted(key for key in firsts if start < key and (end is None or key < end))
        for edge in edges:
            yield start, edge
            start = edge
        yield start, end
