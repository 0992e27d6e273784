"""The lazy owner of aggregates: it is made, and its modules imported, when a configuration first has one.

It also owns the merged documents of servers with API services.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.cache_status import cache_checks, of_aggregates
from mcproxy.kube.healthz import Check

if TYPE_CHECKING:
    from mcproxy.aggregate.aggregates import Aggregates
    from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
    from mcproxy.aggregate.request import AggregateHandler
    from mcproxy.apiservices.availability import Availability
    from mcproxy.daemon.lazy.lazy_member_caches import LazyMemberCaches
    from mcproxy.daemon.part_owners import PreparedAggregates
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


class LazyAggregates:
    """The owner of aggregates (`part_owners.AggregatesOwner`), which has no cost without aggregates."""

    def __init__(self, reactor: Any, shared: UpstreamContext, caches: LazyMemberCaches) -> None:
        """`caches` are owned by the caller."""
        self._reactor = reactor
        self._shared = shared
        self._caches = caches
        self._owner: Aggregates | None = None
        self._availability: Availability | None = None

    def follow_availability(self, availability: Availability) -> None:
        """Show API services that are not available as stale."""
        self._availability = availability

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration; nothing that is live has changed until it is activated."""
        if self._owner is None:
            if not any(server.merges_documents for server in config.servers):
                return NO_AGGREGATES
            self._owner = self._make()
        return self._owner.prepare(config, clusters, reviewers)

    def figures(self) -> list[Figures]:
        """Return the figures of each aggregate."""
        return [] if self._owner is None else of_aggregates(self._owner)

    def checks(self) -> list[Check]:
        """Return the readiness of each aggregate."""
        return [] if self._owner is None else list(cache_checks(self._owner.live, self._owner.now))

    def stop(self) -> None:
        """End everything at once, but for the caches."""
        if self._owner is not None:
            self._owner.stop()

    def _make(self) -> Aggregates:
        from mcproxy.aggregate.aggregates import Aggregates

        owner = Aggregates(self._shared, self._caches.get(), self._caches.in_thread)
        owner.follow_availability(self._availability)
        return owner


class _NoAggregates:
    """The prepared state of a configuration without aggregates, before the first one."""

    handlers: Mapping[str, AggregateHandler] = MappingProxyType({})

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        raise KeyError(aggregate)

    def documents(self, server: model.Server, backend: str, visibility: ServiceVisibility) -> AggregateHandler:
        raise KeyError(backend)

    def activate(self) -> None:
        pass


NO_AGGREGATES = _NoAggregates()
