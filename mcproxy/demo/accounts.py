"""What the users of a simulated cluster may do: alice reads pods in the namespace demo, mcproxy impersonates and asks.

The same rights as in the cluster whose answers were recorded. admin needs none, being of system:masters.
"""

from __future__ import annotations

from typing import Any

from mcproxy.demo import objects
from mcproxy.demo.cluster import SimulatedCluster

JSONDict = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
NAMESPACE = "demo"

POD_READER: list[JSONDict] = [
    {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["web"], "verbs": ["get", "patch"]},
]
PROXY: list[JSONDict] = [
    {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["uids", "userextras/scopes", "userextras/mcproxy.example.com/origin"],
        "verbs": ["impersonate"],
    },
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    {"nonResourceURLs": ["*"], "verbs": ["get"]},
]


def _binding(name: str, namespace: str, role_kind: str, role: str, user: str) -> JSONDict:
    return {
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
    }


def rights() -> list[tuple[str, JSONDict]]:
    """(plural, object) of the roles and bindings."""
    return [
        ("roles", {"metadata": {"name": "pod-reader", "namespace": NAMESPACE}, "rules": POD_READER}),
        ("rolebindings", _binding("alice-pod-reader", NAMESPACE, "Role", "pod-reader", "alice")),
        ("clusterroles", {"metadata": {"name": "mcproxy"}, "rules": PROXY}),
        ("clusterrolebindings", _binding("mcproxy", "", "ClusterRole", "mcproxy", "mcproxy")),
    ]


def add(cluster: SimulatedCluster) -> None:
    """Store roles and bindings, and make the namespace if it is not there."""
    if cluster.store.get(("", "namespaces"), "", NAMESPACE) is None:
        namespaces, accounts = (objects.find(cluster, "", plural) for plural in ("namespaces", "serviceaccounts"))
        objects.create(cluster, namespaces, "", {"metadata": {"name": NAMESPACE}}, manager="kubectl-create")
        default = {"metadata": {"name": "default"}}
        objects.create(cluster, accounts, NAMESPACE, default, manager="kube-controller-manager")
    for plural, obj in rights():
        resource = objects.find(cluster, RBAC, plural)
        objects.create(cluster, resource, obj["metadata"].get("namespace", ""), obj, manager="kubectl-create")
