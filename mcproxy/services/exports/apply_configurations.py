"""Builds the apply configurations of the objects that exports create. Pure; equal inputs give equal objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcproxy.services.api_types import (
    DISCOVERY_GROUP,
    HEADLESS,
    MANAGED_BY,
    MANAGER,
    MCS_DERIVED_SERVICE,
    MCS_GROUP,
    MCS_SERVICE_NAME,
    MCS_SOURCE_CLUSTER,
    SERVICE_NAME,
    SLICE_MANAGED_BY,
    SOURCE_CLUSTER,
    SOURCE_SERVICE,
)
from mcproxy.services.exports.object_keys import ServiceKey, label_value
from mcproxy.services.exports.source_objects import FAMILIES, ExportedEndpoint, ExportedService, Port


def service(key: ServiceKey, name: str, merged: ExportedService) -> dict[str, Any]:
    """Return the derived Service with this name; it has no selector, and requests no specific address."""
    spec: dict[str, Any] = {"type": "ClusterIP", "ports": [_service_port(port) for port in merged.ports]}
    if merged.headless:
        spec["clusterIP"] = "None"
        spec.update(_headless_families(merged))
    else:
        spec.update(_affinity(merged))
        spec.update(_families(merged))
    if merged.internal_traffic_policy:
        spec["internalTrafficPolicy"] = merged.internal_traffic_policy
    if merged.traffic_distribution:
        spec["trafficDistribution"] = merged.traffic_distribution
    if merged.publish_not_ready:
        spec["publishNotReadyAddresses"] = True
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": key.namespace,
            "labels": {MANAGED_BY: MANAGER, SOURCE_SERVICE: key.service},
        },
        "spec": spec,
    }


def slice_labels(
    key: ServiceKey, cluster: str, cluster_id: str, service_name: str, *, headless: bool
) -> dict[str, str]:
    """Return the labels of an imported EndpointSlice; no label of the source slice is copied.

    `cluster` is the configured name of the source cluster, by which mcproxy recognizes its slices. `cluster_id` is
    the cluster's id in the clusterset.
    """
    labels = {
        SERVICE_NAME: service_name,
        SLICE_MANAGED_BY: MANAGER,
        SOURCE_CLUSTER: label_value(cluster),
        SOURCE_SERVICE: key.service,
        MCS_SERVICE_NAME: key.service,
        MCS_SOURCE_CLUSTER: cluster_id,
    }
    if headless:
        labels[HEADLESS] = ""
    return labels


def endpoint_slice(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    address_type: str,
    endpoints: Sequence[Mapping[str, Any]],
    ports: Sequence[Port],
) -> dict[str, Any]:
    """Return an imported EndpointSlice."""
    return {
        "apiVersion": f"{DISCOVERY_GROUP}/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "addressType": address_type,
        "endpoints": endpoints,
        "ports": [_slice_port(port) for port in ports],
    }


def endpoint(source: ExportedEndpoint, addresses: Sequence[str], *, node: bool) -> dict[str, Any]:
    """Return an endpoint with some of its addresses.

    References to nodes and pods are valid only in their own cluster; another cluster can have a node of the same name.
    So the name of the node is included only with `node`, for endpoints of the importing cluster itself. Hints of the
    source are omitted too, because a cluster computes them for its own nodes (`with_zone_hint`).
    """
    conditions = {
        name: value
        for name, value in (("ready", source.ready), ("serving", source.serving), ("terminating", source.terminating))
        if value is not None
    }
    found: dict[str, Any] = {"addresses": list(addresses), "conditions": conditions}
    if source.hostname:
        found["hostname"] = source.hostname
    if node and source.node:
        found["nodeName"] = source.node
    if source.zone:
        found["zone"] = source.zone
    return found


def with_zone_hint(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an endpoint with a hint for the clients of its own zone, if it is ready and has a zone."""
    zone = found.get("zone")
    return found if zone is None or not is_ready(found) else {**found, "hints": {"forZones": [{"name": zone}]}}


def is_ready(found: Mapping[str, Any]) -> bool:
    """Whether an endpoint is ready, which is the default (discovery.k8s.io/v1, EndpointConditions)."""
    return found["conditions"].get("ready") is not False


def service_import(
    key: ServiceKey,
    version: str,
    merged: ExportedService,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    derived: str,
    observed: ExportedService | None,
) -> dict[str, Any]:
    """Return the ServiceImport of a service. `observed`: the derived Service that the importing cluster has.

    For v1alpha1 only the fields of all its revisions are set, because an API server refuses to apply unknown fields.
    """
    headless = merged.headless
    spec: dict[str, Any] = {
        "type": "Headless" if headless else "ClusterSetIP",
        "ports": [_service_port(port) for port in merged.ports],
    }
    families = merged.families
    if not headless:
        spec.update(_affinity(merged))
        families = ()
        if observed is not None and observed.cluster_ips:
            spec["ips"] = list(observed.cluster_ips)
            families = tuple("IPv6" if ":" in address else "IPv4" for address in observed.cluster_ips)
    if version != "v1alpha1":
        if families:
            spec["ipFamilies"] = list(families)
        if merged.internal_traffic_policy:
            spec["internalTrafficPolicy"] = merged.internal_traffic_policy
        if merged.traffic_distribution:
            spec["trafficDistribution"] = merged.traffic_distribution
    return {
        "apiVersion": f"{MCS_GROUP}/{version}",
        "kind": "ServiceImport",
        "metadata": {
            "name": key.service,
            "namespace": key.namespace,
            "labels": {**labels, MANAGED_BY: MANAGER, SOURCE_SERVICE: key.service},
            "annotations": {**annotations, MCS_DERIVED_SERVICE: derived},
        },
        "spec": spec,
    }


def _families(merged: ExportedService) -> dict[str, Any]:
    if len(merged.families) == 1:
        return {"ipFamilyPolicy": "SingleStack", "ipFamilies": list(merged.families)}
    # ipFamilies is not set, so that the importing cluster chooses the first family and decides about a second one.
    return {"ipFamilyPolicy": "PreferDualStack"} if merged.families else {}


def _headless_families(merged: ExportedService) -> dict[str, Any]:
    """Return the source's IP family policy and IP families, for a headless Service.

    Every cluster accepts any families for a headless Service without selector.

    Defaults of the API server are set explicitly, since they would be a difference otherwise (kubernetes
    `pkg/registry/core/service`, `initIPFamilyFields`).
    """
    families = merged.families
    if not families:
        return {}
    policy = merged.family_policy or ("SingleStack" if len(families) == 1 else "PreferDualStack")
    if len(families) > 1 and policy == "SingleStack":
        policy = "PreferDualStack"  # several sources with one family each
    if len(families) == 1 and policy != "SingleStack":
        families = (*families, *(each for each in FAMILIES if each not in families))
    return {"ipFamilyPolicy": policy, "ipFamilies": list(families)}


def _affinity(merged: ExportedService) -> dict[str, Any]:
    found: dict[str, Any] = {"sessionAffinity": merged.session_affinity}
    if merged.affinity_timeout is not None:
        found["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": merged.affinity_timeout}}
    return found


def _service_port(port: Port) -> dict[str, Any]:
    found: dict[str, Any] = {"name": port.name} if port.name else {}
    found |= {"port": port.number, "protocol": port.protocol}
    if port.app_protocol:
        found["appProtocol"] = port.app_protocol
    return found


def _slice_port(port: Port) -> dict[str, Any]:
    found: dict[str, Any] = {"name": port.name, "port": port.number, "protocol": port.protocol}
    if port.app_protocol:
        found["appProtocol"] = port.app_protocol
    return found
