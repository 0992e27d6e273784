"""Fields of a pod's status that Go writes even if unset: zero times as null, empty structs as {}.

The types PodCondition and ContainerStatus (k8s.io/api/core/v1) have these fields without `omitempty`.
"""

from __future__ import annotations

from typing import Any

JSONDict = dict[str, Any]


def complete(pod: JSONDict) -> None:
    """Set the missing fields, in Go's order."""
    status = pod.get("status") or {}
    if status.get("conditions"):
        status["conditions"] = [_condition(item) for item in status["conditions"]]
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        if status.get(kind):
            status[kind] = [_container(item) for item in status[kind]]


def _condition(item: JSONDict) -> JSONDict:
    head: JSONDict = {key: item[key] for key in ("type", "observedGeneration", "status") if key in item}
    return {**head, "lastProbeTime": None, "lastTransitionTime": None, **item}


def _container(item: JSONDict) -> JSONDict:
    head: JSONDict = {"name": item["name"]} if "name" in item else {}
    empty = {"state": {}, "lastState": {}, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
    return {**head, **empty, **item}
