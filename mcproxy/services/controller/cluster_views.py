"""Reads one service in one cluster from the caches, as input of the desired state and of the writer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from mcproxy.services.cache_scopes import MULTICLUSTER, Kind
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.exports.desired_state import derived_names
from mcproxy.services.exports.export_types import ClusterView
from mcproxy.services.exports.object_keys import CLUSTERSET, ObjectKey, ServiceKey, is_ours, service_object, source_of
from mcproxy.services.exports.object_names import service_name
from mcproxy.services.service_caches import object_json
from mcproxy.services.writer.apply_requests import lacks_families
from mcproxy.services.writer.differences import Observed

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.net.wall_time import WallSeconds
    from mcproxy.services.controller.cluster_identities import ClusterIdentities
    from mcproxy.services.controller.export_quota import ExportQuotas
    from mcproxy.services.controller.object_index import OwnObjects
    from mcproxy.services.controller.unreachable_sources import UnreachableSources
    from mcproxy.services.service_caches import ServiceCaches

_OF_KIND = {(kind.group, kind.resource): kind for kind in Kind}


class Views:
    """Makes views; remembers which caches have followed their cluster since this process began."""

    def __init__(
        self,
        caches: ServiceCaches,
        own: OwnObjects,
        quotas: ExportQuotas,
        unreachable: UnreachableSources,
        identities: ClusterIdentities,
        refusal: Callable[[ObjectKey], str],
    ) -> None:
        """`refusal` returns why a cluster has refused an object, in its own words; "": it has not."""
        self._caches = caches
        self._unreachable = unreachable
        self._quotas = quotas
        self._own = own
        self._identities = identities
        self._refusal = refusal
        self._namespaces: set[tuple[str, str]] = set()
        """Those that were there when they were last looked at, by cluster and name."""
        self._followed: set[tuple[str, Kind, str]] = set()

    def view(self, cluster: str, key: ServiceKey, *, multicluster: bool) -> ClusterView:
        """Return what is known of a service in a cluster.

        `multicluster`: whether ServiceExports and ServiceImports are looked at. Nothing is concluded from what was
        restored from a file and never seen since: it may be older than what is derived from it.
        """
        if not self.is_known(cluster, key.namespace, multicluster=multicluster):
            away = self._unreachable.seconds(cluster, key.namespace)
            return ClusterView(known=False, unreachable_for=away, cluster_id=self._identities.id_of(cluster))
        caches = self._caches
        place = ClusterServiceKey(cluster, key.namespace, key.service)
        version = None
        export: CachedObject | None = None
        if multicluster:
            resource = caches.resource(cluster, Kind.EXPORTS)
            imports = caches.resource(cluster, Kind.IMPORTS)
            if resource is not None and imports is not None:
                version = resource.version
                export = caches.get(Kind.EXPORTS, place)
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
            service=_json(caches.get(Kind.SERVICES, place)),
            slices=tuple(object_json(item) for item in caches.slices(place).values()),
            export=_json(export),
            export_admitted=self._quotas.admits(cluster, key),
            derived=found,
        )

    def is_known(self, cluster: str, namespace: str, *, multicluster: bool = False) -> bool:
        """Whether anything can be concluded from what the caches have of a namespace of a cluster."""
        kinds = (*(MULTICLUSTER if multicluster else (Kind.SLICES, Kind.SERVICES)), Kind.NAMESPACES, Kind.PROPERTIES)
        return all(self._is_known(cluster, kind, namespace) for kind in kinds)

    def namespace_flipped(self, place: ClusterServiceKey) -> bool:
        """Whether a namespace has come or gone since this was last asked of it."""
        item = (place.cluster, place.service)
        exists = self._caches.get(Kind.NAMESPACES, place) is not None
        if exists == (item in self._namespaces):
            return False
        self._namespaces ^= {item}
        return True

    def _namespace_exists(self, cluster: str, namespace: str) -> bool | None:
        state = self._caches.state(cluster, Kind.NAMESPACES)
        if not state.synced or state.refused:
            return None
        return self._caches.get(Kind.NAMESPACES, ClusterServiceKey(cluster, "", namespace)) is not None

    def _families_refused(self, cluster: str, key: ServiceKey) -> bool:
        place = service_object(cluster, key.namespace, service_name(CLUSTERSET, *key))
        return lacks_families(self._refusal(place))

    def place(self, cluster: str, kind: Kind, namespace: str, name: str) -> ObjectKey | None:
        """Return where an object of a kind is; None where the cluster does not have the kind."""
        resource = self._caches.resource(cluster, kind)
        if resource is None:
            return None
        return ObjectKey(cluster, kind.group, resource.version, kind.resource, namespace, name)

    def observe(self, place: ObjectKey) -> Observed | None:
        """Return the object that a cluster has in a place."""
        kind = _OF_KIND[place.group, place.resource]
        item = self._caches.get(kind, ClusterServiceKey(place.cluster, place.namespace, place.name))
        if item is None:
            return None
        return Observed(item.uid, item.version, is_ours(place.resource, item.labels), item)

    def holder(self, place: ObjectKey) -> ServiceKey | None:
        """Return the service that an object of ours in a cluster is derived from."""
        kind = _OF_KIND[place.group, place.resource]
        item = self._caches.get(kind, ClusterServiceKey(place.cluster, place.namespace, place.name))
        return None if item is None else source_of(place.resource, place.namespace, item.labels)

    def exports(self, cluster: str, key: ServiceKey) -> bool:
        """Whether a cluster has a ServiceExport of a service, as far as it is known."""
        place = ClusterServiceKey(cluster, key.namespace, key.service)
        return self._caches.get(Kind.EXPORTS, place) is not None

    def is_followed(self, cluster: str, namespace: str) -> bool:
        """Whether changes of endpoints in a namespace of a cluster are being seen; else what is known is the last."""
        return self._caches.state(cluster, Kind.SLICES, namespace).followed

    def cause(self, cluster: str, namespace: str) -> str:
        """Return why changes of endpoints in a namespace of a cluster are not being seen."""
        return self._caches.state(cluster, Kind.SLICES, namespace).cause

    def away_since(self, cluster: str, namespace: str) -> WallSeconds | None:
        """Return the date since which a source has not been followed; None: it is, or is none of the file's."""
        return self._unreachable.since(cluster, namespace)

    def known(self, cluster: str, namespaces: Collection[str], *, multicluster: bool) -> object:
        """Return what differs when there is more or less to be concluded than before."""
        versions = tuple(self._caches.resource(cluster, kind) for kind in MULTICLUSTER) if multicluster else ()
        return versions, frozenset(
            namespace for namespace in namespaces if self.is_known(cluster, namespace, multicluster=multicluster)
        )

    def _is_known(self, cluster: str, kind: Kind, namespace: str) -> bool:
        state = self._caches.state(cluster, kind, namespace)
        unneeded = state.refused or state.served is False or not self._caches.is_wanted(cluster, kind)
        if unneeded and not kind.namespaced:
            return True  # it goes without: an attempt to write tells whether there is a namespace
        place = (cluster, kind, namespace)
        if state.served is False:
            self._followed.discard(place)
            return kind in (Kind.EXPORTS, Kind.IMPORTS)
        if not state.synced:
            self._followed.discard(place)
            return False
        if state.followed:
            self._followed.add(place)
        return place in self._followed


def _json(item: CachedObject | None) -> bytes | None:
    return None if item is None else object_json(item)
