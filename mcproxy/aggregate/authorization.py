"""Authorization of reads from caches: each member decides about its own objects (`reads: {authorize: Members}`).

A read with verb v of resource r in namespace n needs the same right in each member, which a SubjectAccessReview checks.
Members that refuse are left out; if all members refuse, the answer is 403 as from one cluster. A cluster-wide list
needs the cluster-wide right. Source: reference "list-watch", Who may read. Unavailable members: `last_decisions`.
Writes and subresources are authorized in the same way, before their bodies are read (`WriteRights`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from mcproxy.aggregate.request import LeftOut
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes, attributes_of, forbidden, required_attributes
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import known, settled

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.view import View
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.resource import GroupVersionResource

_RECHECK = 10.0, 30.0  # minimum and maximum seconds between two authorization checks of a watch
_RETRY_AFTER = 5
_UNDECIDED = "it cannot be asked whether this is allowed"


def check_decided(left_out: Sequence[LeftOut], unavailable: model.UnavailableMembers) -> None:
    """Raise StatusError (503) if a member that is left out could not be asked, and `unavailable` is Fail."""
    if unavailable is model.UnavailableMembers.FAIL:
        for member, why, undecided in left_out:
            if undecided:
                raise retry_after(503, f"cluster {member} is unavailable: {why}", 1, name=member)


class MemberAnswer(NamedTuple):
    """The decision of one member. `refusal` is None if it allows the request; `undecided`: it gave no decision."""

    refusal: StatusError | None = None
    undecided: bool = False


_ALLOWED = MemberAnswer()


def not_asked() -> MemberAnswer:
    """Return the answer of a member that cannot be asked, or has not answered in time."""
    return MemberAnswer(retry_after(503, _UNDECIDED, _RETRY_AFTER), undecided=True)


class MemberAuthorizer:
    """The authorization of reads from the caches of one aggregate."""

    def __init__(self, settings: model.ReadsConfig, reviewers: ReviewersByCluster) -> None:
        """`reviewers` returns the reviewer of a member; each reviewer uses the cache times of `settings`."""
        self._settings = settings
        self._reviewers = reviewers

    def update(self, settings: model.ReadsConfig, reviewers: ReviewersByCluster) -> None:
        """Apply a new configuration; the next checks of open watches use the new settings, too."""
        self._settings = settings
        self._reviewers = reviewers

    @property
    def recheck_after(self) -> float:
        """Seconds after which an open watch is authorized again. Until a decision expires, it comes from the cache."""
        least, most = _RECHECK
        return min(most, max(least, self._settings.cache_allowed / 10))

    async def allowed(
        self, request: AggregatedRequest, members: Sequence[str], verb: str, info: RequestInfo
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        """Return the members whose objects the request's user may read, and the members to leave out.

        `verb` is get, list or watch (a streaming list is a watch). Members outside `request.members` are left out, too.
        Raises StatusError if no member remains: 403 if all members refuse, 503 if at least one could not be asked.
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
        """Authorize an open watch again; the result is as in `allowed`. Raises 403 if all members refuse."""
        attributes = attributes_of(info, request.target)._replace(verb="watch")
        answers = await self._answers(request, members, attributes)
        if members and all(answer.refusal is not None and not answer.undecided for answer in answers.values()):
            raise refusal_of(list(answers.values()))
        return _sorted(members, answers)

    async def discoverable(
        self, request: AggregatedRequest, primary: str | None
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        """Return the clusters (members and `primary`) in which the user may read the path, and those to leave out.

        The path is a discovery or OpenAPI path. A user sees only clusters that allow the user to read this path.
        Raises StatusError as `allowed` does.
        """
        beyond = () if primary is None else (primary,)
        clusters = tuple(dict.fromkeys((*request.members, *beyond)))
        answers = await self._answers(request, clusters, attributes_of(request.info, request.target), beyond)
        if clusters and all(answer.refusal is not None for answer in answers.values()):
            raise refusal_of(list(answers.values()))
        return _sorted(clusters, answers)

    async def of_writes(
        self, request: AggregatedRequest, clusters: Sequence[str], attributes: Attributes, beyond: Collection[str] = ()
    ) -> Mapping[str, MemberAnswer]:
        """Return each cluster's decision about a write; `beyond` are clusters outside `request.members` that are asked.

        Every cluster is asked, whatever `authorize` is. With `authorize: Server`, a cluster that cannot be asked counts
        as allowing the write, since the proxy may lack the right to ask. That cluster decides when it gets the write.
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
        """Return the clusters that have decided to allow a read. The arguments are those of `of_writes`."""
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
    ) -> dict[str, MemberAnswer]:
        """Return each member's decision; the clusters in `beyond` need not be members of the request.

        `by_server`: with the setting `authorize: Server`, count all members as allowing the request without a review.
        """
        left_out = {each.member: each for each in request.left_out}
        touched = frozenset(request.members)
        answers: dict[str, MemberAnswer] = {}
        asked: list[str] = []
        waiting: list[Deferred[MemberAnswer]] = []
        for member in members:
            answer = None
            if member not in touched and member not in beyond:
                left = left_out.get(member) or LeftOut(member, f'cluster "{member}" is not for this request')
                answer = MemberAnswer(StatusError(403, left.why, details={}), left.undecided)
            else:
                try:
                    user = request.user_for(member)
                except StatusError as refusal:
                    answer = MemberAnswer(refusal, refusal.code == 429 or refusal.code >= 500)
                else:
                    if by_server and self._settings.authorize is model.ReadAuthorization.SERVER:
                        answer = _ALLOWED  # the server's authorizer has decided, for each cluster
                    else:
                        decision = known(self._reviewers(member).decide(user, attributes))
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

    async def _ask(self, member: str, user: UserInfo, attributes: Attributes) -> MemberAnswer:
        try:
            decision = await settled(self._reviewers(member).decide(user, attributes))
        except ReviewUnavailable:
            return not_asked()
        return _answer(decision, user, attributes)


class ViewAuthorizer:
    """Authorizes reads of one view. Members with a different definition of the resource are left out with a Warning.

    Only users who may read in such a member get its Warning.
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
        """Return the members whose scope covers the request's namespace, or all members if none covers it.

        Only these members decide. If all of them refuse, the request is refused even if another member would allow it.
        """
        namespace = info.namespace if self._view.resource.namespaced else ""
        covering = {member.name for member in self._view.members if member.covers(namespace)}
        return [name for name in members if name in covering] or members


def _sorted(members: Sequence[str], answers: Mapping[str, MemberAnswer]) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    refused = ((member, answers[member].refusal, answers[member].undecided) for member in members)
    return (
        tuple(member for member in members if answers[member].refusal is None),
        tuple(LeftOut(member, why.message, undecided) for member, why, undecided in refused if why is not None),
    )


def _answer(decision: Decision, user: UserInfo, attributes: Attributes) -> MemberAnswer:
    return _ALLOWED if decision.allowed else MemberAnswer(forbidden(user, attributes, decision.reason))


def refusal_of(answers: Sequence[MemberAnswer]) -> StatusError:
    """Return the refusal of a request that no member allows."""
    if any(answer.undecided for answer in answers):
        return retry_after(503, "no cluster could be asked whether this is allowed", _RETRY_AFTER)
    return next(answer.refusal for answer in answers if answer.refusal is not None)


# -- writes ---------------------------------------------------------------------------------------------------
#
# Asks the members whether the user may make a request. This happens before the proxy reads the request body and finds
# the member that has the object.
#
# So the text, headers and timing of a refusal do not reveal whether the object exists, or in which member. Members
# that refuse take no part in later steps. Source: reference "list-watch", Writes and subresources.


SILENT_GRACE = 1.0
"""Maximum seconds for which a member that does not answer delays a request that another member allows."""


class WriteRights:
    """The rights of the user of one request. Create it before any member is left out of the request."""

    def __init__(
        self, decisions: MemberAuthorizer, request: AggregatedRequest, gvr: GroupVersionResource, clock: IReactorTime
    ) -> None:
        self._decisions = decisions
        self._clock = clock
        self._request = request
        self._gvr = gvr
        self._touched = request.members
        self._answers: dict[str, MemberAnswer] = {}

    async def require(self, members: Sequence[str], target: str | None = None) -> None:
        """Leave out the members that do not allow the request; `target` is the cluster in which the request can create
        an object.

        Raises StatusError if neither a member nor the target allows it: 403, or 503 if one of them cannot be asked.
        """
        clusters = tuple(dict.fromkeys((*members, *(() if target is None else (target,)))))
        await self._ask(clusters)
        refused = {name: answer for name in clusters if (answer := self._answers[name]).refusal is not None}
        if clusters and len(refused) == len(clusters):
            raise refusal_of(list(refused.values()))
        self._request.leave_out(
            [
                LeftOut(name, answer.refusal.message, answer.undecided)
                for name, answer in refused.items()
                if answer.refusal is not None and name in self._touched
            ]
        )

    async def check(self, cluster: str) -> None:
        """Raise StatusError if the cluster does not allow the request; ask the cluster if it was not asked before."""
        if cluster not in self._answers:
            await self._ask((cluster,))
        refusal = self.refusal(cluster)
        if refusal is not None:
            raise refusal

    def refusal(self, cluster: str) -> StatusError | None:
        """Return the refusal of a cluster; None if the cluster allows the request or was not asked."""
        answer = self._answers.get(cluster)
        return None if answer is None else answer.refusal

    async def readers(self, members: Collection[str], namespace: str) -> frozenset[str]:
        """Return the members whose objects of the namespace the user may watch, and whose versions the user may
        therefore know.

        A member that could not be asked about the request itself is not asked again.
        """
        undecided = {name for name, answer in self._answers.items() if answer.undecided}
        members = [name for name in self._touched if name in members and name not in undecided]
        gvr = self._gvr
        wanted = Attributes("watch", gvr.group, gvr.version, gvr.resource, namespace=namespace)
        return await self._decisions.readers(self._request, members, wanted, members)

    async def may_read(self, cluster: str, namespace: str, name: str) -> bool:
        """Whether the user may watch or get all objects of the namespace in a cluster, or get the object `name`."""
        gvr = self._gvr
        wanted = Attributes("watch", gvr.group, gvr.version, gvr.resource, namespace=namespace)
        for attributes in (wanted, wanted._replace(verb="get"), wanted._replace(verb="get", name=name)):
            if await self._decisions.readers(self._request, (cluster,), attributes, (cluster,)):
                return True
        return False

    async def _ask(self, clusters: Sequence[str]) -> None:
        deciding = {name: Deferred.fromCoroutine(self._decide(name)) for name in clusters}
        self._answers.update(await _Decisions(self._clock, deciding).done)

    async def _decide(self, cluster: str) -> MemberAnswer:
        """Ask one cluster for every right that the request needs; the first refusal is the answer."""
        answer = MemberAnswer()
        for attributes in required_attributes(self._request.info, self._request.target):
            answer = await self._of(cluster, attributes)
            if answer.refusal is not None:
                break
        return answer

    async def _of(self, cluster: str, attributes: Attributes) -> MemberAnswer:
        """Ask for all objects first, since such reviews are usually cached. If refused, ask for the named object."""
        request, clusters = self._request, (cluster,)
        beyond = () if cluster in self._touched else clusters
        everything = attributes._replace(name="")
        answer = (await self._decisions.of_writes(request, clusters, everything, beyond))[cluster]
        if everything == attributes or answer.refusal is None or answer.undecided:
            return answer
        return (await self._decisions.of_writes(request, clusters, attributes, beyond))[cluster]


class _Decisions:
    """Waits for the decisions of all clusters. After the first decision that allows the request, the wait ends within
    `SILENT_GRACE` seconds.

    A late decision counts as undecided. Its review is not cancelled, so the next request finds its result in the cache.
    """

    def __init__(self, clock: IReactorTime, deciding: Mapping[str, Deferred[MemberAnswer]]) -> None:
        self.done: Deferred[dict[str, MemberAnswer]] = Deferred(self._cancelled)
        self._clock = clock
        self._deciding = deciding
        self._answers: dict[str, MemberAnswer] = {}
        self._timer: IDelayedCall | None = None
        for name, each in deciding.items():
            each.addCallbacks(self._decided, self._failed, (name,))
        if not deciding:
            self._end()

    def _decided(self, answer: MemberAnswer, name: str) -> None:
        if self.done.called:
            return
        self._answers[name] = answer
        if len(self._answers) == len(self._deciding):
            self._end()
        elif answer.refusal is None and self._timer is None:
            self._timer = self._clock.callLater(SILENT_GRACE, self._end)

    def _failed(self, problem: Failure) -> None:
        if not self.done.called:
            self._stop()
            self.done.errback(problem)

    def _end(self) -> None:
        self._stop()
        self.done.callback({name: self._answers.get(name) or not_asked() for name in self._deciding})

    def _cancelled(self, _: object) -> None:
        """The client has disconnected: cancel all reviews."""
        self._stop()
        for each in self._deciding.values():
            each.cancel()

    def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
