"""The scheduler and the kubelets: bind pods to nodes, set addresses and container statuses, complete deletions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import deletion, objects

PODS = ("", "pods")
NODES = ("", "nodes")
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def reconcile(cluster: SimulatedCluster) -> bool:
    """Advance every pod by one step; return whether anything changed."""
    changed = False
    for pod in list(cluster.store.collection(PODS).objects.values()):
        changed |= _pod(cluster, pod)
    return changed


def _pod(cluster: SimulatedCluster, pod: JSONDict) -> bool:
    metadata, spec, state = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return _gone(cluster, pod)
    if spec.get("schedulingGates") or state.get("phase") not in ("Pending", None, ""):
        return _finished(cluster, pod)
    if not spec.get("nodeName"):
        node = choose_node(cluster, spec.get("nodeSelector") or {})
        if node is None:
            return False
        cluster.store.put(PODS, objects.bind_pod(cluster, pod, {"name": node}))
        return True
    write_status(cluster, pod, running(cluster, pod))
    return True


def _gone(cluster: SimulatedCluster, pod: JSONDict) -> bool:
    """Remove a terminating pod, unless it has finalizers."""
    metadata = pod["metadata"]
    if metadata.get("finalizers"):
        return False
    resource = objects.served_resource(cluster, *PODS)
    try:
        deletion.delete(cluster, resource, metadata["namespace"], metadata["name"], deletion.DeleteOptions(grace=0))
    except StatusError:
        return False
    return True


def _finished(cluster: SimulatedCluster, pod: JSONDict) -> bool:
    """Complete the pods of jobs some seconds after their start."""
    owners: list[JSONDict] = pod["metadata"].get("ownerReferences") or []
    owner: JSONDict = next((item for item in owners if item.get("controller")), {})
    state = pod.get("status") or {}
    if owner.get("kind") != "Job" or state.get("phase") != "Running":
        return False
    new = copy.deepcopy(state)
    new["phase"] = "Succeeded"
    for item in new.get("containerStatuses") or ():
        started = (item["state"].get("running") or {}).get("startedAt")
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": cluster.timestamp()}
        item.update({"state": {"terminated": ended}, "ready": False, "started": False})
    for item in new.get("conditions") or ():
        if item["type"] in ("Ready", "ContainersReady"):
            item.update({"status": "False", "reason": "PodCompleted", "lastTransitionTime": cluster.timestamp()})
    write_status(cluster, pod, new)
    return True


def choose_node(cluster: SimulatedCluster, selector: Mapping[str, str]) -> str | None:
    """Return the schedulable node with the fewest pods, or None."""
    counts: dict[str, int] = {}
    for (_, name), node in cluster.store.collection(NODES).objects.items():
        labels = node["metadata"].get("labels") or {}
        tainted = any(item.get("effect") == "NoSchedule" for item in (node.get("spec") or {}).get("taints") or ())
        fits = all(labels.get(key) == value for key, value in selector.items())
        if fits and not tainted and not (node.get("spec") or {}).get("unschedulable"):
            counts[name] = 0
    for pod in cluster.store.collection(PODS).objects.values():
        bound = (pod.get("spec") or {}).get("nodeName", "")
        if bound in counts:
            counts[bound] += 1
    return min(sorted(counts), key=lambda name: counts[name]) if counts else None


def running(cluster: SimulatedCluster, pod: JSONDict) -> JSONDict:
    """Return the status of a pod whose containers are running."""
    now = cluster.timestamp()
    spec = pod["spec"]
    node = cluster.store.get(NODES, "", spec["nodeName"]) or {}
    addresses = (node.get("status") or {}).get("addresses") or ()
    host = next((item["address"] for item in addresses if item["type"] == "InternalIP"), "127.0.0.1")
    address = host if spec.get("hostNetwork") else pod_address(cluster)
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now} for kind in CONDITIONS
        ],
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "containerStatuses": [_container(cluster, item, now) for item in spec.get("containers") or ()],
        "qosClass": (pod.get("status") or {}).get("qosClass", "BestEffort"),
    }


def _container(cluster: SimulatedCluster, container: Mapping[str, Any], now: str) -> JSONDict:
    image = container.get("image", "")
    digest = f"{cluster.random.getrandbits(256):064x}"
    return {
        "name": container["name"],
        "state": {"running": {"startedAt": now}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": image,
        "imageID": f"{image.partition(':')[0]}@sha256:{digest[::-1]}",
        "containerID": f"containerd://{digest}",
        "started": True,
        **_resources(container),
    }


def _resources(container: Mapping[str, Any]) -> JSONDict:
    """Return a container's allocated resources; the apiserver allows a resize only if the kubelet reports them."""
    wanted = container.get("resources") or {}
    allocated = {"allocatedResources": wanted["requests"]} if wanted.get("requests") else {}
    return {**allocated, "resources": wanted}


def pod_address(cluster: SimulatedCluster) -> str:
    """Return the next address of the cluster's pod network, 10.244.0.0/16 by default."""
    kept = cluster.state.setdefault("kubelet", {"next": 10})
    kept["next"] = number = kept["next"] % 64000 + 1
    return f"{cluster.pod_network}.{number // 250}.{number % 250 + 2}"


def write_status(cluster: SimulatedCluster, pod: JSONDict, status: JSONDict) -> JSONDict:
    """Store a pod's new status, as its kubelet does."""
    metadata = pod["metadata"]
    current = cluster.store.get(PODS, metadata["namespace"], metadata["name"])
    if current is None:
        return pod
    new = {**current, "metadata": dict(current["metadata"]), "status": status}
    return objects.update(
        cluster,
        objects.served_resource(cluster, *PODS),
        metadata["namespace"],
        metadata["name"],
        new,
        subresource="status",
        manager="kubelet",
        patch=True,
    )
