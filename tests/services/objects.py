"""EndpointSlices and Services as a cluster has them, and how caches have them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcproxy.aggregate.cache.cached_object import CachedObject


def endpoint(address: str, *, zone: str | None = None, **conditions: Any) -> dict[str, Any]:
    """Return one endpoint; conditions that are not given are missing."""
    found: dict[str, Any] = {"addresses": [address]}
    if conditions:
        found["conditions"] = conditions
    return found if zone is None else {**found, "zone": zone}


def slice_of(
    service: str,
    endpoints: Sequence[Mapping[str, Any]],
    *,
    name: str = "s",
    namespace: str = "demo",
    ports: Sequence[Mapping[str, Any]] = ({"name": "http", "port": 8080, "protocol": "TCP"},),
    family: str = "IPv4",
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports),
    }


def service_of(
    name: str = "web",
    *,
    namespace: str = "demo",
    ports: Sequence[Mapping[str, Any]] = ({"name": "http", "port": 80},),
    **spec: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "10.96.0.1", "ports": list(ports), **spec},
    }


def data(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found).encode()


def cached(found: Mapping[str, Any], version: int = 1) -> CachedObject:
    """Return an object as a cache has it."""
    metadata = found["metadata"]
    text = json.dumps({**found, "metadata": {**metadata, "resourceVersion": "\0"}})
    head, tail = text[1:].split("\\u0000")
    return CachedObject(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=f"{metadata.get('namespace', '')}-{metadata['name']}",
        version=version,
        head=head.encode(),
        tail=tail.encode(),
        metadata_start=0,
        metadata_end=0,
        labels=metadata.get("labels", {}),
        created=0.0,
        cells=None,
        printed=0.0,
    )
