"""Whether a cluster lets the proxy name service accounts and nodes by constrained impersonation alone (KEP-5284).

A mode applies to them only if nothing but the name is told: the cluster then gives them their groups. By the verb
`impersonate` it would give a node none, so they are told in full wherever the proxy has that right, and where the
cluster does not say what rights the proxy has. Source: k8s.io/apiserver `pkg/endpoints/filters/impersonation/mode.go`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcproxy.identity.authorization.access_review import NOBODY, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.constrained_impersonation import ARBITRARY_NODE, GROUP, SERVICE_ACCOUNT, VERB, node_name, verb_of
from mcproxy.requests.coroutines import OrPending, known, settled

if TYPE_CHECKING:
    from mcproxy.identity.authorization.access_review import Reviewer

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
        in_full = known(self._reviewer().decide(NOBODY, IN_FULL))
        if in_full is not None and in_full.allowed:
            return False
        in_mode = None if in_full is None else known(self._reviewer().decide(NOBODY, _right(user_name)))
        return self._ask(user_name) if in_mode is None else in_mode.allowed

    async def _ask(self, user_name: str) -> bool:
        try:
            in_full = await settled(self._reviewer().decide(NOBODY, IN_FULL))
            return not in_full.allowed and (await settled(self._reviewer().decide(NOBODY, _right(user_name)))).allowed
        except ReviewUnavailable:
            return False


def _right(user_name: str) -> Attributes:
    return _NODES if node_name(user_name) else _ACCOUNTS
