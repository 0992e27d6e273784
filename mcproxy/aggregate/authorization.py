"""Who may read what is cached: each member decides about its own objects (`reads: {authorize: Members}`).

A read with verb v of resource r in namespace n needs the same right in each member, asked by SubjectAccessReview.
Members that say no are left out; if all do, the answer is the 403 of one cluster. A cluster-wide list needs the
cluster-wide right. Source: reference "list-watch", Who may read. Members that are away: `stale_decisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes, attributes_of
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.kube.requestinfo import RequestInfo

_RECHECK = 10.0, 30.0  # seconds between two checks of a watch, the least and the most
_RETRY_AFTER = 5
_UNDECIDED = "it cannot be asked whether this is allowed"

LeftOut = tuple[tuple[str, str], ...]
"""Members that are left out of an answer, each with the reason in words for the client."""


def check_decided(left_out: Sequence[tuple[str, str]], unavailable: model.Unavailable) -> None:
    """Raise StatusError (503) if a member that is left out could not be asked, and `unavailable` is Fail."""
    if unavailable is model.Unavailable.FAIL:
        for member, why in left_out:
            if why == _UNDECIDED:
                raise retry_after(503, f"cluster {member} is unavailable: {why}", 1, name=member)


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

    def __init__(self, settings: model.Reads, reviewers: ReviewersByCluster) -> None:
        """`reviewers` returns the reviewer of a member, whose cache times are those of `settings`."""
        self._settings = settings
        self._reviewers = reviewers

    def update(self, settings: model.Reads, reviewers: ReviewersByCluster) -> None:
        """Follow a reload; open watches are checked by the new settings, too."""
        self._settings = settings
        self._reviewers = reviewers

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
                    decision = self._reviewers(member).known(user, attributes)
                    answer = None if decision is None else _answer(decision, user, attributes)
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

    async def _ask(self, member: str, user: UserInfo, attributes: Attributes) -> _Answer:
        try:
            decision = await self._reviewers(member).review(user, attributes)
        except ReviewUnavailable:
            return _Answer(undecided=_UNDECIDED)
        return _answer(decision, user, attributes)


def _answer(decision: Decision, user: UserInfo, attributes: Attributes) -> _Answer:
    return _ALLOWED if decision.allowed else _Answer(forbidden(user, attributes, decision.reason))


def _refusal(answers: Sequence[_Answer]) -> StatusError:
    """Return the refusal of a read that no member allows."""
    if any(answer.undecided for answer in answers):
        return retry_after(503, "no cluster could be asked whether this is allowed", _RETRY_AFTER)
    return next(answer.refusal for answer in answers if answer.refusal is not None)
