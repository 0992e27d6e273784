"""Names that Kubernetes keeps to itself: who may be called so, and the groups that everybody or nobody has.

A cluster gives names that begin with "system:" rights of their own (system:masters may do everything). A token file, an
identity provider or a front proxy that could give them out would be as mighty as the cluster, so it may not, unless
`allowSystemNames` says so. Sources: Kubernetes RBAC documentation, "Referring to subjects"; k8s.io/apiserver
`pkg/authentication/group`.
"""

from __future__ import annotations

from dataclasses import replace

from mcproxy.kube.user import ANONYMOUS_NAME, AUTHENTICATED, UNAUTHENTICATED, UserInfo

SYSTEM_PREFIX = "system:"


def without_system_names(user: UserInfo) -> UserInfo | None:
    """Return the user without the groups that are Kubernetes' own; None if its name is."""
    if user.name.startswith(SYSTEM_PREFIX):
        return None
    groups = tuple([group for group in user.groups if not group.startswith(SYSTEM_PREFIX)])
    return user if len(groups) == len(user.groups) else replace(user, groups=groups)


def authenticated(user: UserInfo) -> UserInfo:
    """Return the user with the group that all have who were authenticated."""
    if user.name == ANONYMOUS_NAME or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))
