"""One aggregate in force: its views and the parts of this package that answer its requests, over all reloads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.authorization import MemberAuthorizer
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.freshness import Freshness, FreshnessWaiter
from mcproxy.aggregate.reads.reads import Reads
from mcproxy.aggregate.reflector.reflectors import Reflectors
from mcproxy.aggregate.request_router import RequestRouter
from mcproxy.aggregate.view.aggregate_views import AggregateViews, LeftOutResource
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from mcproxy.aggregate.watch.watches import Watches, WatchSettings
from mcproxy.aggregate.writes.held_bodies import HeldBodies
from mcproxy.aggregate.writes.write_handler import WriteHandler
from mcproxy.config.model.aggregates import Unavailable
from mcproxy.kube.status import retry_after

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.resource_version.layout import LayoutHistory
    from mcproxy.aggregate.view.scope import Scope
    from mcproxy.config.model.aggregates import Aggregate
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster

_RETRY_AFTER = 1

InThread = Callable[..., "Deferred[Any]"]


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The resources that all aggregates of the process share."""

    clock: IReactorTime
    random: Callable[[], float]  # in [0, 1)
    reflectors: Reflectors
    scheduler: WatchScheduler
    changes: MemoryBudget
    """The budget of the changes that are kept for watches."""
    in_thread: InThread
    """Calls a function with arguments in a thread."""
    bodies: HeldBodies
    """Those of requests that are read whole."""


class LiveAggregate:
    """One aggregate. It holds nothing until it is activated, so one that was only prepared can just be dropped."""

    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._active: _ActiveAggregate | None = None

    async def handle(self, request: AggregatedRequest, discovery: AggregateDiscovery | None = None) -> None:
        """Answer a request (`request_router.RequestRouter`). Raises StatusError."""
        active = self._active
        if active is None:  # a reload has removed it since the request arrived
            raise retry_after(503, "the aggregate is served no longer", _RETRY_AFTER)
        await active.router.handle(request, discovery)

    @property
    def scope(self) -> Scope | None:
        """What is read from cache; None before it is activated."""
        return None if self._active is None else self._active.views.scope

    @property
    def stores(self) -> Collection[Store]:
        """The caches that it is answered from."""
        return () if self._active is None else self._active.views.stores

    @property
    def undiscovered(self) -> Collection[Member]:
        """The members of which it is not known yet what they have."""
        return () if self._active is None else self._active.views.undiscovered

    @property
    def initial_sync_ends(self) -> float:
        """When `initialSyncTimeout` is over, by the clock of the caches."""
        return 0.0 if self._active is None else self._active.initial_sync_ends

    @property
    def unavailable(self) -> Unavailable:
        """What is served while a member is away."""
        return Unavailable.STALE if self._active is None else self._active.watches.settings.unavailable

    @property
    def left_out(self) -> list[LeftOutResource]:
        """The members' resources that are left out, since they are others than the aggregate serves."""
        return [] if self._active is None else self._active.views.left_out

    @property
    def watchers(self) -> int:
        """How many watches are open."""
        return 0 if self._active is None else len(self._active.watches)

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that are kept for watches."""
        return 0 if self._active is None else self._active.watches.queued_bytes

    @property
    def history(self) -> LayoutHistory | None:
        """The layouts of its resource versions; None before it is activated."""
        return None if self._active is None else self._active.views.history

    def activate(self, config: Aggregate, reviewers: ReviewersByCluster, history: LayoutHistory | None) -> None:
        """Put a configuration in force; `history` has the layouts that it had before this process was started."""
        if self._active is None:
            self._active = _ActiveAggregate(self._shared, config, reviewers, history)
        else:
            self._active.update(config, reviewers)

    def close(self) -> None:
        """End it: its watches end, its stores are released."""
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
        self.watches = Watches(clock, shared.random, settings, self._waiter, probe, shared.scheduler, shared.changes)
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
        self._authorization.update(config.reads, reviewers)  # first: fewer users may see added resources
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
