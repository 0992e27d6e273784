"""The ways in which a client may be allowed to impersonate a user: the modes of KEP-5284, then the verb `impersonate`.

Source: k8s.io/apiserver `pkg/endpoints/filters/impersonation` (mode.go, constrained_impersonation.go, cache.go). A
cluster before Kubernetes 1.36 has no modes, and the proxy cannot ask whether one has: so a mode counts only where the
rights for it are written out in a role. By `*`, which includes a verb that no cluster has (`UNKNOWN`), they are no sign
of it, and who has that has `impersonate` as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.constrained_impersonation import (
    ASSOCIATED_NODE,
    GROUP,
    MANY,
    NODE_NAME_KEY,
    UNKNOWN,
    implied_groups,
    modes_for,
    node_name,
    refused_extra,
    refused_group,
    verb_of,
    verb_on,
)
from mcproxy.kube.user import ANONYMOUS_NAME, AUTHENTICATED, UNAUTHENTICATED, UserInfo, service_account

_ASSOCIATED_KEYS = "authentication.kubernetes.io/associated-node-keys"


class Asked(NamedTuple):
    """What the headers say, decoded; `extra` in the order of the headers, with keys in lower case."""

    name: str
    groups: tuple[str, ...]
    extra: dict[str, tuple[str, ...]]
    uid: str


class Step(NamedTuple):
    """All of `each` must be allowed, or `together` instead, which is asked first."""

    each: tuple[Attributes, ...]
    together: Attributes | None = None


class Way(NamedTuple):
    """One way: what must be allowed to `caller`, and who the request runs as then."""

    mode: str
    caller: UserInfo
    steps: tuple[Step, ...]
    user: UserInfo
    unknown: Attributes
    """What must not be allowed."""


def ways(caller: UserInfo, asked: Asked, on: Attributes) -> Iterator[Way]:
    """Yield the modes by which `caller` could be the user that is asked for in the request `on`, in order."""
    if refused_group(asked.groups) is not None or refused_extra(asked.extra):
        return
    node = node_name(asked.name)
    associated = (
        bool(node) and service_account(caller.name) is not None and dict(caller.extra).get(NODE_NAME_KEY) == (node,)
    )
    alone = not (asked.groups or asked.extra or asked.uid)
    for mode in modes_for(asked.name, by_name_alone=alone, associated=associated):
        who = caller
        if mode == ASSOCIATED_NODE:  # it sees of the extras their keys, and no name of the node
            keys = tuple(sorted(key for key, _ in caller.extra))
            who = replace(caller, extra=((_ASSOCIATED_KEYS, keys),))
        named = _named(mode, asked.name, node)
        steps = (Step((on._replace(verb=verb_on(mode, on.verb)),)), Step((named,)), *_others(mode, asked))
        groups = asked.groups or implied_groups(asked.name) or ()
        user = impersonated(asked, groups)
        yield Way(mode, who, steps, user, named._replace(verb=UNKNOWN))


def impersonated(asked: Asked, groups: tuple[str, ...]) -> UserInfo:
    """Return the user, with the groups that every user has besides."""
    if asked.name == ANONYMOUS_NAME:
        if UNAUTHENTICATED not in groups:
            groups = (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return UserInfo(asked.name, groups, asked.uid, tuple(sorted(asked.extra.items())))


def _named(mode: str, name: str, node: str) -> Attributes:
    account = service_account(name)
    if account is not None:
        return _of(mode, "serviceaccounts", account[1])._replace(namespace=account[0])
    if node:
        return _of(mode, "nodes", "*" if mode == ASSOCIATED_NODE else node)
    return _of(mode, "users", name)


def _others(mode: str, asked: Asked) -> Iterator[Step]:
    if asked.uid:
        yield Step((_of(mode, "uids", asked.uid),))
    if asked.groups:
        together = _of(mode, "groups", "*") if len(asked.groups) >= MANY else None
        yield Step(tuple(_of(mode, "groups", group) for group in asked.groups), together)
    if asked.extra:
        together = _of(mode, "userextras", "*")._replace(subresource="*") if _is_large(asked.extra) else None
        each = (
            _of(mode, "userextras", value)._replace(subresource=key)
            for key, values in asked.extra.items()
            for value in values
        )
        yield Step(tuple(each), together)


def _is_large(extra: Mapping[str, tuple[str, ...]]) -> bool:
    return max(len(extra), sum(map(len, extra.values()))) >= MANY


def _of(mode: str, resource: str, name: str) -> Attributes:
    return Attributes(verb_of(mode), GROUP, "v1", resource, name=name)
