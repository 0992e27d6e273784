"""Binding a pod to a node."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery.status import Cause, conflict, invalid
from kubesim.cluster import SimulatedCluster
from kubesim.registry import pod_topology_labels

JSONDict = dict[str, Any]


def bind(cluster: SimulatedCluster, pod: Mapping[str, Any], target: Mapping[str, Any]) -> JSONDict:
    """Return the pod bound to the node of a Binding's target. Raises APIError 409, 422."""
    name = pod["metadata"]["name"]
    node = target.get("name")
    if not node:
        cause = Cause("FieldValueRequired", "Required value", "target.name")
        raise invalid("", "Binding", name, [cause])
    bound = (pod.get("spec") or {}).get("nodeName")
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if bound:
        raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{bound}"')
    new = copy.deepcopy(dict(pod))
    new["spec"]["nodeName"] = node
    pod_topology_labels.label(cluster, new, node)
    state = new.setdefault("status", {})
    others = [item for item in state.get("conditions") or () if item.get("type") != "PodScheduled"]
    now = cluster.timestamp()
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    state["conditions"] = [*others, scheduled]
    return new
