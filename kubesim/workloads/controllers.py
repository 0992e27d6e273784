"""The workload controllers of kube-controller-manager, as far as kubectl depends on their results.

`reconcile` makes one pass over all objects. It is idempotent: without differences it writes nothing.

A Deployment has one ReplicaSet for each pod template. The new one is scaled up at once, the old ones are scaled down
when its pods are ready.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.selectors import selects
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import deletion, objects
from kubesim.workloads import endpointslices, garbage_collector, kubelet

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
    except StatusError:
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
    except StatusError:
        return


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


DEPLOYMENTS, REPLICA_SETS = ("apps", "deployments"), ("apps", "replicasets")
REVISION = "deployment.kubernetes.io/revision"


def reconcile_deployment(cluster: SimulatedCluster, deployment: JSONDict) -> bool:
    metadata, spec = deployment["metadata"], deployment["spec"]
    sets = owned(cluster, REPLICA_SETS, deployment)
    code = template_hash(spec["template"])
    current = next((item for item in sets if item["metadata"]["labels"].get("pod-template-hash") == code), None)
    if current is None:
        if spec.get("paused"):
            return False
        return _new_replica_set(cluster, deployment, sets, code)
    changed = scale(cluster, REPLICA_SETS, current, spec["replicas"])
    current = cluster.store.get(REPLICA_SETS, metadata["namespace"], current["metadata"]["name"]) or current
    state = current.get("status") or {}
    others = [item for item in sets if item["metadata"]["uid"] != current["metadata"]["uid"]]
    if state.get("readyReplicas", 0) >= spec["replicas"]:
        for item in others:
            changed |= scale(cluster, REPLICA_SETS, item, 0)
    return _deployment_status(cluster, deployment, current, others) or changed


def _new_replica_set(cluster: SimulatedCluster, deployment: JSONDict, sets: list[JSONDict], code: str) -> bool:
    metadata, spec = deployment["metadata"], deployment["spec"]
    number = 1 + max((int((item["metadata"].get("annotations") or {}).get(REVISION, 0)) for item in sets), default=0)
    template = copy.deepcopy(spec["template"])
    labels = {**(template["metadata"].get("labels") or {}), "pod-template-hash": code}
    template["metadata"]["labels"] = labels
    selector = copy.deepcopy(spec["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), "pod-template-hash": code}
    made = create(
        cluster,
        REPLICA_SETS,
        {
            "metadata": {
                "name": f"{metadata['name']}-{code}",
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": {
                    "deployment.kubernetes.io/desired-replicas": str(spec["replicas"]),
                    REVISION: str(number),
                },
                "ownerReferences": [reference(deployment)],
            },
            "spec": {"replicas": spec["replicas"], "selector": selector, "template": template},
        },
    )
    if made is None:
        return False
    new = copy.deepcopy(deployment)
    new["metadata"]["annotations"] = {**(metadata.get("annotations") or {}), REVISION: str(number)}
    resource = objects.served_resource(cluster, *DEPLOYMENTS)
    namespace, name = metadata["namespace"], metadata["name"]
    objects.update(cluster, resource, namespace, name, new, manager=MANAGER, patch=True)
    return True


def _deployment_status(
    cluster: SimulatedCluster, deployment: JSONDict, current: JSONDict, others: list[JSONDict]
) -> bool:
    now = cluster.timestamp()
    state = current.get("status") or {}
    ready = state.get("readyReplicas", 0)
    total = state.get("replicas", 0) + sum((item.get("status") or {}).get("replicas", 0) for item in others)
    all_ready = ready + sum((item.get("status") or {}).get("readyReplicas", 0) for item in others)
    wanted = deployment["spec"]["replicas"]
    old = (deployment.get("status") or {}).get("conditions") or ()
    complete = state.get("replicas", 0) == wanted == ready and total == wanted
    name = current["metadata"]["name"]
    enough = all_ready >= wanted - int(wanted * 0.25)
    conditions = [
        condition(
            old,
            "Available",
            enough,
            "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            now,
            lastUpdateTime=now,
        ),
        condition(
            old,
            "Progressing",
            True,
            "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
            f'ReplicaSet "{name}" has successfully progressed.' if complete else f'ReplicaSet "{name}" is progressing.',
            now,
            lastUpdateTime=now,
        ),
    ]
    counts = {
        "replicas": total,
        "updatedReplicas": state.get("replicas", 0),
        "readyReplicas": all_ready,
        "availableReplicas": all_ready,
        "unavailableReplicas": max(0, wanted - all_ready),
    }
    status = {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        **{key: value for key, value in counts.items() if value},
        "conditions": conditions,
    }
    return set_status(cluster, DEPLOYMENTS, deployment, status)


STATEFUL_SETS, DAEMON_SETS = ("apps", "statefulsets"), ("apps", "daemonsets")
JOBS, NODES = ("batch", "jobs"), ("", "nodes")
BUDGETS = ("policy", "poddisruptionbudgets")


def reconcile(cluster: SimulatedCluster) -> bool:
    """Make one pass; return whether anything changed."""
    changed = garbage_collector.reconcile(cluster)
    for key, step in (
        (DEPLOYMENTS, reconcile_deployment),
        (REPLICA_SETS, _replica_set),
        (STATEFUL_SETS, _stateful_set),
        (DAEMON_SETS, _daemon_set),
        (JOBS, _job),
        (BUDGETS, _budget),
    ):
        for obj in list(cluster.store.collection(key).objects.values()):
            if not obj["metadata"].get("deletionTimestamp"):
                changed |= step(cluster, obj)
    changed |= endpointslices.reconcile(cluster)
    return kubelet.reconcile(cluster) or changed


def reconcile_until_stable(cluster: SimulatedCluster, passes: int = 50) -> None:
    """Reconcile until a pass changes nothing."""
    for _ in range(passes):
        if not reconcile(cluster):
            return


def _replica_set(cluster: SimulatedCluster, obj: JSONDict) -> bool:
    pods = [
        pod
        for pod in owned(cluster, PODS, obj)
        if not pod["metadata"].get("deletionTimestamp")
        and (pod.get("status") or {}).get("phase") not in ("Failed", "Succeeded")
    ]
    wanted = obj["spec"]["replicas"]
    changed = len(pods) != wanted
    for pod in sorted(pods, key=objects.is_ready)[: max(0, len(pods) - wanted)]:
        delete(cluster, PODS, pod)
    for _ in range(wanted - len(pods)):
        create(cluster, PODS, new_pod(obj, obj["spec"]["template"]))
    pods = [pod for pod in owned(cluster, PODS, obj) if not pod["metadata"].get("deletionTimestamp")]
    ready = sum(map(objects.is_ready, pods))
    counts = {"fullyLabeledReplicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
    status = {
        "replicas": len(pods),
        **{key: value for key, value in counts.items() if value},
        "observedGeneration": obj["metadata"].get("generation", 1),
    }
    return set_status(cluster, REPLICA_SETS, obj, status) or changed


def _stateful_set(cluster: SimulatedCluster, obj: JSONDict) -> bool:
    name, spec = obj["metadata"]["name"], obj["spec"]
    code = f"{name}-{template_hash(spec['template'])}"
    pods = {pod["metadata"]["name"]: pod for pod in owned(cluster, PODS, obj)}
    names = [f"{name}-{number}" for number in range(spec["replicas"])]
    changed = False
    for pod_name, pod in pods.items():
        stale = pod["metadata"]["labels"].get("controller-revision-hash") != code
        if (pod_name not in names or stale) and not pod["metadata"].get("deletionTimestamp"):
            delete(cluster, PODS, pod)
            changed = True
            break
    for number, pod_name in enumerate(names):
        if pod_name not in pods:
            pod = new_pod(obj, spec["template"], pod_name)
            pod["metadata"]["labels"] = {
                **(pod["metadata"].get("labels") or {}),
                "apps.kubernetes.io/pod-index": str(number),
                "controller-revision-hash": code,
                "statefulset.kubernetes.io/pod-name": pod_name,
            }
            changed |= create(cluster, PODS, pod) is not None
            break
        if not objects.is_ready(pods[pod_name]):
            break
    pods = {pod["metadata"]["name"]: pod for pod in owned(cluster, PODS, obj)}
    ready = sum(map(objects.is_ready, pods.values()))
    updated = sum(pod["metadata"]["labels"].get("controller-revision-hash") == code for pod in pods.values())
    counts = {"readyReplicas": ready, "currentReplicas": updated, "updatedReplicas": updated}
    status = {
        "observedGeneration": obj["metadata"].get("generation", 1),
        "replicas": len(pods),
        **{key: value for key, value in counts.items() if value},
        "currentRevision": code,
        "updateRevision": code,
        "collisionCount": 0,
        "availableReplicas": ready,
    }
    return set_status(cluster, STATEFUL_SETS, obj, status) or changed


def _daemon_set(cluster: SimulatedCluster, obj: JSONDict) -> bool:
    template = obj["spec"]["template"]
    code = template_hash(template)
    selector = template["spec"].get("nodeSelector") or {}
    nodes = {
        name
        for (_, name), node in cluster.store.collection(NODES).objects.items()
        if selects({"matchLabels": selector}, node["metadata"].get("labels") or {})
    }
    pods = {(pod.get("spec") or {}).get("nodeName", ""): pod for pod in owned(cluster, PODS, obj)}
    changed = False
    for node, pod in pods.items():
        stale = pod["metadata"]["labels"].get("controller-revision-hash") != code
        if (node not in nodes or stale) and not pod["metadata"].get("deletionTimestamp"):
            delete(cluster, PODS, pod)
            changed = True
    for node in sorted(nodes - set(pods)):
        pod = new_pod(obj, template)
        pod["spec"]["nodeName"] = node
        labels = pod["metadata"].get("labels") or {}
        pod["metadata"]["labels"] = {**labels, "controller-revision-hash": code, "pod-template-generation": "1"}
        changed |= create(cluster, PODS, pod) is not None
    found = owned(cluster, PODS, obj)
    ready = sum(map(objects.is_ready, found))
    counts = {"updatedNumberScheduled": len(found), "numberAvailable": ready}
    status = {
        "currentNumberScheduled": len(found),
        "numberMisscheduled": 0,
        "desiredNumberScheduled": len(nodes),
        "numberReady": ready,
        "observedGeneration": obj["metadata"].get("generation", 1),
        **{key: value for key, value in counts.items() if value},
    }
    return set_status(cluster, DAEMON_SETS, obj, status) or changed


def _job(cluster: SimulatedCluster, obj: JSONDict) -> bool:
    state = obj.get("status") or {}
    if obj["spec"].get("suspend") or any(item["type"] == "Complete" for item in state.get("conditions") or ()):
        return False
    now = cluster.timestamp()
    pods = owned(cluster, PODS, obj)
    done = sum((pod.get("status") or {}).get("phase") == "Succeeded" for pod in pods)
    wanted = obj["spec"].get("completions") or 1
    started = state.get("startTime", now)
    if done >= wanted:
        text = "Reached expected number of succeeded pods"
        finished = {"lastProbeTime": now, "lastTransitionTime": now, "reason": "CompletionsReached", "message": text}
        status: JSONDict = {
            "conditions": [{"type": kind, "status": "True", **finished} for kind in ("SuccessCriteriaMet", "Complete")],
            "startTime": started,
            "completionTime": now,
            "succeeded": done,
            "terminating": 0,
            "uncountedTerminatedPods": {},
            "ready": 0,
        }
        return set_status(cluster, JOBS, obj, status)
    active = len(pods) - done
    missing = min(obj["spec"].get("parallelism", 1), wanted - done) - active
    for _ in range(missing):
        create(cluster, PODS, new_pod(obj, obj["spec"]["template"]))
    active += max(0, missing)
    status = {"startTime": started, "active": active, "terminating": 0, "uncountedTerminatedPods": {}}
    if done:
        status["succeeded"] = done
    status["ready"] = sum(map(objects.is_ready, pods))
    return set_status(cluster, JOBS, obj, status) or missing > 0


def _budget(cluster: SimulatedCluster, obj: JSONDict) -> bool:
    namespace, spec = obj["metadata"]["namespace"], obj["spec"]
    pods = [
        pod
        for (place, _), pod in cluster.store.collection(PODS).objects.items()
        if place == namespace and selects(spec.get("selector") or {}, pod["metadata"].get("labels") or {})
    ]
    healthy = sum(map(objects.is_ready, pods))
    if spec.get("maxUnavailable") is not None:
        desired = len(pods) - _amount(spec["maxUnavailable"], len(pods))
    else:
        desired = _amount(spec.get("minAvailable", 1), len(pods))
    allowed = max(0, healthy - desired)
    old = (obj.get("status") or {}).get("conditions") or ()
    reason = "SufficientPods" if allowed else "InsufficientPods"
    status = {
        "observedGeneration": obj["metadata"].get("generation", 1),
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": max(0, desired),
        "expectedPods": len(pods),
        "conditions": [condition(old, "DisruptionAllowed", bool(allowed), reason, "", cluster.timestamp())],
    }
    return set_status(cluster, BUDGETS, obj, status)


def _amount(value: int | str, total: int) -> int:
    """Resolve a count or a percentage (rounded up)."""
    if isinstance(value, int):
        return value
    return -(-total * int(value.rstrip("%")) // 100)
