"""Authorizers: a server's `authorization`, by configured rules, by SubjectAccessReview, or by both.

An authorizer restricts requests and never grants rights: the cluster authorizes the request afterwards. The cluster
also reviews impersonation by clients, because it permits the proxy itself to impersonate any user.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import RuleSet
from mcproxy.identity.authorization.access_review import ALLOWED, Decision, Reviewer
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.constrained_impersonation import UNKNOWN, is_impersonation
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending

_REMEMBERED = 10_000


class LastModes:
    """The last successful impersonation mode by cluster and caller, which is tried first: most callers use one mode."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, cluster: str, caller: str) -> str:
        """Return the mode, `impersonate` for the verb, "" if no mode is known."""
        return self._last.get((cluster, caller), "")

    def note(self, cluster: str, caller: str, mode: str) -> None:
        self._last[cluster, caller] = mode
        self._last.move_to_end((cluster, caller))
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)


_REFUSED = Decision(False)

ReviewersByCluster = Callable[[str], Reviewer]
"""Returns the reviewer of a cluster of the configuration, by its name."""


class Authorizer:
    """One named authorizer: a rule or else a review allows a request."""

    __slots__ = ("_reviewers", "_rules", "reviewer")

    def __init__(
        self, rules: RuleSet | None, reviewers: ReviewersByCluster | None, reviewer: str | None = None
    ) -> None:
        self._rules = rules
        self._reviewers = reviewers
        #: the cluster that reviews all requests; None: each request's own cluster reviews it, or there are no reviews
        self.reviewer = reviewer

    @classmethod
    def build(cls, config: model.Authorization, reviewers: ReviewersByCluster) -> Authorizer:
        """Return the authorizer for `config`; the caller owns `reviewers`, since their caches survive a reload."""
        review = config.subject_access_review
        rules = None if config.rules is None else RuleSet(config.rules)
        return cls(rules, None if review is None else reviewers, None if review is None else review.cluster)

    def allowed_by_rules(self, user: UserInfo, attributes: Attributes, cluster_name: str) -> bool:
        """Whether a configured rule allows the request."""
        return self._rules is not None and self._rules.match(user, attributes, cluster_name)

    def reviewer_of(self, cluster_name: str) -> Reviewer | None:
        """Return the reviewer of a cluster; None: only rules decide."""
        return None if self._reviewers is None else self._reviewers(cluster_name)

    def decide(
        self, user: UserInfo, attributes: Attributes, cluster_name: str, authority: str = ""
    ) -> OrPending[Decision]:
        """Return the decision, at once if it is known; a review that gets no answer raises StatusError (503).

        `authority` is the cluster that reviews instead of `cluster_name`, "" for none (`config.model.APIService`).
        """
        if self._rules is not None and self._rules.match(user, attributes, cluster_name):
            return ALLOWED
        if self._reviewers is None:
            return _REFUSED
        return self._reviewers(self.reviewer or authority or cluster_name).decide(user, attributes)


class ImpersonationAuthorizer:
    """Authorizes impersonation by clients of a server: the cluster and the rules must both allow it.

    The request's cluster (for an API service, its authority) always reviews impersonation, even if another cluster
    reviews requests. An authorizer with only rules must allow it, too, by rules that name the verb `impersonate` or the
    verbs of a mode. `*` and inversions never include these verbs, since a `*` would grant system:masters.
    """

    __slots__ = ("_reviewers", "_rules", "last_modes")

    def __init__(self, config: model.Authorization | None, reviewers: ReviewersByCluster) -> None:
        """`config` is the server's authorizer, None if it has none."""
        self._reviewers = reviewers
        self.last_modes = LastModes()
        self._rules: RuleSet | None = None
        if config is not None and config.rules is not None and config.subject_access_review is None:
            written = ((rule, tuple(filter(is_impersonation, rule.verbs))) for rule in config.rules)
            self._rules = RuleSet(tuple(replace(rule, verbs=verbs) for rule, verbs in written if verbs))

    def reviewer(self, cluster_name: str) -> Reviewer:
        """Return the reviewer of a cluster."""
        return self._reviewers(cluster_name)

    def decide(
        self,
        user: UserInfo,
        attributes: Attributes,
        cluster_name: str,
        authority: str = "",
        *,
        cluster_decides: bool = False,
    ) -> OrPending[Decision]:
        """Return the decision, at once if it is known; a review that gets no answer raises StatusError (503).

        `cluster_decides`: the cluster gets the client's own credential and Impersonate-* (`Passthrough`), so there is
        no review if rules have allowed it.
        """
        if self._rules is not None:
            # No rule can contain `UNKNOWN`, a verb that no mode uses. Only the cluster knows whether a role grants it.
            unknown = attributes.verb == UNKNOWN
            if not unknown and not self._rules.match(user, attributes, cluster_name):
                return _REFUSED
            if cluster_decides:
                return _REFUSED if unknown else ALLOWED
        return self._reviewers(authority or cluster_name).decide(user, attributes)
