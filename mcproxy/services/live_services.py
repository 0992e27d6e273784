"""The owner of all live state of services in the process that has the caches; it outlives every reload.

Caches are followed as far as the configuration says, and, where that says less than before, as long as there are
objects of ours in there, which are then deleted. What was written before a restart is known from `daemon.stateDir`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from mcproxy.config.model import LeaseName, lease_of
from mcproxy.config.model.config import Config
from mcproxy.kube.healthz import Check
from mcproxy.services import written_places
from mcproxy.services.cache_scopes import FollowedKind, Scopes, backend_keys_of, merged, scopes_of, written_scopes
from mcproxy.services.endpoint_feed import EndpointFeed
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.services.exports.export_types import Exports
from mcproxy.services.service_caches import ServiceCaches
from mcproxy.services.written_places import Places, kinds_of

if TYPE_CHECKING:
    from mcproxy.aggregate.member_caches import MemberCaches
    from mcproxy.services.controller.export_controller import ExportController
    from mcproxy.upstream.cluster import Cluster

_READER = "services"
SYNC_TIMEOUT = 10.0
"""Seconds that endpoints may take to be known before the daemon counts as ready without them."""


MakeController = Callable[[ServiceCaches], "ExportController"]
"""Makes the controller of exports, when a configuration first has some."""


class LiveServices:
    """Caches of services and what reads them: the table of endpoints, and the controller of exports."""

    def __init__(self, caches: MemberCaches, table: EndpointTable, make_controller: MakeController) -> None:
        """`caches` and `table` are owned by the caller."""
        self._members = caches
        self._make_controller = make_controller
        self._config: Config | None = None
        self._clusters: Mapping[str, Cluster] = {}
        self._last: dict[str, Cluster] = {}
        self._scopes: Scopes = {}
        self._leftovers: Scopes = {}
        self._written: Places | None = None
        """What was saved last; None: nothing has been read or saved yet."""
        self._unseen: Places = {}
        """Of what was read: what the configuration does not name, and no cache has shown yet."""
        self.caches = ServiceCaches(caches.reflectors, caches.clock)
        self.endpoints = table
        self.exports: ExportController | None = None
        self._feed = EndpointFeed(self.caches, table, caches.clock)
        self._sync_ends = caches.now + SYNC_TIMEOUT

    def activate(self, config: Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force, and the `clusters` in force with it."""
        before = self._clusters
        self._config, self._clusters = config, clusters
        if self._written is None:
            self._written = written_places.load(config.daemon.state_dir)
        came = {name: each for name, each in self._written.items() if name in clusters and name not in before}
        self._unseen = {**self._unseen, **came}
        if self.exports is None and (config.service_exports or config.service_discovery.enabled or self._unseen):
            self.exports = self._make_controller(self.caches)
            self.exports.on_settled(self._drop_leftovers)
        self._leftovers = {} if self.exports is None else self._left(self.exports)
        self._follow()
        self._feed.update(backend_keys_of(config))

    def _follow(self) -> None:
        config = self._config
        assert config is not None
        self._scopes = merged(scopes_of(config), self._leftovers)
        self._members.use(_READER, self._scopes, self._clusters, config.daemon.state_dir)
        self.caches.update(self._scopes)
        if self.exports is None:
            return
        discovery = config.service_discovery
        exports = Exports(config.service_exports, discovery, tuple(each.name for each in config.clusters))
        now = {name for export in config.service_exports for name in export.to}
        if discovery.enabled:
            now |= set(discovery.clusters)
        written = now | self._leftovers.keys()
        self._last.update({name: self._clusters[name] for name in written if name in self._clusters})
        clusters = {name: partial(self._live, name) for name in sorted(written & self._last.keys())}
        leases = {name: each.lease_name for name, each in (self._written or {}).items()}
        leases |= {name: lease_of(config.service_exports, name) for name in now}
        self._save(config, {name: leases.get(name, LeaseName()) for name in written})
        self.exports.update(exports, clusters, leases)

    def _save(self, config: Config, leases: Mapping[str, LeaseName]) -> None:
        """Remember where the configuration, or a former one, has objects written."""
        scopes = merged(written_scopes(config), self._leftovers)
        places = {
            name: written_places.Written(
                tuple(sorted(kinds[FollowedKind.SLICES])),
                (leases[name].namespace, leases[name].name),
                FollowedKind.IMPORTS in kinds,
            )
            for name, kinds in scopes.items()
            if name in leases
        }
        # A cluster that has left the file may come back.
        places |= {name: each for name, each in (self._written or {}).items() if name not in self._clusters}
        if places != self._written:
            self._written = places
            written_places.save(config.daemon.state_dir, places)

    def _live(self, name: str) -> Cluster:
        """Return a cluster that is written to, as it is in force, or was last."""
        found = self._clusters.get(name) or self._last[name]
        self._last[name] = found
        return found

    def _left(self, exports: ExportController) -> Scopes:
        """Return where objects of ours are, of what was followed until now, in clusters that were written to.

        In another one, which is only read, whoever may write there has labelled them, or another daemon has made them.
        """
        found: dict[str, Mapping[FollowedKind, frozenset[str]]] = {}
        for cluster, namespaces in exports.leftovers().items():
            kinds = self._scopes.get(cluster, {})
            if namespaces and kinds and cluster in self._clusters and cluster in self._last:
                found[cluster] = {kind: frozenset(namespaces) for kind in kinds if kind.namespaced}
        self._unseen = {name: each for name, each in self._unseen.items() if not self._is_seen(name, each)}
        restored: dict[str, Mapping[FollowedKind, frozenset[str]]] = {
            name: dict.fromkeys(kinds_of(each), frozenset(each.namespaces))
            for name, each in self._unseen.items()
            if name in self._clusters
        }
        return merged(found, restored)

    def _is_seen(self, cluster: str, written: written_places.Written) -> bool:
        """Whether the caches have shown all that may be left of what was written before the start."""
        kinds = self._scopes.get(cluster, {})
        return bool(kinds) and all(
            (state := self.caches.state(cluster, kind, namespace)).followed or state.served is False
            for kind in kinds_of(written)
            for namespace in written.namespaces
        )

    def _drop_leftovers(self) -> None:
        """Follow only what the configuration says, once there is nothing of ours elsewhere."""
        if self.exports is None or not self._leftovers or self._config is None:
            return
        before = self._scopes
        self._leftovers = self._left(self.exports)
        if merged(scopes_of(self._config), self._leftovers) != before:
            self._follow()

    def checks(self) -> list[Check]:
        """Return the check of /readyz: whether the endpoints of ingresses are known.

        It fails the whole for `SYNC_TIMEOUT` at the start, and behind that as long as none of them is known.
        """
        values = [value for _, value in self.endpoints.items()]
        unknown = sum(not value.known for value in values)
        if not values:
            return []
        cause = f"the endpoints of {unknown} of {len(values)} backends are not known yet" if unknown else ""
        needed = self._members.now < self._sync_ends or unknown == len(values)
        return [Check("ingress-endpoints", cause, needed=needed)]

    @property
    def now(self) -> float:
        """The time by the clock of the caches, seconds."""
        return self._members.now

    async def leave(self) -> None:
        """Write no more to clusters, and free their Leases for other replicas."""
        if self.exports is not None:
            await self.exports.retire()

    def stop(self) -> None:
        """End everything at once, but for the caches that it reads."""
        if self.exports is not None:
            self.exports.stop()
        self._feed.stop()
        self.caches.stop()
