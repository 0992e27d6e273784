"""The modes of constrained impersonation (KEP-5284, Kubernetes 1.36): their users, and the rights that they need.

A mode needs the verb `impersonate-on:MODE:VERB` on the requested resource and `impersonate:MODE` on the user, both in
the group authentication.k8s.io, instead of the older verb `impersonate`. Source: k8s.io/apiserver
`pkg/endpoints/filters/impersonation/mode.go`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from mcproxy.kube.user import AUTHENTICATED, NODE_PREFIX, service_account, service_account_groups

ASSOCIATED_NODE, ARBITRARY_NODE, SERVICE_ACCOUNT, USER_INFO = (
    "associated-node", "arbitrary-node", "serviceaccount", "user-info",
)  # fmt: skip
MODES = (ASSOCIATED_NODE, ARBITRARY_NODE, SERVICE_ACCOUNT, USER_INFO)
"""The modes in the order in which a kube-apiserver tries them; the verb `impersonate` is tried last."""
GROUP = "authentication.k8s.io"
"""The API group of users, groups, uids, userextras, serviceaccounts and nodes for the checks of a mode."""
VERB = "impersonate"
UNKNOWN = "impersonate:no-mode"
"""A verb that no mode uses, so that roles grant it only by `*`."""

MASTERS = "system:masters"
NODES = "system:nodes"
NODE_NAME_KEY = "authentication.kubernetes.io/node-name"
"""The key of the extra in a service account's token that is bound to a node, or to a pod on the node."""
MANY = 4
"""From this number of groups, or of keys or values of extras, one review with the name `*` is tried before the single
reviews (`manyAuthorizationChecksInLoop`)."""

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_NODE = re.compile(_SUBDOMAIN)
_DOMAIN_PREFIXED = re.compile(rf"(?P<domain>{_SUBDOMAIN})/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")
_MAX_SUBDOMAIN = 253


def verb_on(mode: str, verb: str) -> str:
    """Return the verb that a caller needs on the requested resource."""
    return f"{VERB}-on:{mode}:{verb}"


def verb_of(mode: str) -> str:
    """Return the verb that a caller needs on the user, and on each group, uid and extra."""
    return f"{VERB}:{mode}"


def is_impersonation(verb: str) -> bool:
    """Whether a verb is for impersonation, in a mode or by the older verb `impersonate`."""
    return verb == VERB or verb.startswith((f"{VERB}:", f"{VERB}-on:"))


def node_name(user_name: str) -> str:
    """Return the name of the node in a node's user name; "" for any other user."""
    name = user_name.removeprefix(NODE_PREFIX)
    is_node = user_name.startswith(NODE_PREFIX) and len(name) <= _MAX_SUBDOMAIN and _NODE.fullmatch(name) is not None
    return name if is_node else ""


def modes_for(name: str, *, by_name_alone: bool, associated: bool = False) -> tuple[str, ...]:
    """Return the modes that apply to a requested user, in order.

    `by_name_alone`: no group, uid or extra is requested; otherwise the modes of service accounts and nodes do not
    apply. `associated`: the caller is a service account whose token is bound to this node.
    """
    if node_name(name):
        if not by_name_alone:
            return ()
        return (ASSOCIATED_NODE, ARBITRARY_NODE) if associated else (ARBITRARY_NODE,)
    if service_account(name) is not None:
        return (SERVICE_ACCOUNT,) if by_name_alone else ()
    return (USER_INFO,)


def implied_groups(name: str) -> tuple[str, ...] | None:
    """Return the groups that a service account or node has in its mode; None for other users."""
    account = service_account(name)
    if account is not None:
        return *service_account_groups(account[0]), AUTHENTICATED
    return (NODES, AUTHENTICATED) if node_name(name) else None


def refused_group(groups: Iterable[str]) -> tuple[str, str] | None:
    """Return the first group that a mode can never allow, with the reason; None if there is no such group."""
    found = tuple(groups)
    if "" in found:
        return "", "impersonating the empty string group is not allowed"
    if MASTERS in found:
        return MASTERS, f"impersonating the {MASTERS} group is not allowed"
    return None


def refused_extra(extra: Mapping[str, Sequence[str]]) -> str:
    """Return why a mode can never allow the extras; "" if a right can allow them."""
    for key, values in extra.items():
        if not key:
            return "impersonating the empty string key in extra is not allowed"
        if not is_allowed_extra(key):
            what = 'must be a domain-prefixed path (such as "acme.io/foo")'
            return f'impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "{key}": {what}'
        if not values:
            return "impersonating empty values in extra is not allowed"
        if "" in values:
            return "impersonating the empty string value in extra is not allowed"
    return ""


def is_allowed_extra(key: str) -> bool:
    """Whether a mode allows an extra with this key: `example.com/origin`, in lower case (IsDomainPrefixedPath)."""
    found = _DOMAIN_PREFIXED.fullmatch(key)
    return found is not None and len(found["domain"]) <= _MAX_SUBDOMAIN and key == key.lower()
