"""Names that begin with "system:", which Kubernetes reserves: their accepted sources, and where they are valid.

A cluster grants these names special rights (system:masters may do everything). A token file, an identity provider or a
front proxy that could use them would have the cluster's own power, so it may not, except with `allowSystemNames`; and
those of one cluster's TokenReview are valid for that cluster only.

Sources: Kubernetes RBAC documentation, "Referring to subjects"; k8s.io/apiserver `pkg/authentication/group`.
"""

from __future__ import annotations

from dataclasses import replace

from mcproxy.kube.user import (
    ANONYMOUS_NAME,
    AUTHENTICATED,
    NODE_PREFIX,
    UNAUTHENTICATED,
    UserInfo,
    service_account,
)

SYSTEM_PREFIX = "system:"

_NODES = "system:nodes"
_SERVICE_ACCOUNTS = "system:serviceaccounts"


def without_system_names(user: UserInfo) -> UserInfo | None:
    """Return the user without its groups that begin with "system:"; None if its name does."""
    if user.name.startswith(SYSTEM_PREFIX):
        return None
    groups = tuple([group for group in user.groups if not group.startswith(SYSTEM_PREFIX)])
    return user if len(groups) == len(user.groups) else replace(user, groups=groups)


def authenticated(user: UserInfo) -> UserInfo:
    """Return the user with the group system:authenticated, which every authenticated user has."""
    if user.name == ANONYMOUS_NAME or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))


def is_limited(user: UserInfo) -> bool:
    """Whether the user has a `system:` name or group that is valid for one cluster only."""
    return user.name.startswith(SYSTEM_PREFIX) or any(_is_limited_group(group) for group in user.groups)


def names_for_others(user: UserInfo, *, shares_accounts: bool) -> tuple[UserInfo, bool]:
    """Return the user with the groups that are valid for clusters other than its own, and whether its name is.

    With `shares_accounts` the names of service accounts and nodes are valid, and the groups that a service account or a
    node has as such. Other `system:` names are not: system:masters, bootstrap tokens, controllers.
    """
    groups = user.groups
    counts = not user.name.startswith(SYSTEM_PREFIX)
    own: tuple[str, ...] = ()
    prefix = ""
    if shares_accounts and service_account(user.name) is not None:
        counts, own, prefix = True, (_SERVICE_ACCOUNTS,), f"{_SERVICE_ACCOUNTS}:"
    elif shares_accounts and user.name.startswith(NODE_PREFIX) and user.name != NODE_PREFIX:
        counts, own = True, (_NODES,)
    kept = tuple(
        [
            group
            for group in groups
            if not _is_limited_group(group) or group in own or (prefix and group.startswith(prefix))
        ]
    )
    return (user if len(kept) == len(groups) else replace(user, groups=kept)), counts


def _is_limited_group(group: str) -> bool:
    return group.startswith(SYSTEM_PREFIX) and group != AUTHENTICATED
