"""Helpers of all controllers: find owned objects, create, delete, write statuses."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kubesim.apimachinery.status import APIError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import deletion, objects

JSONDict = dict[str, Any]
MANAGER = "kube-controller-manager"
PODS = ("", "pods")
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
Key = tuple[str, str]


def template_hash(template: Mapping[str, Any]) -> str:
    """The pod-template-hash of a template."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest[:10])


def owned(cluster: SimulatedCluster, key: Key, owner: Mapping[str, Any]) -> list[JSONDict]:
    """The objects of a resource that an object controls, oldest first."""
    uid, namespace = owner["metadata"]["uid"], owner["metadata"].get("namespace")
    return [
        obj
        for (place, _), obj in cluster.store.collection(key).objects.items()
        if place == namespace
        and any(item["uid"] == uid and item.get("controller") for item in obj["metadata"].get("ownerReferences") or ())
    ]


def reference(owner: Mapping[str, Any]) -> JSONDict:
    """The ownerReference of a controller."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def create(cluster: SimulatedCluster, key: Key, obj: JSONDict) -> JSONDict | None:
    """Create an object as a controller; None when it is refused (quota, a terminating namespace)."""
    try:
        return objects.create(
            cluster, objects.served_resource(cluster, *key), obj["metadata"].get("namespace", ""), obj, manager=MANAGER
        )
    except APIError:
        return None


def set_status(cluster: SimulatedCluster, key: Key, obj: JSONDict, status: JSONDict) -> bool:
    """Write a status if it differs; return whether it did."""
    metadata = obj["metadata"]
    current = cluster.store.get(key, metadata.get("namespace", ""), metadata["name"])
    if current is None or (current.get("status") or {}) == status:
        return False
    resource = objects.served_resource(cluster, *key)
    new = {**current, "metadata": dict(current["metadata"]), "status": status}
    namespace = metadata.get("namespace", "")
    objects.update(
        cluster, resource, namespace, metadata["name"], new, subresource="status", manager=MANAGER, patch=True
    )
    return True


def scale(cluster: SimulatedCluster, key: Key, obj: JSONDict, replicas: int) -> bool:
    """Set an object's replicas if they differ; return whether they did."""
    if obj["spec"].get("replicas") == replicas:
        return False
    new = copy.deepcopy(obj)
    new["spec"]["replicas"] = replicas
    metadata = obj["metadata"]
    resource = objects.served_resource(cluster, *key)
    objects.update(
        cluster, resource, metadata["namespace"], metadata["name"], new, subresource="scale", manager=MANAGER
    )
    return True


def delete(cluster: SimulatedCluster, key: Key, obj: JSONDict) -> None:
    """Delete with a grace period of 0, so that no kubelet is needed to complete it."""
    metadata = obj["metadata"]
    options = deletion.DeleteOptions(grace=0)
    try:
        deletion.delete(
            cluster, objects.served_resource(cluster, *key), metadata["namespace"], metadata["name"], options
        )
    except APIError:
        return


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's Ready condition is true."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def condition(
    old: Iterable[Mapping[str, Any]], kind: str, value: bool, reason: str, message: str, now: str, **more: str
) -> JSONDict:
    """Return a condition; its lastTransitionTime is kept while the status is the same."""
    status = "True" if value else "False"
    before = next((item for item in old if item["type"] == kind), {})
    since = before.get("lastTransitionTime", now) if before.get("status") == status else now
    same = {key: before.get(key) for key in ("status", "reason", "message")} == {
        "status": status,
        "reason": reason,
        "message": message,
    }
    out = {"type": kind, "status": status}
    if "lastUpdateTime" in more:
        out["lastUpdateTime"] = before.get("lastUpdateTime", now) if same else now
    return {**out, "lastTransitionTime": since, "reason": reason, "message": message}


def new_pod(owner: JSONDict, template: Mapping[str, Any], name: str = "") -> JSONDict:
    """A pod of a template."""
    metadata = copy.deepcopy(dict(template.get("metadata") or {}))
    metadata["namespace"] = owner["metadata"]["namespace"]
    metadata["ownerReferences"] = [reference(owner)]
    if name:
        metadata["name"] = name
    else:
        metadata["generateName"] = f"{owner['metadata']['name']}-"
    return {"metadata": metadata, "spec": copy.deepcopy(template["spec"])}
