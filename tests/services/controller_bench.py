"""A controller over clusters in memory, by a clock that the test moves."""

from __future__ import annotations

from typing import Any, cast

from mcproxy.config import model
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.services.cache_scopes import ALL, FollowedKind, Scopes
from mcproxy.services.controller.export_controller import ExportController
from mcproxy.services.controller.writable_cluster import ControllerParts
from mcproxy.services.exports.export_types import Exports
from mcproxy.services.lease import LeaseLock
from mcproxy.services.service_caches import ServiceCaches
from tests.services.fake_clusters import FakeAPIServer
from tests.services.fake_lease import FakeAPI
from tests.services.fake_lease import FakeCluster as FakeLease
from tests.services.fake_members import FakeMembers
from tests.support.clock import Clock

BOTH = (FollowedKind.SLICES, FollowedKind.SERVICES)


class Bench:
    """Clusters, and replicas of the controller."""

    def __init__(self, *names: str, kinds: tuple[FollowedKind, ...] = BOTH) -> None:
        self.clock = Clock()
        self.names = names
        self.kinds = kinds
        self.members = FakeMembers(self.clock, *names)
        self.clusters = {name: FakeAPIServer(name, self.members) for name in names}
        self.leases = {name: FakeLease() for name in names}
        self.other_leases: dict[tuple[str, model.LeaseName], FakeLease] = {}
        """Those that do not have the usual name."""
        self.replicas: list[Replica] = []
        self.members.serve(kinds=kinds)

    def replica(self, *exports: model.ServiceExport, discovery: model.ServiceDiscovery | None = None) -> Replica:
        """Start one."""
        replica = Replica(self, f"r{len(self.replicas)}")
        self.replicas.append(replica)
        replica.use(*exports, discovery=discovery)
        return replica

    def list(self, *names: str) -> None:
        """Fill the caches."""
        for name in names or self.names:
            self.clusters[name].list()

    def run(self, seconds: float = 1.0) -> None:
        for _ in range(round(seconds * 20)):
            self.clock.advance(0.05)

    @property
    def writes(self) -> int:
        return sum(len(each.writes) for each in self.clusters.values())

    @property
    def requests(self) -> int:
        return sum(len(each.requests) for each in self.clusters.values())

    def close(self) -> None:
        for replica in self.replicas:
            replica.stop()
        assert not self.clock.getDelayedCalls()


class Replica:
    """One process. All share the caches' stores, which the clusters fill."""

    def __init__(self, bench: Bench, identity: str) -> None:
        self.bench = bench
        self.identity = identity
        self.caches = ServiceCaches(bench.members, bench.clock)
        self.lease_apis: dict[str, FakeAPI] = {}
        self.controller = ExportController(
            self.caches,
            ControllerParts(
                clock=bench.clock,
                random=lambda: 0.5,
                counts=MetricCounts(),
                identity=identity,
                boot_seconds=bench.clock.seconds,
                make_lease=self._lease,
            ),
        )
        self.stopped = False

    def use(self, *exports: model.ServiceExport, discovery: model.ServiceDiscovery | None = None) -> None:
        """Follow a configuration."""
        scopes: Scopes = {name: dict.fromkeys(self.bench.kinds, frozenset((ALL,))) for name in self.bench.names}
        self.caches.update(scopes)
        found = discovery or model.ServiceDiscovery()
        written = {each for export in exports for each in export.to} | set(found.clusters if found.enabled else ())
        clusters = {name: cast("Any", lambda name=name: self.bench.clusters[name]) for name in sorted(written)}
        leases = {name: model.lease_of(exports, name) for name in clusters}
        self.controller.update(Exports(exports, found, self.bench.names), clusters, leases)

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.controller.stop()
            self.caches.stop()

    def _lease(self, cluster: Any, where: model.LeaseName) -> LeaseLock:
        name = cluster().name
        default = where == model.LeaseName()
        lease = self.bench.leases[name] if default else self.bench.other_leases.setdefault((name, where), FakeLease())
        api = self.lease_apis[name] = FakeAPI(lease)
        return api
