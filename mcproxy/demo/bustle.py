"""What goes on in a cluster by itself: events, leases, restarts, a Deployment that is scaled up and down, a tick."""

from __future__ import annotations

import copy
import random
from typing import Any

from mcproxy.demo import controlling, deployments, kubelet, objects
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.status import APIError

JSONDict = dict[str, Any]
LEASES = ("coordination.k8s.io", "leases")
MAX_EVENTS = 200
"""Events kept; a real cluster forgets them after an hour."""
PROBLEMS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def micro_time(cluster: SimulatedCluster) -> str:
    """Now, as MicroTime."""
    return cluster.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def node_conditions(now: str) -> list[JSONDict]:
    """The conditions of a node that is well."""
    return [
        {
            "type": kind,
            "status": status,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }
        for kind, status, reason, message in PROBLEMS
    ]


def event(
    cluster: SimulatedCluster,
    obj: JSONDict,
    reason: str,
    message: str,
    *,
    kind: str = "Normal",
    source: str = "kubelet",
) -> None:
    """Record an event about an object; the oldest go when there are too many."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    now = cluster.timestamp()
    about = {
        "kind": obj["kind"],
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "apiVersion": obj["apiVersion"],
        "resourceVersion": metadata["resourceVersion"],
    }
    entry = {
        "metadata": {"name": f"{metadata['name']}.{cluster.random.getrandbits(64):016x}", "namespace": namespace},
        "involvedObject": {key: value for key, value in about.items() if value},
        "reason": reason,
        "message": message,
        "source": {"component": source},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": kind,
        "eventTime": None,
        "reportingComponent": source,
        "reportingInstance": "",
    }
    resource = objects.find(cluster, "", "events")
    try:
        objects.create(cluster, resource, namespace, entry, manager=source)
    except APIError:
        return
    kept = cluster.store.collection(resource.storage).objects
    if len(kept) > MAX_EVENTS:
        place, name = next(iter(kept))
        cluster.store.delete(resource.storage, place, name)


def first_events(cluster: SimulatedCluster, rng: random.Random) -> None:
    """The recent past of some pods."""
    pods = list(cluster.store.collection(kubelet.PODS).objects.values())
    for pod in rng.sample(pods, min(20, len(pods))):
        metadata = pod["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        container = pod["spec"]["containers"][0]
        assigned = f"Successfully assigned {where} to {pod['spec'].get('nodeName', '')}"
        event(cluster, pod, "Scheduled", assigned, source="default-scheduler")
        event(cluster, pod, "Pulled", f'Container image "{container["image"]}" already present on machine')
        event(cluster, pod, "Started", f"Started container {container['name']}")


def step(cluster: SimulatedCluster, rng: random.Random) -> None:
    """One second of life."""
    kept = cluster.state.setdefault("bustle", {"ticks": 0})
    kept["ticks"] = tick = kept["ticks"] + 1
    _tick(cluster, tick)
    if tick % 10 == 0:
        _renew_leases(cluster)
    if tick % 7 == 0:
        _event(cluster, rng)
    if tick % 20 == 0:
        _restart(cluster, rng)
    if tick % 45 == 0:
        _scale(cluster)


def _tick(cluster: SimulatedCluster, tick: int) -> None:
    """A ConfigMap that changes every second: the simplest thing to watch."""
    resource = objects.find(cluster, "", "configmaps")
    data = {"count": str(tick), "time": cluster.timestamp()}
    current = cluster.store.get(resource.storage, "default", "tick")
    if current is None:
        obj = {"metadata": {"name": "tick", "namespace": "default"}, "data": data}
        objects.create(cluster, resource, "default", obj, manager="bustle")
        return
    new = {**current, "metadata": dict(current["metadata"]), "data": data}
    objects.update(cluster, resource, "default", "tick", new, manager="bustle", patch=True)


def _renew_leases(cluster: SimulatedCluster) -> None:
    resource = objects.find(cluster, *LEASES)
    for (namespace, name), lease in list(cluster.store.collection(LEASES).objects.items()):
        if namespace != "kube-node-lease":
            continue
        new = copy.deepcopy(lease)
        new["spec"]["renewTime"] = micro_time(cluster)
        objects.update(cluster, resource, namespace, name, new, manager="kubelet", patch=True)


def _running(cluster: SimulatedCluster) -> list[JSONDict]:
    """Pods of the demo's own that run; a user's pods are left alone."""
    return [
        pod
        for pod in cluster.store.collection(kubelet.PODS).objects.values()
        if pod["metadata"]["namespace"] in ("shop", "monitoring") and controlling.is_ready(pod)
    ]


def _event(cluster: SimulatedCluster, rng: random.Random) -> None:
    pods = _running(cluster)
    if pods:
        pod = rng.choice(pods)
        text = "Readiness probe failed: HTTP probe failed with statuscode: 503"
        event(cluster, pod, "Unhealthy", text, kind="Warning")


def _restart(cluster: SimulatedCluster, rng: random.Random) -> None:
    pods = _running(cluster)
    if not pods:
        return
    pod = rng.choice(pods)
    status = copy.deepcopy(pod["status"])
    now = cluster.timestamp()
    container = status["containerStatuses"][0]
    started = (container["state"].get("running") or {}).get("startedAt", now)
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": started, "finishedAt": now}
    container["lastState"] = {"terminated": ended}
    container["state"] = {"running": {"startedAt": now}}
    container["restartCount"] += 1
    stored = kubelet.write_status(cluster, pod, status)
    event(cluster, stored, "Started", f"Started container {container['name']}")


def _scale(cluster: SimulatedCluster) -> None:
    """shop/search goes between two and four replicas."""
    found = cluster.store.get(deployments.DEPLOYMENTS, "shop", "search")
    if found is not None:
        wanted = 4 if found["spec"]["replicas"] <= 2 else 2
        controlling.scale(cluster, deployments.DEPLOYMENTS, found, wanted)
        text = f"Scaled up replica set to {wanted}" if wanted == 4 else f"Scaled down replica set to {wanted}"
        event(cluster, found, "ScalingReplicaSet", text, source="deployment-controller")
