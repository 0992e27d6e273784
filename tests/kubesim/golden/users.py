"""Accounts and rights for the recordings of auth, impersonation, frontproxy, kubelet and websocket."""

from __future__ import annotations

import re
from typing import Any

from kubesim.apimachinery.user import User
from kubesim.auth.authentication import issuer_of
from kubesim.cluster import SimulatedCluster

JSONDict = dict[str, Any]

FOLDERS = frozenset({"auth", "impersonation", "impersonation-legacy", "frontproxy", "kubelet", "websocket"})
"""The folders whose recordings need these objects."""
RBAC_GROUP = "rbac.authorization.k8s.io"
TOKEN = re.compile(r"eyJhbGci[\w-]+\.[\w-]+\.[\w-]+")

ROLES: dict[str, list[JSONDict]] = {
    "dave-imp": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:user-info:list"]},
        *(
            {
                "apiGroups": ["authentication.k8s.io"],
                "resources": [resource],
                "resourceNames": [name],
                "verbs": ["impersonate:user-info"],
            }
            for resource, name in (("users", "alice"), ("groups", "dev"))
        ),
    ],
    "erin": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}],
    "frank": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}],
}


def add(cluster: SimulatedCluster) -> None:
    """Store the accounts, roles and endpoints; the cluster's resourceVersion is kept."""
    store, revision = cluster.store, cluster.store.revision
    cluster.tokens["alice-test-token"] = User("alice", "uid-alice", ("dev",))
    cluster.tokens["admin-test-token"] = User("admin", "uid-admin", ("system:masters",))
    for name in ("builder", "default"):
        if store.get(("", "serviceaccounts"), "demo", name) is None:
            store.put(("", "serviceaccounts"), {"metadata": {"name": name, "namespace": "demo", "uid": cluster.uid()}})
    for name, rules in ROLES.items():
        user = name.partition("-")[0]
        store.put((RBAC_GROUP, "clusterroles"), {"metadata": {"name": name}, "rules": rules})
        reference = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name}
        subjects = [{"kind": "User", "apiGroup": RBAC_GROUP, "name": user}]
        binding = {"metadata": {"name": f"{name}-everywhere"}, "roleRef": reference, "subjects": subjects}
        store.put((RBAC_GROUP, "clusterrolebindings"), binding)
    for name, subsets in (("web", [{"addresses": [{"ip": "10.244.1.10"}]}]), ("headless", [])):
        store.put(("", "endpoints"), {"metadata": {"name": name, "namespace": "demo"}, "subsets": subsets})
    store.revision = revision


def substitute_token(name: str, request: JSONDict, cluster: SimulatedCluster) -> None:
    """Replace the recorded token of a request by one of this cluster."""
    if name.endswith("west-token-of-east"):
        return
    own = issuer_of(cluster).issue("demo", cluster.store.get(("", "serviceaccounts"), "demo", "builder") or {})
    if name.endswith("invalid-jwt"):
        own = own[:-8] + "AAAAAAAA"
    request["headers"] = [[key, TOKEN.sub(own, value)] for key, value in request["headers"]]
    if isinstance(request.get("body"), str):
        request["body"] = TOKEN.sub(own, request["body"])
