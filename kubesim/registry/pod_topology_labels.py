"""The admission plugin PodTopologyLabels: a bound pod gets the node's zone and region as labels.

Source: plugin/pkg/admission/podtopologylabels of Kubernetes 1.36. Labels of the pod with these names are overwritten.
"""

from __future__ import annotations

from typing import Any

from kubesim.cluster import SimulatedCluster

JSONDict = dict[str, Any]
COPIED = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def label(cluster: SimulatedCluster, pod: JSONDict, node_name: str) -> None:
    """Copy the labels of the node to a pod, in place; a missing node has none."""
    node = cluster.store.get(("", "nodes"), "", node_name)
    found = {} if node is None else node["metadata"].get("labels") or {}
    copied = {key: found[key] for key in COPIED if key in found}
    if copied:
        metadata = pod["metadata"]
        pod["metadata"] = {**metadata, "labels": {**(metadata.get("labels") or {}), **copied}}
