"""Compiles rules; tests whether a rule matches a request, and finds the first matching rule of a list.

`CompiledRule.matches` defines matching, field by field. `RuleSet` gives the same result for a whole list at once and
caches it. Both accept all objects with the attributes of `RequestAttributes`, so that authorizers use the same rules.

In a list of a rule, `*` matches all values. Otherwise plain items match the values that equal one of them, and inverted
items in the same list are ignored. A list of only inverted items matches the values that equal none of them. In fields
with globs an item that ends in a star matches every value with that prefix. Source: the table of reference "dispatch",
and RBAC for cases that the table omits.

A `FieldIndex` returns the rules that match a value as the bits of an integer. After one look-up for each field and a
few conjunctions, the highest remaining bit is the first matching rule. A thousand rules are integers of 125 bytes, so
the time hardly grows with their number, in whichever field they differ. The first rule has the highest bit, because
integers get shorter when only later rules remain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from mcproxy.config import model
from mcproxy.kube.user import SERVICE_ACCOUNT_PREFIX, UserInfo

_NOTHING = (0, 0)
_Key = Callable[[Any], object]
_LONGEST_KEY = 1024
"""Maximum of characters of a cache key; decisions with longer keys are not cached."""


class RequestAttributes(Protocol):
    """The attributes of a RequestInfo or of a review. In a non-resource request, `verb` is the method."""

    @property
    def verb(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def subresource(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def is_resource(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule with its lists compiled. Resource fields are ignored for non-resource requests and vice versa."""

    verbs: ListMatcher
    users: ListMatcher
    service_accounts: frozenset[str]  # user names of the service accounts
    user_groups: ListMatcher
    api_groups: ListMatcher
    resources: ListMatcher
    resource_names: ListMatcher
    namespaces: ListMatcher
    clusters: ListMatcher
    non_resource_urls: ListMatcher

    def matches(self, user: UserInfo, info: RequestAttributes, cluster: str) -> bool:
        """Return whether the rule matches a request of `user` to `cluster`."""
        return next(self.mismatches(user, info, cluster), None) is None

    def mismatches(self, user: UserInfo, info: RequestAttributes, cluster: str) -> Iterator[str]:
        """Yield the names (in `model.Rule`) of the fields that do not match a request."""
        if not self.verbs.matches(info.verb):
            yield "verbs"
        if not (self.users.matches(user.name) or user.name in self.service_accounts):
            yield "users"
        if not self.user_groups.matches(*user.groups):
            yield "user_groups"
        if info.is_resource:
            yield from self._resource_mismatches(info)
        elif not self.non_resource_urls.matches(info.path):
            yield "non_resource_urls"
        if not self.clusters.matches(cluster):
            yield "clusters"

    def _resource_mismatches(self, info: RequestAttributes) -> Iterator[str]:
        if not self.api_groups.matches(info.group):
            yield "api_groups"
        if not self.resources.matches(*resource_names(info)):
            yield "resources"
        if not self.resource_names.matches(info.name):
            yield "resource_names"
        if not self.namespaces.matches(info.namespace):
            yield "namespaces"


def resource_names(info: RequestAttributes) -> tuple[str, ...]:
    """Return the items of a `resources` list that match a request's resource."""
    if info.subresource:
        return f"{info.resource}/{info.subresource}", f"*/{info.subresource}"
    return (info.resource,)


def compile_rule(rule: model.Rule) -> CompiledRule:
    """Compile the lists of a rule."""
    return CompiledRule(
        verbs=list_matcher(rule.verbs, empty=NONE),
        users=list_matcher(rule.users, empty=NONE if rule.service_accounts else ALL, globs=True),
        service_accounts=frozenset(f"{SERVICE_ACCOUNT_PREFIX}{space}:{name}" for space, name in rule.service_accounts),
        user_groups=list_matcher(rule.user_groups, empty=ALL, globs=True),
        api_groups=list_matcher(rule.api_groups, empty=NONE),
        resources=list_matcher(rule.resources, empty=NONE),
        resource_names=list_matcher(rule.resource_names, empty=ALL, globs=True),
        namespaces=list_matcher(rule.namespaces, empty=ALL, globs=True),
        clusters=list_matcher(rule.clusters, empty=ALL, globs=True),
        non_resource_urls=list_matcher(rule.non_resource_urls, empty=NONE, inverts=False, globs=True),
    )


class RuleSet:
    """A list of rules and a cache of its latest decisions.

    A cache key contains only attributes that some rule uses: if no rule names objects, requests for a thousand objects
    share one decision. Clients choose such names, so the number and length of keys are bounded.
    """

    __slots__ = (
        "_cache_size",
        "_clusters",
        "_count",
        "_groups",
        "_names",
        "_namespaces",
        "_old",
        "_path_key",
        "_recent",
        "_resource_key",
        "_resources",
        "_urls",
        "_user_groups",
        "_user_key",
        "_users",
        "_verbs",
    )

    def __init__(self, rules: Iterable[model.Rule], *, cache_size: int = 2048) -> None:
        """`cache_size`: half of the maximum number of cached decisions."""
        compiled = [compile_rule(rule) for rule in rules]  # not kept, because decisions need only the indexes
        self._count = len(compiled)
        self._verbs = FieldIndex([rule.verbs for rule in compiled])
        self._users = FieldIndex([rule.users for rule in compiled], [rule.service_accounts for rule in compiled])
        self._user_groups = FieldIndex([rule.user_groups for rule in compiled])
        self._groups = FieldIndex([rule.api_groups for rule in compiled])
        self._resources = FieldIndex([rule.resources for rule in compiled])
        self._names = FieldIndex([rule.resource_names for rule in compiled])
        self._namespaces = FieldIndex([rule.namespaces for rule in compiled])
        self._clusters = FieldIndex([rule.clusters for rule in compiled])
        self._urls = FieldIndex([rule.non_resource_urls for rule in compiled])
        self._user_key, self._resource_key, self._path_key = self._keys()
        self._cache_size = cache_size
        # Two generations: when the new one is full, it becomes the old one. A used decision moves to the new one.
        self._recent: dict[object, int] = {}
        self._old: dict[object, int] = {}

    def match(self, user: UserInfo, info: RequestAttributes, cluster: str) -> bool:
        """Whether any rule matches a request of `user` to `cluster`."""
        return self.first(user, info, cluster) >= 0

    def first(self, user: UserInfo, info: RequestAttributes, cluster: str) -> int:
        """Return the index of the first rule that matches, -1 if none does."""
        request = self._resource_key(info) if info.is_resource else self._path_key(info)
        key = (request, self._user_key(user), cluster)
        found = self._recent.get(key)
        return self._decide(key, user, info, cluster) if found is None else found

    def cached(self) -> int:
        """The number of cached decisions."""
        return len(self._recent) + len(self._old)

    def _decide(self, key: object, user: UserInfo, info: RequestAttributes, cluster: str) -> int:
        found = self._old.get(key)
        if found is None:
            matching = self._matching(user, info, cluster)
            found = self._count - matching.bit_length() if matching else -1
            if _length(user, info) > _LONGEST_KEY:
                return found
        if len(self._recent) >= self._cache_size:
            self._old, self._recent = self._recent, {}
        self._recent[key] = found
        return found

    def _matching(self, user: UserInfo, info: RequestAttributes, cluster: str) -> int:
        """Return the matching rules as bits; the first rule is the highest bit."""
        found = self._verbs.match(info.verb) & self._users.match(user.name) & self._user_groups.match_any(user.groups)
        if info.is_resource:
            resources = self._resources
            found &= self._groups.match(info.group) & self._names.match(info.name)
            found &= self._namespaces.match(info.namespace)
            found &= resources.match_any(resource_names(info)) if info.subresource else resources.match(info.resource)
        else:
            found &= self._urls.match(info.path)
        return found & self._clusters.match(cluster)

    def _keys(self) -> tuple[_Key, _Key, _Key]:
        """Return the functions that make cache keys: for the user, a resource request, and a non-resource request."""
        user = [name for name, table in (("name", self._users), ("groups", self._user_groups)) if table.discriminates]
        resource = [
            name
            for name, table in (
                ("group", self._groups),
                ("resource", self._resources),
                ("subresource", self._resources),
                ("namespace", self._namespaces),
                ("name", self._names),
            )
            if table.discriminates
        ]
        path = ["path"] if self._urls.discriminates else []
        # `is_resource` distinguishes a path from a group.
        request = ("is_resource", "verb")
        return attrgetter(*user) if user else _any_user, attrgetter(*request, *resource), attrgetter(*request, *path)


def _any_user(_user: UserInfo) -> None:
    """Return the same key for all users if no rule uses users."""


def _length(user: UserInfo, info: RequestAttributes) -> int:
    length = len(user.name) + sum(map(len, user.groups))
    if not info.is_resource:
        return length + len(info.path)
    return length + sum(map(len, (info.group, info.resource, info.subresource, info.namespace, info.name)))


class PolicyIndex:
    """Finds the policy of a request: only the server's first policy with a matching rule applies.

    Built once for each server of a Runtime; its cache of decisions is bounded (`RuleSet`).
    """

    __slots__ = ("_numbers", "_rules")

    def __init__(self, policies: Sequence[model.Policy]) -> None:
        self._rules = RuleSet(rule for policy in policies for rule in policy.rules)
        # The policy of each rule; the last item (index -1) means no match.
        self._numbers: tuple[int | None, ...] = (
            *(number for number, policy in enumerate(policies) for _ in policy.rules),
            None,
        )

    def find(self, user: UserInfo, info: RequestAttributes, cluster: str) -> int | None:
        """Return the index of the policy that applies to a request of `user` to `cluster`; None if none matches."""
        return self._numbers[self._rules.first(user, info, cluster)]


@dataclass(frozen=True, slots=True)
class ListMatcher:
    """Matches the listed values, or with `inverted` all other values."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    inverted: bool = False

    def lists(self, value: str) -> bool:
        """Return whether a value is listed, inverted or not."""
        return value in self.exact or value.startswith(self.prefixes)

    def matches(self, *values: str) -> bool:
        """Return whether the list matches a set of names, such as a user's groups; the set can be empty."""
        return any(map(self.lists, values)) is not self.inverted


ALL = ListMatcher(inverted=True)


NONE = ListMatcher()


def list_matcher(items: Sequence[str], *, empty: ListMatcher, inverts: bool = True, globs: bool = False) -> ListMatcher:
    """Compile a list. `empty`: the result for an empty list. The loader refuses items that can never match."""
    if not items:
        return empty
    if "*" in items:
        return ALL
    plain = [item for item in items if not (inverts and item.startswith("-"))]
    if plain:
        return _listed(plain, inverted=False, globs=globs)
    return _listed((item[1:] for item in items), inverted=True, globs=globs)


def _listed(items: Iterable[str], *, inverted: bool, globs: bool) -> ListMatcher:
    exact, prefixes = set(), set()
    for item in items:
        if globs and item.endswith("*"):
            prefixes.add(item[:-1])
        else:
            exact.add(item)
    return ListMatcher(frozenset(exact), tuple(sorted(prefixes)), inverted)


class FieldIndex:
    """An index of one field's lists in all rules. A listed value adds rules, or removes rules with inverted lists."""

    __slots__ = ("_base", "_exact", "_lengths", "_prefixes", "_single")

    def __init__(self, matchers: Sequence[ListMatcher], also: Sequence[Collection[str]] = ()) -> None:
        """`also`: for each rule, further values that it matches regardless of its list."""
        self._base = 0  # the rules that match an unlisted value
        self._exact: dict[str, tuple[int, int]] = {}
        self._prefixes: dict[str, tuple[int, int]] = {}
        last = len(matchers) - 1
        for number, matcher in enumerate(matchers):
            bit = 1 << last - number
            self._base |= bit if matcher.inverted else 0
            _mark(self._exact, matcher.exact, bit, matcher.inverted)
            _mark(self._prefixes, matcher.prefixes, bit, matcher.inverted)
        for number, values in enumerate(also):
            _mark(self._exact, values, 1 << last - number, inverted=False)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        # Without globs: the complete result.
        answers = {} if self._lengths else self._exact
        self._single = {value: self._base & ~removed | added for value, (added, removed) in answers.items()}

    @property
    def discriminates(self) -> bool:
        """Whether any list names a value."""
        return bool(self._exact or self._prefixes)

    def match(self, value: str) -> int:
        """Return the rules that match a value."""
        if self._lengths:
            return self.match_any((value,))
        return self._single.get(value, self._base)

    def match_any(self, values: Iterable[str]) -> int:
        """Return the rules that match a set of names, which may be empty."""
        added = removed = 0
        exact, prefixes, lengths = self._exact, self._prefixes, self._lengths
        for value in values:
            found = exact.get(value)
            if found is not None:
                added |= found[0]
                removed |= found[1]
            size = len(value)
            for length in lengths:
                if length > size:
                    break
                found = prefixes.get(value[:length])
                if found is not None:
                    added |= found[0]
                    removed |= found[1]
        if not removed:
            return self._base | added if added else self._base
        # Plain items are added last, because service accounts count in addition to inverted users.
        return self._base & ~removed | added


def _mark(table: dict[str, tuple[int, int]], values: Iterable[str], bit: int, inverted: bool) -> None:
    for value in values:
        added, removed = table.get(value, _NOTHING)
        table[value] = (added, removed | bit) if inverted else (added | bit, removed)
