"""CustomResourceDefinitions: adds and removes the resources that they define.

In a real apiserver this is a controller, so a new CRD is served only a moment after its creation; here it is served
before the create is answered.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubesim.apimachinery.resources import JSONDict, ResourceInfo, Subresource
from kubesim.cluster import SimulatedCluster
from kubesim.registry.deletion import DeleteOptions, Deletion
from mcproxy.kube.discovery import version_order

STORAGE = ("apiextensions.k8s.io", "customresourcedefinitions")
VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


def resource_infos(crd: JSONDict) -> list[ResourceInfo]:
    """Return the resources of a CRD's served versions, most preferred first."""
    spec = crd["spec"]
    names = spec["names"]
    storage = next((entry["name"] for entry in spec["versions"] if entry.get("storage")), spec["versions"][0]["name"])
    served = [entry for entry in spec["versions"] if entry.get("served")]
    return [
        ResourceInfo(
            group=spec["group"],
            version=entry["name"],
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular") or names["kind"].lower(),
            namespaced=spec.get("scope", "Namespaced") == "Namespaced",
            verbs=VERBS,
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=_subresources(names["kind"], entry.get("subresources") or {}),
            builtin=False,
            list_kind=names.get("listKind") or f"{names['kind']}List",
            storage_version=storage,
            crd_version=entry,
        )
        for entry in sorted(served, key=lambda entry: version_order(entry["name"]))
    ]


def _subresources(kind: str, declared: JSONDict) -> tuple[Subresource, ...]:
    found = []
    if "status" in declared:
        found.append(Subresource("status", kind, "", "", ("get", "patch", "update")))
    if "scale" in declared:
        found.append(Subresource("scale", "Scale", "autoscaling", "v1", ("get", "patch", "update")))
    return tuple(found)


def established(crd: JSONDict, now: str) -> JSONDict:
    """Return the status that the controllers of a real apiserver set on a valid CRD."""
    names = crd["spec"]["names"]
    accepted = {"plural": names["plural"], "singular": names.get("singular") or names["kind"].lower()}
    if names.get("shortNames"):
        accepted["shortNames"] = names["shortNames"]
    accepted.update({"kind": names["kind"], "listKind": names.get("listKind") or f"{names['kind']}List"})
    if names.get("categories"):
        accepted["categories"] = names["categories"]
    storage = [entry["name"] for entry in crd["spec"]["versions"] if entry.get("storage")]
    return {
        "conditions": [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
        ],
        "acceptedNames": accepted,
        "storedVersions": storage,
    }


def _condition(kind: str, reason: str, message: str, now: str) -> JSONDict:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}


def sync(cluster: SimulatedCluster, crd: JSONDict) -> None:
    """Update the served resources from a stored CRD. If the definition has changed, its watches end."""
    spec = crd["spec"]
    group, plural = spec["group"], spec["names"]["plural"]
    registry = cluster.resources
    known = {version: found for version in registry.versions(group) if (found := registry.get(group, version, plural))}
    infos = resource_infos(crd)
    registry.remove(group, plural)
    registry.add(infos)
    if known and _definitions(known.values()) != _definitions(infos):
        cluster.store.end_watches((group, plural))


def _definitions(infos: Iterable[ResourceInfo]) -> dict[str, tuple[ResourceInfo, JSONDict | None]]:
    return {info.version: (info, info.crd_version) for info in infos}


def sync_all(cluster: SimulatedCluster) -> None:
    """Update the served resources from all stored CRDs: after a backup was restored."""
    for info in list(cluster.resources):
        if not info.builtin:
            cluster.resources.remove(info.group, info.plural)
    for stored in cluster.store.collection(STORAGE).objects.values():
        sync(cluster, stored)


def delete_instances(cluster: SimulatedCluster, crd: JSONDict) -> None:
    """Delete all objects of a CRD, stop serving it and end its watches."""
    spec = crd["spec"]
    storage = (spec["group"], spec["names"]["plural"])
    for namespace, name in list(cluster.store.collection(storage).keys()):
        cluster.store.delete(storage, namespace, name)
    cluster.resources.remove(*storage)
    cluster.store.drop(storage)


def after_write(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> None:
    """Serve the resources of a CRD that was written."""
    if resource.storage == STORAGE:
        name = obj["metadata"]["name"]
        stored = cluster.store.get(STORAGE, "", name)
        if stored is None:
            return
        if not (stored.get("status") or {}).get("conditions"):
            stored = {**stored, "status": established(stored, cluster.timestamp())}
            cluster.store.put(STORAGE, stored)
        sync(cluster, stored)


def after_delete(cluster: SimulatedCluster, resource: ResourceInfo, done: Deletion, options: DeleteOptions) -> None:
    """Remove the resources of a CRD that was deleted."""
    if resource.storage == STORAGE and done.gone:
        delete_instances(cluster, done.object)
