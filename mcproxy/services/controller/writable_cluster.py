"""A cluster to which exports are written: its leader elector (Lease) and its writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.services.exports.object_keys import ServiceKey
from mcproxy.services.leader_election import Election, LeaderElector
from mcproxy.services.lease import LeaseLock
from mcproxy.services.writer.cluster_writer import ClusterWriter, ObjectProblems

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster

LiveCluster = Callable[[], "Cluster"]
MakeLease = Callable[[LiveCluster, model.LeaseName], LeaseLock]
_MAX_FOREIGN = 1000  # foreign objects in a cluster that are re-checked periodically


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerParts:
    """The dependencies of the controller."""

    clock: IReactorTime
    random: Callable[[], float]
    """Returns a float in [0, 1)."""
    counts: MetricCounts
    identity: str
    """The candidate's identity for leader election, unique among all processes at all times."""
    boot_seconds: Callable[[], float]
    """A clock that cannot be set and that continues while the machine sleeps (`CLOCK_BOOTTIME`)."""
    make_lease: MakeLease


class WritableCluster:
    """A cluster to which exports are written."""

    def __init__(
        self,
        name: str,
        cluster: LiveCluster,
        parts: ControllerParts,
        changed: Callable[[str, bool], None],
        ended: Callable[[ServiceKey, bool], None],
        creates: Callable[[str, str], bool],
        where: model.LeaseName,
    ) -> None:
        """`changed` is called when this process begins or ceases to lead. `ended`: see `ClusterWriter`.

        `creates` is called with a cluster and a namespace; it returns whether to create the namespace if it is missing.
        """
        self.name = name
        self.where = where
        """Namespace and name of the Lease for the leader election in this cluster."""
        election = Election(parts.identity, parts.boot_seconds)
        lease = parts.make_lease(cluster, where)
        self.elector = LeaderElector(name, lease, election, parts.clock, parts.random, self._changed)
        self.writer = ClusterWriter(
            cluster, self.elector, parts.clock, parts.random, parts.counts, ended, partial(creates, name)
        )
        self.foreign = ObjectProblems(_MAX_FOREIGN)
        """Foreign objects with the name of a managed object."""
        self._notify = changed

    def _changed(self, leads: bool) -> None:
        if not leads:
            self.writer.clear()
            self.foreign.clear()
        self._notify(self.name, leads)

    def stop(self) -> None:
        """Stop writing at once."""
        self.elector.stop()
        self.writer.stop()

    async def retire(self) -> None:
        """Stop writing, and free the Lease if no write can be in flight."""
        quiet = self.writer.is_quiet
        self.stop()
        if quiet:
            await self.elector.release()
