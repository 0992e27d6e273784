"""The garbage collector and the namespace controller.

Dependents are deleted after their owners, and the content of a terminating namespace before it.
"""

from __future__ import annotations

from typing import Any

from kubesim.apimachinery.resources import JSONDict, ResourceInfo, to_storage
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import crd, deletion

NAMESPACES = ("", "namespaces")
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


def reconcile(cluster: SimulatedCluster) -> bool:
    """Make one pass over all objects; return whether anything changed."""
    every = list(_all(cluster))
    uids = {obj["metadata"].get("uid") for _, obj in every}
    waiting = {
        obj["metadata"].get("uid") for _, obj in every if FOREGROUND in (obj["metadata"].get("finalizers") or ())
    }
    orphaning = {obj["metadata"].get("uid") for _, obj in every if ORPHAN in (obj["metadata"].get("finalizers") or ())}
    changed = False
    needed: set[str] = set()
    for resource, obj in every:
        owners = obj["metadata"].get("ownerReferences") or []
        if not owners:
            continue
        if any(item["uid"] in orphaning for item in owners):
            kept = [item for item in owners if item["uid"] not in orphaning]
            _put(cluster, resource, obj, ownerReferences=kept)
            changed = True
        elif all(item["uid"] not in uids or item["uid"] in waiting for item in owners):
            needed.update(item["uid"] for item in owners)
            changed |= _delete(cluster, resource, obj)
    for resource, obj in every:
        finalizers = obj["metadata"].get("finalizers") or []
        done = [ORPHAN] if ORPHAN in finalizers else []
        if FOREGROUND in finalizers and obj["metadata"]["uid"] not in needed:
            done.append(FOREGROUND)
        if done and obj["metadata"].get("deletionTimestamp"):
            _release(cluster, resource, obj, [item for item in finalizers if item not in done])
            changed = True
    return _namespaces(cluster) or changed


def _all(cluster: SimulatedCluster) -> list[tuple[ResourceInfo, JSONDict]]:
    found = []
    for storage, collection in list(cluster.store.collections().items()):
        resource = cluster.resources.preferred(*storage)
        if resource is not None:
            found += [(resource, obj) for obj in list(collection.objects.values())]
    return found


def _put(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict, **metadata: Any) -> None:
    """Store an object with changed metadata; empty values are removed."""
    merged = {**obj["metadata"], **metadata}
    kept = {key: value for key, value in merged.items() if value not in ([], None)}
    cluster.store.put(resource.storage, to_storage(resource, {**obj, "metadata": kept}))


def _release(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict, finalizers: list[str]) -> None:
    """Remove finalizers; delete the object when none is left."""
    metadata = obj["metadata"]
    if finalizers:
        _put(cluster, resource, obj, finalizers=finalizers)
    else:
        cluster.store.delete(resource.storage, metadata.get("namespace", ""), metadata["name"])


def _delete(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> bool:
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp"):
        return False
    options = deletion.DeleteOptions()
    try:
        done = deletion.delete(cluster, resource, metadata.get("namespace", ""), metadata["name"], options)
    except StatusError:
        return False
    crd.after_delete(cluster, resource, done, options)
    return True


def _namespaces(cluster: SimulatedCluster) -> bool:
    """Delete the content of terminating namespaces, then the namespaces."""
    changed = False
    for (_, name), namespace in list(cluster.store.collection(NAMESPACES).objects.items()):
        if not namespace["metadata"].get("deletionTimestamp"):
            continue
        inside = [(resource, obj) for resource, obj in _all(cluster) if obj["metadata"].get("namespace") == name]
        for resource, obj in inside:
            changed |= _delete(cluster, resource, obj)
        if not inside:
            cluster.store.delete(NAMESPACES, "", name)
            changed = True
    return changed
