"""Cached objects, made as reflectors make them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.decoder import ObjectDecoder
from mcproxy.kube.resource import APIResource, GroupVersionResource

VERBS = frozenset({"get", "list", "watch"})
CREATED = 1_700_000_000.0
"""2023-11-14T22:13:20Z, the creationTimestamp of `pod`."""


def resource(group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> APIResource:
    gvr = GroupVersionResource(group, version, plural)
    return APIResource(gvr, kind, kind.lower(), namespaced, VERBS)


PODS = resource("", "v1", "pods", "Pod")
CONFIG_MAPS = resource("", "v1", "configmaps", "ConfigMap")
EVENTS = resource("", "v1", "events", "Event")
JOBS = resource("batch", "v1", "jobs", "Job")
NODES = resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = resource("", "v1", "namespaces", "Namespace", namespaced=False)
WIDGETS = resource("example.com", "v1", "widgets", "Widget")


def decoded(
    obj: Mapping[str, Any], of: APIResource = PODS, *, cells: list[Any] | None = None, printed: float = CREATED
) -> CachedObject:
    """Return an object as the store of cluster `east` has it."""
    decoder = ObjectDecoder("east", of)
    body = json.dumps(obj, separators=(",", ":")).encode()
    if cells is None:
        found = decoder.decode_item(body, printed)
    else:
        row = b'{"cells":%b,"object":%b}' % (json.dumps(cells).encode(), body)
        found = decoder.decode_row(row, printed)
    assert isinstance(found, CachedObject), found
    return found


def pod(
    name: str = "web",
    namespace: str = "demo",
    *,
    version: int = 7,
    labels: Mapping[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return a pod as a list has it."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2023-11-14T22:13:20Z",
    }
    if labels:
        metadata["labels"] = dict(labels)
    return {"metadata": metadata, **fields}
