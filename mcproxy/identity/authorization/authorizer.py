"""Who may do what, as a server's `authorization` says: rules of the file, reviews by a cluster, or the one and then the
other.

Most questions were asked a moment ago, so there are two ways to an answer: `at_once` gives one that is known already,
and only where it gives None `decide` has to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.config import model
from mcproxy.dispatch.rules import RuleSet
from mcproxy.identity.authorization.access_review import Decision, SubjectAccessReviewer
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.user import UserInfo

_ALLOWED = Decision(True)
_REFUSED = Decision(False)

ReviewsBy = Callable[[str], SubjectAccessReviewer]
"""Gives the reviews by a cluster of the configuration."""


class Authorizer:
    """One named authorizer."""

    __slots__ = ("_reviewer", "_reviews", "_rules")

    def __init__(self, rules: RuleSet | None, reviews: ReviewsBy | None, reviewer: str | None = None) -> None:
        """`reviewer` is the cluster that is asked about requests to any of them; None: the one they go to."""
        self._rules = rules
        self._reviews = reviews
        self._reviewer = reviewer

    @classmethod
    def build(cls, config: model.Authorization, reviews: ReviewsBy) -> Authorizer:
        """Return what `config` means; `reviews` keep what is known over a reload, so they are the caller's."""
        review = config.subject_access_review
        rules = None if config.rules is None else RuleSet(config.rules)
        return cls(rules, None if review is None else reviews, None if review is None else review.cluster)

    @classmethod
    def for_impersonation(cls, config: model.Authorization | None, reviews: ReviewsBy) -> Authorizer:
        """Return what decides about impersonation that a client asks for, on a server with this authorization or none.

        That is the cluster that the request goes to, whoever else is asked about requests; rules alone are rules alone.
        """
        if config is not None and config.rules is not None:
            return cls(RuleSet(config.rules), None if config.subject_access_review is None else reviews)
        return cls(None, reviews)

    def at_once(self, user: UserInfo, attributes: Attributes, cluster_name: str) -> Decision | None:
        """Return the decision if it is known; None if it has to be asked for."""
        if self._rules is not None and self._rules.match(user, attributes, cluster_name):
            return _ALLOWED
        if self._reviews is None:
            return _REFUSED
        return self._reviews(self._reviewer or cluster_name).known(user, attributes)

    async def decide(self, user: UserInfo, attributes: Attributes, cluster_name: str) -> Decision:
        """Return the decision; raises StatusError (503) if a reviewer does not answer."""
        decision = self.at_once(user, attributes, cluster_name)
        if decision is not None:
            return decision
        assert self._reviews is not None
        return await self._reviews(self._reviewer or cluster_name).review(user, attributes)
