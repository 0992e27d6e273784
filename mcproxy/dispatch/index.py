"""The policies of a server, indexed: the first with a rule that matches applies, and only that one."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config import model
from mcproxy.dispatch.rules import Asked, Rules
from mcproxy.kube.user import UserInfo


class PolicyIndex:
    """Built once for each server of a Runtime; what it remembers of decisions is bounded (`rules.Rules`)."""

    __slots__ = ("_numbers", "_rules")

    def __init__(self, policies: Sequence[model.Policy]) -> None:
        self._rules = Rules(rule for policy in policies for rule in policy.rules)
        # Of each rule its policy; at the end, where a look-up of -1 leads, none.
        self._numbers: tuple[int | None, ...] = (
            *(number for number, policy in enumerate(policies) for _ in policy.rules),
            None,
        )

    def find(self, user: UserInfo, info: Asked, cluster: str) -> int | None:
        """Return the number of the policy that applies to a request of `user` to `cluster`; None: none matches."""
        return self._numbers[self._rules.first(user, info, cluster)]
