"""Who calls, as an authenticator says it: the user, and the one cluster for which that alone is true."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.kube.user import UserInfo


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """An authenticated caller, with the group system:authenticated; or an anonymous one.

    `cluster` is the cluster whose TokenReview vouched for this service account or node: the same name means another
    account elsewhere, so it is used towards that cluster alone. "" for everyone else.
    """

    user: UserInfo
    cluster: str = ""
