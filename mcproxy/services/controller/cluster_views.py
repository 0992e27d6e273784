"""Reads one service in one cluster from the caches, for the desired state and for the writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mcproxy.net.wall_time import WallSeconds, wall_seconds
from mcproxy.services.api_types import CLUSTER_ID, CLUSTERSET_ID, DNS_LABEL, UnreadableObject, decode
from mcproxy.services.cache_scopes import MULTICLUSTER, FollowedKind
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.exports.desired_state import derived_names
from mcproxy.services.exports.export_types import ClusterView, Exports
from mcproxy.services.exports.object_keys import (
    CLUSTERSET,
    ObjectKey,
    ServiceKey,
    is_ours,
    label_value,
    service_name,
    service_object,
    source_of,
)
from mcproxy.services.service_caches import object_json
from mcproxy.services.writer.apply_requests import lacks_families
from mcproxy.services.writer.differences import Observed

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.services.controller.object_index import ExportQuotas, ManagedObjects
    from mcproxy.services.service_caches import ServiceCaches

log = Logger(__name__)


_OF_KIND = {(kind.group, kind.resource): kind for kind in FollowedKind}


class ClusterViews:
    """Makes the `ClusterView`s; remembers which caches have synced with their cluster since this process started."""

    def __init__(
        self,
        caches: ServiceCaches,
        own: ManagedObjects,
        quotas: ExportQuotas,
        unreachable: UnreachableSources,
        identities: ClusterIdentities,
        refusal: Callable[[ObjectKey], str],
    ) -> None:
        """`refusal` returns the message with which a cluster has refused an object; "" if it has not."""
        self._caches = caches
        self._unreachable = unreachable
        self._quotas = quotas
        self._own = own
        self._identities = identities
        self._refusal = refusal
        self._namespaces: set[tuple[str, str]] = set()
        """The namespaces that existed at the last check, by cluster and name."""
        self._followed: set[tuple[str, FollowedKind, str]] = set()

    def view(self, cluster: str, key: ServiceKey, *, multicluster: bool) -> ClusterView:
        """Return the known state of a service in a cluster.

        `multicluster`: whether to read ServiceExports and ServiceImports. State restored from a file counts as unknown
        until the cluster confirms it, because it can be older than the objects derived from it.
        """
        if not self.is_known(cluster, key.namespace, multicluster=multicluster):
            away = self._unreachable.seconds(cluster, key.namespace)
            return ClusterView(known=False, unreachable_for=away, cluster_id=self._identities.id_of(cluster))
        caches = self._caches
        place = ClusterServiceKey(cluster, key.namespace, key.service)
        version = None
        export: CachedObject | None = None
        if multicluster:
            resource = caches.resource(cluster, FollowedKind.EXPORTS)
            imports = caches.resource(cluster, FollowedKind.IMPORTS)
            if resource is not None and imports is not None:
                version = resource.version
                export = caches.get(FollowedKind.EXPORTS, place)
        derived = [(_OF_KIND[group, resource_name], name) for group, resource_name, name in derived_names(key)]
        found: dict[ObjectKey, bytes] = {}
        for kind, name in dict.fromkeys([*derived, *self._own.of(key, cluster)]):
            where = self.place(cluster, kind, key.namespace, name)
            item = caches.get(kind, ClusterServiceKey(cluster, key.namespace, name))
            if where is not None and item is not None:
                found[where] = object_json(item)
        return ClusterView(
            unreachable_for=self._unreachable.seconds(cluster, key.namespace),
            namespace_exists=self._namespace_exists(cluster, key.namespace),
            cluster_id=self._identities.id_of(cluster),
            families_refused=version is not None and self._families_refused(cluster, key),
            multicluster_version=version,
            service=_json(caches.get(FollowedKind.SERVICES, place)),
            slices=tuple(object_json(item) for item in caches.slices(place).values()),
            export=_json(export),
            export_admitted=self._quotas.admits(cluster, key),
            derived=found,
        )

    def is_known(self, cluster: str, namespace: str, *, multicluster: bool = False) -> bool:
        """Whether the caches of a namespace of a cluster are confirmed, so that conclusions can be drawn from them."""
        kinds = (
            *(MULTICLUSTER if multicluster else (FollowedKind.SLICES, FollowedKind.SERVICES)),
            FollowedKind.NAMESPACES,
            FollowedKind.PROPERTIES,
        )
        return all(self._is_known(cluster, kind, namespace) for kind in kinds)

    def namespace_flipped(self, place: ClusterServiceKey) -> bool:
        """Whether a namespace was created or deleted since the last call with the same namespace."""
        item = (place.cluster, place.service)
        exists = self._caches.get(FollowedKind.NAMESPACES, place) is not None
        if exists == (item in self._namespaces):
            return False
        self._namespaces ^= {item}
        return True

    def _namespace_exists(self, cluster: str, namespace: str) -> bool | None:
        state = self._caches.state(cluster, FollowedKind.NAMESPACES)
        if not state.synced or state.refused:
            return None
        return self._caches.get(FollowedKind.NAMESPACES, ClusterServiceKey(cluster, "", namespace)) is not None

    def _families_refused(self, cluster: str, key: ServiceKey) -> bool:
        place = service_object(cluster, key.namespace, service_name(CLUSTERSET, *key))
        return lacks_families(self._refusal(place))

    def place(self, cluster: str, kind: FollowedKind, namespace: str, name: str) -> ObjectKey | None:
        """Return the key of an object; None if the cluster does not serve its kind."""
        resource = self._caches.resource(cluster, kind)
        if resource is None:
            return None
        return ObjectKey(cluster, kind.group, resource.version, kind.resource, namespace, name)

    def observe(self, place: ObjectKey) -> Observed | None:
        """Return the object that a cluster has under a key."""
        kind = _OF_KIND[place.group, place.resource]
        item = self._caches.get(kind, ClusterServiceKey(place.cluster, place.namespace, place.name))
        if item is None:
            return None
        return Observed(item.uid, item.version, is_ours(place.resource, item.labels), item)

    def holder(self, place: ObjectKey) -> ServiceKey | None:
        """Return the service from which mcproxy derived an object of a cluster."""
        kind = _OF_KIND[place.group, place.resource]
        item = self._caches.get(kind, ClusterServiceKey(place.cluster, place.namespace, place.name))
        return None if item is None else source_of(place.resource, place.namespace, item.labels)

    def exports(self, cluster: str, key: ServiceKey) -> bool:
        """Whether a cluster is known to have a ServiceExport of a service."""
        place = ClusterServiceKey(cluster, key.namespace, key.service)
        return self._caches.get(FollowedKind.EXPORTS, place) is not None

    def is_followed(self, cluster: str, namespace: str) -> bool:
        """Whether the caches follow the EndpointSlices of a namespace; else they keep only the last known state."""
        return self._caches.state(cluster, FollowedKind.SLICES, namespace).followed

    def cause(self, cluster: str, namespace: str) -> str:
        """Return why the caches do not follow the EndpointSlices of a namespace of a cluster."""
        return self._caches.state(cluster, FollowedKind.SLICES, namespace).cause

    def away_since(self, cluster: str, namespace: str) -> WallSeconds | None:
        """Return when a source of `serviceExports` was last followed; None if it is followed or is no such source."""
        return self._unreachable.since(cluster, namespace)

    def known(self, cluster: str, namespaces: Collection[str], *, multicluster: bool) -> object:
        """Return a value that changes when a namespace's state becomes known or unknown, or an API version changes."""
        versions = tuple(self._caches.resource(cluster, kind) for kind in MULTICLUSTER) if multicluster else ()
        return versions, frozenset(
            namespace for namespace in namespaces if self.is_known(cluster, namespace, multicluster=multicluster)
        )

    def _is_known(self, cluster: str, kind: FollowedKind, namespace: str) -> bool:
        state = self._caches.state(cluster, kind, namespace)
        unneeded = state.refused or state.served is False or not self._caches.is_wanted(cluster, kind)
        if unneeded and not kind.namespaced:
            return True  # this kind is optional: an attempt to write shows whether the namespace exists
        place = (cluster, kind, namespace)
        if state.served is False:
            self._followed.discard(place)
            return kind in (FollowedKind.EXPORTS, FollowedKind.IMPORTS)
        if not state.synced:
            self._followed.discard(place)
            return False
        if state.followed:
            self._followed.add(place)
        return place in self._followed


def _json(item: CachedObject | None) -> bytes | None:
    return None if item is None else object_json(item)


# -- ids of clusters ------------------------------------------------------------------------------------------
#
# The ids of the clusters of `serviceDiscovery` in their clusterset, read from their ClusterProperties. No I/O.


class ClusterIdentities:
    """The identities of the clusters of a configuration."""

    def __init__(self, caches: ServiceCaches) -> None:
        self._caches = caches
        self._found: dict[str, ClusterSetIdentity] = {}

    def refresh(self, exports: Exports) -> Collection[str]:
        """Read the ClusterProperties of all clusters; return the clusters whose id has changed."""
        discovery = exports.discovery
        clusters = dict.fromkeys(discovery.clusters if discovery.enabled else ())
        claims = {each: (self._value(each, CLUSTER_ID), self._value(each, CLUSTERSET_ID)) for each in clusters}
        before, self._found = self._found, identities(claims, exports.clusters)
        for cluster, each in self._found.items():
            if each.problem and each.problem != before.get(cluster, each._replace(problem="")).problem:
                log.warn(
                    "the id that a cluster claims in its clusterset is not used",
                    event="cluster_id_refused",
                    cluster=cluster,
                    cause=each.problem,
                    todo=f"set spec.value of the ClusterProperty {CLUSTER_ID} there to a name of this cluster alone",
                )
        sets = {each.clusterset for each in self._found.values() if each.clusterset}
        if len(sets) > 1 and sets != {each.clusterset for each in before.values() if each.clusterset}:
            log.warn(
                "clusters of serviceDiscovery claim to be members of different clustersets",
                event="clustersets_differ",
                cause=", ".join(f"{name}: {each.clusterset}" for name, each in self._found.items() if each.clusterset),
                todo=f"set the ClusterProperty {CLUSTERSET_ID} alike, or name the clusters of one set in `clusters`",
            )
        was = {each: before[each].id if each in before else "" for each in {**before, **self._found}}
        return [each for each in was if self.id_of(each) != was[each]]

    def id_of(self, cluster: str) -> str:
        """Return the id of a cluster; "" if it is not in the clusterset: then its name serves as its id."""
        found = self._found.get(cluster)
        return "" if found is None else found.id

    def figures(self) -> list[dict[str, Any]]:
        """Return for JSON: the id of each cluster, and the reason if it differs from the id that the cluster claims."""
        return [
            {"cluster": name, "id": each.id, "clusterset": each.clusterset, "problem": each.problem}
            for name, each in sorted(self._found.items())
        ]

    def _value(self, cluster: str, name: str) -> str:
        item = self._caches.get(FollowedKind.PROPERTIES, ClusterServiceKey(cluster, "", name))
        if item is None:
            return ""
        try:
            return read_property(object_json(item))
        except UnreadableObject:
            return ""


# -- sources that cannot be reached ---------------------------------------------------------------------------
#
# How long each source has been unreachable, and with `unreachable: Remove` the timers of the removal. No I/O.
#
# The reactor's clock measures the durations, so that a jump of the wall clock removes no endpoints.


_Source = tuple[str, str]
"""A cluster, and a namespace in it."""


class UnreachableSources:
    """The sources (namespaces of clusters) that are not followed: their last known endpoints are used."""

    def __init__(self, clock: IReactorTime, mark: Callable[[Iterable[ServiceKey]], None]) -> None:
        """`mark` is called with the time-limited services of a source, when a limit ends or the source is back."""
        self._clock = clock
        self._mark = mark
        self._services: dict[_Source, list[tuple[ServiceKey, float]]] = {}
        """The exports of each source, and the seconds for which the source may be unreachable; 0: without limit."""
        self._since: dict[_Source, tuple[float, WallSeconds]] = {}
        self._timers: dict[tuple[str, str, float], IDelayedCall] = {}

    def update(self, exports: Exports) -> None:
        """Apply a configuration."""
        self._services = {}
        for key in exports:
            for each in exports.of(key):
                for cluster in each.from_clusters:
                    self._services.setdefault((cluster, key.namespace), []).append((key, each.after))
        for source in self._since.keys() - self._services.keys():
            self._forget(source)

    def check(self, cluster: str, is_followed: Callable[[str, str], bool]) -> None:
        """Check which sources of a cluster are followed; start or cancel the timers of their removal."""
        for source, services in self._services.items():
            if source[0] != cluster:
                continue
            after = {seconds for _, seconds in services if seconds}
            if not is_followed(*source):
                self._is_away(source, after)
            elif source in self._since:
                self._forget(source)
                self._mark_services(source)

    def _is_away(self, source: _Source, after: Collection[float]) -> None:
        began, _ = self._since.setdefault(source, (self._clock.seconds(), wall_seconds(self._clock)))
        wanted = {each for each in after if began + each > self._clock.seconds()}
        for seconds in [seconds for name, space, seconds in self._timers if (name, space) == source]:
            if seconds not in wanted:
                self._timers.pop((*source, seconds)).cancel()
        for seconds in wanted:
            if (*source, seconds) not in self._timers:
                wait = began + seconds - self._clock.seconds()
                self._timers[*source, seconds] = self._clock.callLater(wait, self._is_due, source, seconds)

    def _forget(self, source: _Source) -> None:
        self._since.pop(source, None)
        for place in [place for place in self._timers if place[:2] == source]:
            self._timers.pop(place).cancel()

    def seconds(self, cluster: str, namespace: str) -> float:
        """Return for how many seconds a source has not been followed; 0 if it is followed."""
        found = self._since.get((cluster, namespace))
        return 0.0 if found is None else self._clock.seconds() - found[0]

    def since(self, cluster: str, namespace: str) -> WallSeconds | None:
        """Return when a source ceased to be followed; None if it is followed."""
        found = self._since.get((cluster, namespace))
        return None if found is None else found[1]

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _is_due(self, source: _Source, seconds: float) -> None:
        del self._timers[*source, seconds]
        self._mark_services(source)

    def _mark_services(self, source: _Source) -> None:
        self._mark([key for key, after in self._services.get(source, ()) if after])


# -- claims of ids --------------------------------------------------------------------------------------------
#
# The ids of the clusters of a clusterset, by ClusterProperties of about.k8s.io (KEP-2149). Pure.
#
# An id names a cluster in labels of EndpointSlices, in the status of ServiceImports and in DNS names
# (``HOSTNAME.ID.SERVICE.NAMESPACE.svc.clusterset.local``). So no cluster gets an id that another cluster has or claims.
# If two clusters claim the same id, neither gets it.


class ClusterSetIdentity(NamedTuple):
    """The id of a cluster in its clusterset."""

    id: str
    clusterset: str = ""
    """The clusterset of which the cluster claims to be a member; "" if it claims none."""
    problem: str = ""
    """Why the id differs from the one that the cluster claims, in one line."""


class _Spec(msgspec.Struct):
    value: str = ""


class _Property(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_PROPERTY = msgspec.json.Decoder(_Property)


def read_property(data: bytes) -> str:
    """Return the value of a ClusterProperty. Raises UnreadableObject."""
    return decode(_PROPERTY, data).spec.value


def identities(claims: Mapping[str, tuple[str, str]], names: frozenset[str]) -> dict[str, ClusterSetIdentity]:
    """Return the identity of each cluster; a cluster without an acceptable claim gets its name as its id.

    `claims`: by cluster name, the values of `cluster.clusterset.k8s.io` and `clusterset.k8s.io`; "" if there is none.
    `names`: the names of all clusters of the configuration. An id has to be a DNS label (mcs-api, ClusterStatus).
    """
    claimed = Counter(claim for claim, _ in claims.values())
    taken = {label_value(name): name for name in names}
    found = {}
    for cluster, (claim, clusterset) in claims.items():
        problem = ""
        if claim and not DNS_LABEL.fullmatch(claim):
            problem = f"{claim[:63]!a} is not a DNS label of at most 63 characters"
        elif taken.get(claim, cluster) != cluster:
            problem = f"{claim} is the name of another cluster of the configuration"
        elif claim and claimed[claim] > 1:
            others = sorted(other for other in claims if other != cluster and claims[other][0] == claim)
            problem = f"{claim} is claimed by {', '.join(others)[:200]} too"
        accepted = claim if claim and not problem else label_value(cluster)
        found[cluster] = ClusterSetIdentity(accepted, clusterset[:253] if clusterset.isprintable() else "", problem)
    return found
