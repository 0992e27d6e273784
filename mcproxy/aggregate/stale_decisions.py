"""Reviews of access by members that may be unavailable: their last decisions hold meanwhile (`staleDecisions`).

Source: reference "list-watch", Who may read. A client must not be able to make a member count as unavailable: a late
review, because its user has too many in flight, is no proof, and extends an earlier decision by no more than a minute.

Who may list is asked about watching, too, and the reverse: an informer lists, and then watches from the list's version.
If only one of the two were known when its member goes away, no watch would continue its list for the whole outage.
"""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.last_decisions import LastDecisions
from mcproxy.aggregate.reflector.reflectors import Reflectors
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, Reviewer, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.authorizer import ReviewersByCluster
from mcproxy.kube.user import UserInfo

log = Logger(__name__)

_PATIENCE = 6.0  # seconds for a member that seems healthy; longer than the timeout of a review (5 s)
_PATIENCE_DOWN = 1.0  # seconds for a member that is known to be down
_LATE = 60.0  # seconds by which a decision holds longer than its cache time while a review of it is late
_MAX_NOTED = 2048
_BESIDE = {"list": "watch", "watch": "list"}


class StaleReviewers:
    """The reviewers of the members of one aggregate, by name."""

    def __init__(
        self,
        reviewers: ReviewersByCluster,
        reflectors: Reflectors,
        last: LastDecisions,
        clock: IReactorTime,
        settings: model.Reads,
    ) -> None:
        """`reviewers` ask the members, and cache."""
        self._reviewers = reviewers
        self._reflectors = reflectors
        self._last = last
        self._clock = clock
        self._settings = settings
        self._live: dict[str, Reviewer] = {}

    def __call__(self, member: str) -> Reviewer:
        """Return the reviewer of a member."""
        live = self._live.get(member)
        if live is None:
            live = self._live[member] = StaleReviewer(
                member, self._reviewers(member), self._reflectors, self._last, self._clock, self._settings
            )
        return live


class StaleReviewer:
    """Reviews by one member; while it cannot be reached, its last decision for the same user and attributes holds."""

    def __init__(
        self,
        member: str,
        reviewer: Reviewer,
        reflectors: Reflectors,
        last: LastDecisions,
        clock: IReactorTime,
        settings: model.Reads,
    ) -> None:
        self._member = member
        self._reviewer = reviewer
        self._reflectors = reflectors
        self._last = last
        self._clock = clock
        self._settings = settings
        # When a cached decision was recorded, by a hash of what it is about: clients choose how long that is.
        self._noted: dict[int, float] = {}

    def decide_nowait(self, user: UserInfo, attributes: Attributes) -> Decision | None:
        """Return the cached decision; None: a review is needed."""
        decision = self._reviewer.decide_nowait(user, attributes)
        if decision is not None:
            noted = self._noted.get(hash((user, attributes)))
            if noted is None or noted + self._settings.cache_allowed < self._clock.seconds():
                self._record(user, attributes, decision)  # another reader has had it reviewed
        return decision

    async def decide(self, user: UserInfo, attributes: Attributes) -> Decision:
        """Return the member's decision, or its last one while it cannot be reached. Raises ReviewUnavailable."""
        stale = self._settings.stale_decisions
        down = self._is_down()
        last = self._find(user, attributes, stale) if down else None
        if last is not None:
            return last
        review = Deferred.fromCoroutine(self._reviewer.decide(user, attributes))
        try:
            decision = await review.addTimeout(_PATIENCE_DOWN if down else _PATIENCE, self._clock)
        except TimeoutError:
            unreachable = self._is_down()
        except ReviewUnavailable as problem:
            unreachable = problem.unreachable or self._is_down()
        else:
            self._record(user, attributes, decision)
            return decision
        late = min(stale, self._settings.cache_allowed + _LATE)
        last = self._find(user, attributes, stale if unreachable else late)
        if last is None:
            raise ReviewUnavailable(self._member, unreachable=unreachable)
        return last

    def _is_down(self) -> bool:
        """Whether the member is known to be down; False for a cluster that is no member."""
        member = self._reflectors.members.get(self._member)
        return member is not None and member.unavailable_since is not None

    def _uid(self) -> str:
        """Return the UID of its cluster, "" if it is not known."""
        member = self._reflectors.members.get(self._member)
        return "" if member is None else member.uid

    def _find(self, user: UserInfo, attributes: Attributes, max_age: float) -> Decision | None:
        uid = self._uid()
        allowed = self._last.find(self._member, uid, user, attributes, max_age)
        if allowed is None and (attributes.field_selector or attributes.label_selector):
            # A user who may read everything may read a selection of it (KEP-4601); a refusal does not apply to
            # selections.
            everything = attributes._replace(field_selector="", label_selector="")
            allowed = self._last.find(self._member, uid, user, everything, max_age) or None
        return None if allowed is None else Decision(allowed)

    def _record(self, user: UserInfo, attributes: Attributes, decision: Decision) -> None:
        """Keep what the member has just decided, and have it decide about the verb that goes with it."""
        self._keep(user, attributes, decision)
        verb = _BESIDE.get(attributes.verb)
        if verb is not None and self._settings.stale_decisions:
            beside = attributes._replace(verb=verb)
            if self._find(user, beside, max(self._settings.cache_allowed, _LATE)) is None:
                Deferred.fromCoroutine(self._decide_beside(user, beside)).addErrback(_log_failure)

    async def _decide_beside(self, user: UserInfo, attributes: Attributes) -> None:
        """Have the member decide what nobody waits for; without an answer it is asked when somebody does."""
        decision = self._reviewer.decide_nowait(user, attributes)
        if decision is None:
            review = Deferred.fromCoroutine(self._reviewer.decide(user, attributes))
            try:
                decision = await review.addTimeout(_PATIENCE, self._clock)
            except (TimeoutError, ReviewUnavailable, CancelledError):
                return
        self._keep(user, attributes, decision)

    def _keep(self, user: UserInfo, attributes: Attributes, decision: Decision) -> None:
        if len(self._noted) >= _MAX_NOTED:
            self._noted.clear()
        self._noted[hash((user, attributes))] = self._clock.seconds()
        self._last.record(self._member, self._uid(), user, attributes, allowed=decision.allowed)


def _log_failure(failure: Failure) -> None:
    log.failure("a review that nobody waits for failed", event="internal_error", failure=failure)
