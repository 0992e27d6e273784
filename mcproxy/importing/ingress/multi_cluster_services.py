"""Translates Karmada's MultiClusterService to an export of a service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcproxy.config.reading.nodes import Place
from mcproxy.importing.fragment import Fragment
from mcproxy.importing.ingress.placed_objects import (
    PlacedError,
    PlacedObject,
    integer,
    items,
    mapping,
    others,
    remark,
    text,
    texts,
)

_KNOWN = ("types", "ports", "range", "providerClusters", "consumerClusters", "serviceProvisionClusters",
          "serviceConsumptionClusters")  # fmt: skip


def providers(found: PlacedObject) -> list[str]:
    """Return the clusters whose endpoints a service has; empty: all. Raises PlacedError."""
    return _clusters(mapping(found.place, "spec"), "providerClusters", "serviceProvisionClusters")


def translate(found: PlacedObject, clusters: Sequence[str]) -> Fragment:
    """Return the export. Raises PlacedError for one that is left out."""
    made, spec = Fragment(found.origin, place=str(found.place.mark)), mapping(found.place, "spec")
    for other in others(spec, *_KNOWN):
        remark(made, found, other, "is not known to mcproxy")
    kinds = texts(spec, "types")
    if spec is not None and "LoadBalancer" in kinds:
        remark(
            made,
            found,
            spec.get("types"),
            "LoadBalancer is not carried over: write an ingress, or use one of a cluster",
        )
    if kinds and "CrossCluster" not in kinds:
        raise PlacedError(found.place, "it is not CrossCluster, so nothing is exported between clusters")
    sources = providers(found) or list(clusters)
    targets = _clusters(spec, "consumerClusters", "serviceConsumptionClusters") or list(clusters)
    if not sources or not targets:
        raise PlacedError(found.place, "it is for all clusters, and nothing says which these are: give --cluster NAME")
    entry: dict[str, Any] = {
        "name": f"{found.namespace}.{found.name}",
        "namespace": found.namespace,
        "service": found.name,
        "from": sources,
        "to": targets,
        "as": "SameName",
    }
    if ports := [_port(port) for port in items(spec, "ports")]:
        entry["ports"] = ports
    made.add("serviceExports", entry)
    return made


def _port(place: Place) -> dict[str, Any]:
    name = text(place, "name")
    return {**({"name": name} if name else {}), "port": integer(place, "port")}


def _clusters(spec: Place | None, key: str, older: str) -> list[str]:
    named = [text(each, "name") for each in items(spec, key)] or texts(spec, older)
    return list(dict.fromkeys(name for name in named if name))
