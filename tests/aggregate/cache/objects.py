"""Objects for tests of the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcproxy.aggregate.cache.cached_object import CLUSTER_LABEL, CachedObject
from mcproxy.kube.resource import APIResource, GroupVersionResource

GOLDEN = Path(__file__).parent.parent.parent / "golden"
VERBS = frozenset({"get", "list", "watch"})
PODS = APIResource(GroupVersionResource("", "v1", "pods"), "Pod", "pod", True, VERBS)
CONFIGMAPS = APIResource(GroupVersionResource("", "v1", "configmaps"), "ConfigMap", "configmap", True, VERBS)
NODES = APIResource(GroupVersionResource("", "v1", "nodes"), "Node", "node", False, VERBS)
WIDGETS = APIResource(GroupVersionResource("example.com", "v1", "widgets"), "Widget", "widget", True, VERBS)


def recorded(name: str) -> Any:
    """Return the response of a recording."""
    return json.loads((GOLDEN / name).read_text())["response"]


def cached(
    name: str, version: int = 1, namespace: str = "demo", uid: str = "", labels: dict[str, str] | None = None
) -> CachedObject:
    """Return a cached pod; its data is its version."""
    head = b'"metadata":{"name":"%s","namespace":"%s","uid":"%s","resourceVersion":"' % (
        name.encode(),
        namespace.encode(),
        uid.encode(),
    )
    tail = b'"},"data":"%d"}' % version
    return CachedObject(
        namespace, name, uid, version, head, tail, 11, 2, {CLUSTER_LABEL: "east", **(labels or {})}, 0.0, None, 0.0
    )
