"""Getting, creating and updating objects, without HTTP, as the registry of a real apiserver does.

Handlers, controllers, fixtures and the control API all write through this module (and delete through `deletion`), so
that uids, generations, managedFields, finalizers and preconditions are handled alike. All functions raise
`status.APIError`.

The fields of a pod's status that Go writes even if unset (PodCondition and ContainerStatus of k8s.io/api/core/v1 have
them without `omitempty`) are zero times as null and empty structs as {}. A bound pod gets the node's zone and region as
labels, as by plugin/pkg/admission/podtopologylabels of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo, from_storage, names, to_storage
from kubesim.apimachinery.status import StatusCause, field_invalid, field_required
from kubesim.cluster import SimulatedCluster
from kubesim.registry import defaults, managed_fields, validation
from kubesim.storage.store import clone

GENERATED = names(
    "pods replicationcontrollers deployments.apps replicasets.apps statefulsets.apps daemonsets.apps jobs.batch "
    "cronjobs.batch ingresses.networking.k8s.io networkpolicies.networking.k8s.io poddisruptionbudgets.policy "
    "customresourcedefinitions.apiextensions.k8s.io flowschemas.flowcontrol.apiserver.k8s.io "
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io"
)
"""Built-in resources whose metadata.generation counts changes of the spec; that of custom resources always does."""

CREATE_ON_UPDATE = names(
    "endpoints events limitranges resourcequotas leases.coordination.k8s.io clusterroles.rbac.authorization.k8s.io "
    "clusterrolebindings.rbac.authorization.k8s.io roles.rbac.authorization.k8s.io "
    "rolebindings.rbac.authorization.k8s.io"
)
"""Resources that a PUT may create."""


def served_resource(cluster: SimulatedCluster, group: str, plural: str, version: str | None = None) -> ResourceInfo:
    """Return a served resource. Raises APIError 404."""
    info = cluster.resources.get(group, version, plural) if version else cluster.resources.preferred(group, plural)
    if info is None:
        raise status.no_such_resource()
    return info


def get(cluster: SimulatedCluster, resource: ResourceInfo, namespace: str, name: str) -> JSONDict:
    """Return an object in the resource's version; the caller must not change it. Raises APIError 404."""
    stored = cluster.store.get(resource.storage, namespace if resource.namespaced else "", name)
    if stored is None:
        raise status.not_found(resource.group, resource.plural, name)
    return from_storage(resource, stored)


def create(
    cluster: SimulatedCluster,
    resource: ResourceInfo,
    namespace: str,
    obj: JSONDict,
    *,
    manager: str = "",
    dry_run: bool = False,
    operation: str = "Update",
) -> JSONDict:
    """Create an object; return it as stored. Raises APIError 403, 404 (namespace), 409, 422.

    `operation` is "Apply" when managedFields are already set by server-side apply.
    """
    obj = _typed(resource, clone(obj))
    metadata = _place(resource, obj, namespace)
    if resource.namespaced:
        _check_namespace(cluster, resource, namespace, metadata.get("name", ""))
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + cluster.name_suffix()
    for key in ("resourceVersion", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        metadata.pop(key, None)
    metadata |= {"uid": cluster.uid(), "creationTimestamp": cluster.timestamp()}
    if resource.subresource("status") and (resource.group, resource.plural) not in defaults.KEEPS_STATUS:
        obj.pop("status", None)
    if not resource.builtin or resource.qualified in GENERATED:
        metadata["generation"] = 1
    defaults.apply(resource, obj)
    validation.validate_create(cluster, resource, obj)
    name = metadata["name"]
    key_namespace = namespace if resource.namespaced else ""
    if cluster.store.get(resource.storage, key_namespace, name) is not None:
        raise status.already_exists(resource.group, resource.plural, name)
    validation.check_quota(cluster, resource, namespace, name)
    if resource.storage == ("", "pods") and obj["spec"].get("nodeName"):
        copy_topology_labels(cluster, obj, obj["spec"]["nodeName"])
    managed_fields.update(
        None,
        obj,
        manager=manager or "unknown",
        operation=operation,
        subresource="",
        now=cluster.timestamp(),
        resource=resource,
    )
    defaults.fill(cluster, resource, obj)
    stored = to_storage(resource, obj)
    if dry_run:
        return from_storage(resource, stored)
    return from_storage(resource, cluster.store.put(resource.storage, stored))


def _typed(resource: ResourceInfo, obj: JSONDict) -> JSONDict:
    """Return the object with kind and apiVersion set and first, as Go writes them."""
    rest = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion", "metadata")}
    metadata = obj.get("metadata") or {}
    return {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata, **rest}


def _place(resource: ResourceInfo, obj: JSONDict, namespace: str) -> JSONDict:
    metadata: JSONDict = obj["metadata"]
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return metadata
    if metadata.setdefault("namespace", namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return metadata


def _check_namespace(cluster: SimulatedCluster, resource: ResourceInfo, namespace: str, name: str) -> None:
    found = cluster.store.get(("", "namespaces"), "", namespace)
    if found is None:
        raise status.not_found("", "namespaces", namespace)
    if found["metadata"].get("deletionTimestamp"):
        cause = StatusCause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
        raise status.forbidden(
            resource.group,
            resource.plural,
            name,
            f"unable to create new content in namespace {namespace} because it is being terminated",
            causes=[cause.as_dict()],
        )


def update(
    cluster: SimulatedCluster,
    resource: ResourceInfo,
    namespace: str,
    name: str,
    obj: JSONDict,
    *,
    subresource: str = "",
    manager: str = "",
    dry_run: bool = False,
    operation: str = "Update",
    patch: bool = False,
) -> JSONDict:
    """Replace an object, or the part that a subresource writes. Raises APIError 404, 409, 422.

    Returns the stored object; an update without changes makes no new resourceVersion. An object with a
    deletionTimestamp that loses its last finalizer is removed.
    """
    old = get(cluster, resource, namespace, name)
    new = _typed(resource, clone(obj))
    _place(resource, new, namespace)
    _check_preconditions(resource, old, new, patch=patch)
    _keep_system_metadata(resource, old, new, subresource)
    _merge_parts(resource, old, new, subresource)
    if subresource in ("", "ephemeralcontainers", "resize"):
        defaults.apply(resource, new, old)
        validation.validate_update(cluster, resource, old, new)
        if subresource == "resize":
            validation.validate_resize(resource, old)
    elif subresource == "status":
        if resource.storage == ("", "pods"):
            complete_pod_status(new)
        validation.validate_status(resource, new)
    _bump_generation(resource, old, new)
    managed_fields.update(
        old,
        new,
        manager=manager or "unknown",
        operation=operation,
        subresource=subresource,
        now=cluster.timestamp(),
        resource=resource,
    )
    if subresource == "":
        defaults.fill(cluster, resource, new, old)
    if _same(old, new):
        return old
    if _finished(resource, new):
        if not dry_run:
            cluster.store.delete(resource.storage, new["metadata"].get("namespace", ""), name)
        return new
    stored = to_storage(resource, new)
    if dry_run:
        return from_storage(resource, stored)
    return from_storage(resource, cluster.store.put(resource.storage, stored))


def _check_preconditions(resource: ResourceInfo, old: JSONDict, new: JSONDict, *, patch: bool) -> None:
    current, sent = old["metadata"], new["metadata"]
    name = current["name"]
    version = sent.get("resourceVersion") or ""
    if version and version != current["resourceVersion"]:
        raise status.conflict(resource.group, resource.plural, name)
    lease = resource.storage == ("coordination.k8s.io", "leases")
    if lease and sent.get("uid") not in (None, "", current["uid"]) and not version and not patch:
        place = f"/registry/leases/{current['namespace']}/{name}, ResourceVersion: 0"
        failed = f"Precondition failed: UID in precondition: {sent['uid']}, UID in object meta: {current['uid']}"
        text = f"StorageError: invalid object, Code: 4, Key: {place}, AdditionalErrorMsg: {failed}"
        raise status.conflict(resource.group, resource.plural, name, text)
    if sent.get("uid") and sent["uid"] != current["uid"]:
        if patch or sent.get("resourceVersion") in (None, "", current["resourceVersion"]):
            cause = field_invalid("metadata.uid", sent["uid"], "field is immutable")
            raise status.invalid(resource.group, resource.kind, name, [cause, cause])
        text = f"Precondition failed: UID in precondition: {sent['uid']}, UID in object meta: {current['uid']}"
        raise status.conflict(resource.group, resource.plural, name, text)
    if not version and (lease or not resource.builtin) and not patch:
        cause = field_invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise status.invalid(resource.group, resource.plural, name, [cause])


def _keep_system_metadata(resource: ResourceInfo, old: JSONDict, new: JSONDict, subresource: str) -> None:
    current, sent = old["metadata"], new["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "generateName")
    values = {key: current[key] for key in kept if key in current}
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        sent.pop(key, None)
        if key in current:
            values[key] = current[key]
    for key in ("labels", "annotations", "finalizers", "ownerReferences"):
        if not sent.get(key):
            sent.pop(key, None)
    if subresource == "status" and not resource.builtin:
        for key in ("labels", "annotations", "finalizers", "ownerReferences"):
            sent.pop(key, None)
            if key in current:
                values[key] = current[key]
    sent |= values


def _merge_parts(resource: ResourceInfo, old: JSONDict, new: JSONDict, subresource: str) -> None:
    """Restore from `old` the fields that this (sub)resource does not write."""
    if subresource == "status":
        _restore(new, old, [key for key in {*old, *new} if key not in ("metadata", "status", "kind", "apiVersion")])
    elif subresource == "finalize":
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        _restore(new, old, ["status", "spec", "metadata"])
        new["spec"] = {**(old.get("spec") or {}), "finalizers": finalizers}
        if not finalizers:
            del new["spec"]["finalizers"]
    elif resource.subresource("status") is not None:
        _restore(new, old, ["status"])


def _restore(new: JSONDict, old: JSONDict, keys: list[str]) -> None:
    for key in keys:
        if key in old:
            new[key] = clone(old[key])
        else:
            new.pop(key, None)


def _bump_generation(resource: ResourceInfo, old: JSONDict, new: JSONDict) -> None:
    if "generation" not in old["metadata"]:
        return
    if not resource.builtin and resource.subresource("status") is None:
        skipped: tuple[str, ...] = ("metadata", "kind", "apiVersion")
    else:
        skipped = ("metadata", "kind", "apiVersion", "status")
    before = {key: value for key, value in old.items() if key not in skipped}
    after = {key: value for key, value in new.items() if key not in skipped}
    if before != after:
        new["metadata"]["generation"] = old["metadata"]["generation"] + 1


def _same(old: JSONDict, new: JSONDict) -> bool:
    """Return whether only times in managedFields have changed."""

    def bare(obj: JSONDict) -> JSONDict:
        entries = obj["metadata"].get("managedFields") or []
        timeless = [{key: value for key, value in entry.items() if key != "time"} for entry in entries]
        return {**obj, "metadata": {**obj["metadata"], "managedFields": timeless}}

    return bare(old) == bare(new)


def _finished(resource: ResourceInfo, obj: JSONDict) -> bool:
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if resource.storage == ("", "namespaces"):
        return not (obj.get("spec") or {}).get("finalizers")
    return not metadata.get("deletionGracePeriodSeconds")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's Ready condition is true."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def complete_pod_status(pod: JSONDict) -> None:
    """Set the missing fields, in Go's order."""
    status = pod.get("status") or {}
    if status.get("conditions"):
        status["conditions"] = [_condition(item) for item in status["conditions"]]
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        if status.get(kind):
            status[kind] = [_container(item) for item in status[kind]]


def _condition(item: JSONDict) -> JSONDict:
    head: JSONDict = {key: item[key] for key in ("type", "observedGeneration", "status") if key in item}
    return {**head, "lastProbeTime": None, "lastTransitionTime": None, **item}


def _container(item: JSONDict) -> JSONDict:
    head: JSONDict = {"name": item["name"]} if "name" in item else {}
    empty = {"state": {}, "lastState": {}, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
    return {**head, **empty, **item}


COPIED = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def copy_topology_labels(cluster: SimulatedCluster, pod: JSONDict, node_name: str) -> None:
    """Copy the labels of the node to a pod, in place; a missing node has none."""
    node = cluster.store.get(("", "nodes"), "", node_name)
    found = {} if node is None else node["metadata"].get("labels") or {}
    copied = {key: found[key] for key in COPIED if key in found}
    if copied:
        metadata = pod["metadata"]
        pod["metadata"] = {**metadata, "labels": {**(metadata.get("labels") or {}), **copied}}


def bind_pod(cluster: SimulatedCluster, pod: Mapping[str, Any], target: Mapping[str, Any]) -> JSONDict:
    """Return the pod bound to the node of a Binding's target. Raises APIError 409, 422."""
    name = pod["metadata"]["name"]
    node = target.get("name")
    if not node:
        cause = field_required("target.name")
        raise status.invalid("", "Binding", name, [cause])
    bound = (pod.get("spec") or {}).get("nodeName")
    if pod["metadata"].get("deletionTimestamp"):
        raise status.conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if bound:
        raise status.conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{bound}"')
    new: JSONDict = clone(dict(pod))
    new["spec"]["nodeName"] = node
    copy_topology_labels(cluster, new, node)
    state = new.setdefault("status", {})
    others = [item for item in state.get("conditions") or () if item.get("type") != "PodScheduled"]
    now = cluster.timestamp()
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    state["conditions"] = [*others, scheduled]
    return new
