"""An authenticated user: the user info, and the restrictions on its use."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcproxy.identity.authentication.system_names import names_for_others
from mcproxy.identity.authorization.forbidden_message import go_quote
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """A user as an authenticator named it, with the group system:authenticated; or the anonymous one.

    `cluster` is the cluster whose TokenReview, or whose authority of client certificates, authenticated the `system:`
    names in it: they are valid for that cluster only, since the same names are other accounts elsewhere, and for those
    that have the same authority (`also_of`). "" if there are none, or another authenticator named the user.
    `shares_accounts` excepts service accounts, nodes and their groups (`shareServiceAccounts`).
    """

    user: UserInfo
    cluster: str = ""
    shares_accounts: bool = False
    by_token: bool = field(default=False, compare=False)  # a bearer token authenticated it
    ambient: bool = field(default=False, compare=False)  # a browser sends the credential whichever page asks, or none
    authenticator: str = field(default="", compare=False)  # the key of `authentication` that accepted it, for metrics
    also_of: tuple[str, ...] = ()

    def seen_by(self, cluster_name: str) -> UserInfo:
        """Return the user without the groups that are not valid for a cluster. `check` verifies the name."""
        if not self.cluster or self.cluster == cluster_name or cluster_name in self.also_of:
            return self.user
        return names_for_others(self.user, shares_accounts=self.shares_accounts)[0]

    def for_cluster(self, cluster_name: str) -> UserInfo:
        """Return the user as it may be sent to a cluster.

        Raises StatusError (403) for a name that is valid for another one only.
        """
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
