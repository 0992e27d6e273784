"""Authorizers: what a server's `authorization` allows, by rules of the file, by SubjectAccessReview, or by both.

An authorizer narrows and never gives: the cluster has its own say afterwards, and about impersonation the proxy asks
it, because the cluster lets the proxy itself impersonate anybody.

Most decisions are known already, so there are two calls: `at_once` returns one that is known, and only where it returns
None `decide` has to be awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcproxy.config import model
from mcproxy.dispatch.rules import RuleSet
from mcproxy.identity.authorization.access_review import Decision, SubjectAccessReviewer
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.user import UserInfo

IMPERSONATE = "impersonate"

_ALLOWED = Decision(True)
_REFUSED = Decision(False)

ReviewersByCluster = Callable[[str], SubjectAccessReviewer]
"""Returns the reviewer that asks a cluster of the configuration."""


class Authorizer:
    """One named authorizer: allowed is what a rule allows, or else what the review allows."""

    __slots__ = ("_reviewers", "_rules", "reviewer")

    def __init__(
        self, rules: RuleSet | None, reviewers: ReviewersByCluster | None, reviewer: str | None = None
    ) -> None:
        self._rules = rules
        self._reviewers = reviewers
        #: the cluster that is asked about requests to any cluster; None: the one that a request goes to, or none
        self.reviewer = reviewer

    @classmethod
    def build(cls, config: model.Authorization, reviewers: ReviewersByCluster) -> Authorizer:
        """Return the authorizer of `config`; `reviewers` are the caller's, since their caches outlive a reload."""
        review = config.subject_access_review
        rules = None if config.rules is None else RuleSet(config.rules)
        return cls(rules, None if review is None else reviewers, None if review is None else review.cluster)

    def allowed_by_rules(self, user: UserInfo, attributes: Attributes, cluster_name: str) -> bool:
        """Whether a rule of the file allows it."""
        return self._rules is not None and self._rules.match(user, attributes, cluster_name)

    def at_once(self, user: UserInfo, attributes: Attributes, cluster_name: str) -> Decision | None:
        """Return the decision if it is known; None if a cluster must be asked."""
        if self._rules is not None and self._rules.match(user, attributes, cluster_name):
            return _ALLOWED
        if self._reviewers is None:
            return _REFUSED
        return self._reviewers(self.reviewer or cluster_name).known(user, attributes)

    async def decide(self, user: UserInfo, attributes: Attributes, cluster_name: str) -> Decision:
        """Return the decision; raises StatusError (503) if a reviewer does not answer."""
        decision = self.at_once(user, attributes, cluster_name)
        if decision is not None:
            return decision
        assert self._reviewers is not None
        return await self._reviewers(self.reviewer or cluster_name).review(user, attributes)


class ImpersonationAuthorizer:
    """Decides about impersonation that clients of a server ask for: the cluster must allow it, and so must the rules.

    The cluster that the request goes to is asked, whoever is asked about requests. An authorizer of rules alone must
    allow it as well, by a rule that writes the verb `impersonate` out: `*` and inversions never mean it, since the
    proxy may impersonate anybody and a `*` would hand out system:masters.
    """

    __slots__ = ("_reviewers", "_rules")

    def __init__(self, config: model.Authorization | None, reviewers: ReviewersByCluster) -> None:
        """`config` is the server's authorizer, None if it has none."""
        self._reviewers = reviewers
        self._rules: RuleSet | None = None
        if config is not None and config.rules is not None and config.subject_access_review is None:
            written = (rule for rule in config.rules if IMPERSONATE in rule.verbs)
            self._rules = RuleSet(tuple(replace(rule, verbs=(IMPERSONATE,)) for rule in written))

    def at_once(
        self, user: UserInfo, attributes: Attributes, cluster_name: str, *, cluster_decides: bool = False
    ) -> Decision | None:
        """Return the decision if it is known; None if the cluster must be asked.

        `cluster_decides`: the cluster sees the client's own credential and Impersonate-* (`Passthrough`), so it need
        not be asked where rules have allowed it.
        """
        if self._rules is not None:
            if not self._rules.match(user, attributes, cluster_name):
                return _REFUSED
            if cluster_decides:
                return _ALLOWED
        return self._reviewers(cluster_name).known(user, attributes)

    async def decide(
        self, user: UserInfo, attributes: Attributes, cluster_name: str, *, cluster_decides: bool = False
    ) -> Decision:
        """Return the decision; raises StatusError (503) if the cluster does not answer."""
        decision = self.at_once(user, attributes, cluster_name, cluster_decides=cluster_decides)
        if decision is not None:
            return decision
        return await self._reviewers(cluster_name).review(user, attributes)
