"""Who may read what is cached: each member decides about its own objects (`reads: {authorize: Members}`).

A read with verb v of resource r in namespace n needs the same right in each member, asked by SubjectAccessReview.
Members that say no are left out; if all do, the answer is the 403 of one cluster. A cluster-wide list needs the
cluster-wide right. Source: reference "list-watch", Who may read.

While a member cannot be reached, its last decision for the same user and attributes holds for `staleDecisions`; without
one it is left out. Whether it cannot be reached is never for the client to say: a review that is merely late, because
its user has too many in flight, is no proof, and extends an earlier decision by no more than a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from twisted.internet.defer import Deferred, DeferredList, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from mcproxy.aggregate.last_decisions import LastDecisions
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes, attributes_of
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.kube.requestinfo import RequestInfo

_PATIENCE = 6.0  # seconds for a member that seems well; longer than an endpoint has to answer a review (5 s)
_PATIENCE_DOWN = 1.0  # seconds for a member that is known to be down
_LATE = 60.0  # seconds by which a decision holds longer than its cache time while a review of it is late
_RECHECK = 10.0, 30.0  # seconds between two checks of a watch, the least and the most
_MAX_NOTED = 8192
_RETRY_AFTER = 5

LeftOut = tuple[tuple[str, str], ...]
"""Members that are left out of an answer, each with the reason in words for the client."""


class Reviewer(Protocol):
    """Asks one member, and caches its decisions (`identity.authorization.access_review.SubjectAccessReviewer`)."""

    def known(self, user: UserInfo, attributes: Attributes) -> Decision | None:
        """Return the cached decision; None: a review is needed."""

    def review(self, user: UserInfo, attributes: Attributes) -> Awaitable[Decision]:
        """Ask. Raises ReviewUnavailable."""


class MemberStates(Protocol):
    """What is known of the members' clusters, by their names."""

    def unavailable(self, member: str) -> bool:
        """Whether the member is known to be down."""

    def uid(self, member: str) -> str:
        """The UID of its cluster, "" if it is not known yet."""


class _Answer(NamedTuple):
    """What one member says. `refusal` is None if it allows the read, or could not be asked (`undecided`)."""

    refusal: StatusError | None = None
    undecided: str = ""

    @property
    def allowed(self) -> bool:
        return self.refusal is None and not self.undecided

    @property
    def why(self) -> str:
        return self.undecided or (self.refusal.message if self.refusal is not None else "")


_ALLOWED = _Answer()


class MemberReads:
    """The authorization of reads from the caches of one aggregate."""

    def __init__(
        self,
        settings: model.Reads,
        reviewers: Callable[[str], Reviewer],
        states: MemberStates,
        last: LastDecisions,
        clock: IReactorTime,
    ) -> None:
        """`reviewers` returns the reviewer of a member, whose cache times are those of `settings`."""
        self._settings = settings
        self._reviewers = reviewers
        self._states = states
        self._last = last
        self._clock = clock
        self._noted: dict[tuple[str, UserInfo, Attributes], float] = {}  # when a cached decision was recorded

    @property
    def recheck_after(self) -> float:
        """Seconds after which an open watch asks again: `allowed` answers from the cache until a decision expires."""
        least, most = _RECHECK
        return min(most, max(least, self._settings.cache_allowed / 10))

    async def allowed(
        self, request: AggregatedRequest, members: Sequence[str], verb: str, info: RequestInfo
    ) -> tuple[tuple[str, ...], LeftOut]:
        """Return those of `members` whose objects the request's user may read, and those to leave out.

        `verb` is get, list or watch (a streaming list is a watch). Members that the request may not touch are left out
        with the others. Raises StatusError if none remains: 403 as in one cluster if all say no, 503 if at least one
        could not be asked.
        """
        attributes = attributes_of(info, request.target)
        if verb != attributes.verb:
            attributes = attributes._replace(verb=verb)
        answers = await self._answers(request, members, attributes)
        may = tuple(member for member in members if answers[member].allowed)
        if members and not may:
            raise _refusal(list(answers.values()))
        return may, tuple((member, answers[member].why) for member in members if not answers[member].allowed)

    async def _answers(
        self, request: AggregatedRequest, members: Sequence[str], attributes: Attributes
    ) -> dict[str, _Answer]:
        refused = dict(request.left_out)
        touched = frozenset(request.members)
        answers: dict[str, _Answer] = {}
        asked: list[str] = []
        waiting: list[Deferred[_Answer]] = []
        for member in members:
            answer = None
            if member not in touched:
                why = refused.get(member, f'cluster "{member}" is not for this request')
                answer = _Answer(StatusError(403, why, details={}))
            elif self._settings.authorize is model.ReadAuthorization.SERVER:
                answer = _ALLOWED  # the server's authorizer has decided, for each member
            else:
                try:
                    user = request.user_for(member)
                except StatusError as refusal:
                    answer = _Answer(refusal)
                else:
                    answer = self._at_once(member, user, attributes)
            if answer is None:
                asked.append(member)
                waiting.append(Deferred.fromCoroutine(self._ask(member, user, attributes)))
            else:
                answers[member] = answer
        if waiting:
            results = await request.until_gone(DeferredList(waiting, consumeErrors=True))
            for member, (_, result) in zip(asked, results, strict=True):
                if isinstance(result, Failure):  # the client went away
                    raise result.value
                answers[member] = result
        return answers

    def _at_once(self, member: str, user: UserInfo, attributes: Attributes) -> _Answer | None:
        """Return the answer if the member's decision is cached."""
        decision = self._reviewers(member).known(user, attributes)
        if decision is None:
            return None
        key = (member, user, attributes)
        noted = self._noted.get(key)
        if noted is None or noted + self._settings.cache_allowed < self._clock.seconds():
            self._record(member, user, attributes, decision)  # somebody else had it reviewed
        return _answer(decision, user, attributes)

    def _record(self, member: str, user: UserInfo, attributes: Attributes, decision: Decision) -> None:
        if len(self._noted) >= _MAX_NOTED:
            self._noted.clear()
        self._noted[member, user, attributes] = self._clock.seconds()
        self._last.record(member, self._states.uid(member), user, attributes, allowed=decision.allowed)

    async def _ask(self, member: str, user: UserInfo, attributes: Attributes) -> _Answer:
        """Ask the member; while it cannot be reached, return its last decision."""
        down = self._states.unavailable(member)
        if down:
            last = self._find(member, user, attributes, self._settings.stale_decisions)
            if last is not None:
                return last
        review = Deferred.fromCoroutine(_reviewed(self._reviewers(member), user, attributes))
        try:
            decision = await review.addTimeout(_PATIENCE_DOWN if down else _PATIENCE, self._clock)
        except TimeoutError:
            unreachable = self._states.unavailable(member)
        except ReviewUnavailable as problem:
            unreachable = problem.unreachable or self._states.unavailable(member)
        else:
            self._record(member, user, attributes, decision)
            return _answer(decision, user, attributes)
        settings = self._settings
        late = min(settings.stale_decisions, settings.cache_allowed + _LATE)
        last = self._find(member, user, attributes, settings.stale_decisions if unreachable else late)
        return last or _Answer(undecided="it cannot be asked whether this is allowed")

    def _find(self, member: str, user: UserInfo, attributes: Attributes, max_age: float) -> _Answer | None:
        allowed = self._last.find(member, self._states.uid(member), user, attributes, max_age)
        return None if allowed is None else _answer(Decision(allowed), user, attributes)


async def _reviewed(reviewer: Reviewer, user: UserInfo, attributes: Attributes) -> Decision:
    return await reviewer.review(user, attributes)


def _answer(decision: Decision, user: UserInfo, attributes: Attributes) -> _Answer:
    return _ALLOWED if decision.allowed else _Answer(forbidden(user, attributes, decision.reason))


def _refusal(answers: Sequence[_Answer]) -> StatusError:
    """Return the refusal of a read that no member allows."""
    if any(answer.undecided for answer in answers):
        return retry_after(503, "no cluster could be asked whether this is allowed", _RETRY_AFTER)
    return next(answer.refusal for answer in answers if answer.refusal is not None)
