"""Aggregates in the daemon: their owner is made, and its modules imported, when a configuration first has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.daemon.figures import Figures
from mcproxy.daemon.figures.aggregates import of_aggregates
from mcproxy.daemon.readiness_of_caches import cache_checks
from mcproxy.kube.healthz import Check

if TYPE_CHECKING:
    from mcproxy.aggregate.aggregates import Aggregates
    from mcproxy.aggregate.request import AggregateHandler
    from mcproxy.daemon.runtime import PreparedAggregates
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.shared import Shared


class LazyAggregates:
    """The owner of aggregates (`runtime.AggregatesOwner`), which costs nothing while there are none."""

    def __init__(self, reactor: Any, shared: Shared) -> None:
        self._reactor = reactor
        self._shared = shared
        self._owner: Aggregates | None = None

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration; nothing that is live has changed until it is activated."""
        if self._owner is None:
            if not any(isinstance(server.backend, model.AggregateBackend) for server in config.servers):
                return NO_AGGREGATES
            self._owner = self._make()
        return self._owner.prepare(config, clusters, reviewers)

    def figures(self) -> list[Figures]:
        """Return the figures of each aggregate."""
        return [] if self._owner is None else of_aggregates(self._owner)

    def checks(self) -> list[Check]:
        """Return the readiness of each aggregate."""
        return [] if self._owner is None else list(cache_checks(self._owner.live, self._owner.now))

    async def save(self) -> None:
        """Save all state (at a shutdown)."""
        if self._owner is not None:
            await self._owner.save()

    def stop(self) -> None:
        """End everything at once."""
        if self._owner is not None:
            self._owner.stop()

    def _make(self) -> Aggregates:
        from twisted.internet.threads import deferToThreadPool

        from mcproxy.aggregate.aggregates import Aggregates

        in_thread = partial(deferToThreadPool, self._reactor, self._reactor.getThreadPool())
        return Aggregates(self._shared, in_thread, time.time)


class _NoAggregates:
    """What is prepared for a configuration without aggregates, as long as there never were any."""

    handlers: Mapping[str, AggregateHandler] = MappingProxyType({})

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        raise KeyError(aggregate)

    def activate(self) -> None:
        pass


NO_AGGREGATES = _NoAggregates()
