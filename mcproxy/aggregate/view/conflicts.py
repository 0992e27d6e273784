"""Chooses the member whose object a name refers to if several members have it (`conflicts` of an aggregate). Pure."""

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
    """The `conflicts` rules for one resource, in the order of the configuration."""

    rules: tuple[ConflictRule, ...] = ()
    primary: str | None = None

    @property
    def shows_one(self) -> bool:
        """Whether a rule can make lists and watches hide objects."""
        return any(rule.show is Show.ONE for rule in self.rules)

    def shows_one_in(self, namespace: str) -> bool:
        """Whether a rule can hide objects in a namespace; "" is all namespaces, or a cluster-scoped resource."""
        return self.shows_one and (not namespace or self.shown(namespace) is not None)

    @property
    def all_shown(self) -> tuple[str, ...]:
        """The members whose object a rule shows alone of its name, each member once, in the order of the rules."""
        return tuple(dict.fromkeys(self._member(rule) for rule in self.rules if rule.show is Show.ONE))

    def chosen(self, namespace: str) -> str | None:
        """Return the member that a rule chooses for names in a namespace; None without a rule. A name refers to the
        object of this member if the member has one.

        `namespace` is "" for a cluster-scoped resource. The caller must check that the member is part of the request,
        otherwise the rule does not apply.
        """
        rule = self._rule(namespace)
        return None if rule is None else self._member(rule)

    def shown(self, namespace: str) -> str | None:
        """Return the chosen member if lists and watches show only its object, None if they show all objects."""
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


# -- duplicate names ------------------------------------------------------------------------------------------


_BEHIND_SLASH = "0"  # the character after the slash
_BEHIND_KEY = "\0"  # no key sorts between a key and the same key with this suffix


class DuplicateNames:
    """Finds names that several states have, in steps that each compare one range of keys in all states.

    `places` maps each key (`namespace/name`) that several states have to the indexes of these states. It is complete
    when `step` has returned False.
    """

    __slots__ = ("_ranges", "_snapshots", "places")

    def __init__(self, snapshots: Sequence[Snapshot], namespace: str = "", name: str = "") -> None:
        """`namespace` and `name` restrict the search; "" is all. A namespaced name needs its namespace."""
        self.places: dict[str, list[int]] = {}
        self._snapshots = tuple(snapshots)
        self._ranges = self._all_ranges(namespace, name) if len(self._snapshots) > 1 else iter(())

    def step(self) -> bool:
        """Compare one more range; return whether there can be another one."""
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
        """Yield ranges of keys that each contain about one chunk per state at most."""
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
