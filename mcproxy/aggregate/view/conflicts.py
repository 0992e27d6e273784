"""Chooses the member whose object a name refers to when several have it (an aggregate's `conflicts` rules). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.config.model import TO_PRIMARY, Show

if TYPE_CHECKING:
    from mcproxy.config.model import Aggregate, ConflictRule
    from mcproxy.kube.resource import GroupVersionResource


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The rules for one resource, in the order of the file."""

    rules: tuple[ConflictRule, ...] = ()
    primary: str | None = None

    @property
    def shows_one(self) -> bool:
        """Whether lists and watches may have to leave objects out."""
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

        `namespace` is "" for a resource that has none. A rule whose member is not among those of a request does not
        count for it; that is for the caller to see.
        """
        rule = self._rule(namespace)
        return None if rule is None else self._member(rule)

    def shown(self, namespace: str) -> str | None:
        """Return the chosen member where its object alone is shown in lists and watches; None: all are shown."""
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
