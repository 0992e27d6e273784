"""The objects that a demo cluster begins with, as plain dicts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

JSONDict = dict[str, Any]
Wanted = tuple[str, str, JSONDict]
"""(group, plural, object)."""

REGISTRY = "registry.example.com"
APPLICATIONS: dict[str, dict[str, int]] = {
    "demo": {"web": 3, "api": 2, "worker": 2},
    "shop": {"frontend": 4, "cart": 2, "catalog": 3, "checkout": 2, "payments": 2, "search": 2, "emails": 1},
    "monitoring": {"prometheus": 1, "grafana": 1, "alertmanager": 2},
    "kube-system": {"coredns": 2, "metrics-server": 1},
}
WIDGET_GROUP = "example.com"
QUOTES = (
    "a watched pot never boils",
    "many hands make light work",
    "look before you leap",
    "better late than never",
)


def meta(name: str, namespace: str = "", labels: dict[str, str] | None = None) -> JSONDict:
    """metadata."""
    out: JSONDict = {"name": name}
    if namespace:
        out["namespace"] = namespace
    if labels:
        out["labels"] = labels
    return out


def cluster_objects(name: str, rng: random.Random) -> Iterator[Wanted]:
    """Nodes, namespaces and other cluster-scoped objects; the first to be made."""
    for number in range(1, 4 + rng.randint(0, 2)):
        yield "", "nodes", node(f"{name}-node-{number}", number, name)
    for namespace in APPLICATIONS:
        if namespace != "kube-system":
            yield "", "namespaces", {"metadata": meta(namespace, labels={"team": namespace})}
            yield "", "serviceaccounts", {"metadata": meta("default", namespace)}
    yield (
        "storage.k8s.io",
        "storageclasses",
        {
            "metadata": {
                **meta("standard"),
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "csi.example.com",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
        },
    )
    for class_name, value in (("system-cluster-critical", 2000000000), ("batch", -10)):
        yield "scheduling.k8s.io", "priorityclasses", {"metadata": meta(class_name), "value": value}
    yield "networking.k8s.io", "ingressclasses", {"metadata": meta("nginx"), "spec": {"controller": "k8s.io/nginx"}}
    yield "apiextensions.k8s.io", "customresourcedefinitions", widget_definition()


def node(name: str, number: int, cluster: str) -> JSONDict:
    """A node whose kubelet is well."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "200Gi"}
    role = {"node-role.kubernetes.io/control-plane": ""} if number == 1 else {"node-role.kubernetes.io/worker": ""}
    return {
        "metadata": meta(
            name,
            labels={
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/region": cluster,
                "topology.kubernetes.io/zone": f"{cluster}-{'abc'[number % 3]}",
                **role,
            },
        ),
        "spec": {"podCIDR": f"10.244.{number}.0/24", "podCIDRs": [f"10.244.{number}.0/24"]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": f"10.0.0.{number + 10}"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "machineID": f"{number:032x}",
                "systemUUID": f"00000000-0000-0000-0000-{number:012d}",
                "bootID": f"00000000-0000-0000-0001-{number:012d}",
                "kernelVersion": "6.1.0-35-amd64",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
                "containerRuntimeVersion": "containerd://2.1.1",
                "kubeletVersion": "v1.36.2",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def widget_definition() -> JSONDict:
    """The CRD that the demo's custom objects are of."""
    schema = {
        "description": "Widget is an example of a custom resource.",
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["color"],
                "properties": {
                    "color": {"description": "What it looks like.", "type": "string", "enum": ["red", "green", "blue"]},
                    "size": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
                    "replicas": {"type": "integer", "minimum": 0},
                    "notes": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
            "status": {
                "type": "object",
                "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}},
            },
        },
    }
    columns = [
        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "Size", "type": "integer", "description": "how big", "jsonPath": ".spec.size"},
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    names = {
        "plural": "widgets",
        "singular": "widget",
        "kind": "Widget",
        "listKind": "WidgetList",
        "shortNames": ["wd"],
    }
    return {
        "metadata": meta(f"widgets.{WIDGET_GROUP}"),
        "spec": {
            "group": WIDGET_GROUP,
            "scope": "Namespaced",
            "names": {**names, "categories": ["all"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "additionalPrinterColumns": columns,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                    },
                }
            ],
        },
    }


def template(app: str, labels: dict[str, str], image: str, cluster: str) -> JSONDict:
    """A pod template of one container."""
    container = {
        "name": app,
        "image": image,
        "ports": [{"name": "http", "containerPort": 8080}],
        "env": [{"name": "CLUSTER", "value": cluster}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
    }
    return {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "default", "containers": [container]}}


def workloads(cluster: str, rng: random.Random) -> Iterator[Wanted]:
    """Deployments with their Services, and one of each of the other kinds."""
    for namespace, apps in APPLICATIONS.items():
        for app, replicas in apps.items():
            labels = {"app": app, "team": namespace}
            image = f"{REGISTRY}/{namespace}/{app}:{rng.randint(1, 3)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}"
            spec = {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": app}},
                "template": template(app, labels, image, cluster),
            }
            yield "apps", "deployments", {"metadata": meta(app, namespace, labels), "spec": spec}
            ports = [{"name": "http", "port": 80, "targetPort": "http"}]
            service: JSONDict = {"selector": {"app": app}, "ports": ports}
            if app == "frontend":
                service["type"] = "LoadBalancer"
            yield "", "services", {"metadata": meta(app, namespace, labels), "spec": service}
    yield from _other_workloads(cluster)


def _other_workloads(cluster: str) -> Iterator[Wanted]:
    labels = {"app": "db"}
    image = f"{REGISTRY}/demo/db:16"
    stateful: JSONDict = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels}}
    stateful["template"] = template("db", labels, image, cluster)
    yield "apps", "statefulsets", {"metadata": meta("db", "demo", labels), "spec": stateful}
    service = {"selector": labels, "clusterIP": "None", "ports": [{"name": "http", "port": 5432}]}
    yield "", "services", {"metadata": meta("db", "demo", labels), "spec": service}
    for namespace, app in (("kube-system", "kube-proxy"), ("monitoring", "node-exporter")):
        own = {"k8s-app": app}
        spec = {"selector": {"matchLabels": own}, "template": template(app, own, f"{REGISTRY}/k8s/{app}:1", cluster)}
        yield "apps", "daemonsets", {"metadata": meta(app, namespace, own), "spec": spec}
    job = template("migrate", {"job": "migrate"}, f"{REGISTRY}/demo/migrate:3", cluster)
    job["spec"]["restartPolicy"] = "Never"
    yield "batch", "jobs", {"metadata": meta("migrate", "demo"), "spec": {"template": job}}
    nightly = {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": job}}}
    yield "batch", "cronjobs", {"metadata": meta("nightly", "demo"), "spec": nightly}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "frontend"}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}
    scaler = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 8, "metrics": [cpu]}
    yield "autoscaling", "horizontalpodautoscalers", {"metadata": meta("frontend", "shop"), "spec": scaler}
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "payments"}}}
    yield "policy", "poddisruptionbudgets", {"metadata": meta("payments", "shop"), "spec": budget}


def extras(cluster: str, rng: random.Random) -> Iterator[Wanted]:
    """Configuration and everything else that a namespace has."""
    for namespace, apps in APPLICATIONS.items():
        root = {"ca.crt": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"}
        yield "", "configmaps", {"metadata": meta("kube-root-ca.crt", namespace), "data": root}
        for app in apps:
            for kind in ("config", "features"):
                data = {"cluster": cluster, "level": rng.choice(["debug", "info", "warn"]), "quote": rng.choice(QUOTES)}
                yield "", "configmaps", {"metadata": meta(f"{app}-{kind}", namespace, {"app": app}), "data": data}
            secret = {"password": f"{rng.getrandbits(64):016x}", "user": app}
            yield "", "secrets", {"metadata": meta(f"{app}-credentials", namespace), "stringData": secret}
            yield "", "serviceaccounts", {"metadata": meta(app, namespace)}
    paths = [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "frontend", "port": {"number": 80}}}}]
    rules = [{"host": f"shop.{cluster}.example.com", "http": {"paths": paths}}]
    ingress = {"ingressClassName": "nginx", "rules": rules}
    yield "networking.k8s.io", "ingresses", {"metadata": meta("shop", "shop"), "spec": ingress}
    policy = {"podSelector": {"matchLabels": {"app": "payments"}}, "policyTypes": ["Ingress"]}
    yield "networking.k8s.io", "networkpolicies", {"metadata": meta("payments", "shop"), "spec": policy}
    claim: JSONDict = {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard"}
    claim["resources"] = {"requests": {"storage": "10Gi"}}
    yield "", "persistentvolumeclaims", {"metadata": meta("data-db-0", "demo"), "spec": claim}
    for number in range(1, 11):
        color = ("red", "green", "blue")[number % 3]
        spec = {"color": color, "size": number * 3, "replicas": number % 4}
        widget = {"metadata": meta(f"{color}-{number}", "demo", {"color": color}), "spec": spec}
        yield WIDGET_GROUP, "widgets", widget
