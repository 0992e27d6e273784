"""Deletion of objects, without HTTP: preconditions, grace periods, finalizers.

A pod on a node has a grace period; an object with finalizers, and a namespace, only gets a deletionTimestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo, from_storage, to_storage
from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects
from kubesim.storage.store import clone

RETURNED_WHEN_DELETED = frozenset({("", "pods"), ("", "services"), ("", "namespaces")})
"""Resources whose DELETE answers with the object rather than a Status."""


@dataclass(frozen=True)
class DeleteOptions:
    """DeleteOptions, from query and body."""

    grace: int | None = None
    propagation: str = ""
    orphan_dependents: bool | None = None
    uid: str = ""
    resource_version: str = ""


@dataclass
class Deletion:
    """The result of a delete: `object` is the response if `whole`, `gone` whether it was removed from the store."""

    object: JSONDict
    gone: bool
    whole: bool = False


def delete(
    cluster: SimulatedCluster,
    resource: ResourceInfo,
    namespace: str,
    name: str,
    options: DeleteOptions | None = None,
    *,
    dry_run: bool = False,
) -> Deletion:
    """Delete an object, or set its deletionTimestamp. Raises APIError 404, 409."""
    options = options or DeleteOptions()
    old = objects.get(cluster, resource, namespace, name)
    _check_delete_preconditions(resource, old, options)
    metadata = old["metadata"]
    finalizers = _finalizers_after_delete(resource, metadata, options)
    whole = (resource.group, resource.plural) in RETURNED_WHEN_DELETED
    grace = _grace(resource, old, options)
    held = bool(finalizers) or (resource.storage == ("", "namespaces") and (old.get("spec") or {}).get("finalizers"))
    if not held and not grace:
        return _remove(cluster, resource, old, whole, dry_run=dry_run, marked=resource.storage == ("", "pods"))
    if (
        metadata.get("deletionTimestamp")
        and finalizers == list(metadata.get("finalizers") or ())
        and not _sooner(metadata, grace)
    ):
        return Deletion(old, gone=False, whole=True)
    return Deletion(_mark(cluster, resource, old, finalizers, grace, dry_run=dry_run), gone=False, whole=True)


def _check_delete_preconditions(resource: ResourceInfo, old: JSONDict, options: DeleteOptions) -> None:
    metadata = old["metadata"]
    name = metadata["name"]
    if options.uid and options.uid != metadata["uid"]:
        text = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise status.conflict(resource.group, resource.kind, name, text)
    if options.resource_version and options.resource_version != metadata["resourceVersion"]:
        text = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion "
            f"in record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise status.conflict(resource.group, resource.kind, name, text)


def _finalizers_after_delete(resource: ResourceInfo, metadata: JSONDict, options: DeleteOptions) -> list[str]:
    finalizers = list(metadata.get("finalizers") or ())
    wanted = ""
    if options.propagation == "Foreground":
        wanted = "foregroundDeletion"
    elif options.propagation == "Orphan" or options.orphan_dependents is True:
        wanted = "orphan"
    if options.propagation or options.orphan_dependents is not None:
        finalizers = [item for item in finalizers if item not in ("foregroundDeletion", "orphan")]
    return [*finalizers, wanted] if wanted else finalizers


def _grace(resource: ResourceInfo, old: JSONDict, options: DeleteOptions) -> int:
    """Return the grace period in seconds; only pods that a node may be running have one."""
    if resource.storage != ("", "pods"):
        return 0
    spec, phase = old.get("spec") or {}, (old.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    if options.grace is not None:
        return max(0, options.grace)
    return int(spec.get("terminationGracePeriodSeconds", 30))


def _sooner(metadata: JSONDict, grace: int) -> bool:
    return grace < int(metadata.get("deletionGracePeriodSeconds") or 0)


def _mark(
    cluster: SimulatedCluster,
    resource: ResourceInfo,
    old: JSONDict,
    finalizers: list[str],
    grace: int,
    *,
    dry_run: bool,
) -> JSONDict:
    new: JSONDict = clone(old)
    when = (cluster.now() + timedelta(seconds=grace)).strftime("%Y-%m-%dT%H:%M:%SZ")
    values: JSONDict = {"deletionTimestamp": when}
    if resource.storage == ("", "namespaces"):
        new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
    else:
        values["deletionGracePeriodSeconds"] = grace
    if finalizers:
        values["finalizers"] = finalizers
    if "generation" in new["metadata"] and "deletionTimestamp" not in old["metadata"]:
        values["generation"] = new["metadata"]["generation"] + 1
    new["metadata"] |= values
    if dry_run:
        return new
    return from_storage(resource, cluster.store.put(resource.storage, to_storage(resource, new)))


def _remove(
    cluster: SimulatedCluster, resource: ResourceInfo, old: JSONDict, whole: bool, *, dry_run: bool, marked: bool
) -> Deletion:
    """Remove an object. Watches see a pod with its deletionTimestamp first, as with a real apiserver."""
    last = _mark(cluster, resource, old, [], 0, dry_run=dry_run) if marked else old
    if not dry_run:
        metadata = old["metadata"]
        cluster.store.delete(resource.storage, metadata.get("namespace", ""), metadata["name"])
    return Deletion(last, gone=True, whole=whole)
