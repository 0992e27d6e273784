"""The controllers of EndpointSlices and Endpoints."""

from __future__ import annotations

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects

SERVICES, PODS = ("", "services"), ("", "pods")
SLICES, ENDPOINTS = ("discovery.k8s.io", "endpointslices"), ("", "endpoints")


def reconcile(cluster: SimulatedCluster) -> bool:
    """Make one pass; return whether anything changed."""
    changed = False
    for service in list(cluster.store.collection(SERVICES).objects.values()):
        if (service.get("spec") or {}).get("selector") and not service["metadata"].get("deletionTimestamp"):
            changed |= _service(cluster, service)
    return changed


def _service(cluster: SimulatedCluster, service: JSONDict) -> bool:
    namespace, name, spec = service["metadata"]["namespace"], service["metadata"]["name"], service["spec"]
    pods = [
        pod
        for (place, _), pod in cluster.store.collection(PODS).objects.items()
        if place == namespace
        and spec["selector"].items() <= (pod["metadata"].get("labels") or {}).items()
        and (pod.get("status") or {}).get("podIP")
        and pod["status"].get("phase") == "Running"
    ]
    ports = [_port(port, pods) for port in spec.get("ports") or ()]
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": name,
        "uid": service["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {
        **(service["metadata"].get("labels") or {}),
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": name,
    }
    piece = {
        "metadata": {"name": f"{name}-slice", "namespace": namespace, "labels": labels, "ownerReferences": [owner]},
        "addressType": "IPv4",
        "endpoints": [_endpoint(pod) for pod in pods],
        "ports": ports,
    }
    addresses = [
        {"ip": pod["status"]["podIP"], "nodeName": pod["spec"].get("nodeName", ""), "targetRef": _reference(pod)}
        for pod in pods
        if objects.is_ready(pod)
    ]
    whole: JSONDict = {
        "metadata": {"name": name, "namespace": namespace, "labels": service["metadata"].get("labels") or {}}
    }
    if addresses:
        whole["subsets"] = [{"addresses": addresses, "ports": ports}]
    changed = _write(cluster, SLICES, piece, ("endpoints", "ports"))
    return _write(cluster, ENDPOINTS, whole, ("subsets",)) or changed


def _port(port: JSONDict, pods: list[JSONDict]) -> JSONDict:
    """Resolve a Service port; a named targetPort is looked up in the first pod that has it."""
    target = port.get("targetPort", port["port"])
    if isinstance(target, str):
        declared = [
            item
            for pod in pods
            for container in pod["spec"].get("containers") or ()
            for item in container.get("ports") or ()
        ]
        target = next((item["containerPort"] for item in declared if item.get("name") == target), port["port"])
    return {"name": port.get("name", ""), "protocol": port.get("protocol", "TCP"), "port": target}


def _reference(pod: JSONDict) -> JSONDict:
    metadata = pod["metadata"]
    return {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}


def _endpoint(pod: JSONDict) -> JSONDict:
    ready = objects.is_ready(pod)
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": ready, "terminating": bool(pod["metadata"].get("deletionTimestamp"))},
        "targetRef": _reference(pod),
        "nodeName": pod["spec"].get("nodeName", ""),
    }


def _write(cluster: SimulatedCluster, key: tuple[str, str], obj: JSONDict, fields: tuple[str, ...]) -> bool:
    """Create an object, or replace it if the given fields differ."""
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    current = cluster.store.get(key, namespace, name)
    resource = objects.served_resource(cluster, *key)
    manager = "kube-controller-manager"
    try:
        if current is None:
            objects.create(cluster, resource, namespace, obj, manager=manager)
        elif any(current.get(field) != obj.get(field) for field in fields):
            new = {key_: value for key_, value in current.items() if key_ not in fields}
            new.update({field: obj[field] for field in fields if field in obj})
            objects.update(cluster, resource, namespace, name, new, manager=manager, patch=True)
        else:
            return False
    except StatusError:
        return False
    return True
