"""Owns the caches of services, the endpoint feed and the export controller, in one process and across reloads.

The caches follow the scopes of the configuration, and former scopes until all managed objects there are deleted.
`daemon.stateDir` contains the scopes that were written before a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from mcproxy.config.model import LeaseName, lease_of
from mcproxy.config.model.config import Config
from mcproxy.kube.healthz import Check
from mcproxy.services import exports_state_file
from mcproxy.services.cache_scopes import FollowedKind, Scopes, backend_keys_of, merged, scopes_of, written_scopes
from mcproxy.services.endpoint_feed import EndpointFeed
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.services.exports.export_types import Exports
from mcproxy.services.exports_state_file import Places, kinds_of
from mcproxy.services.service_caches import ServiceCaches

if TYPE_CHECKING:
    from mcproxy.aggregate.member_caches import MemberCaches
    from mcproxy.services.controller.export_controller import ExportController
    from mcproxy.upstream.cluster import Cluster

_READER = "services"
SYNC_TIMEOUT = 10.0
"""Maximum of seconds for which readiness waits for the endpoints."""


MakeController = Callable[[ServiceCaches], "ExportController"]
"""Makes the controller of exports, for the first configuration that has exports."""


class LiveServices:
    """The caches of services and their readers: the table of endpoints and the controller of exports."""

    def __init__(self, caches: MemberCaches, table: EndpointTable, make_controller: MakeController) -> None:
        """The caller owns `caches` and `table`."""
        self._members = caches
        self._make_controller = make_controller
        self._config: Config | None = None
        self._clusters: Mapping[str, Cluster] = {}
        self._last: dict[str, Cluster] = {}
        self._scopes: Scopes = {}
        self._leftovers: Scopes = {}
        self._written: Places | None = None
        """The content of the state file; None before it was read or saved."""
        self._unseen: Places = {}
        """The saved scopes outside of the configuration whose objects the caches do not show yet."""
        self.caches = ServiceCaches(caches.reflectors, caches.clock)
        self.endpoints = table
        self.exports: ExportController | None = None
        self._feed = EndpointFeed(self.caches, table, caches.clock)
        self._sync_ends = caches.now + SYNC_TIMEOUT

    def activate(self, config: Config, clusters: Mapping[str, Cluster]) -> None:
        """Apply a configuration that comes into force, with its `clusters`."""
        before = self._clusters
        self._config, self._clusters = config, clusters
        if self._written is None:
            self._written = exports_state_file.load(config.daemon.state_dir)
        came = {name: each for name, each in self._written.items() if name in clusters and name not in before}
        self._unseen = {**self._unseen, **came}
        if self.exports is None and (config.service_exports or config.service_discovery.enabled or self._unseen):
            self.exports = self._make_controller(self.caches)
            self.exports.on_prune(self._drop_leftovers)
        self._leftovers = {} if self.exports is None else self._find_leftovers(self.exports)
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
        """Save the scopes to which this configuration or a former one writes objects."""
        scopes = merged(written_scopes(config), self._leftovers)
        places = {
            name: exports_state_file.Written(
                tuple(sorted(kinds[FollowedKind.SLICES])),
                (leases[name].namespace, leases[name].name),
                FollowedKind.IMPORTS in kinds,
            )
            for name, kinds in scopes.items()
            if name in leases
        }
        # A cluster that has left the configuration can come back.
        places |= {name: each for name, each in (self._written or {}).items() if name not in self._clusters}
        if places != self._written:
            self._written = places
            exports_state_file.save(config.daemon.state_dir, places)

    def _live(self, name: str) -> Cluster:
        """Return the current cluster of a name to write to, or the last one if it has left the configuration."""
        found = self._clusters.get(name) or self._last[name]
        self._last[name] = found
        return found

    def _find_leftovers(self, exports: ExportController) -> Scopes:
        """Return the followed scopes with managed objects in clusters to which this daemon has written.

        In clusters that are only read, objects with mcproxy's label come from another daemon or from a user.
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

    def _is_seen(self, cluster: str, written: exports_state_file.Written) -> bool:
        """Whether the caches show all objects that can remain from before the start."""
        kinds = self._scopes.get(cluster, {})
        return bool(kinds) and all(
            (state := self.caches.state(cluster, kind, namespace)).followed or state.served is False
            for kind in kinds_of(written)
            for namespace in written.namespaces
        )

    def _drop_leftovers(self) -> None:
        """Stop following former scopes that have no managed objects any more."""
        if self.exports is None or not self._leftovers or self._config is None:
            return
        before = self._scopes
        self._leftovers = self._find_leftovers(self.exports)
        if merged(scopes_of(self._config), self._leftovers) != before:
            self._follow()

    def checks(self) -> list[Check]:
        """Return the check of /readyz: whether the endpoints of ingresses are known.

        The check fails for at most `SYNC_TIMEOUT` after the start, and later only while no endpoints of any backend are
        known.
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
        """The time of the caches' clock in seconds."""
        return self._members.now

    async def leave(self) -> None:
        """Stop writing to clusters, and release their Leases for other replicas."""
        if self.exports is not None:
            await self.exports.retire()

    def stop(self) -> None:
        """Stop everything at once, except the caches that it reads."""
        if self.exports is not None:
            self.exports.stop()
        self._feed.stop()
        self.caches.stop()
