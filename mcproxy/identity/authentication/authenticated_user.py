"""An authenticated user: its user info, the clusters where its names are valid, and the restrictions on its use.

Kubernetes reserves names that begin with "system:". They are accepted from few sources (`allowSystemNames`). If a
cluster has authenticated such a name, it is valid only for this cluster, since it is another account elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mcproxy.identity.authorization.attributes import go_quote
from mcproxy.kube.status import StatusError
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
    """Return the user without groups that begin with "system:"; None if the user's name begins with it."""
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
    """Whether the user has a `system:` name or group that is valid for only one cluster."""
    return user.name.startswith(SYSTEM_PREFIX) or any(_is_limited_group(group) for group in user.groups)


def names_for_others(user: UserInfo, *, shares_accounts: bool) -> tuple[UserInfo, bool]:
    """Return the user with only the groups that are valid in other clusters, and whether its name is valid there.

    With `shares_accounts`, the names of service accounts and nodes are valid, and also the groups that all service
    accounts or nodes have. Other `system:` names are not valid: system:masters, bootstrap tokens, controllers.
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


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """A user from an authenticator, with the group system:authenticated, or the anonymous user.

    `cluster` is the cluster whose TokenReview or client CA authenticated the user's `system:` names. They are valid for
    this cluster and for clusters with the same CA (`also_of`), since the same names are other accounts elsewhere.
    `cluster` is "" if the user has no such names, or if another authenticator named the user. `shares_accounts` lifts
    the restriction for service accounts, nodes and their groups (`shareServiceAccounts`).
    """

    user: UserInfo
    cluster: str = ""
    shares_accounts: bool = False
    by_token: bool = field(default=False, compare=False)  # a bearer token authenticated the user
    ambient: bool = field(default=False, compare=False)  # browsers send the credential (or none) for any page
    authenticator: str = field(default="", compare=False)  # the accepting key of `authentication`, for metrics
    also_of: tuple[str, ...] = ()

    def seen_by(self, cluster_name: str) -> UserInfo:
        """Return the user without the groups that are invalid in a cluster. `check` verifies the name."""
        if not self.cluster or self.cluster == cluster_name or cluster_name in self.also_of:
            return self.user
        return names_for_others(self.user, shares_accounts=self.shares_accounts)[0]

    def for_cluster(self, cluster_name: str) -> UserInfo:
        """Return the user for a cluster. Raises StatusError (403) if the name is valid only in another cluster."""
        if not self.cluster or self.cluster == cluster_name or cluster_name in self.also_of:
            return self.user
        user, counts = names_for_others(self.user, shares_accounts=self.shares_accounts)
        if not counts:
            raise StatusError(
                403,
                f"forbidden: User {go_quote(user.name)} of cluster {go_quote(self.cluster)} is not a user of cluster "
                f"{go_quote(cluster_name)}",
                details={},
            )
        return user
