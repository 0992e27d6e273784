"""Whether an API service is told that a user is in `system:masters`.

Delegated authorization (k8s.io/apiserver, `pkg/server/options/authorization.go`, AlwaysAllowGroups) lets this group
through without a review, so an API server would take for an administrator of the cluster whom the cluster itself
cannot be told to be one. The group is told only if the backend would get it from the proxy too: it takes the user's own
credentials or X-Remote-Group, or lets the proxy impersonate the group. Without an answer it is not told: the API server
then asks what the user may do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import NOBODY, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.requests.coroutines import settled

if TYPE_CHECKING:
    from mcproxy.identity.authorization.access_review import Reviewer
    from mcproxy.kube.user import UserInfo

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
