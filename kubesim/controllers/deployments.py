"""The deployment controller: one ReplicaSet for each pod template, rollouts, the status.

The new ReplicaSet is scaled up at once, the old ones are scaled down when its pods are ready.
"""

from __future__ import annotations

import copy
from typing import Any

from kubesim.cluster import SimulatedCluster
from kubesim.controllers import controller_utils
from kubesim.registry import objects

JSONDict = dict[str, Any]
DEPLOYMENTS, REPLICA_SETS = ("apps", "deployments"), ("apps", "replicasets")
REVISION = "deployment.kubernetes.io/revision"


def reconcile(cluster: SimulatedCluster, deployment: JSONDict) -> bool:
    metadata, spec = deployment["metadata"], deployment["spec"]
    sets = controller_utils.owned(cluster, REPLICA_SETS, deployment)
    code = controller_utils.template_hash(spec["template"])
    current = next((item for item in sets if item["metadata"]["labels"].get("pod-template-hash") == code), None)
    if current is None:
        if spec.get("paused"):
            return False
        return _new_replica_set(cluster, deployment, sets, code)
    changed = controller_utils.scale(cluster, REPLICA_SETS, current, spec["replicas"])
    current = cluster.store.get(REPLICA_SETS, metadata["namespace"], current["metadata"]["name"]) or current
    state = current.get("status") or {}
    others = [item for item in sets if item["metadata"]["uid"] != current["metadata"]["uid"]]
    if state.get("readyReplicas", 0) >= spec["replicas"]:
        for item in others:
            changed |= controller_utils.scale(cluster, REPLICA_SETS, item, 0)
    return _deployment_status(cluster, deployment, current, others) or changed


def _new_replica_set(cluster: SimulatedCluster, deployment: JSONDict, sets: list[JSONDict], code: str) -> bool:
    metadata, spec = deployment["metadata"], deployment["spec"]
    number = 1 + max((int((item["metadata"].get("annotations") or {}).get(REVISION, 0)) for item in sets), default=0)
    template = copy.deepcopy(spec["template"])
    labels = {**(template["metadata"].get("labels") or {}), "pod-template-hash": code}
    template["metadata"]["labels"] = labels
    selector = copy.deepcopy(spec["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), "pod-template-hash": code}
    made = controller_utils.create(
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
                "ownerReferences": [controller_utils.reference(deployment)],
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
    objects.update(cluster, resource, namespace, name, new, manager=controller_utils.MANAGER, patch=True)
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
        controller_utils.condition(
            old,
            "Available",
            enough,
            "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            now,
            lastUpdateTime=now,
        ),
        controller_utils.condition(
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
    return controller_utils.set_status(cluster, DEPLOYMENTS, deployment, status)
