"""Pods as a cluster has them, for measurements of caches: 2 to 4 KB of JSON, labels that repeat in a Deployment."""

from __future__ import annotations

import hashlib
import json
from typing import Any

REPLICAS = 10
"""Pods of one Deployment, which share their labels."""
_IMAGES = ("web:1.4.2", "api:2.0.0", "worker:0.9.1-alpine", "postgres:17.2")


def pod(number: int, version: int) -> dict[str, Any]:
    """Return the pod of that number; some have a second container, most a long managedFields."""
    deployment, node = number // REPLICAS, number % 300
    app = f"service-{deployment % 400:03d}"
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    template_hash = hashlib.sha256(b"%d" % deployment).hexdigest()[:9]
    containers = [_container(name, deployment) for name in ("app", "proxy")[: 1 + deployment % 3 // 2]]
    statuses = [
        {
            "name": container["name"],
            "state": {"running": {"startedAt": "2026-11-20T08:15:30Z"}},
            "lastState": {},
            "ready": True,
            "restartCount": number % 7,
            "image": container["image"],
            "imageID": f"{container['image'].partition(':')[0]}@sha256:{digest}",
            "containerID": f"containerd://{digest}",
            "started": True,
        }
        for container in containers
    ]
    metadata = {
        "name": f"{app}-{template_hash}-{digest[:5]}",
        "generateName": f"{app}-{template_hash}-",
        "namespace": namespace(deployment),
        "uid": f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-9{digest[17:20]}-{digest[20:32]}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-11-20T08:15:28Z",
        "labels": {
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/part-of": f"product-{deployment % 20}",
            "pod-template-hash": template_hash,
            "team": f"team-{deployment % 50}",
        },
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": f"{app}-{template_hash}",
                "uid": f"{digest[32:40]}-0000-4000-9000-{deployment:012d}",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if number % 4:
        metadata["managedFields"] = _managed_fields()
    return {
        "metadata": metadata,
        "spec": {
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": app,
            "nodeName": f"node-{node:03d}",
            "securityContext": {},
            "schedulerName": "default-scheduler",
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-20T08:15:30Z"}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "hostIP": f"10.0.{node // 250}.{node % 250}",
            "podIP": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            "startTime": "2026-11-20T08:15:28Z",
            "containerStatuses": statuses,
            "qosClass": "Burstable",
        },
    }


def namespace(deployment: int) -> str:
    """Return the namespace of a Deployment's pods: in order, so that a list has the order of the numbers."""
    return f"team-{deployment // 100:04d}"


def encoded(item: dict[str, Any]) -> bytes:
    """Return JSON as a kube-apiserver writes it, without white space."""
    return json.dumps(item, separators=(",", ":")).encode()


def page(items: list[bytes], version: int, token: str = "") -> bytes:
    """Return a page of a PodList."""
    return b'{"kind":"PodList","apiVersion":"v1","metadata":%s,"items":[%s]}\n' % (
        _list_metadata(version, token),
        b",".join(items),
    )


def table_page(items: list[bytes], version: int, token: str = "") -> bytes:
    """Return a page of a Table with includeObject=Object, as a reflector asks for it."""
    rows = (
        b'{"cells":["service-000-0123456789-abcde","1/1","Running",%d,"2d18h","10.0.%d.17","node-%03d","\\u003cnone\\u003e"'
        b',"\\u003cnone\\u003e"],"object":{"kind":"Pod","apiVersion":"v1",%s}'
        % (place % 5, place % 250, place, item[1:])
        for place, item in enumerate(items)
    )
    names = ("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates")
    columns = [{"name": name, "type": "string", "format": "", "description": "", "priority": 0} for name in names]
    return b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":%s,"columnDefinitions":%s,"rows":[%s]}\n' % (
        _list_metadata(version, token),
        json.dumps(columns).encode(),
        b",".join(rows),
    )


def _list_metadata(version: int, token: str) -> bytes:
    return encoded({"resourceVersion": str(version), **({"continue": token} if token else {})})


def _container(name: str, deployment: int) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"registry.example.com/shop/{_IMAGES[deployment % len(_IMAGES)]}",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": "CLUSTER", "value": "east"}, {"name": "LOG_LEVEL", "value": "info"}],
        "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _managed_fields() -> list[dict[str, Any]]:
    container: dict[str, Any] = {
        ".": {},
        "f:image": {},
        "f:imagePullPolicy": {},
        "f:name": {},
        "f:resources": {},
        "f:env": {},
    }
    spec = {"f:containers": {'k:{"name":"app"}': container}, "f:dnsPolicy": {}, "f:restartPolicy": {}}
    status: dict[str, Any] = {
        "f:containerStatuses": {},
        "f:hostIP": {},
        "f:phase": {},
        "f:podIP": {},
        "f:startTime": {},
    }
    common = {"operation": "Update", "apiVersion": "v1", "time": "2026-11-20T08:15:30Z", "fieldsType": "FieldsV1"}
    return [
        {"manager": "kube-controller-manager", **common, "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": spec}},
        {"manager": "kubelet", **common, "fieldsV1": {"f:status": status}, "subresource": "status"},
    ]
