"""KubeGateway's matcher, as its code does it: the oracle for what an import may allow.

Source: kubewharf/kubegateway, pkg/apis/proxy/v1alpha1/evaluation_helpers.go and pkg/clusters/matcher.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    user: str
    groups: tuple[str, ...]
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def is_resource(self) -> bool:
        return bool(self.resource)


@dataclass(frozen=True)
class _Item:
    reverse: bool
    value: str

    def match(self, request: str) -> bool:
        return (self.value != request) if self.reverse else (self.value == request)


def _filter(rules: Sequence[str]) -> tuple[list[_Item], bool]:
    filtered: list[_Item] = []
    reverse: list[_Item] = []
    for rule in rules:
        if rule == "*":
            return filtered, True
        if rule.startswith("-"):
            reverse.append(_Item(True, rule[1:]))
        else:
            filtered.append(_Item(False, rule))
    return filtered or reverse, False


def _simple(rules: Sequence[str], requests: Sequence[str], also: Callable[[_Item], bool] | None = None) -> bool:
    filtered, everything = _filter(rules)
    if everything:
        return True
    return any(any(item.match(r) for r in requests) or (also is not None and also(item)) for item in filtered)


def _resource(rules: Sequence[str], request: Request) -> bool:
    combined = f"{request.resource}/{request.subresource}" if request.subresource else request.resource

    def also(item: _Item) -> bool:
        if not request.subresource or not item.value.startswith("*/"):
            return False
        return (item.value == f"*/{request.subresource}") is not item.reverse

    return _simple(rules, [combined], also)


def _user(rule: dict[str, Any], name: str) -> bool:
    users, accounts = rule.get("users", []), rule.get("serviceAccounts", [])
    if not users and not accounts:
        return True
    if _simple(users, [name], lambda item: item.value.endswith("*") and name.startswith(item.value.rstrip("*"))):
        return True
    return any(
        each.get("namespace") and each.get("name")
        and name == f"system:serviceaccount:{each['namespace']}:{each['name']}"
        for each in accounts
    )  # fmt: skip


def _url(rules: Sequence[str], path: str) -> bool:
    filtered, everything = _filter(rules)
    if everything:
        return True
    return any(
        not item.reverse
        and (item.match(path) or (item.value.endswith("*") and path.startswith(item.value.rstrip("*"))))
        for item in filtered
    )


def rule_matches(rule: dict[str, Any], request: Request) -> bool:
    groups = rule.get("userGroups", [])
    if not (_simple(rule.get("verbs", []), [request.verb]) and _user(rule, request.user)):
        return False
    if groups and not _simple(groups, request.groups):
        return False
    if not request.is_resource:
        return _url(rule.get("nonResourceURLs", []), request.path)
    names = rule.get("resourceNames", [])
    return (
        _simple(rule.get("apiGroups", []), [request.group])
        and _resource(rule.get("resources", []), request)
        and (not names or _simple(names, [request.name]))
    )


def policy_of(policies: Sequence[dict[str, Any]], request: Request) -> int | None:
    """Return the place of the policy that applies, None where none does: then the answer is 500."""
    for place, policy in enumerate(policies):
        if any(rule_matches(rule, request) for rule in policy.get("rules", [])):
            return place
    return None
