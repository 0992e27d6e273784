"""Reviews of the proxy's own impersonation rights in a cluster, which decide how the proxy names users to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import NOBODY, Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.constrained_impersonation import ARBITRARY_NODE, GROUP, SERVICE_ACCOUNT, VERB, verb_of
from mcproxy.kube.user import NODE_PREFIX
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
_KEPT = 1.0  # seconds


class ConstrainedGrant:
    """The decision for one cluster, which is kept for a second: a look-up of its review costs each request more."""

    __slots__ = ("_decisions", "_known", "_make_reviewer", "_seconds", "_until")

    def __init__(self, reviewer: Callable[[], Reviewer], seconds: Callable[[], float]) -> None:
        """`reviewer` returns the reviewer of the proxy's own rights, made only if needed; `seconds` is a clock."""
        self._make_reviewer = reviewer
        self._seconds = seconds
        self._known: Reviewer | None = None
        self._decisions: dict[bool, bool] = {}  # whether to send only the name, by whether it is a node's
        self._until = 0.0

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
        is_node = user_name.startswith(NODE_PREFIX)
        now = self._seconds()
        if now < self._until:
            kept = self._decisions.get(is_node)
            if kept is not None:
                return kept
        else:
            self._decisions.clear()
            self._until = now + _KEPT
        found: bool | None = None
        decision = self._reviewer().decide(NOBODY, IN_FULL)
        if isinstance(decision, Decision):
            if decision.allowed:
                found = False
            else:
                decision = self._reviewer().decide(NOBODY, _NODES if is_node else _ACCOUNTS)
                if isinstance(decision, Decision):
                    found = decision.allowed
        if found is not None:
            self._decisions[is_node] = found
            return found
        assert not isinstance(decision, Decision)
        decision.close()
        return self._ask(is_node)

    async def _ask(self, is_node: bool) -> bool:
        try:
            in_full = await settled(self._reviewer().decide(NOBODY, IN_FULL))
            if in_full.allowed:
                return False
            return (await settled(self._reviewer().decide(NOBODY, _NODES if is_node else _ACCOUNTS))).allowed
        except ReviewUnavailable:
            return False


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
