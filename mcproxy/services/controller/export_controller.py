"""The controller of exported services: computes changed services and, while it leads, writes the differences.

    caches ──changed──> marked: desired state of one ──> compare: differences to the caches ──> writer of a cluster
       ^                                                        ^  leads from now on, a write has ended    │
       └────────────────────────────── cluster <── writes ──────┴─────────────────────────────────────────┘

The desired state is computed from the current state alone: after a restart, a change of leader or a reload, objects
that are already correct are not written. All changed services are computed before any is compared, so an EndpointSlice
that moves from one service to another is updated, and not deleted in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, KeysView, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from mcproxy.config.model import LeaseName
from mcproxy.net.wall_time import wall_seconds
from mcproxy.services.api_types import CLUSTER_ID, CLUSTERSET_ID
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.controller.cluster_views import ClusterIdentities, ClusterViews, UnreachableSources
from mcproxy.services.controller.export_figures import ProblemLog, figures
from mcproxy.services.controller.object_index import ExportQuotas, ManagedObjects
from mcproxy.services.controller.work_queue import ExportWorkQueue
from mcproxy.services.controller.writable_cluster import ControllerParts, LiveCluster, WritableCluster
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.exports.desired_state import DesiredState, derived_names, desired_of
from mcproxy.services.exports.export_types import Desired, ExportProblem, Exports, ProblemKind
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey
from mcproxy.services.writer.differences import Observed, changes, owner_uid

if TYPE_CHECKING:
    from mcproxy.services.service_caches import ServiceCaches

log = Logger(__name__)

_PRUNE = 30.0  # seconds between two removals of unneeded state


class ExportController:
    """Exported services of a configuration."""

    def __init__(self, caches: ServiceCaches, parts: ControllerParts) -> None:
        """The caller owns `caches`, and updates them with a configuration before it calls `update`."""
        self._caches = caches
        self._parts = parts
        self._clock = parts.clock
        self._own = ManagedObjects(caches)
        self._quotas = ExportQuotas(caches)
        self._work_queue = ExportWorkQueue(self._clock, self._compute, self._write)
        self._mark = self._work_queue.mark
        self._unreachable = UnreachableSources(self._clock, self._mark)
        self._identities = ClusterIdentities(caches)
        self._views = ClusterViews(caches, self._own, self._quotas, self._unreachable, self._identities, self._refusal)
        self._exports: Exports | None = None
        self._targets: dict[str, WritableCluster] = {}
        self._state = DesiredState(self._views.holder)
        self._confirmed: dict[str, object] = {}
        #: the managed objects in each cluster when a service was computed; None: the cluster's state was unknown then
        self._considered: dict[ServiceKey, dict[str, frozenset[tuple[FollowedKind, str]] | None]] = {}
        self._derived: dict[tuple[str, str], ServiceKey] = {}  # by namespace and name of an object derived from it
        self._ownerless: set[ServiceKey] = set()  # services with objects that wait for their owner
        self._pruning = self._clock.callLater(_PRUNE, self._prune)
        self._problem_log = ProblemLog(self._clock.seconds)
        self._unsubscribe = caches.subscribe(self)
        self._settled: Callable[[], None] = lambda: None
        self._stopped = False

    # -- the configuration ------------------------------------------------------------------------------------------

    def update(
        self, exports: Exports, clusters: Mapping[str, LiveCluster], leases: Mapping[str, LeaseName] = {}
    ) -> None:
        """Apply a configuration. `clusters`: the clusters to write to, by name; each function returns the current one.

        `leases`: the Leases of the clusters that the configuration writes to. Other clusters keep their Lease until
        they have no managed objects.
        """
        self._exports = exports
        moved = {name for name, where in leases.items() if name in self._targets and self._targets[name].where != where}
        for name in [name for name in self._targets if name not in clusters or name in moved]:
            target = self._targets.pop(name)
            retired = Deferred.fromCoroutine(target.retire())
            retired.addErrback(lambda failure: log.failure("freeing a lease failed", failure, event="internal_error"))
        self._confirmed.clear()
        self._unreachable.update(exports)
        self._identities.refresh(exports)
        for cluster in self._caches.clusters:
            self._unreachable.check(cluster, self._views.is_followed)
            self._mark(self._own.reindex_cluster(cluster))
            self._mark(self._quotas.reindex_cluster(cluster))
        for name, live in clusters.items():
            if name not in self._targets:
                target = self._targets[name] = WritableCluster(
                    name,
                    live,
                    self._parts,
                    self._leads_changed,
                    self.write_ended,
                    self._creates_namespace,
                    leases.get(name, LeaseName()),
                )
                target.elector.start()
        self._mark(self._tracked())

    def stop(self) -> None:
        """Cancel all work at once; the Leases of the clusters are not freed."""
        if self._stopped:
            return
        self._stopped = True
        self._unsubscribe()
        self._unreachable.stop()
        self._work_queue.stop()
        if self._pruning.active():
            self._pruning.cancel()
        targets, self._targets = self._targets, {}
        for target in targets.values():
            target.stop()

    async def retire(self) -> None:
        """Cancel all work, and free all Leases for other replicas."""
        targets = list(self._targets.values())
        self._targets = {}
        self.stop()
        await gatherResults([Deferred.fromCoroutine(target.retire()) for target in targets])

    def on_prune(self, notify: Callable[[], None]) -> None:
        """Call `notify` after each periodic pruning, because some changes cause no event."""
        self._settled = notify

    def leftovers(self) -> Mapping[str, Collection[str]]:
        """Return the namespaces with managed objects, by cluster; a namespace is followed until it has none."""
        return {cluster: self._own.namespaces(cluster) for cluster in self._caches.clusters}

    # -- what changes (service_caches.ServiceListener) ----------------------------------------------------------------

    def services_changed(self, keys: Collection[ClusterServiceKey]) -> None:
        """Recompute the exports that depend on these Services, whose objects have changed."""
        self._cluster_objects_changed([place for place in keys if not place.namespace])
        for place in keys:
            if not place.namespace:
                continue
            self._mark(self._own.reindex(place))
            self._mark(self._quotas.reindex(place))
            names = (ServiceKey(place.namespace, place.service), self._derived.get((place.namespace, place.service)))
            self._mark(key for key in names if key is not None and self._is_tracked(key))

    def _cluster_objects_changed(self, places: Collection[ClusterServiceKey]) -> None:
        """Recompute the exports that depend on these changed Namespaces and ClusterProperties."""
        exports = self._exports
        if exports is None or not places:
            return
        if any(place.service in (CLUSTER_ID, CLUSTERSET_ID) for place in places):
            self._refresh_identities(exports)
        flips = {(place.cluster, place.service) for place in places if self._views.namespace_flipped(place)}
        if flips:
            names = {name for _, name in flips}
            self._mark([key for key in self._tracked() if key.namespace in names])
        for cluster, name in flips:
            if cluster in self._targets:
                self._targets[cluster].writer.unblock(name)

    def _refresh_identities(self, exports: Exports) -> None:
        renamed = self._identities.refresh(exports)
        if renamed:
            self._mark([key for key in self._tracked() if not self._clusters_of(key).isdisjoint(renamed)])

    def cluster_changed(self, cluster: str) -> None:
        """Re-check the services that a cluster exports or imports, because the state of its caches has changed."""
        exports = self._exports
        if exports is None:
            return
        self._mark(self._own.reindex_cluster(cluster))
        self._mark(self._quotas.reindex_cluster(cluster))
        self._refresh_identities(exports)
        keys = [key for key in self._tracked() if cluster in self._clusters_of(key)]
        known = self._views.known(cluster, {key.namespace for key in keys}, multicluster=self._is_multicluster(cluster))
        if self._confirmed.get(cluster) != known:  # equal if the cluster only became unreachable or reachable again
            self._confirmed[cluster] = known
            self._mark(keys)
        self._unreachable.check(cluster, self._views.is_followed)
        target = self._targets.get(cluster)
        if (
            target is not None
            and target.writer.cause
            and any(self._views.is_followed(cluster, key.namespace) for key in keys[:1])
        ):
            target.writer.wake()

    def _leads_changed(self, cluster: str, leads: bool) -> None:
        """Compare all services with a cluster if this process has become its leader."""
        if not leads:
            return
        for key in {*self._state, *self._own}:
            self._work_queue.compare(key, cluster)

    def write_ended(self, key: ServiceKey, succeeded: bool) -> None:
        """Schedule the next comparison of a service after a write has ended."""
        if self._stopped:
            return
        if succeeded:
            self._work_queue.recheck(key)
        else:
            self._mark((key,))  # the status of the objects can contain the reason of the refusal
        if key in self._ownerless:
            self._work_queue.compare(key)

    def _refusal(self, place: ObjectKey) -> str:
        """Return why a cluster has refused an object; "" if it has not, or has not received a request."""
        target = self._targets.get(place.cluster)
        return "" if target is None else target.writer.problems.of(place)

    def _tracked(self) -> set[ServiceKey]:
        """Return all services that are or were exported."""
        assert self._exports is not None
        found = {*self._exports, *self._state, *self._own}
        if self._exports.discovery.enabled:
            for cluster in self._exports.discovery.clusters:
                found.update(
                    ServiceKey(item.namespace, item.name)
                    for item in self._caches.objects(cluster, FollowedKind.EXPORTS)
                )
        return found

    def _is_tracked(self, key: ServiceKey) -> bool:
        exports = self._exports
        if exports is None:
            return False
        if exports.of(key) or key in self._own:
            return True
        if self._state.part(key) != _NOTHING:
            return True
        return exports.discovery.enabled and any(
            self._caches.get(FollowedKind.EXPORTS, ClusterServiceKey(cluster, key.namespace, key.service)) is not None
            for cluster in exports.discovery.clusters
        )

    def _creates_namespace(self, cluster: str, namespace: str) -> bool:
        exports = self._exports
        return exports is not None and any(
            each.create_namespaces and cluster in each.to
            for key in exports
            if key.namespace == namespace
            for each in exports.of(key)
        )

    # -- the work -----------------------------------------------------------------------------------------------------

    def _compute(self, key: ServiceKey) -> None:
        exports = self._exports
        assert exports is not None
        views = {
            cluster: self._views.view(cluster, key, multicluster=self._is_multicluster(cluster))
            for cluster in self._clusters_of(key)
        }
        for _, _, name in derived_names(key):
            self._derived[key.namespace, name] = key
        part = desired_of(key, views, exports)
        self._problem_log.take(key, part.problems)
        changed = self._state.update(key, part)
        self._considered[key] = {
            cluster: frozenset(self._own.of(key, cluster)) if view.known else None for cluster, view in views.items()
        }
        self._work_queue.compare(key)
        for place in changed:
            owner = self._state.owner(place)
            if owner is not None and owner != key:
                self._work_queue.compare(owner, place.cluster)

    def _is_multicluster(self, cluster: str) -> bool:
        """Whether ServiceExports and ServiceImports of a cluster are read."""
        exports = self._exports
        return exports is not None and exports.discovery.enabled and cluster in exports.discovery.clusters

    def _clusters_of(self, key: ServiceKey) -> KeysView[str]:
        exports = self._exports
        assert exports is not None
        found: dict[str, None] = {}
        for export in exports.of(key):
            found.update(dict.fromkeys((*export.from_clusters, *export.to)))
        if exports.discovery.enabled:
            found.update(dict.fromkeys(exports.discovery.clusters))
        found.update(dict.fromkeys(self._own.clusters(key)))
        return found.keys()

    def _write(self, key: ServiceKey, clusters: set[str] | None) -> None:
        """Compare a service with the objects in the clusters that this process leads, and queue the differences.

        The caches may have learned of a cluster or of managed objects since the service was computed: while the service
        was throttled, or before `caches` reported the change. An object that the computation did not see is not
        deleted, because it may be wanted.
        """
        part = self._state.part(key)
        self._ownerless.discard(key)
        considered = self._considered.get(key, {})
        by_cluster: dict[str, list[ObjectKey]] = {}
        for place in (*part.objects, *part.statuses):
            by_cluster.setdefault(place.cluster, []).append(place)
        wall = datetime.fromtimestamp(wall_seconds(self._clock), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, target in self._targets.items():
            if not target.elector.leads or (clusters is not None and name not in clusters):
                continue
            own = considered.get(name, _NO_OBJECTS)
            if own is None or not self._views.is_known(name, key.namespace, multicluster=self._is_multicluster(name)):
                continue
            mine = by_cluster.get(name, ())
            objects = {
                place: part.objects[place] for place in mine if place in part.objects and self._state.is_for(place, key)
            }
            statuses = {place: part.statuses[place] for place in mine if place in part.statuses}
            observed: dict[ObjectKey, Observed] = {}
            for place in (*objects, *statuses):
                seen = self._views.observe(place)
                if seen is not None:
                    observed[place] = seen
            self._note_foreign(
                target, key, [place for place in objects if place in observed and not observed[place].ours]
            )
            kept: set[ObjectKey] = set()
            for kind, object_name in self._own.of(key, name):
                place_of_own = self._views.place(name, kind, key.namespace, object_name)
                if place_of_own is None or place_of_own in observed or (kind, object_name) not in own:
                    continue
                if self._state.owner(place_of_own) not in (None, key) or self._state.is_for(place_of_own, key):
                    kept.add(place_of_own)  # this service or another one wants it
                seen = self._views.observe(place_of_own)
                if seen is not None:
                    observed[place_of_own] = seen
            wanted = Desired(objects, statuses, frozenset(kept), owners=part.owners)
            mutations = target.writer.mutations
            owners: dict[ObjectKey, str] = {}
            for place in {part.owners[each] for each in objects if each in part.owners}:
                uid = owner_uid(place, self._views.observe(place), mutations)
                if uid is not None:
                    owners[place] = uid
                else:
                    self._ownerless.add(key)
            target.writer.write(key, changes(wanted, observed, mutations, wall, owners))

    def _note_foreign(self, target: WritableCluster, key: ServiceKey, places: Collection[ObjectKey]) -> None:
        """Keep the foreign objects that have a desired name for periodic checks: their deletion can cause no event."""
        target.foreign.keep(key, places)
        for place in places:
            if target.foreign.note(key, place, "a foreign object has the name of one of ours: it is not changed"):
                what = f"{place.resource} {place.name} in namespace {place.namespace} is not one of mcproxy's"
                message = f"{what}, so it is left alone: rename it, or remove it"
                self._problem_log.tell(ExportProblem(key, ProblemKind.FOREIGN_OBJECT, place.cluster, "", message))

    def _prune(self) -> None:
        """Drop unneeded state, and re-check the foreign objects."""
        self._pruning = self._clock.callLater(_PRUNE, self._prune)
        self._derived = {name: key for name, key in self._derived.items() if self._is_tracked(key)}
        self._considered = {key: found for key, found in self._considered.items() if self._is_tracked(key)}
        for target in self._targets.values():
            for key in target.foreign.services():
                self._work_queue.compare(key, target.name)
        if self._targets:
            name = next(iter(self._targets))
            target = self._targets[name] = self._targets.pop(name)  # each call handles one cluster, in rotation
            target.writer.mutations.prune(lambda place: self._views.observe(_without_status(place)) is not None)
        self._settled()

    # -- what is shown ------------------------------------------------------------------------------------------------

    def problems(self) -> tuple[ExportProblem, ...]:
        """Return the problems of exported services."""
        return self._state.problems()

    def figures(self) -> dict[str, Any]:
        """Return for JSON: the exports, the leader of each target cluster, and the problems."""
        shown = figures(self._state, self._exports, self._views, self._targets, self._parts.identity)
        return {**shown, "clusterIds": self._identities.figures()}


_NOTHING = Desired()
_NO_OBJECTS: frozenset[tuple[FollowedKind, str]] = frozenset()


def _without_status(place: ObjectKey) -> ObjectKey:
    return place._replace(resource=place.resource.removesuffix("/status"))
