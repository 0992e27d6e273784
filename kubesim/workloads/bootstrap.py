"""The objects of a fresh cluster: system namespaces, the kubernetes Service, RBAC roles; and the rights of its users.

alice reads pods in the namespace demo, mcproxy impersonates and creates reviews, as in the recorded cluster. admin
needs no rights, because it is a member of system:masters.
"""

from __future__ import annotations

from typing import Any

from kubesim.auth import rbac
from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects

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
    """Store the objects of a fresh cluster."""
    namespaces = objects.served_resource(cluster, "", "namespaces")
    for name in NAMESPACES:
        objects.create(cluster, namespaces, "", {"metadata": {"name": name}}, manager="kube-apiserver")
    accounts = objects.served_resource(cluster, "", "serviceaccounts")
    for name in NAMESPACES:
        objects.create(cluster, accounts, name, {"metadata": {"name": "default"}}, manager="kube-controller-manager")
    objects.create(
        cluster, objects.served_resource(cluster, "", "services"), "default", SERVICE, manager="kube-apiserver"
    )
    rbac.add_default_roles(cluster)


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
    """Return (plural, object) of the roles and bindings."""
    return [
        ("roles", {"metadata": {"name": "pod-reader", "namespace": NAMESPACE}, "rules": POD_READER}),
        ("rolebindings", _binding("alice-pod-reader", NAMESPACE, "Role", "pod-reader", "alice")),
        ("clusterroles", {"metadata": {"name": "mcproxy"}, "rules": PROXY}),
        ("clusterrolebindings", _binding("mcproxy", "", "ClusterRole", "mcproxy", "mcproxy")),
    ]


def add_rights(cluster: SimulatedCluster) -> None:
    """Store roles and bindings, and the namespace if it does not exist."""
    if cluster.store.get(("", "namespaces"), "", NAMESPACE) is None:
        namespaces, accounts = (
            objects.served_resource(cluster, "", plural) for plural in ("namespaces", "serviceaccounts")
        )
        objects.create(cluster, namespaces, "", {"metadata": {"name": NAMESPACE}}, manager="kubectl-create")
        default = {"metadata": {"name": "default"}}
        objects.create(cluster, accounts, NAMESPACE, default, manager="kube-controller-manager")
    for plural, obj in rights():
        resource = objects.served_resource(cluster, RBAC, plural)
        objects.create(cluster, resource, obj["metadata"].get("namespace", ""), obj, manager="kubectl-create")
