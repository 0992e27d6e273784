"""Authorization of reads from caches: each member decides about its own objects (`reads: {authorize: Members}`).

A read with verb v of resource r in namespace n needs the same right in each member, which a SubjectAccessReview checks.
Members that refuse are left out; if all do, the answer is the 403 of one cluster. A cluster-wide list needs the
cluster-wide right. Source: reference "list-watch", Who may read. Unavailable members: `stale_decisions`. Writes and
subresources are authorized in the same way, before their bodies are read (`writes.write_rights`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from mcproxy.aggregate.request import LeftOut
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes, attributes_of, forbidden
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.view import View
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.kube.requestinfo import RequestInfo

_RECHECK = 10.0, 30.0  # seconds between two checks of a watch, the least and the most
_RETRY_AFTER = 5
_UNDECIDED = "it cannot be asked whether this is allowed"


def check_decided(left_out: Sequence[LeftOut], unavailable: model.Unavailable) -> None:
    """Raise StatusError (503) if a member that is left out could not be asked, and `unavailable` is Fail."""
    if unavailable is model.Unavailable.FAIL:
        for member, why, undecided in left_out:
            if undecided:
                raise retry_after(503, f"cluster {member} is unavailable: {why}", 1, name=member)


class Answer(NamedTuple):
    """The decision of one member. `refusal` is None if it allows the read; `undecided`: it could not be asked."""

    refusal: StatusError | None = None
    undecided: bool = False


_ALLOWED = Answer()


def not_asked() -> Answer:
    """Return the answer of a member that cannot be asked, or has not answered in time."""
    return Answer(retry_after(503, _UNDECIDED, _RETRY_AFTER), undecided=True)


class MemberAuthorizer:
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
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        """Return those of `members` whose objects the request's user may read, and those to leave out.

        `verb` is get, list or watch (a streaming list is a watch). Members that the request may not touch are left out
        with the others. Raises StatusError if none remains: 403 as in one cluster if all say no, 503 if at least one
        could not be asked.
        """
        attributes = attributes_of(info, request.target)
        if verb != attributes.verb:
            attributes = attributes._replace(verb=verb)
        answers = await self._answers(request, members, attributes)
        if members and all(answer.refusal is not None for answer in answers.values()):
            raise refusal_of(list(answers.values()))
        return _sorted(members, answers)

    async def again(
        self, request: AggregatedRequest, members: Sequence[str], info: RequestInfo
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        """Return the same for an open watch. Raises StatusError (403) only if all say no."""
        attributes = attributes_of(info, request.target)._replace(verb="watch")
        answers = await self._answers(request, members, attributes)
        if members and all(answer.refusal is not None and not answer.undecided for answer in answers.values()):
            raise refusal_of(list(answers.values()))
        return _sorted(members, answers)

    async def discoverable(
        self, request: AggregatedRequest, primary: str | None
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        """Return the clusters, members and `primary`, in which the user may read the path of the request, and the rest.

        The path is one of discovery or OpenAPI: a user sees there only clusters that allow the user to read it.
        Raises StatusError as `allowed`.
        """
        beyond = () if primary is None else (primary,)
        clusters = tuple(dict.fromkeys((*request.members, *beyond)))
        answers = await self._answers(request, clusters, attributes_of(request.info, request.target), beyond)
        if clusters and all(answer.refusal is not None for answer in answers.values()):
            raise refusal_of(list(answers.values()))
        return _sorted(clusters, answers)

    async def of_writes(
        self, request: AggregatedRequest, clusters: Sequence[str], attributes: Attributes, beyond: Collection[str] = ()
    ) -> Mapping[str, Answer]:
        """Return what each of `clusters` says of a write; `beyond` are those of them that are in no `members`.

        Each is asked, whoever authorizes reads. With `authorize: Server` one that cannot be asked does not count as
        undecided, since the proxy may not have been given the right to ask; it decides when it gets the write.
        """
        answers = await self._answers(request, clusters, attributes, beyond, by_server=False)
        if self._settings.authorize is model.ReadAuthorization.SERVER:
            touched = frozenset((*request.members, *beyond))
            return {
                name: _ALLOWED if answer.undecided and name in touched else answer for name, answer in answers.items()
            }
        return answers

    async def readers(
        self, request: AggregatedRequest, clusters: Sequence[str], attributes: Attributes, beyond: Collection[str] = ()
    ) -> frozenset[str]:
        """Return those of `clusters` that are known to allow a read; arguments as of `of_writes`."""
        answers = await self._answers(request, clusters, attributes, beyond, by_server=False)
        return frozenset(name for name, answer in answers.items() if answer.refusal is None)

    async def _answers(
        self,
        request: AggregatedRequest,
        members: Sequence[str],
        attributes: Attributes,
        beyond: Collection[str] = (),
        *,
        by_server: bool = True,
    ) -> dict[str, Answer]:
        """Return what each of `members` says, of which those `beyond` need not be the request's.

        `by_server`: with `authorize: Server` the members are not asked.
        """
        left_out = {each.member: each for each in request.left_out}
        touched = frozenset(request.members)
        answers: dict[str, Answer] = {}
        asked: list[str] = []
        waiting: list[Deferred[Answer]] = []
        for member in members:
            answer = None
            if member not in touched and member not in beyond:
                known = left_out.get(member) or LeftOut(member, f'cluster "{member}" is not for this request')
                answer = Answer(StatusError(403, known.why, details={}), known.undecided)
            else:
                try:
                    user = request.user_for(member)
                except StatusError as refusal:
                    answer = Answer(refusal, refusal.code == 429 or refusal.code >= 500)
                else:
                    if by_server and self._settings.authorize is model.ReadAuthorization.SERVER:
                        answer = _ALLOWED  # the server's authorizer has decided, for each cluster
                    else:
                        decision = self._reviewers(member).decide_nowait(user, attributes)
                        answer = None if decision is None else _answer(decision, user, attributes)
            if answer is None:
                asked.append(member)
                waiting.append(Deferred.fromCoroutine(self._ask(member, user, attributes)))
            else:
                answers[member] = answer
        if waiting:
            results = await request.while_connected(DeferredList(waiting, consumeErrors=True))
            for member, (_, result) in zip(asked, results, strict=True):
                if isinstance(result, Failure):  # the client went away
                    raise result.value
                answers[member] = result
        return answers

    async def _ask(self, member: str, user: UserInfo, attributes: Attributes) -> Answer:
        try:
            decision = await self._reviewers(member).decide(user, attributes)
        except ReviewUnavailable:
            return not_asked()
        return _answer(decision, user, attributes)


class ViewAuthorizer:
    """Authorizes reads of one view. Members that have another definition of the resource are left out with a Warning.

    Only users who may read there get that Warning.
    """

    def __init__(self, reads: MemberAuthorizer, view: View) -> None:
        self._reads = reads
        self._view = view

    @property
    def recheck_after(self) -> float:
        return self._reads.recheck_after

    async def allowed(
        self, request: AggregatedRequest, members: Sequence[str], verb: str, info: RequestInfo
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        may, left_out = await self._reads.allowed(request, self._concerned(members, info), verb, info)
        differing = dict(self._view.differing(info.namespace if self._view.resource.namespaced else ""))
        if not differing:
            return may, left_out
        try:
            told, _ = await self._reads.allowed(request, tuple(differing), verb, info)
        except StatusError:
            return may, left_out
        return may, (*left_out, *(LeftOut(name, differing[name].why) for name in told))

    async def again(
        self, request: AggregatedRequest, members: Sequence[str], info: RequestInfo
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        return await self._reads.again(request, self._concerned(members, info), info)

    def _concerned(self, members: Sequence[str], info: RequestInfo) -> Sequence[str]:
        """Return those of `members` in whose scope the namespace of a request is; all where it is in no scope.

        What another one allows gives no right to anything here, so that where these say no all say no.
        """
        namespace = info.namespace if self._view.resource.namespaced else ""
        covering = {member.name for member in self._view.members if member.covers(namespace)}
        return [name for name in members if name in covering] or members


def _sorted(members: Sequence[str], answers: Mapping[str, Answer]) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    refused = ((member, answers[member].refusal, answers[member].undecided) for member in members)
    return (
        tuple(member for member in members if answers[member].refusal is None),
        tuple(LeftOut(member, why.message, undecided) for member, why, undecided in refused if why is not None),
    )


def _answer(decision: Decision, user: UserInfo, attributes: Attributes) -> Answer:
    return _ALLOWED if decision.allowed else Answer(forbidden(user, attributes, decision.reason))


def refusal_of(answers: Sequence[Answer]) -> StatusError:
    """Return the refusal of a request that no member allows."""
    if any(answer.undecided for answer in answers):
        return retry_after(503, "no cluster could be asked whether this is allowed", _RETRY_AFTER)
    return next(answer.refusal for answer in answers if answer.refusal is not None)
