"""What follows a write at once: CRDs are served and removed.

In a real apiserver that is a controller in the same process; what controllers and kubelets in other processes do is in
`fixtures.control`.
"""

from __future__ import annotations

from typing import Any

from mcproxy.demo.apimachinery.resources import ResourceInfo
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.registry import crd
from mcproxy.demo.registry.deletion import DeleteOptions, Deletion

JSONDict = dict[str, Any]


def after_write(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> None:
    """Serve what a CRD says."""
    if resource.storage == crd.STORAGE:
        name = obj["metadata"]["name"]
        stored = cluster.store.get(crd.STORAGE, "", name)
        if stored is None:
            return
        if not (stored.get("status") or {}).get("conditions"):
            stored = {**stored, "status": crd.established(stored, cluster.timestamp())}
            cluster.store.put(crd.STORAGE, stored)
        crd.sync(cluster, stored)


def after_delete(cluster: SimulatedCluster, resource: ResourceInfo, done: Deletion, options: DeleteOptions) -> None:
    """Let go what hangs on a deleted object."""
    if resource.storage == crd.STORAGE and done.gone:
        crd.delete_instances(cluster, done.object)
