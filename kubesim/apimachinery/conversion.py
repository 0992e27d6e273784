"""Conversion between the stored version of objects and the served ones.

All versions of a resource share one stored form. Most differ in apiVersion alone (CRDs with conversion strategy None,
and almost all built-in resources); Events and HorizontalPodAutoscalers differ in their fields.
"""

from __future__ import annotations

from typing import Any

from kubesim.apimachinery.resources import ResourceInfo

JSONDict = dict[str, Any]

EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
"""Field names in core/v1 (as stored) and in events.k8s.io/v1."""

OMITTED_WHEN_EMPTY = ("reportingController", "reportingInstance")
"""Fields that core/v1 writes even if empty, and events.k8s.io/v1 leaves out."""


def from_storage(resource: ResourceInfo, stored: JSONDict) -> JSONDict:
    """Return a stored object in the version of `resource`."""
    if stored.get("apiVersion") == resource.group_version:
        return stored
    obj = {**stored, "kind": resource.kind, "apiVersion": resource.group_version}
    if resource.group == "events.k8s.io":
        renamed = {EVENT_FIELDS.get(key, key): value for key, value in obj.items()}
        return {key: value for key, value in renamed.items() if value != "" or key not in OMITTED_WHEN_EMPTY}
    if resource.group == "autoscaling" and resource.version == "v1":
        return _autoscaler_v1(obj)
    return obj


def to_storage(resource: ResourceInfo, obj: JSONDict) -> JSONDict:
    """Return the stored form of an object in the version of `resource`."""
    if resource.group == "events.k8s.io":
        back = {new: old for old, new in EVENT_FIELDS.items()}
        return {**{back.get(key, key): value for key, value in obj.items()}, "apiVersion": "v1"}
    if resource.group == "autoscaling" and resource.version == "v1":
        return _autoscaler_v2(obj)
    if not resource.builtin and resource.storage_version != resource.version:
        return {**obj, "apiVersion": f"{resource.group}/{resource.storage_version}"}
    return obj


def _autoscaler_v1(obj: JSONDict) -> JSONDict:
    spec = {key: value for key, value in (obj.get("spec") or {}).items() if key not in ("metrics", "behavior")}
    for metric in (obj.get("spec") or {}).get("metrics") or ():
        target = (metric.get("resource") or {}).get("target") or {}
        if (metric.get("resource") or {}).get("name") == "cpu" and "averageUtilization" in target:
            spec["targetCPUUtilizationPercentage"] = target["averageUtilization"]
    status = obj.get("status") or {}
    kept = ("observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas")
    narrowed = {"currentReplicas": 0, **{key: status[key] for key in kept if key in status}}
    return {**obj, "spec": spec, "status": narrowed}


def _autoscaler_v2(obj: JSONDict) -> JSONDict:
    spec = dict(obj.get("spec") or {})
    percentage = spec.pop("targetCPUUtilizationPercentage", None)
    if percentage is not None:
        target = {"type": "Utilization", "averageUtilization": percentage}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    return {**obj, "apiVersion": "autoscaling/v2", "spec": spec}
