"""Translates Karmada's MultiClusterService, and ServiceExport with ServiceImport, to entries of `serviceExports`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

# -- MultiClusterService ----------------------------------------------------------------------------------------------

_KNOWN = ("types", "ports", "range", "providerClusters", "consumerClusters", "serviceProvisionClusters",
          "serviceConsumptionClusters")  # fmt: skip


def service_providers(found: PlacedObject) -> list[str]:
    """Return the clusters that provide the endpoints of a service; empty: all. Raises PlacedError."""
    return _clusters(mapping(found.place, "spec"), "providerClusters", "serviceProvisionClusters")


def translate_service(found: PlacedObject, clusters: Sequence[str]) -> Fragment:
    """Return the export. Raises PlacedError for an object that is left out."""
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
    sources = service_providers(found) or list(clusters)
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
    if ports := [_service_port(port) for port in items(spec, "ports")]:
        entry["ports"] = ports
    made.add("serviceExports", entry)
    return made


def _service_port(place: Place) -> dict[str, Any]:
    name = text(place, "name")
    return {**({"name": name} if name else {}), "port": integer(place, "port")}


def _clusters(spec: Place | None, key: str, older: str) -> list[str]:
    named = [text(each, "name") for each in items(spec, key)] or texts(spec, older)
    return list(dict.fromkeys(name for name in named if name))


# -- ServiceExport and ServiceImport of one service, with their policies ----------------------------------------------
# In Karmada's control plane, policies propagate the ServiceExport to the clusters that have the service, and the
# ServiceImport to the clusters that use it, which get the Service `derived-NAME`. Source: karmada
# `pkg/controllers/multiclusterservice`, `docs/userguide/service/multi-cluster-service-with-native-svc-access`.

_VERSIONS = ("multicluster.x-k8s.io/v1alpha1", "multicluster.x-k8s.io/v1beta1")
EXPORTS = {(version, "ServiceExport") for version in _VERSIONS}
IMPORTS = {(version, "ServiceImport") for version in _VERSIONS}
POLICIES = {("policy.karmada.io/v1alpha1", f"{scope}PropagationPolicy") for scope in ("", "Cluster")}


def is_kind(found: PlacedObject, kinds: set[tuple[str, str]]) -> bool:
    """Whether an object has one of these kinds and versions."""
    return (found.api_version, found.kind) in kinds


def pairs(found: Sequence[PlacedObject]) -> Iterator[tuple[PlacedObject, PlacedObject]]:
    """Yield each ServiceExport with the ServiceImport of the same name."""
    exports = {(each.namespace, each.name): each for each in found if is_kind(each, EXPORTS)}
    for each in found:
        if is_kind(each, IMPORTS) and (each.namespace, each.name) in exports:
            yield exports[each.namespace, each.name], each


def translate_import(
    exported: PlacedObject, imported: PlacedObject, policies: Sequence[PlacedObject], clusters: Sequence[str]
) -> Fragment:
    """Return the export. `clusters`: all clusters. Raises PlacedError for an object that is left out."""
    made, spec = Fragment(imported.origin, place=str(imported.place.mark)), mapping(imported.place, "spec")
    for other in others(spec, "type", "ports", "ips", "sessionAffinity", "sessionAffinityConfig"):
        remark(made, imported, other, "is not carried over: it is as the exported Service has it")
    entry: dict[str, Any] = {
        "name": f"{imported.namespace}.{imported.name}",
        "namespace": imported.namespace,
        "service": imported.name,
        "from": _propagated_to(exported, policies, clusters),
        "to": _propagated_to(imported, policies, clusters),
    }
    kind = text(spec, "type")
    if kind not in ("", "ClusterSetIP", "Headless"):
        raise PlacedError(imported.place, f"its type {kind} is not known")
    if kind:
        entry["type"] = kind
    if ports := [_port(port) for port in items(spec, "ports")]:
        entry["ports"] = ports
    made.add("serviceExports", entry)
    return made


def _port(place: Place) -> dict[str, Any]:
    named = {key: text(place, key) for key in ("name", "protocol", "appProtocol")}
    return {key: value for key, value in named.items() if value} | {"port": integer(place, "port")}


def _propagated_to(found: PlacedObject, policies: Sequence[PlacedObject], clusters: Sequence[str]) -> list[str]:
    """Return the clusters to which policies propagate an object."""
    placed: dict[str, None] = {}
    selecting = [policy for policy in policies if _selects(policy, found)]
    for policy in selecting:
        placement = mapping(mapping(policy.place, "spec"), "placement")
        for other in others(placement, "clusterAffinity", "replicaScheduling", "clusterTolerations"):
            raise PlacedError(other, "which clusters this selects is not known without Karmada")
        affinity = mapping(placement, "clusterAffinity")
        for other in others(affinity, "clusterNames", "exclude"):
            raise PlacedError(other, "which clusters this selects is not known without Karmada: write clusterNames")
        named, excluded = texts(affinity, "clusterNames") or clusters, texts(affinity, "exclude")
        placed.update(dict.fromkeys(name for name in named if name not in excluded))
    if not placed:
        if not selecting:
            raise PlacedError(found.place, f"no policy propagates {found.origin}: add its PropagationPolicy")
        raise PlacedError(found.place, f"no cluster is known that has {found.origin}: give --cluster NAME for each")
    return list(placed)


def _selects(policy: PlacedObject, found: PlacedObject) -> bool:
    if policy.kind == "PropagationPolicy" and policy.namespace != found.namespace:
        return False
    for selector in items(mapping(policy.place, "spec"), "resourceSelectors"):
        wanted = (text(selector, "apiVersion"), text(selector, "kind"))
        if wanted != (found.api_version, found.kind) or text(selector, "namespace") not in ("", found.namespace):
            continue
        name, labels = text(selector, "name"), mapping(selector, "labelSelector")
        if name == found.name or (not name and labels is None):
            return True
        if not name and labels is not None:
            raise PlacedError(labels, "what it selects is not known: name the objects")
    return False
