"""The policies of a server, indexed: the first one with a matching rule applies, and only that one."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config import model
from mcproxy.dispatch.rules import RequestAttributes, RuleSet
from mcproxy.kube.user import UserInfo


class PolicyIndex:
    """Built once for each server of a Runtime; its cache of decisions is bounded (`rules.RuleSet`)."""

    __slots__ = ("_numbers", "_rules")

    def __init__(self, policies: Sequence[model.Policy]) -> None:
        self._rules = RuleSet(rule for policy in policies for rule in policy.rules)
        # The policy of each rule; the last item, which index -1 finds, stands for no match.
        self._numbers: tuple[int | None, ...] = (
            *(number for number, policy in enumerate(policies) for _ in policy.rules),
            None,
        )

    def find(self, user: UserInfo, info: RequestAttributes, cluster: str) -> int | None:
        """Return the index of the policy that applies to a request of `user` to `cluster`; None if none matches."""
        return self._numbers[self._rules.first(user, info, cluster)]
