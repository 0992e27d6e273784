"""Rules, compiled: does one match a request, and which of many is the first that does?

`CompiledRule.matches` says what matching means, field by field; `Rules` gives the same answer for a whole list at once
and remembers it. Both take anything that has the attributes of `Asked`, so that authorizers use the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from mcproxy.config import model
from mcproxy.dispatch.fields import ALL, NONE, Choice, choice
from mcproxy.dispatch.masks import Table
from mcproxy.kube.user import SERVICE_ACCOUNT_PREFIX, UserInfo

_Key = Callable[[Any], object]

_LONGEST_KEY = 1024
"""About how many characters a decision may be remembered under; what is longer is judged each time."""


class Asked(Protocol):
    """What is asked for: a RequestInfo, or the attributes of a review. `verb` is the method where no resource is."""

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
    """A rule with its lists read. Those of resources are not looked at for other requests, nor the other way round."""

    verbs: Choice
    users: Choice
    service_accounts: frozenset[str]  # their user names
    user_groups: Choice
    api_groups: Choice
    resources: Choice
    resource_names: Choice
    namespaces: Choice
    clusters: Choice
    non_resource_urls: Choice

    def matches(self, user: UserInfo, info: Asked, cluster: str) -> bool:
        """Judge a request of `user` to `cluster`."""
        return next(self.refusals(user, info, cluster), None) is None

    def refusals(self, user: UserInfo, info: Asked, cluster: str) -> Iterator[str]:
        """Yield the fields that do not admit a request, by their names in `model.Rule`."""
        if not self.verbs.admits(info.verb):
            yield "verbs"
        if not (self.users.admits(user.name) or user.name in self.service_accounts):
            yield "users"
        if not self.user_groups.admits(*user.groups):
            yield "user_groups"
        if info.is_resource:
            yield from self._resource_refusals(info)
        elif not self.non_resource_urls.admits(info.path):
            yield "non_resource_urls"
        if not self.clusters.admits(cluster):
            yield "clusters"

    def _resource_refusals(self, info: Asked) -> Iterator[str]:
        if not self.api_groups.admits(info.group):
            yield "api_groups"
        if not self.resources.admits(*resource_names(info)):
            yield "resources"
        if not self.resource_names.admits(info.name):
            yield "resource_names"
        if not self.namespaces.admits(info.namespace):
            yield "namespaces"


def resource_names(info: Asked) -> tuple[str, ...]:
    """Return what a list of resources may call a request's resource."""
    if info.subresource:
        return f"{info.resource}/{info.subresource}", f"*/{info.subresource}"
    return (info.resource,)


def compile_rule(rule: model.Rule) -> CompiledRule:
    """Read the lists of a rule."""
    return CompiledRule(
        verbs=choice(rule.verbs, empty=NONE),
        users=choice(rule.users, empty=NONE if rule.service_accounts else ALL, globs=True),
        service_accounts=frozenset(f"{SERVICE_ACCOUNT_PREFIX}{space}:{name}" for space, name in rule.service_accounts),
        user_groups=choice(rule.user_groups, empty=ALL, globs=True),
        api_groups=choice(rule.api_groups, empty=NONE),
        resources=choice(rule.resources, empty=NONE),
        resource_names=choice(rule.resource_names, empty=ALL, globs=True),
        namespaces=choice(rule.namespaces, empty=ALL, globs=True),
        clusters=choice(rule.clusters, empty=ALL, globs=True),
        non_resource_urls=choice(rule.non_resource_urls, empty=NONE, inverts=False, globs=True),
    )


class Rules:
    """A list of rules and the decisions that it made lately.

    A decision is remembered under what some rule looks at, and nothing else: where no rule names objects, requests for
    a thousand of them are one decision. Clients choose these names, so their number and length are bounded here.
    """

    __slots__ = (
        "_clusters",
        "_count",
        "_groups",
        "_names",
        "_namespaces",
        "_old",
        "_path_key",
        "_recent",
        "_remembered",
        "_resource_key",
        "_resources",
        "_urls",
        "_user_groups",
        "_user_key",
        "_users",
        "_verbs",
    )

    def __init__(self, rules: Iterable[model.Rule], *, remembered: int = 2048) -> None:
        """Of the decisions twice `remembered` are kept at most."""
        compiled = [compile_rule(rule) for rule in rules]  # not kept: the tables are all that decisions need
        self._count = len(compiled)
        self._verbs = Table([rule.verbs for rule in compiled])
        self._users = Table([rule.users for rule in compiled], [rule.service_accounts for rule in compiled])
        self._user_groups = Table([rule.user_groups for rule in compiled])
        self._groups = Table([rule.api_groups for rule in compiled])
        self._resources = Table([rule.resources for rule in compiled])
        self._names = Table([rule.resource_names for rule in compiled])
        self._namespaces = Table([rule.namespaces for rule in compiled])
        self._clusters = Table([rule.clusters for rule in compiled])
        self._urls = Table([rule.non_resource_urls for rule in compiled])
        self._user_key, self._resource_key, self._path_key = self._keys()
        self._remembered = remembered
        # Two generations: a full one becomes the old one, whose decisions come back when they are asked for again.
        self._recent: dict[object, int] = {}
        self._old: dict[object, int] = {}

    def match(self, user: UserInfo, info: Asked, cluster: str) -> bool:
        """Whether any rule matches a request of `user` to `cluster`."""
        return self.first(user, info, cluster) >= 0

    def first(self, user: UserInfo, info: Asked, cluster: str) -> int:
        """Return the place of the first rule that matches, -1 if none does."""
        asked = self._resource_key(info) if info.is_resource else self._path_key(info)
        key = (asked, self._user_key(user), cluster)
        found = self._recent.get(key)
        return self._judge(key, user, info, cluster) if found is None else found

    def remembered(self) -> int:
        """Return how many decisions are kept."""
        return len(self._recent) + len(self._old)

    def _judge(self, key: object, user: UserInfo, info: Asked, cluster: str) -> int:
        found = self._old.get(key)
        if found is None:
            left = self._left(user, info, cluster)
            found = self._count - left.bit_length() if left else -1
            if _length(user, info) > _LONGEST_KEY:
                return found
        if len(self._recent) >= self._remembered:
            self._old, self._recent = self._recent, {}
        self._recent[key] = found
        return found

    def _left(self, user: UserInfo, info: Asked, cluster: str) -> int:
        """Return the rules that match, as bits; the first is the highest."""
        left = self._verbs.of(info.verb) & self._users.of(user.name) & self._user_groups.of_any(user.groups)
        if info.is_resource:
            resources = self._resources
            left &= self._groups.of(info.group) & self._names.of(info.name) & self._namespaces.of(info.namespace)
            left &= resources.of_any(resource_names(info)) if info.subresource else resources.of(info.resource)
        else:
            left &= self._urls.of(info.path)
        return left & self._clusters.of(cluster)

    def _keys(self) -> tuple[_Key, _Key, _Key]:
        """Return what a decision is remembered under: of a user, of a request for a resource, of another request."""
        user = [name for name, table in (("name", self._users), ("groups", self._user_groups)) if table.decides]
        resource = [
            name
            for name, table in (
                ("group", self._groups),
                ("resource", self._resources),
                ("subresource", self._resources),
                ("namespace", self._namespaces),
                ("name", self._names),
            )
            if table.decides
        ]
        path = ["path"] if self._urls.decides else []
        # With `is_resource` in front a path can never be taken for a group.
        asked = ("is_resource", "verb")
        return attrgetter(*user) if user else _nobody, attrgetter(*asked, *resource), attrgetter(*asked, *path)


def _nobody(_user: UserInfo) -> None:
    """Stand for any user where no rule looks at users."""


def _length(user: UserInfo, info: Asked) -> int:
    length = len(user.name) + sum(map(len, user.groups))
    if not info.is_resource:
        return length + len(info.path)
    return length + sum(map(len, (info.group, info.resource, info.subresource, info.namespace, info.name)))
