"""The policies of a server, indexed: the first with a rule that matches applies, and only that one."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config import model
from mcproxy.dispatch.explain import Explanation, explain
from mcproxy.dispatch.rules import Asked, Rules
from mcproxy.kube.user import UserInfo


class PolicyIndex:
    """Built once for each server of a Runtime; what it remembers of decisions is bounded (`rules.Rules`)."""

    __slots__ = ("_numbers", "_policies", "_rules")

    def __init__(self, policies: Sequence[model.Policy], *, several_clusters: bool = True) -> None:
        """`several_clusters`: the server has several, so that `clusters` of a rule is looked at."""
        self._policies = tuple(policies)
        self._rules = Rules(
            (rule for policy in self._policies for rule in policy.rules), several_clusters=several_clusters
        )
        # Of each rule its policy; at the end, where a look-up of -1 leads, none.
        self._numbers: tuple[int | None, ...] = (
            *(number for number, policy in enumerate(self._policies) for _ in policy.rules),
            None,
        )

    def find(self, user: UserInfo, info: Asked, cluster: str) -> int | None:
        """Return the number of the policy that applies to a request of `user` to `cluster`; None: none matches."""
        return self._numbers[self._rules.first(user, info, cluster)]

    def explain(self, user: UserInfo, info: Asked, cluster: str) -> Explanation:
        """Return why `find` says what it says."""
        return explain(self._policies, self._rules, user, info, cluster)
