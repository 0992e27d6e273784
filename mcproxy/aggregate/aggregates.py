"""The owner of all live state of aggregates: members, reflectors, stores, views, layouts, and decisions.

It outlives every reload. A configuration is prepared beside the one in force, which changes nothing, and activated when
it comes into force: what stays is kept, so nothing is listed anew. All of it is saved under `daemon.stateDir`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from mcproxy.aggregate.live_aggregate import InThread, LiveAggregate, SharedParts
from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from mcproxy.aggregate.saved_state import SavedState
from mcproxy.aggregate.stale_decisions import StaleReviewers
from mcproxy.aggregate.watch.turns import Turns
from mcproxy.config import model

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.resource_version.layout import LayoutHistory
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.shared import Shared

AccessReviewers = Callable[[model.SubjectAccessReview], "ReviewersByCluster"]
"""Returns, for cache times, the reviewers of what each member would let a user do."""


class Aggregates:
    """All aggregates of the process that a server uses."""

    def __init__(self, shared: Shared, in_thread: InThread, wall: Callable[[], float]) -> None:
        """`in_thread` calls a function with arguments in a thread; `wall` returns seconds since 1970."""
        clock = shared.reactor
        self._state = SavedState(self, clock, in_thread, wall)
        self._reflectors = Reflectors(shared, saved=self._state)
        self._parts = SharedParts(clock, shared.random, self._reflectors, Turns(clock), in_thread)
        self._clock = clock
        self._live: dict[str, LiveAggregate] = {}

    def prepare(
        self, config: model.Config, clusters: Mapping[str, Cluster], reviewers: AccessReviewers
    ) -> PreparedAggregates:
        """Prepare a configuration; nothing that is live has changed until it is activated."""
        backends = [server.backend for server in config.servers]
        used = {backend.aggregate for backend in backends if isinstance(backend, model.AggregateBackend)}
        live = {
            aggregate.name: (aggregate, self._live.get(aggregate.name) or LiveAggregate(self._parts))
            for aggregate in config.aggregates
            if aggregate.name in used
        }
        return PreparedAggregates(self, config, clusters, reviewers, live)

    def stale_reviewers(self, settings: model.Reads, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers that answer the last decision of a member that is away."""
        return StaleReviewers(reviewers, self, self._state.decisions, self._clock, settings)

    def activate(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: AccessReviewers,
        live: Mapping[str, tuple[model.Aggregate, LiveAggregate]],
    ) -> None:
        """Put a configuration in force."""
        aggregates = [aggregate for aggregate, _ in live.values()]
        max_age = max((aggregate.reads.stale_decisions for aggregate in aggregates), default=0.0)
        self._state.use(config.daemon.state_dir if aggregates else None, max_age)
        before = dict(self._live)
        self._live = {name: each for name, (_, each) in live.items()}
        names = dict.fromkeys(
            name for aggregate in aggregates for name in (*aggregate.clusters, aggregate.primary) if name
        )
        # The stores of members that are gone stay until the views have told their objects as deleted.
        self._reflectors.update({name: clusters[name] for name in names})
        for name, (aggregate, each) in live.items():
            reads = aggregate.reads
            times = model.SubjectAccessReview(cache_allowed=reads.cache_allowed, cache_denied=reads.cache_denied)
            history = None if name in before else self._state.history(name)
            each.activate(aggregate, self.stale_reviewers(reads, reviewers(times)), history)
        for name, each in before.items():
            if name not in live:
                each.close()

    @property
    def live(self) -> Mapping[str, LiveAggregate]:
        """The aggregates in force, by name."""
        return self._live

    @property
    def now(self) -> float:
        """The time by the clock of the caches, seconds."""
        return self._clock.seconds()

    async def save(self) -> None:
        """Save everything that has changed since it was last saved (at a shutdown)."""
        await self._state.save()

    def stop(self) -> None:
        """End everything at once."""
        self._state.stop()
        live, self._live = self._live, {}
        for each in live.values():
            each.close()
        self._reflectors.stop()

    # -- stale_decisions.MemberStates -----------------------------------------------------------------------------

    def unavailable(self, member: str) -> bool:
        """Whether a member is known to be down; False for a cluster that is no member."""
        known = self._reflectors.members.get(member)
        return known is not None and known.unavailable_since is not None

    def uid(self, member: str) -> str:
        """The UID of a member's cluster, "" if it is not known."""
        known = self._reflectors.members.get(member)
        return "" if known is None else known.uid

    # -- saved_state.LiveState ------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        """All members, by name."""
        return self._reflectors.members

    @property
    def stores(self) -> Iterable[tuple[Store, StoreOptions]]:
        """All stores, with their options."""
        return self._reflectors.stores

    @property
    def histories(self) -> Mapping[str, LayoutHistory]:
        """The layouts of each aggregate, by its name."""
        return {name: live.history for name, live in self._live.items() if live.history is not None}

    @property
    def complete(self) -> bool:
        """Whether every member's resources are known, so that what is not there now is not needed."""
        return all(member.discovery.known for member in self._reflectors.members.values())


class PreparedAggregates:
    """The aggregates of a configuration that is not in force yet."""

    def __init__(
        self,
        owner: Aggregates,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: AccessReviewers,
        live: Mapping[str, tuple[model.Aggregate, LiveAggregate]],
    ) -> None:
        self._owner = owner
        self._config = config
        self._clusters = clusters
        self._reviewers = reviewers
        self._live = live

    @property
    def handlers(self) -> Mapping[str, LiveAggregate]:
        """What answers the requests to each aggregate, by its name."""
        return {name: live for name, (_, live) in self._live.items()}

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers of an aggregate's members whose last decisions hold while a member is away."""
        return self._owner.stale_reviewers(self._live[aggregate][0].reads, reviewers)

    def activate(self) -> None:
        """Put the configuration in force: reflectors start and stop, views follow."""
        self._owner.activate(self._config, self._clusters, self._reviewers, self._live)
