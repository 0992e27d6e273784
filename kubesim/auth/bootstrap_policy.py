"""The bootstrap policy: ClusterRoles and bindings that every cluster has, as far as clients and tests rely on them.

The rules are those of kubernetes' bootstrap policy, with view, edit and admin cut down to the common resources.
"""

from __future__ import annotations

from typing import Any

from kubesim.cluster import SimulatedCluster

__all__ = ["add_default_roles", "default_objects"]

JSONDict = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]
CORE = [
    "configmaps",
    "endpoints",
    "events",
    "limitranges",
    "persistentvolumeclaims",
    "pods",
    "pods/log",
    "pods/status",
    "replicationcontrollers",
    "resourcequotas",
    "serviceaccounts",
    "services",
]
CORE_WRITE = ["configmaps", "endpoints", "persistentvolumeclaims", "pods", "replicationcontrollers", "services"]
APPS = ["controllerrevisions", "daemonsets", "deployments", "deployments/scale", "replicasets", "statefulsets"]
APPS_WRITE = APPS[1:]
BATCH = ["cronjobs", "jobs"]
NETWORKING = ["ingresses", "networkpolicies"]
STREAMS = ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "services/proxy"]
HEALTH = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz"]


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> JSONDict:
    return {"verbs": verbs, "apiGroups": groups, "resources": resources}


def _view() -> list[JSONDict]:
    return [
        _rule([""], [*CORE, "namespaces"], READ),
        _rule(["apps"], APPS, READ),
        _rule(["batch"], BATCH, READ),
        _rule(["networking.k8s.io"], NETWORKING, READ),
        _rule(["autoscaling"], ["horizontalpodautoscalers"], READ),
        _rule(["policy"], ["poddisruptionbudgets"], READ),
        _rule(["discovery.k8s.io"], ["endpointslices"], READ),
    ]


def _edit() -> list[JSONDict]:
    return [
        _rule([""], STREAMS, [*READ, *WRITE]),
        _rule([""], ["secrets"], READ),
        _rule([""], [*CORE_WRITE, "secrets", "serviceaccounts", "pods/eviction"], WRITE),
        _rule([""], ["serviceaccounts"], ["impersonate"]),
        _rule([""], ["serviceaccounts/token"], ["create"]),
        _rule(["apps"], APPS_WRITE, WRITE),
        _rule(["batch"], BATCH, WRITE),
        _rule(["networking.k8s.io"], NETWORKING, WRITE),
        _rule(["autoscaling"], ["horizontalpodautoscalers"], WRITE),
        _rule(["policy"], ["poddisruptionbudgets"], WRITE),
        *_view(),
    ]


def _admin() -> list[JSONDict]:
    return [
        _rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"]),
        _rule([GROUP], ["rolebindings", "roles"], [*READ, *WRITE]),
        *_edit(),
    ]


def _roles() -> dict[str, list[JSONDict]]:
    reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    return {
        "cluster-admin": [_rule(["*"], ["*"], ["*"]), {"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "admin": _admin(),
        "edit": _edit(),
        "view": _view(),
        "system:basic-user": [
            _rule(["authorization.k8s.io"], reviews, ["create"]),
            _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
        ],
        "system:discovery": [{"verbs": ["get"], "nonResourceURLs": [*DISCOVERY, "/version", "/version/"]}],
        "system:public-info-viewer": [{"verbs": ["get"], "nonResourceURLs": HEALTH}],
        "system:service-account-issuer-discovery": [
            {"verbs": ["get"], "nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"]},
        ],
    }


BINDINGS = {
    "cluster-admin": ["system:masters"],
    "system:basic-user": ["system:authenticated"],
    "system:discovery": ["system:authenticated"],
    "system:public-info-viewer": ["system:authenticated", "system:unauthenticated"],
    "system:service-account-issuer-discovery": ["system:serviceaccounts"],
}


def default_objects() -> list[JSONDict]:
    """Return the ClusterRole and ClusterRoleBinding objects, without uid, time and version."""
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    objects: list[JSONDict] = []
    for name, rules in _roles().items():
        metadata = {"name": name, "labels": dict(labels)}
        objects.append({"kind": "ClusterRole", "apiVersion": f"{GROUP}/v1", "metadata": metadata, "rules": rules})
    for name, groups in BINDINGS.items():
        objects.append(
            {
                "kind": "ClusterRoleBinding",
                "apiVersion": f"{GROUP}/v1",
                "metadata": {"name": name, "labels": dict(labels)},
                "subjects": [{"kind": "Group", "apiGroup": GROUP, "name": group} for group in groups],
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            }
        )
    return objects


def add_default_roles(cluster: SimulatedCluster) -> None:
    """Store the default objects that the cluster does not have."""
    for obj in default_objects():
        plural = "clusterroles" if obj["kind"] == "ClusterRole" else "clusterrolebindings"
        if cluster.store.get((GROUP, plural), "", obj["metadata"]["name"]) is None:
            obj["metadata"] |= {"uid": cluster.uid(), "creationTimestamp": cluster.timestamp()}
            cluster.store.put((GROUP, plural), obj)
