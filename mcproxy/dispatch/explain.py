"""Explains why a request matches a policy or no policy, as data and as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import RequestAttributes, compile_rule, resource_names
from mcproxy.kube.user import SERVICE_ACCOUNT_PREFIX, UserInfo

# The fields of a rule by their names in the configuration file.
_FIELDS = {
    "verbs": "verbs",
    "users": "users",
    "user_groups": "userGroups",
    "api_groups": "apiGroups",
    "resources": "resources",
    "resource_names": "resourceNames",
    "namespaces": "namespaces",
    "clusters": "clusters",
    "non_resource_urls": "nonResourceURLs",
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field of a rule that does not match a request."""

    field: str  # name of the field in the file; service accounts are part of "users"
    wanted: tuple[str, ...]  # the values of the rule; service accounts by their user names
    got: tuple[str, ...]  # the values of the request: one, or the user's groups

    def __str__(self) -> str:
        if not self.wanted:
            return f"{self.field} is empty"
        got = ", ".join(map(shown, self.got)) or "none"
        return f"{self.field} [{', '.join(map(shown, self.wanted))}] does not admit {got}"


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """Whether a rule matches, and the fields that do not."""

    number: int  # index in the list of rules, from 0
    mismatches: tuple[Mismatch, ...]

    @property
    def matches(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        return "; ".join(map(str, self.mismatches)) or "matches"


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """The verdicts of a policy's rules, up to the first matching rule."""

    number: int  # index in the server's list of policies, from 0
    name: str
    rules: tuple[RuleVerdict, ...]

    @property
    def matches(self) -> bool:
        return bool(self.rules) and self.rules[-1].matches


@dataclass(frozen=True, slots=True)
class Explanation:
    """The tried policies in order. The last one applies if it matches; later policies were not tried."""

    policies: tuple[PolicyVerdict, ...]

    @property
    def policy(self) -> PolicyVerdict | None:
        """The policy that applies."""
        return self.policies[-1] if self.policies and self.policies[-1].matches else None

    @property
    def rule(self) -> RuleVerdict | None:
        """The matching rule of the policy that applies."""
        return None if self.policy is None else self.policy.rules[-1]

    def lines(self) -> Iterator[str]:
        """Yield the explanation as text: a line for each tried rule."""
        for policy in self.policies:
            for rule in policy.rules:
                yield f"{title(policy.number, policy.name)}, rules[{rule.number}]: {rule}"


def explain(policies: Sequence[model.Policy], user: UserInfo, info: RequestAttributes, cluster: str) -> Explanation:
    """Try a server's policies in order, to explain the result of `PolicyIndex.find` for a request to `cluster`."""
    tried: list[PolicyVerdict] = []
    for number, policy in enumerate(policies):
        tried.append(PolicyVerdict(number, policy.name, explain_rules(policy.rules, user, info, cluster)))
        if tried[-1].matches:
            break
    return Explanation(tuple(tried))


def explain_rules(
    rules: Sequence[model.Rule], user: UserInfo, info: RequestAttributes, cluster: str
) -> tuple[RuleVerdict, ...]:
    """Try the rules of a policy or authorizer up to the first matching one."""
    verdicts: list[RuleVerdict] = []
    for number, rule in enumerate(rules):
        fields = compile_rule(rule).mismatches(user, info, cluster)
        verdicts.append(RuleVerdict(number, tuple(_mismatch(field, rule, user, info, cluster) for field in fields)))
        if verdicts[-1].matches:
            break
    return tuple(verdicts)


def title(number: int, name: str) -> str:
    """Return the position of a policy, with its name if it has one."""
    place = f"dispatch[{number}]"
    return place if name == place else f"{place} {shown(name)}"


def shown(value: str) -> str:
    """Return untrusted text in quotes, without control characters for the terminal."""
    return json.dumps(value)


def _mismatch(field: str, rule: model.Rule, user: UserInfo, info: RequestAttributes, cluster: str) -> Mismatch:
    wanted: tuple[str, ...] = getattr(rule, field)
    if field == "users":
        wanted += tuple(f"{SERVICE_ACCOUNT_PREFIX}{space}:{name}" for space, name in rule.service_accounts)
    return Mismatch(_FIELDS[field], wanted, _values(field, user, info, cluster))


def _values(field: str, user: UserInfo, info: RequestAttributes, cluster: str) -> tuple[str, ...]:
    """Return the values of a request to compare with a field of a rule."""
    if field == "user_groups":
        return user.groups
    if field == "resources":
        return resource_names(info)[:1]
    of_request = {
        "verbs": info.verb,
        "users": user.name,
        "api_groups": info.group,
        "resource_names": info.name,
        "namespaces": info.namespace,
        "clusters": cluster,
        "non_resource_urls": info.path,
    }
    return (of_request[field],)
