"""What a cluster lets the proxy do in the name of others, which decides how users are told to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import NOBODY, Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.constrained_impersonation import ARBITRARY_NODE, GROUP, SERVICE_ACCOUNT, VERB, node_name, verb_of
from mcproxy.requests.coroutines import OrPending, settled

if TYPE_CHECKING:
    from mcproxy.identity.authorization.access_review import Reviewer
    from mcproxy.kube.user import UserInfo

# Whether a cluster lets the proxy name service accounts and nodes by constrained impersonation alone (KEP-5284).
#
# A mode applies to them only if nothing but the name is told: the cluster then gives them their groups. By the verb
# `impersonate` it would give a node none, so they are told in full wherever the proxy has that right, and where the
# cluster does not say what rights the proxy has. Source: k8s.io/apiserver
# `pkg/endpoints/filters/impersonation/mode.go`.

IN_FULL = Attributes(VERB, version="v1", resource="groups")
_ACCOUNTS = Attributes(verb_of(SERVICE_ACCOUNT), GROUP, "v1", "serviceaccounts")
_NODES = Attributes(verb_of(ARBITRARY_NODE), GROUP, "v1", "nodes")


class ConstrainedGrant:
    """What one cluster says; `reviewer` returns who knows what the proxy itself may do there: few have such users."""

    __slots__ = ("_reviewer",)

    def __init__(self, reviewer: Callable[[], Reviewer]) -> None:
        self._reviewer = reviewer

    def by_name(self, user_name: str) -> OrPending[bool]:
        """Return whether a service account or node is told by its name alone.

        The cluster is asked if necessary; False if it does not answer, which is in the log.
        """
        decision = self._reviewer().decide(NOBODY, IN_FULL)
        if isinstance(decision, Decision):  # as nearly always: `known` would cost each request more than the look-up
            if decision.allowed:
                return False
            decision = self._reviewer().decide(NOBODY, _right(user_name))
            if isinstance(decision, Decision):
                return decision.allowed
        decision.close()
        return self._ask(user_name)

    async def _ask(self, user_name: str) -> bool:
        try:
            in_full = await settled(self._reviewer().decide(NOBODY, IN_FULL))
            return not in_full.allowed and (await settled(self._reviewer().decide(NOBODY, _right(user_name)))).allowed
        except ReviewUnavailable:
            return False


def _right(user_name: str) -> Attributes:
    return _NODES if node_name(user_name) else _ACCOUNTS


# Whether an API service is told that a user is in `system:masters`.
#
# Delegated authorization (k8s.io/apiserver, `pkg/server/options/authorization.go`, AlwaysAllowGroups) lets this group
# through without a review, so an API server would take for an administrator of the cluster whom the cluster itself
# cannot be told to be one. The group is told only if the backend would get it from the proxy too: it takes the user's
# own credentials or X-Remote-Group, or lets the proxy impersonate the group. Without an answer it is not told: the API
# server then asks what the user may do.

MASTERS = "system:masters"
TIMES = model.SubjectAccessReview(cache_allowed=300.0, cache_denied=300.0)
"""How long the backend's answer is kept, in seconds."""
_RIGHT = Attributes("impersonate", version="v1", resource="groups", name=MASTERS)
_GIVES_GROUPS = (model.UpstreamIdentity.PASSTHROUGH, model.UpstreamIdentity.REQUEST_HEADER)


class MastersGrant:
    """What the API services of one backend are told."""

    __slots__ = ("_reviewer",)

    def __init__(self, identity: model.UpstreamIdentity, reviewer: Reviewer) -> None:
        """`identity` is that of the backend's cluster entry; `reviewer` says what the proxy itself may do there."""
        self._reviewer = None if identity in _GIVES_GROUPS else reviewer

    async def told(self, user: UserInfo) -> UserInfo:
        """Return a user as the API service is told of them."""
        if self._reviewer is None or MASTERS not in user.groups:
            return user
        try:
            decision = await settled(self._reviewer.decide(NOBODY, _RIGHT))
        except ReviewUnavailable:
            pass  # it is in the log
        else:
            if decision.allowed:
                return user
        return replace(user, groups=tuple(group for group in user.groups if group != MASTERS))
