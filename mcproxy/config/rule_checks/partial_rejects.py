"""Policies that reject requests by name or namespace, while a request over all of them passes.

A list over all namespaces has the namespace "", and a list has the name "": a rule with `namespaces: [kube-system]` or
`resourceNames: [x]` does not match it, and the response contains the objects that the policy protects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mcproxy.config.model import Policy, Rule
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.rule_checks.rule_sets import ALL, NOTHING, NameSet, RuleHalf, covers, halves_of, name_set

_NO_NAME = NameSet(("",))
_READS = ("get", "list", "watch")


def warn_of_partial_rejects(context: Context, places: Sequence[Place], policies: Sequence[Policy]) -> None:
    """Warn of names and namespaces in rejecting policies that requests over all of them bypass.

    `places` are those of the policies.
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
            undone.append("deletecollection")  # there is none over all namespaces
        for verb in undone:
            yield key, verb, halves_of(replace(wide, verbs=(verb,)))[0]


class _Serving:
    """Finds the policy that serves requests over all names; equal requests are looked up once."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._found: dict[RuleHalf, int | None] = {}
        self._policies: list[tuple[int, bool, list[RuleHalf]]] = []  # number, whether it rejects, rules
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
