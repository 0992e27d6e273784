"""The registrations of a server as APIService objects, and the lists, Tables and events that have them. Pure.

Source: kube-aggregator, `pkg/apis/apiregistration/v1/types.go`, and its `pkg/registry/apiservice/etcd` for the Table.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from mcproxy.apiservices.condition import TRUE, Condition
from mcproxy.config import model
from mcproxy.kube.duration import human_duration

GROUP, VERSION, RESOURCE, KIND = "apiregistration.k8s.io", "v1", "apiservices", "APIService"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGED_BY = "app.kubernetes.io/managed-by"
CLUSTER = "mcproxy.io/cluster"
NAMESPACE = "mcproxy"
"""The namespace of `spec.service`, which no cluster has: kubectl shows the owner as ``mcproxy/CLUSTER``."""
LABELS = {MANAGED_BY: "mcproxy"}

_UIDS = uuid.UUID("6f0a1a0e-5c5e-5a52-9d4b-3f0d3f6b8f0e")
_NAME_DESCRIPTION = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may "
    "allow a client to request the generation of an appropriate name automatically. Name is primarily intended for "
    "creation idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
_AGE_DESCRIPTION = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not "
    "guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It "
    "is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More "
    "info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
COLUMNS: tuple[Mapping[str, Any], ...] = tuple(
    {"name": name, "type": "string", "format": form, "description": description, "priority": 0}
    for name, form, description in (
        ("Name", "name", _NAME_DESCRIPTION),
        ("Service", "", "The reference to the service that hosts this API endpoint."),
        ("Available", "", "Whether this service is available."),
        ("Age", "", _AGE_DESCRIPTION),
    )
)
"""The columnDefinitions of kube-aggregator."""


def api_service(server: str, service: model.APIService, condition: Condition, version: str) -> dict[str, Any]:
    """Return the APIService object of a registration of `server`, with this resourceVersion, in Go's order of fields.

    Its uid is the same in every process and replica, and over restarts.
    """
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {
            "name": service.object_name,
            "uid": str(uuid.uuid5(_UIDS, f"{server}/{service.group_version}")),
            "resourceVersion": version,
            "creationTimestamp": _time(condition.created),
            "labels": dict(LABELS),
            "annotations": {CLUSTER: service.cluster},
        },
        "spec": {
            "service": {"namespace": NAMESPACE, "name": service.cluster, "port": 443},
            "group": service.group,
            "version": service.version,
            "groupPriorityMinimum": service.group_priority_minimum,
            "versionPriority": service.version_priority,
        },
        "status": {
            "conditions": [
                {
                    "type": "Available",
                    "status": condition.status,
                    "lastTransitionTime": _time(condition.since),
                    "reason": condition.reason,
                    "message": condition.message,
                }
            ]
        },
    }


def cells(service: model.APIService, condition: Condition, now: float) -> list[str]:
    """Return the cells of its row, as kube-aggregator prints them; `now` is in seconds since 1970."""
    available = condition.status
    if condition.status != TRUE and condition.reason:
        available = f"{available} ({condition.reason})"
    age = human_duration(max(now - condition.created, 0.0))
    return [service.object_name, f"{NAMESPACE}/{service.cluster}", available, age]


def partial(obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
    """Return the PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": obj["metadata"]}


def encode(value: object) -> bytes:
    """Return JSON as a kube-apiserver writes it, with a final newline."""
    text = msgspec.json.encode(value)
    for char, escaped in ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026")):
        text = text.replace(char, escaped)
    return text + b"\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
