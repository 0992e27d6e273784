"""What the clusters of `serviceDiscovery` are called in their clusterset, by their ClusterProperties. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.cache_scopes import Kind
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.exports.cluster_ids import ClusterIdentity, identities, read_property
from mcproxy.services.exports.export_types import Exports
from mcproxy.services.service_caches import object_json
from mcproxy.services.well_known import CLUSTER_ID, CLUSTERSET_ID

if TYPE_CHECKING:
    from mcproxy.services.service_caches import ServiceCaches

log = Logger(__name__)


class ClusterIdentities:
    """The identities of the clusters of a configuration."""

    def __init__(self, caches: ServiceCaches) -> None:
        self._caches = caches
        self._found: dict[str, ClusterIdentity] = {}

    def look(self, exports: Exports) -> Collection[str]:
        """Look at all clusters again; return those that are called otherwise now."""
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
                "clusters of serviceDiscovery say that they are members of different clustersets",
                event="clustersets_differ",
                cause=", ".join(f"{name}: {each.clusterset}" for name, each in self._found.items() if each.clusterset),
                todo=f"set the ClusterProperty {CLUSTERSET_ID} alike, or name the clusters of one set in `clusters`",
            )
        was = {each: before[each].id if each in before else "" for each in {**before, **self._found}}
        return [each for each in was if self.id_of(each) != was[each]]

    def id_of(self, cluster: str) -> str:
        """Return the id of a cluster; "": it is not in the clusterset, and has its name."""
        found = self._found.get(cluster)
        return "" if found is None else found.id

    def figures(self) -> list[dict[str, Any]]:
        """Return for JSON: how each cluster is called, and why not as it wants."""
        return [
            {"cluster": name, "id": each.id, "clusterset": each.clusterset, "problem": each.problem}
            for name, each in sorted(self._found.items())
        ]

    def _value(self, cluster: str, name: str) -> str:
        item = self._caches.get(Kind.PROPERTIES, ClusterServiceKey(cluster, "", name))
        if item is None:
            return ""
        try:
            return read_property(object_json(item))
        except UnreadableObject:
            return ""
