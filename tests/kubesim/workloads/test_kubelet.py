"""The choice of a node for a pod."""

from __future__ import annotations

from typing import Any

from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects
from kubesim.workloads import demo_objects, kubelet

PODS = ("", "pods")


def create(cluster: SimulatedCluster, key: tuple[str, str], obj: dict[str, Any]) -> dict[str, Any]:
    return objects.create(cluster, objects.served_resource(cluster, *key), obj["metadata"].get("namespace", ""), obj)


def test_a_pod_is_bound_to_the_schedulable_node_with_the_fewest_pods(small_cluster: SimulatedCluster) -> None:
    for number in (2, 3):
        node = demo_objects.node(f"n{number}", number, "east")
        node["spec"]["unschedulable"] = number == 3
        create(small_cluster, ("", "nodes"), node)
    small_cluster.store.put(PODS, {"metadata": {"name": "p", "namespace": "x"}, "spec": {"nodeName": "n1"}})
    assert kubelet.choose_node(small_cluster, {}) == "n2"
    assert kubelet.choose_node(small_cluster, {"kubernetes.io/hostname": "n1"}) == "n1"
    assert kubelet.choose_node(small_cluster, {"no": "such"}) is None
