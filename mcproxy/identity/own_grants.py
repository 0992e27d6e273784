"""Reviews of the proxy's own impersonation rights in a cluster, which decide how the proxy names users to it."""

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
# A mode applies to them only if the request names only the user name; the cluster then adds their groups. With the verb
# `impersonate` the cluster would give a node no groups. So the proxy sends name and groups if it has that right, or if
# its rights are unknown. Source: k8s.io/apiserver `pkg/endpoints/filters/impersonation/mode.go`.

IN_FULL = Attributes(VERB, version="v1", resource="groups")
_ACCOUNTS = Attributes(verb_of(SERVICE_ACCOUNT), GROUP, "v1", "serviceaccounts")
_NODES = Attributes(verb_of(ARBITRARY_NODE), GROUP, "v1", "nodes")


class ConstrainedGrant:
    """The decision for one cluster; `reviewer` returns the reviewer of the proxy's own rights, made only if needed."""

    __slots__ = ("_known", "_make_reviewer")

    def __init__(self, reviewer: Callable[[], Reviewer]) -> None:
        self._make_reviewer = reviewer
        self._known: Reviewer | None = None

    def _reviewer(self) -> Reviewer:
        reviewer = self._known
        if reviewer is None:
            reviewer = self._known = self._make_reviewer()
        return reviewer

    def by_name(self, user_name: str) -> OrPending[bool]:
        """Return whether to send only the name of a service account or node, without groups.

        The cluster reviews the proxy's rights if necessary. If it does not answer, the reviewer logs this, and the
        result is False.
        """
        decision = self._reviewer().decide(NOBODY, IN_FULL)
        if isinstance(decision, Decision):  # the usual case: `known` would cost each request more than the look-up
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


# Whether an API service learns that a user is in `system:masters`.
#
# Delegated authorization (k8s.io/apiserver, `pkg/server/options/authorization.go`, AlwaysAllowGroups) allows requests
# of this group without a review. So an API server would accept a cluster administrator whom the proxy cannot assert to
# the cluster itself. The group is sent only if the backend would get it from the proxy, too: because it gets the user's
# own credentials or X-Remote-Group, or lets the proxy impersonate the group. If the backend does not answer, the group
# is not sent, and the API server checks the user's rights by SubjectAccessReviews.

MASTERS = "system:masters"
TIMES = model.SubjectAccessReview(cache_allowed=300.0, cache_denied=300.0)
"""The times for which the backend's decision is cached, in seconds."""
_RIGHT = Attributes("impersonate", version="v1", resource="groups", name=MASTERS)
_GIVES_GROUPS = (model.UpstreamIdentity.PASSTHROUGH, model.UpstreamIdentity.REQUEST_HEADER)


class MastersGrant:
    """Decides whether the API services of one backend learn that a user is in system:masters."""

    __slots__ = ("_reviewer",)

    def __init__(self, identity: model.UpstreamIdentity, reviewer: Reviewer) -> None:
        """`identity` is that of the backend's cluster entry; `reviewer` reviews the proxy's own rights in it."""
        self._reviewer = None if identity in _GIVES_GROUPS else reviewer

    async def told(self, user: UserInfo) -> UserInfo:
        """Return the user for an API service, with system:masters only if the backend would get it."""
        if self._reviewer is None or MASTERS not in user.groups:
            return user
        try:
            decision = await settled(self._reviewer.decide(NOBODY, _RIGHT))
        except ReviewUnavailable:
            pass  # the reviewer has logged the failure; the group is not sent
        else:
            if decision.allowed:
                return user
        return replace(user, groups=tuple(group for group in user.groups if group != MASTERS))
