"""Binding a pod to a node."""

from __future__ import annotations

import pytest

from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects


def test_a_pod_is_bound_only_once_and_gets_the_zone_of_its_node(small_cluster: SimulatedCluster) -> None:
    pod = {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {}}
    node = small_cluster.store.get(("", "nodes"), "", "n1")
    assert node is not None
    zone = {key: node["metadata"]["labels"][key] for key in objects.COPIED}
    bound = objects.bind_pod(small_cluster, pod, {"name": "n1"})
    assert bound["spec"] == {"nodeName": "n1"}
    assert bound["metadata"]["labels"] == {"app": "x", **zone}
    assert pod == {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {}}
    with pytest.raises(StatusError, match='pod p is already assigned to node "n1"'):
        objects.bind_pod(small_cluster, bound, {"name": "n2"})
