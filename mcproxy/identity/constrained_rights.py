"""Computes the proxy's rights for constrained impersonation (KEP-5284) in a cluster, for the requests that servers
allow.

It is a part of `identity.required_rights` and replaces the verb `impersonate`: the rights are for the users, and for
each verb on each resource that the configuration allows. RBAC has neither exclusions nor name patterns, so a rule with
one is granted without the restriction. Source: k8s.io/apiserver `pkg/endpoints/filters/impersonation/mode.go`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import ALL, NONE, list_matcher
from mcproxy.identity.right import Right
from mcproxy.kube.builtin_resources import METHODS, RESOURCE_VERBS
from mcproxy.kube.constrained_impersonation import (
    ARBITRARY_NODE,
    GROUP,
    SERVICE_ACCOUNT,
    USER_INFO,
    is_allowed_extra,
    verb_of,
    verb_on,
)

_EVERYTHING = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
_STAR = ("*",)
_VERBS = tuple(verb for verb in RESOURCE_VERBS if verb != "proxy")  # verbs of paths that no cluster has had for years
_OF_OBJECTS = frozenset({"update", "patch", "delete"})
_MODES = (USER_INFO, SERVICE_ACCOUNT, ARBITRARY_NODE)

NAMES_USERS = Right("names the user of a request to the cluster", verb_of(USER_INFO), "users", GROUP)
"""The right by which the proxy detects that a cluster lets it impersonate by modes."""


class _Requests(NamedTuple):
    """A set of requests: for resources, or for `urls`. ("*",) means all; for names and namespaces, () means all."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def covers(self, other: _Requests) -> bool:
        return (
            set(other.verbs) <= set(self.verbs)
            and all(
                mine == _STAR or set(theirs) <= set(mine) for mine, theirs in zip(self[1:3], other[1:3], strict=True)
            )
            and all(
                not mine or (bool(theirs) and set(theirs) <= set(mine))
                for mine, theirs in zip(self[3:5], other[3:5], strict=True)
            )
            and bool(self.urls) is bool(other.urls)
            and (self.urls == _STAR or set(other.urls) <= set(self.urls))
        )


def constrained_rights(
    config: model.Config, cluster: model.ClusterConfig, servers: Sequence[model.Server]
) -> Iterator[Right]:
    """Yield the rights for the requests that `servers` can send to `cluster`."""
    of_users = NAMES_USERS.verb
    yield NAMES_USERS
    yield Right("names the user's groups", of_users, "groups", GROUP)
    if cluster.impersonate_extras == _STAR:
        yield Right("names the user's uid and all extras (impersonateExtras)", of_users, "*", GROUP)
    else:
        yield Right("names the user's uid", of_users, "uids", GROUP)
        for key in cluster.impersonate_extras:
            if is_allowed_extra(key):
                why = f"names the user's extra {key} (impersonateExtras)"
                yield Right(why, of_users, f"userextras/{key}", GROUP)
    yield Right("names service accounts", verb_of(SERVICE_ACCOUNT), "serviceaccounts", GROUP)
    yield Right("names nodes", verb_of(ARBITRARY_NODE), "nodes", GROUP)
    for names, requests in _of_servers(config, cluster, servers):
        yield from _rights(f"requests that users may make (server {', '.join(names)})", requests)


def refused_extras(cluster: model.ClusterConfig) -> list[str]:
    """Return the keys of `impersonateExtras` that no right allows."""
    return [key for key in cluster.impersonate_extras if key != "*" and not is_allowed_extra(key)]


def _of_servers(
    config: model.Config, cluster: model.ClusterConfig, servers: Sequence[model.Server]
) -> Iterator[tuple[list[str], _Requests]]:
    """Yield distinct sets of requests with the servers that allow them; sets that other sets cover are omitted."""
    by_requests: dict[_Requests, list[str]] = {}
    for server in servers:
        for each in dict.fromkeys(_let_through(config, cluster, server)):
            by_requests.setdefault(each, []).append(server.name)
    for requests, names in by_requests.items():
        if not any(other is not requests and other.covers(requests) for other in by_requests):
            yield names, requests


def _let_through(config: model.Config, cluster: model.ClusterConfig, server: model.Server) -> Iterator[_Requests]:
    authorization = next((each for each in config.authorization if each.name == server.authorization), None)
    only_rules = authorization is not None and authorization.subject_access_review is None
    allowed = authorization.rules or () if authorization is not None and only_rules else (_EVERYTHING,)
    is_aggregate = isinstance(server.backend, model.AggregateBackendConfig)
    for rule in allowed:
        for other in _sent(server, cluster.name):
            if not all(
                list_matcher(each.clusters, empty=ALL, globs=True).matches(cluster.name) for each in (rule, other)
            ):
                continue
            for requests in (_resources(rule, other), _urls(rule, other)):
                if requests is not None:
                    yield requests
                    if is_aggregate and not requests.urls:
                        yield from _looked_up(requests)


def _sent(server: model.Server, cluster: str) -> Iterator[model.Rule]:
    """Yield rules for the requests that a server sends to a cluster, by its policies or for an API service."""
    for service in server.api_services:
        if service.cluster == cluster:
            path = f"/apis/{service.group_version}"
            group = service.group_version.partition("/")[0]
            yield model.Rule(verbs=_STAR, api_groups=(group,), resources=_STAR, non_resource_urls=(path, f"{path}/*"))
    if server.dispatch is None:
        if cluster in server.clusters:
            yield _EVERYTHING
        return
    for policy in server.dispatch:
        here = cluster in server.clusters if policy.backend is None else policy.backend.cluster == cluster
        if policy.reject is None and here:
            yield from policy.rules


def _resources(one: model.Rule, other: model.Rule) -> _Requests | None:
    names = _named(one.resource_names, other.resource_names)
    namespaces = _named(one.namespaces, other.namespaces)
    if names is None or namespaces is None:
        return None
    groups, resources = _both(one.api_groups, other.api_groups), _both(one.resources, other.resources)
    found = _Requests(_verbs(one, other, _VERBS), groups, resources, names, namespaces)
    return found if found.verbs and groups and resources else None


def _urls(one: model.Rule, other: model.Rule) -> _Requests | None:
    verbs, urls = _verbs(one, other, METHODS), _both(one.non_resource_urls, other.non_resource_urls)
    return _Requests(verbs, urls=urls) if verbs and urls else None


def _looked_up(requests: _Requests) -> Iterator[_Requests]:
    """Yield an aggregate's additional requests to its members: gets of the object for a write or a subresource."""
    plain = tuple(dict.fromkeys(each.partition("/")[0] for each in requests.resources))
    if plain != requests.resources or (_OF_OBJECTS & set(requests.verbs) and "get" not in requests.verbs):
        yield requests._replace(verbs=("get",), resources=_STAR if "*" in plain else plain)


def _verbs(one: model.Rule, other: model.Rule, known: Sequence[str]) -> tuple[str, ...]:
    matchers = [list_matcher(each.verbs, empty=NONE) for each in (one, other)]
    return tuple(verb for verb in known if all(each.matches(verb) for each in matchers))


def _both(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """Return the items that both lists match; a list that excludes something counts as all."""
    if not one or not other:
        return ()
    whole = [each for each in (one, other) if "*" in each or all(item.startswith("-") for item in each)]
    if len(whole) == 2:
        return _STAR
    plain = [tuple(item for item in each if not item.startswith("-")) for each in (one, other) if each not in whole]
    if len(plain) == 1:
        return plain[0]
    mine, theirs = plain
    narrow = [item for item in mine if any(_within(item, wide) for wide in theirs)]
    return tuple(dict.fromkeys([*narrow, *(item for item in theirs if any(_within(item, wide) for wide in mine))]))


def _within(item: str, wide: str) -> bool:
    """Whether `wide` includes `item`, as /apis/* includes /apis/apps and */status includes pods/status."""
    if wide.startswith("*/"):
        return item == wide or (item.endswith(wide[1:]) and item.count("/") == 1)
    return item == wide or (wide.endswith("*") and item.startswith(wide[:-1]))


def _named(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names that both lists match, as RBAC can list them; () for all, None for none."""
    plain = [
        tuple(each)
        for each in (one, other)
        if each and not any(not item or item.startswith("-") or item.endswith("*") for item in each)
    ]
    if len(plain) < 2:
        return plain[0] if plain else ()
    return tuple(item for item in plain[0] if item in plain[1]) or None


def _rights(why: str, requests: _Requests) -> Iterator[Right]:
    for mode in _MODES:
        for verb in requests.verbs:
            on = verb_on(mode, verb)
            for url in requests.urls:
                yield Right(why, on, path=url)
            for namespace in requests.namespaces or ("",):
                for group in requests.groups:
                    for resource in requests.resources:
                        for name in requests.names or ("",):
                            yield Right(why, on, resource, group, namespace=namespace, name=name)
