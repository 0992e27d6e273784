"""Hooks after writes: CRDs are served and removed.

In a real apiserver a controller in the same process does this; those of other processes are in `controllers/`.
"""

from __future__ import annotations

from typing import Any

from kubesim.apimachinery.resources import ResourceInfo
from kubesim.cluster import SimulatedCluster
from kubesim.registry import crd
from kubesim.registry.deletion import DeleteOptions, Deletion

JSONDict = dict[str, Any]


def after_write(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> None:
    """Serve the resources of a CRD that was written."""
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
    """Remove the resources of a CRD that was deleted."""
    if resource.storage == crd.STORAGE and done.gone:
        crd.delete_instances(cluster, done.object)
