"""Authorization of the discovery of API services: a user needs the right to get /apis/GROUP/VERSION.

The server's policies and authorizer decide, and also, by SubjectAccessReview, the cluster that authorizes users of the
API server (`APIService.authority`). One review that allows /apis/* covers all these paths, since every RBAC rule that
matches this text matches all such paths. The configuration's rules are evaluated per path, since they can exclude one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from mcproxy.aggregate.discovery.api_services import GroupVersion, ServedGroupVersion
from mcproxy.config.model import APIService
from mcproxy.identity.authorization.access_review import Decision, Reviewer
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import known, settled

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.dispatch.plan import Dispatch
    from mcproxy.identity.authorization.authorizer import Authorizer, ReviewersByCluster

_PATIENCE = 3.0  # seconds to wait for the backend's cluster …
_PATIENCE_OF_SERVICES = 0.25  # … and for API servers that review themselves
_ALL = Attributes("get", path="/apis/*", is_resource=False)

_REFUSED = Decision(False)

Found = tuple[frozenset[GroupVersion], frozenset[GroupVersion]]


class _Service(NamedTuple):
    config: APIService
    attributes: Attributes
    info: requestinfo.RequestInfo


class ServiceVisibility:
    """Decides which API services of one server a user may discover."""

    def __init__(
        self,
        services: Sequence[APIService],
        clock: IReactorTime,
        *,
        dispatch: Dispatch,
        authorizer: Authorizer | None,
        reviewers: ReviewersByCluster | None,
    ) -> None:
        """`reviewers` review users' rights in clusters; None: only the server's policies and authorizer decide."""
        self._clock = clock
        self._dispatch = dispatch
        self._authorizer = authorizer
        self._reviewers = reviewers
        self._services: Mapping[GroupVersion, _Service] = {
            (each.group, each.version): _Service(each, Attributes("get", path=path, is_resource=False), info)
            for each in services
            for path in (f"/apis/{each.group_version}",)
            for info in (requestinfo.parse(b"GET", path.encode()),)
        }
        self._late: set[str] = set()  # API servers that have not answered since a request's wait timed out

    async def of(self, request: AggregatedRequest, registered: Sequence[ServedGroupVersion]) -> Found:
        """Return the API services that the request's user may discover, and the API services for which no decision
        arrived in time.
        """
        asked = _Asked(request, self._authorizer, self._reviewers)
        may: set[GroupVersion] = set()
        unknown: dict[GroupVersion, _Service] = {}
        undecided: set[GroupVersion] = set()
        for key in (each.group_version for each in registered):
            service = self._services.get(key)
            if service is None:
                continue  # during a reload the configuration briefly differs from the server's
            try:
                visible = self._admits(asked, service) and asked.known(service)
            except StatusError as refusal:
                if refusal.code == 429 or refusal.code >= 500:
                    undecided.add(key)
                continue
            if visible:
                may.add(key)
            elif visible is None:
                unknown[key] = service
        if unknown:
            await self._ask(request, asked, unknown, may, undecided)
        return frozenset(may), frozenset(undecided)

    def _admits(self, asked: _Asked, service: _Service) -> bool:
        """Whether a policy admits requests to a service. Raises StatusError if its authority does not know the user."""
        plan = self._dispatch.plan_of_service(asked.user(service.config.authority), service.info, service.config)
        return plan is not None and plan.reject is None

    async def _ask(
        self,
        request: AggregatedRequest,
        asked: _Asked,
        unknown: Mapping[GroupVersion, _Service],
        may: set[GroupVersion],
        undecided: set[GroupVersion],
    ) -> None:
        """Request reviews for all of `unknown`; a review that is not done in time continues for the next request.

        If the client disconnects first, its reviews are cancelled, since it can reconnect and request more.
        """
        undecided.update(unknown)
        waits: dict[bool, list[Deferred[Any]]] = {True: [], False: []}
        open_ = True

        def decided(allowed: bool, key: GroupVersion) -> None:
            self._late.discard(unknown[key].config.cluster)
            if open_:
                undecided.discard(key)
                if allowed:
                    may.add(key)

        def failed(failure: Failure, key: GroupVersion) -> None:
            if not isinstance(failure.value, CancelledError):
                self._late.discard(unknown[key].config.cluster)  # the review failed: the API service stays undecided

        deciding_all: list[Deferred[Any]] = []
        for key, service in unknown.items():
            own = service.config.authority == service.config.cluster
            late = own and service.config.cluster in self._late
            deciding = Deferred.fromCoroutine(asked.decide(service))
            deciding.addCallbacks(decided, failed, (key,), errbackArgs=(key,))
            deciding_all.append(deciding)
            if not late:
                waits[own].append(deciding)
        try:
            for own, patience in ((False, _PATIENCE), (True, _PATIENCE_OF_SERVICES)):
                if waits[own]:
                    await request.while_connected(_all(waits[own], patience, self._clock))
        except CancelledError:
            for deciding in deciding_all:
                deciding.cancel()
            raise
        self._late.update(unknown[key].config.cluster for key in undecided if key in unknown)
        open_ = False


class _Refusing:
    """Refuses all requests: for an authorizer whose rules do not allow a request and that has no reviewer."""

    def decide(self, user: UserInfo, attributes: Attributes) -> Decision:
        return _REFUSED


class _Asked:
    """The reviews of one request's user; answers for /apis/* are shared by all API services."""

    def __init__(
        self, request: AggregatedRequest, authorizer: Authorizer | None, reviewers: ReviewersByCluster | None
    ) -> None:
        self._request = request
        self._authorizer = authorizer
        self._reviewers = reviewers
        self._users: dict[str, UserInfo] = {}
        self._all: dict[
            tuple[str, str], bool | None
        ] = {}  # by kind and name of the reviewer: whether /apis/* is allowed

    def user(self, cluster: str) -> UserInfo:
        """Return the user's identity at a cluster. Raises StatusError."""
        user = self._users.get(cluster)
        if user is None:
            user = self._users[cluster] = self._request.user_at(cluster)
        return user

    def known(self, service: _Service) -> bool | None:
        """Return the decision if it is known, None if it must be reviewed. Raises StatusError for a user whom the
        cluster does not know.
        """
        answers = [self._known(*question, service.attributes) for question in self._questions(service)]
        if None in answers and False not in answers:
            return None
        return all(answers)

    async def decide(self, service: _Service) -> bool:
        """Return whether all reviewers allow the discovery. Raises ReviewUnavailable."""
        for _, _, reviewer, user in self._questions(service):
            decision = await settled(reviewer.decide(user, _ALL))
            if not decision.allowed:
                attributes = service.attributes
                decision = await settled(reviewer.decide(user, attributes))
            if not decision.allowed:
                return False
        return True

    def _questions(self, service: _Service) -> list[tuple[str, str, Reviewer, UserInfo]]:
        """Return the reviewers: for each its kind, its name, the reviewer, and the user's identity for it."""
        config, authorizer = service.config, self._authorizer
        found: list[tuple[str, str, Reviewer, UserInfo]] = []
        user = self.user(config.authority)
        if authorizer is not None and not authorizer.allowed_by_rules(user, service.attributes, config.cluster):
            name = authorizer.reviewer or config.authority
            reviewer = authorizer.reviewer_of(name)
            if reviewer is None:
                return [("", "", _Refusing(), user)]
            found.append(("server", name, reviewer, self.user(name)))
        if self._reviewers is not None:
            found.append(("cluster", config.authority, self._reviewers(config.authority), user))
        return found

    def _known(self, kind: str, name: str, reviewer: Reviewer, user: UserInfo, attributes: Attributes) -> bool | None:
        key = kind, name
        if key not in self._all:
            decision = known(reviewer.decide(user, _ALL))
            self._all[key] = None if decision is None else decision.allowed
        if self._all[key]:
            return True
        decision = known(reviewer.decide(user, attributes))
        return None if decision is None else decision.allowed


def _all(waiting: Sequence[Deferred[Any]], seconds: float, clock: IReactorTime) -> Deferred[None]:
    """Return a Deferred that fires when all are done, or after `seconds`. Cancelling it does not cancel the others."""
    done: Deferred[None] = Deferred(lambda _: timer.cancel())

    def fire(_: object = None) -> None:
        if timer.active():
            timer.cancel()
        if not done.called:
            done.callback(None)

    timer = clock.callLater(seconds, fire)
    DeferredList(waiting).addCallback(fire)
    return done
