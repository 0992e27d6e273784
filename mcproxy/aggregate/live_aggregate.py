"""One aggregate in force, which survives reloads: its views, and the parts that answer its requests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.aggregate.authorization import MemberAuthorizer, ViewAuthorizer
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.merge import BUILT_IN_GROUPS
from mcproxy.aggregate.discovery.merge_cache import VisibleClusters
from mcproxy.aggregate.freshness import Freshness, FreshnessWaiter
from mcproxy.aggregate.reads.reads import Reads
from mcproxy.aggregate.reflector.member import rediscover, renew
from mcproxy.aggregate.reflector.reflectors import Reflectors
from mcproxy.aggregate.view.aggregate_views import AggregateViews, LeftOutResource
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from mcproxy.aggregate.watch.watch_handler import WatchHandler, WatchSettings
from mcproxy.aggregate.writes.held_bodies import BodyBuffers
from mcproxy.aggregate.writes.write_handler import WriteHandler
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.kube.query_parameters import check_timeout, parse_query
from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status import StatusError, method_not_allowed, retry_after
from mcproxy.requests.coroutines import InThread

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.resource_version.layout import LayoutHistory
    from mcproxy.aggregate.view.scope import Scope
    from mcproxy.aggregate.view.view import View
    from mcproxy.config.model.aggregates import Aggregate
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.kube.resource import APIResource


_RETRY_AFTER_RELOAD = 1


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The resources that all aggregates of the process share."""

    clock: IReactorTime
    random: Callable[[], float]  # in [0, 1)
    reflectors: Reflectors
    scheduler: WatchScheduler
    changes: MemoryBudget
    """The memory budget of the changes that are queued for watches."""
    in_thread: InThread
    """Calls a function with arguments in a thread."""
    bodies: BodyBuffers
    """The buffers of request bodies, which are read completely before a write is sent to a member."""


class LiveAggregate:
    """One aggregate. It holds no resources until it is activated, so a prepared aggregate can simply be dropped."""

    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._active: _ActiveAggregate | None = None

    async def handle(self, request: AggregatedRequest, discovery: AggregateDiscovery | None = None) -> None:
        """Answer a request (`RequestRouter`). Raises StatusError."""
        active = self._active
        if active is None:  # since the request arrived, a reload removed the aggregate
            raise retry_after(503, "the aggregate is served no longer", _RETRY_AFTER_RELOAD)
        await active.router.handle(request, discovery)

    @property
    def scope(self) -> Scope | None:
        """The resources that are read from cache; None before the aggregate is activated."""
        return None if self._active is None else self._active.views.scope

    @property
    def stores(self) -> Collection[Store]:
        """The caches from which its requests are answered."""
        return () if self._active is None else self._active.views.stores

    @property
    def undiscovered(self) -> Collection[Member]:
        """The members whose resources are not known yet."""
        return () if self._active is None else self._active.views.undiscovered

    @property
    def initial_sync_ends(self) -> float:
        """When `initialSyncTimeout` ends, by the clock of the caches."""
        return 0.0 if self._active is None else self._active.initial_sync_ends

    @property
    def unavailable(self) -> UnavailableMembers:
        """The setting for reads while a member is unavailable."""
        return UnavailableMembers.STALE if self._active is None else self._active.watches.settings.unavailable

    @property
    def left_out(self) -> list[LeftOutResource]:
        """The members' resources that are left out because their definitions differ from the served ones."""
        return [] if self._active is None else self._active.views.left_out

    @property
    def watchers(self) -> int:
        """The number of open watches."""
        return 0 if self._active is None else len(self._active.watches)

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that are queued for watches."""
        return 0 if self._active is None else self._active.watches.queued_bytes

    @property
    def history(self) -> LayoutHistory | None:
        """The layouts of the aggregate's resource versions; None before it is activated."""
        return None if self._active is None else self._active.views.history

    def activate(self, config: Aggregate, reviewers: ReviewersByCluster, history: LayoutHistory | None) -> None:
        """Put a configuration in force; `history` has the aggregate's layouts from before the process start."""
        if self._active is None:
            self._active = _ActiveAggregate(self._shared, config, reviewers, history)
        else:
            self._active.update(config, reviewers)

    def close(self) -> None:
        """End the aggregate's watches, and release its stores."""
        active, self._active = self._active, None
        if active is not None:
            active.close()


class _ActiveAggregate:
    def __init__(
        self, shared: SharedParts, config: Aggregate, reviewers: ReviewersByCluster, history: LayoutHistory | None
    ) -> None:
        clock, probe = shared.clock, shared.reflectors.probe
        self._shared = shared
        self.views = AggregateViews(config, self._members(config), shared.reflectors, history)
        freshness, settings = _freshness(config), _watch_settings(config)
        self.initial_sync_ends = clock.seconds() + config.cache.initial_sync_timeout
        self._waiter = FreshnessWaiter(clock, probe, freshness)
        self._reads = Reads(clock, self._waiter, shared.in_thread)
        self.watches = WatchHandler(
            clock, shared.random, settings, self._waiter, probe, shared.scheduler, shared.changes
        )
        self._discovery = AggregateDiscovery(clock, shared.in_thread)
        self._discovery.update(config, self._shared.reflectors.members, self.views.scope)
        self._authorization = MemberAuthorizer(config.reads, reviewers)
        self.router = RequestRouter(
            clock,
            self.views,
            authorization=self._authorization,
            discovery=self._discovery,
            reads=self._reads,
            watches=self.watches,
            writes=WriteHandler(
                self.views,
                clock,
                shared.in_thread,
                self._authorization,
                self._waiter.current,
                shared.bodies,
                shared.reflectors.members,
            ),
            primary=config.primary,
            wait_until=self.initial_sync_ends,
        )

    def update(self, config: Aggregate, reviewers: ReviewersByCluster) -> None:
        # Update the authorization before the views, since it must apply to the resources that they add.
        self._authorization.update(config.reads, reviewers)
        self.views.update(config, self._members(config))
        self._waiter.freshness = _freshness(config)
        self.watches.settings = _watch_settings(config)
        self._discovery.update(config, self._shared.reflectors.members, self.views.scope)
        self.router.primary = config.primary

    def close(self) -> None:
        self._discovery.stop()
        self.watches.stop()
        self._reads.stop()
        self.views.close()

    def _members(self, config: Aggregate) -> tuple[Member, ...]:
        return tuple(self._shared.reflectors.member(name) for name in config.clusters)


def _freshness(config: Aggregate) -> Freshness:
    return Freshness(config.cache.max_staleness, config.cache.initial_sync_timeout, config.unavailable)


def _watch_settings(config: Aggregate) -> WatchSettings:
    return WatchSettings(config.unavailable, config.cache.initial_sync_timeout)


# -- routing of requests --------------------------------------------------------------------------------------
#
# Chooses the subpackage or cluster that answers a request to an aggregate.
#
#     non-resource path     discovery: discovery, OpenAPI, version, probes; the primary: all other paths
#     self review           writes, which sends it to the primary and every member
#     cached resource       get, list: reads; watch: watch; other verbs: writes
#     resource w/o watch    get, list: writes (uncached reads); other verbs: writes
#     outside the scope     the primary; without a primary 404
#     in scope, not known   the members' discovery is read again; then as above, or 404
#
# Reads from caches are authorized here, by a review of each member. Requests that are sent to a member are authorized
# by the member; writes and subresources are reviewed here first (`authorization.WriteRights`).


_RETRY_AFTER = 5
_POLL = 0.05  # seconds between two polls of members that are being read for the first time
#: Paths that are answered for all users, since system:public-info-viewer allows them in every cluster.
_PUBLIC = frozenset({"healthz", "livez", "readyz", "version"})
_SELF_REVIEWS = frozenset(
    {
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
        ("authentication.k8s.io", "selfsubjectreviews"),
    }
)
_LONG_RUNNING_VERBS = frozenset({"watch", "proxy"})
_LONG_RUNNING_SUBRESOURCES = STREAM_SUBRESOURCES | {"log", "proxy"}
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class RequestRouter:
    """Answers the requests to one aggregate."""

    def __init__(
        self,
        clock: IReactorTime,
        views: AggregateViews,
        *,
        authorization: MemberAuthorizer,
        discovery: AggregateDiscovery,
        reads: Reads,
        watches: WatchHandler,
        writes: WriteHandler,
        primary: str | None,
        wait_until: float,
    ) -> None:
        """A reload can change `primary`. Until `wait_until` (seconds of `clock`), requests wait for members that were
        never reached.
        """
        self.primary = primary
        self._clock = clock
        self._views = views
        self._authorization = authorization
        self._discovery = discovery
        self._reads = reads
        self._watches = watches
        self._writes = writes
        self._wait_until = wait_until

    async def handle(self, request: AggregatedRequest, discovery: AggregateDiscovery | None = None) -> None:
        """Answer a request, or start its answer (a watch). Raises StatusError.

        `discovery` is the discovery handler of the server if the server has API services, else None.
        """
        info = request.info
        if info.verb not in _LONG_RUNNING_VERBS and info.subresource not in _LONG_RUNNING_SUBRESOURCES:
            check_timeout(parse_query(request.target.partition(b"?")[2]))
        if not info.is_resource:
            await self._other(request, discovery or self._discovery)
        elif info.verb == "create" and (info.group, info.resource) in _SELF_REVIEWS and not info.subresource:
            await self._writes.self_review(request)
        else:
            await self._resource(request, GroupVersionResource(info.group, info.version, info.resource))

    async def _other(self, request: AggregatedRequest, discovery: AggregateDiscovery) -> None:
        """Answer a request for a non-resource path."""
        first = request.info.path.split("/", 2)[1]
        if first in _PUBLIC:
            mine = await discovery.serve(request)
        elif first in ("", "api", "apis", "openapi"):
            clusters, left_out = await self._authorization.discoverable(request, self.primary)
            request.leave_out(left_out)
            undecided = any(each.undecided for each in (*request.left_out, *left_out))
            if first in ("api", "apis"):
                await renew(self._views.members, self._clock)
            mine = await discovery.serve(request, VisibleClusters(clusters, undecided=undecided))
        else:
            mine = False
        if not mine:
            await self._outside(request)

    async def _resource(self, request: AggregatedRequest, gvr: GroupVersionResource) -> None:
        if self._views.names(gvr):
            await self._discovered()
            if not self._views.known(gvr) and request.info.verb != "proxy":
                await self._rediscover(gvr)
        view = self._views.view(gvr)
        resource = view.resource if view is not None else self._views.unwatchable(gvr)
        if resource is None or request.info.verb == "proxy":
            await self._outside(request)
            return
        _check_method(request)
        _check_namespace(request, resource)
        info = request.info
        if info.subresource or info.verb in _WRITES:
            await self._writes.serve(request, resource, None if view is None else view.pinned())
        elif view is None:
            if info.verb == "watch":
                raise method_not_allowed()
            await self._writes.read_uncached(request, resource)
        else:
            await self._cached(request, view)

    async def _cached(self, request: AggregatedRequest, view: View) -> None:
        """Answer a get, list or watch from the caches of the members that allow it."""
        verb = request.info.verb
        known_field = None if verb == "get" else await self._discovery.known_field(request, view.resource)
        if verb == "watch":
            await self._watches.serve(request, view, ViewAuthorizer(self._authorization, view), known_field)
            return
        view = view.pinned()
        members = [member.name for member in view.members]
        reads = ViewAuthorizer(self._authorization, view)
        allowed, left_out = await reads.allowed(request, members, verb, request.info)
        if verb == "get":
            await self._reads.get(request, view, allowed, left_out)
        else:
            await self._reads.list(request, view, allowed, left_out, known_field)

    # -- the scope ----------------------------------------------------------------------------------------------

    async def _discovered(self) -> None:
        """Wait until each member's resources are known, but not longer than until `wait_until`."""
        while self._views.undiscovered and self._clock.seconds() < self._wait_until:
            await deferLater(self._clock, _POLL)

    async def _rediscover(self, gvr: GroupVersionResource) -> None:
        """Read discovery again for a resource in scope that no member is known to have.

        The primary must not answer such a request: it would create objects as the client sent them, and a watch would
        always have the primary's versions. Raises StatusError: 404 if no member has the resource, 503 if it is not
        known because a member cannot be asked.
        """
        unasked = await rediscover(self._views.in_scope(gvr), self._clock)
        if self._views.known(gvr):
            return
        if unasked:
            message = f"it is not known which clusters have {gvr}: {', '.join(unasked)} cannot be reached"
            raise retry_after(503, message, _RETRY_AFTER)
        raise _no_route()

    async def _outside(self, request: AggregatedRequest) -> None:
        """Let the primary answer a request outside the scope. Raises StatusError (404) without a primary."""
        if self.primary is None:
            raise _no_route()
        request.served_by(self.primary, cached=False)
        if request.info.is_resource:
            await self._writes.write_beyond(request, self.primary)
        else:
            await request.forward(self.primary, request.target)


def _no_route() -> StatusError:
    return StatusError(404, "the server could not find the requested resource", details={})


def _check_namespace(request: AggregatedRequest, resource: APIResource) -> None:
    """Raise StatusError (404) for a path with a namespace for a cluster-scoped resource, and for a path with an object
    name but no namespace for a namespaced resource.

    A kube-apiserver has no such routes. Members review rights in the path's namespace, and such a right must not show
    cluster-scoped objects. In `namespaces/NAME` the name is the namespace, too.
    """
    info = request.info
    if info.namespace and not resource.namespaced and (info.resource != "namespaces" or info.name != info.namespace):
        raise _no_route()
    # For a collection, `info.name` comes from the field selector.
    named = bool(info.name) and info.verb not in ("list", "watch", "deletecollection")
    if named and not info.namespace and resource.namespaced:
        raise _no_route()


def _check_method(request: AggregatedRequest) -> None:
    """Raise StatusError (405) for a method for which a kube-apiserver has no route."""
    info = request.info
    verb, named = info.verb, bool(info.name)
    if not verb or request.head.method == b"HEAD":
        raise method_not_allowed()
    if info.subresource:
        return
    if verb in ("update", "patch") and not named:
        raise method_not_allowed()
    if (
        verb == "create" and named and (not info.group or info.group in BUILT_IN_GROUPS)
    ):  # a kube-apiserver's route for a custom resource creates the object (recorded)
        raise method_not_allowed()
