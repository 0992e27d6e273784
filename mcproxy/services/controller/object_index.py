"""Indexes the objects that mcproxy manages in each cluster by the service from which they are derived. No I/O.

The caches report a changed Service of a cluster; the index returns the exported services that the change concerns.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from mcproxy.services.api_types import MCS_SERVICE_NAME, SERVICE_NAME
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.exports.export_types import MAX_EXPORTS
from mcproxy.services.exports.object_keys import ServiceKey, source_of

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.services.service_caches import ServiceCaches

Found = tuple[ServiceKey, FollowedKind, str]
"""A managed object: the service from which it is derived, its kind and its name."""

_KINDS = (FollowedKind.SERVICES, FollowedKind.IMPORTS)


class ManagedObjects:
    """The objects that mcproxy manages in all clusters."""

    def __init__(self, caches: ServiceCaches) -> None:
        self._caches = caches
        self._at: dict[ClusterServiceKey, frozenset[Found]] = {}
        self._of: dict[ServiceKey, dict[str, Counter[tuple[FollowedKind, str]]]] = {}

    def reindex(self, place: ClusterServiceKey) -> Collection[ServiceKey]:
        """Re-index a Service of a cluster; return the exported services of its present and former managed objects."""
        before = self._at.get(place, frozenset())
        now = frozenset(self._found(place))
        if now:
            self._at[place] = now
        else:
            self._at.pop(place, None)
        for source, kind, name in now - before:
            self._of.setdefault(source, {}).setdefault(place.cluster, Counter())[kind, name] += 1
        for source, kind, name in before - now:
            clusters = self._of[source]
            clusters[place.cluster][kind, name] -= 1
            if clusters[place.cluster][kind, name] <= 0:
                del clusters[place.cluster][kind, name]
            if not clusters[place.cluster]:
                del clusters[place.cluster]
            if not clusters:
                del self._of[source]
        return {source for source, _, _ in before | now}

    def reindex_cluster(self, cluster: str) -> Collection[ServiceKey]:
        """Re-index all Services of a cluster that have or had managed objects; return their exported services."""
        places = {place for place in self._at if place.cluster == cluster}
        for kind in (*_KINDS, FollowedKind.SLICES):
            for item in self._caches.objects(cluster, kind):
                if source_of(kind.resource, item.namespace, item.labels) is not None:
                    places |= self._places(cluster, kind, item)
        return {source for place in places for source in self.reindex(place)}

    def clusters(self, source: ServiceKey) -> Collection[str]:
        """Return the clusters with managed objects derived from a service."""
        return self._of.get(source, {}).keys()

    def of(self, source: ServiceKey, cluster: str) -> Collection[tuple[FollowedKind, str]]:
        """Return the kind and name of each managed object of a cluster that is derived from a service."""
        return self._of.get(source, {}).get(cluster, {}).keys()

    def __contains__(self, source: ServiceKey) -> bool:
        return source in self._of

    def __iter__(self) -> Iterator[ServiceKey]:
        return iter(tuple(self._of))

    def namespaces(self, cluster: str) -> Collection[str]:
        """Return the namespaces of a cluster that have managed objects."""
        return {source.namespace for source, clusters in self._of.items() if cluster in clusters}

    def _found(self, place: ClusterServiceKey) -> Iterator[Found]:
        for kind in _KINDS:
            item = self._caches.get(kind, place)
            if item is not None:
                yield from _own(kind, item)
        for slices in (self._caches.slices(place), self._caches.import_slices(place)):
            for item in slices.values():
                yield from _own(FollowedKind.SLICES, item)

    def _places(self, cluster: str, kind: FollowedKind, item: CachedObject) -> set[ClusterServiceKey]:
        """Return the Services of the cluster by which the caches index an object."""
        if kind is not FollowedKind.SLICES:
            return {ClusterServiceKey(cluster, item.namespace, item.name)}
        names = {item.labels.get(label) for label in (SERVICE_NAME, MCS_SERVICE_NAME)}
        return {ClusterServiceKey(cluster, item.namespace, name) for name in names if name}


def _own(kind: FollowedKind, item: CachedObject) -> Iterator[Found]:
    source = source_of(kind.resource, item.namespace, item.labels)
    if source is not None:
        yield source, kind, item.name


# -- the quota of ServiceExports ------------------------------------------------------------------------------
#
# The quota limits the ServiceExports of each cluster, so that no cluster can fill the other ones. No I/O.
#
# A discovered service takes a ServiceImport and a Service with an address in every cluster of the clusterset, and a
# cluster has about 4,096 addresses for Services. The quota does not count services of the configuration's
# `serviceExports`.


_NEWEST = float("inf")


class ExportQuota:
    """Selects the ServiceExports of one cluster that are within its quota: the oldest ones first, then by name.

    So a new ServiceExport never displaces an older one, whatever the order of events and also after a restart. No
    cluster uses up the quota of another one.
    """

    __slots__ = ("_created", "_limit", "_order")

    def __init__(self, limit: int = MAX_EXPORTS) -> None:
        self._limit = limit
        self._created: dict[ServiceKey, float] = {}
        self._order: list[tuple[float, ServiceKey]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[ServiceKey]:
        return iter(tuple(self._created))

    def __contains__(self, key: ServiceKey) -> bool:
        """Whether the ServiceExport of a service is within the quota."""
        created = self._created.get(key)
        if created is None:
            return False
        return len(self._order) <= self._limit or (created, key) < self._order[self._limit]

    def add(self, key: ServiceKey, created: float) -> Collection[ServiceKey]:
        """Add a ServiceExport; return the other services that have entered or left the quota.

        `created`: its creation time in seconds since 1970; 0 if unknown: then it counts as the newest.
        """
        created = created or _NEWEST
        if self._created.get(key) == created:
            return ()
        changed = {*self.remove(key)}
        self._created[key] = created
        insort(self._order, (created, key))
        if key in self and len(self._order) > self._limit:
            changed ^= {self._order[self._limit][1]}
        return changed

    def remove(self, key: ServiceKey) -> Collection[ServiceKey]:
        """Remove a ServiceExport; return the services that have entered the quota."""
        created = self._created.pop(key, None)
        if created is None:
            return ()
        place = bisect_left(self._order, (created, key))
        del self._order[place]
        if place < self._limit <= len(self._order):
            return (self._order[self._limit - 1][1],)
        return ()


class ExportQuotas:
    """The quotas of ServiceExports of all clusters."""

    def __init__(self, caches: ServiceCaches) -> None:
        self._caches = caches
        self._of: dict[str, ExportQuota] = {}

    def admits(self, cluster: str, key: ServiceKey) -> bool:
        """Whether the ServiceExport of a service in a cluster is within the quota."""
        return cluster in self._of and key in self._of[cluster]

    def reindex(self, place: ClusterServiceKey) -> Collection[ServiceKey]:
        """Re-index a ServiceExport of a cluster; return the other services that have entered or left the quota."""
        key = ServiceKey(place.namespace, place.service)
        item = self._caches.get(FollowedKind.EXPORTS, place)
        quota = self._of.get(place.cluster)
        if item is None:
            return () if quota is None else quota.remove(key)
        if quota is None:
            quota = self._of[place.cluster] = ExportQuota()
        return quota.add(key, item.created)

    def reindex_cluster(self, cluster: str) -> Collection[ServiceKey]:
        """Re-index all known and former ServiceExports of a cluster."""
        found = {ServiceKey(item.namespace, item.name) for item in self._caches.objects(cluster, FollowedKind.EXPORTS)}
        found.update(self._of.get(cluster, ()))
        return {each for key in found for each in self.reindex(ClusterServiceKey(cluster, *key))}
