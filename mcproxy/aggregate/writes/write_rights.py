"""Asks the members whether the user may make a request, before its body is read and its owner looked up.

So a refusal is the same, in words, headers and time, whether or not the object exists, and wherever it does. Members
that refuse are left out of all that follows. Source: reference "list-watch", Writes and subresources.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.authorization import Answer, MemberAuthorizer, not_asked, refusal_of
from mcproxy.aggregate.request import LeftOut
from mcproxy.identity.authorization.attributes import Attributes, required_attributes

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.kube.resource import GroupVersionResource
    from mcproxy.kube.status import StatusError

GRACE = 1.0
"""Seconds for which a member that is silent holds up a request that another one allows."""


class WriteRights:
    """The rights of the user of one request; made before anything is left out of it."""

    def __init__(
        self, decisions: MemberAuthorizer, request: AggregatedRequest, gvr: GroupVersionResource, clock: IReactorTime
    ) -> None:
        self._decisions = decisions
        self._clock = clock
        self._request = request
        self._gvr = gvr
        self._touched = request.members
        self._answers: dict[str, Answer] = {}

    async def require(self, members: Sequence[str], target: str | None = None) -> None:
        """Leave those of `members` out that do not allow the request; `target` is where it may create an object.

        Raises StatusError if none of all these allows it: 403, or 503 if one cannot be asked.
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
        """Raise StatusError if the cluster does not allow the request; it is asked if it has not been."""
        if cluster not in self._answers:
            await self._ask((cluster,))
        refusal = self.refusal(cluster)
        if refusal is not None:
            raise refusal

    def refusal(self, cluster: str) -> StatusError | None:
        """Return the refusal of a cluster that was asked."""
        answer = self._answers.get(cluster)
        return None if answer is None else answer.refusal

    async def readers(self, members: Collection[str], namespace: str) -> frozenset[str]:
        """Return those of `members` whose objects of the namespace the user may watch: whose versions they may know.

        One that could not be asked for the request itself is not asked, and not waited for, again.
        """
        undecided = {name for name, answer in self._answers.items() if answer.undecided}
        members = [name for name in self._touched if name in members and name not in undecided]
        gvr = self._gvr
        wanted = Attributes("watch", gvr.group, gvr.version, gvr.resource, namespace=namespace)
        return await self._decisions.readers(self._request, members, wanted, members)

    async def may_read(self, cluster: str, namespace: str, name: str) -> bool:
        """Whether the user may watch the objects of the namespace in a cluster, or get this one."""
        gvr = self._gvr
        wanted = Attributes("watch", gvr.group, gvr.version, gvr.resource, namespace=namespace)
        for attributes in (wanted, wanted._replace(verb="get"), wanted._replace(verb="get", name=name)):
            if await self._decisions.readers(self._request, (cluster,), attributes, (cluster,)):
                return True
        return False

    async def _ask(self, clusters: Sequence[str]) -> None:
        deciding = {name: Deferred.fromCoroutine(self._decide(name)) for name in clusters}
        self._answers.update(await _Decisions(self._clock, deciding).done)

    async def _decide(self, cluster: str) -> Answer:
        """Ask one cluster for all that the request needs; the first refusal counts."""
        answer = Answer()
        for attributes in required_attributes(self._request.info, self._request.target):
            answer = await self._of(cluster, attributes)
            if answer.refusal is not None:
                break
        return answer

    async def _of(self, cluster: str, attributes: Attributes) -> Answer:
        """Ask for the right to all objects first: it is the same for every name, so it is known already as a rule."""
        request, clusters = self._request, (cluster,)
        beyond = () if cluster in self._touched else clusters
        everything = attributes._replace(name="")
        answer = (await self._decisions.of_writes(request, clusters, everything, beyond))[cluster]
        if everything == attributes or answer.refusal is None or answer.undecided:
            return answer
        return (await self._decisions.of_writes(request, clusters, attributes, beyond))[cluster]


class _Decisions:
    """Waits for the decisions of all clusters; for late ones `GRACE` at most once one allows the request.

    A late one counts as undecided then, but is not cancelled: it is known to the next request.
    """

    def __init__(self, clock: IReactorTime, deciding: Mapping[str, Deferred[Answer]]) -> None:
        self.done: Deferred[dict[str, Answer]] = Deferred(self._cancelled)
        self._clock = clock
        self._deciding = deciding
        self._answers: dict[str, Answer] = {}
        self._timer: IDelayedCall | None = None
        for name, each in deciding.items():
            each.addCallbacks(self._decided, self._failed, (name,))
        if not deciding:
            self._end()

    def _decided(self, answer: Answer, name: str) -> None:
        if self.done.called:
            return
        self._answers[name] = answer
        if len(self._answers) == len(self._deciding):
            self._end()
        elif answer.refusal is None and self._timer is None:
            self._timer = self._clock.callLater(GRACE, self._end)

    def _failed(self, problem: Failure) -> None:
        if not self.done.called:
            self._stop()
            self.done.errback(problem)

    def _end(self) -> None:
        self._stop()
        self.done.callback({name: self._answers.get(name) or not_asked() for name in self._deciding})

    def _cancelled(self, _: object) -> None:
        """The client has gone."""
        self._stop()
        for each in self._deciding.values():
            each.cancel()

    def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
