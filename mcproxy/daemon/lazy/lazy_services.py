"""Services in the daemon: their caches, and the table of endpoints that ingresses balance over.

One process has the caches: the only one, or the keeper, whose table the workers get (`processes.endpoints_relay`).
The modules for caches are imported when a configuration first has exports, discovery or an ingress.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.daemon.lazy.lazy_member_caches import LazyMemberCaches
from mcproxy.daemon.status import Figures
from mcproxy.kube.healthz import Check
from mcproxy.services.cache_scopes import uses_services
from mcproxy.services.endpoint_table import EndpointTable

if TYPE_CHECKING:
    from mcproxy.services.controller.export_controller import ExportController
    from mcproxy.services.live_services import LiveServices
    from mcproxy.services.service_caches import ServiceCaches
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


class LazyServices:
    """Services in the process that has the caches (`process_parts.ServicesOfProcess`)."""

    def __init__(self, shared: UpstreamContext, caches: LazyMemberCaches) -> None:
        """`caches` are owned by the caller."""
        self.endpoints = EndpointTable()
        self._shared = shared
        self._caches = caches
        self._owner: LiveServices | None = None

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force; `clusters` has all of it."""
        if self._owner is None:
            if not needs_services(config):
                return
            from mcproxy.services.live_services import LiveServices

            self._owner = LiveServices(self._caches.get(), self.endpoints, self._make_controller)
        self._owner.activate(config, clusters)

    def figures(self) -> Figures:
        """Return the figures of services, if there are any (`daemon.status.service_status`)."""
        if self._owner is None:
            return {}
        from mcproxy.daemon.status.cache_status import of_services

        return of_services(self._owner)

    def checks(self) -> list[Check]:
        """Return the readiness of the caches."""
        return [] if self._owner is None else self._owner.checks()

    async def leave(self) -> None:
        """Write no more to clusters, and free their Leases for other replicas."""
        if self._owner is not None:
            await self._owner.leave()

    def _make_controller(self, caches: ServiceCaches) -> ExportController:
        from mcproxy.services.controller.export_controller import ExportController
        from mcproxy.services.controller.writable_cluster import Parts
        from mcproxy.services.leader_election.lease_lock import LeaseLock

        clock = self._shared.reactor
        parts = Parts(
            clock=clock,
            random=self._shared.random,
            counts=self._shared.metrics.counts,
            identity=f"{socket.gethostname()[:150]}_{uuid.uuid4()}",
            boot_seconds=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
            make_lease=lambda cluster, where: LeaseLock(cluster, clock, where),
        )
        return ExportController(caches, parts)

    def stop(self) -> None:
        """End everything at once, but for the caches."""
        if self._owner is not None:
            self._owner.stop()


def needs_services(config: model.Config) -> bool:
    """Whether a configuration needs caches of services, or an earlier one has had some written that may be left."""
    if uses_services(config) or config.daemon.state_dir is None:
        return uses_services(config)
    from mcproxy.services import written_places

    return written_places.exists(config.daemon.state_dir)
