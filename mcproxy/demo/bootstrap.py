"""What a fresh cluster has before anybody does anything: system namespaces, the kubernetes Service, RBAC roles."""

from __future__ import annotations

from typing import Any

from mcproxy.demo import objects, rbac_defaults
from mcproxy.demo.cluster import SimulatedCluster

JSONDict = dict[str, Any]

NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "default")
SERVICE: JSONDict = {
    "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
    "spec": {
        "type": "ClusterIP",
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1"],
        "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
    },
}


def bootstrap(cluster: SimulatedCluster) -> None:
    """Fill an empty cluster."""
    namespaces = objects.find(cluster, "", "namespaces")
    for name in NAMESPACES:
        objects.create(cluster, namespaces, "", {"metadata": {"name": name}}, manager="kube-apiserver")
    accounts = objects.find(cluster, "", "serviceaccounts")
    for name in NAMESPACES:
        objects.create(cluster, accounts, name, {"metadata": {"name": "default"}}, manager="kube-controller-manager")
    objects.create(cluster, objects.find(cluster, "", "services"), "default", SERVICE, manager="kube-apiserver")
    rbac_defaults.add_default_roles(cluster)
