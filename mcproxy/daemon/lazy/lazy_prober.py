"""The availability of API services in the daemon: the process that probes.

One process probes: the only one, or the keeper, which tells the workers (`processes.availability_relay`). The prober is
imported when a configuration first has an API service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcproxy.apiservices.availability import Availability
from mcproxy.config import model
from mcproxy.net.wall_time import wall_clock

if TYPE_CHECKING:
    from mcproxy.apiservices.prober import Prober
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


class ProbedAvailability:
    """The availability in the process that probes."""

    def __init__(self, shared: UpstreamContext) -> None:
        self.known = Availability(wall_clock(shared.reactor))
        self._shared = shared
        self._prober: Prober | None = None

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force; `clusters` has all of it."""
        use(self.known, config)
        registrations = {each: clusters[each.cluster] for each, _ in self.known.all()}
        if self._prober is None:
            if not registrations:
                return
            from mcproxy.apiservices.prober import Prober

            self._prober = Prober(
                self.known, self._shared.reactor, self._shared.random, counts=self._shared.metrics.counts
            )
            self.known.on_suspicion(self._prober.suspected)
        self._prober.update(registrations)

    def stop(self) -> None:
        """End everything at once."""
        if self._prober is not None:
            self._prober.stop()


def use(known: Availability, config: model.Config) -> None:
    """Have it follow a configuration."""
    known.use({server.name: server.api_services for server in config.servers if server.api_services})
