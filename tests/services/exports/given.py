"""Objects of clusters, and views of them, for tests of exports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from mcproxy.config import model
from mcproxy.services.api_types import MCS_GROUP
from mcproxy.services.exports.desired_state import DesiredState, desired_of
from mcproxy.services.exports.export_types import ClusterView, Desired, Exports
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey

KEY = ServiceKey("demo", "serve")
CLUSTERS = ("east", "west", "north")


def encoded(obj: Mapping[str, Any]) -> bytes:
    return json.dumps(obj).encode()


def port(number: int, name: str = "", protocol: str = "TCP", **more: Any) -> dict[str, Any]:
    return {"name": name, "port": number, "protocol": protocol, **more}


def service(ports: Sequence[Mapping[str, Any]] = (port(80, "http"),), name: str = "serve", **spec: Any) -> bytes:
    labels = spec.pop("labels", {})
    return encoded(
        {
            "metadata": {"name": name, "namespace": "demo", "labels": labels, "uid": "1"},
            "spec": {
                "type": "ClusterIP",
                "clusterIP": "10.96.0.7",
                "clusterIPs": ["10.96.0.7"],
                "ipFamilies": ["IPv4"],
                "selector": {"app": name},
                "ports": list(ports),
                **spec,
            },
        }
    )


def endpoint(*addresses: str, **more: Any) -> dict[str, Any]:
    return {"addresses": list(addresses), "conditions": {"ready": True, "serving": True, "terminating": False}, **more}


def slice_of(
    name: str = "serve-abc",
    endpoints: Sequence[Mapping[str, Any]] = (endpoint("10.2.0.1"),),
    ports: Sequence[Mapping[str, Any]] = (port(8080, "http"),),
    family: str = "IPv4",
    labels: Mapping[str, str] | None = None,
) -> bytes:
    return encoded(
        {
            "metadata": {
                "name": name,
                "namespace": "demo",
                "labels": {
                    "kubernetes.io/service-name": "serve",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                    **(labels or {}),
                },
            },
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": list(ports),
        }
    )


def export_object(created: str = "2026-01-01T00:00:00Z", **spec: Any) -> bytes:
    return encoded({"metadata": {"name": "serve", "namespace": "demo", "creationTimestamp": created}, "spec": spec})


def entry(name: str = "serve", **values: Any) -> model.ServiceExport:
    values = {"from_clusters": ("west",), "to": ("east",), **values}
    networks = tuple(ip_network(each) for each in values.pop("allowed_cidrs", ()))
    return model.ServiceExport(name=name, namespace="demo", service="serve", allowed_cidrs=networks, **values)


def from_file(*entries: model.ServiceExport) -> Exports:
    return Exports(entries, model.ServiceDiscovery(), CLUSTERS)


def discovered(*clusters: str, **values: Any) -> Exports:
    discovery = model.ServiceDiscovery(enabled=True, clusters=clusters or CLUSTERS, **values)
    return Exports((), discovery, CLUSTERS)


def applied(desired: Desired, cluster: str, ips: Sequence[str] = ("10.97.0.9",)) -> dict[ObjectKey, bytes]:
    """Return what a cluster has after everything was applied to it: Services get addresses."""
    found = {}
    for key, obj in desired.objects.items():
        if key.cluster != cluster:
            continue
        made = json.loads(json.dumps(obj))
        if key.resource == "services" and made["spec"].get("clusterIP") != "None":
            made["spec"] |= {"clusterIP": ips[0], "clusterIPs": list(ips)}
            made["spec"]["ipFamilies"] = ["IPv6" if ":" in ip else "IPv4" for ip in ips]
        if key in desired.statuses:
            made["status"] = desired.statuses[key]
        found[key] = encoded(made)
    return found


def work_out(views: Mapping[str, ClusterView], exports: Exports) -> Desired:
    return desired_of(KEY, views, exports)


def names(desired: Desired, cluster: str, resource: str) -> list[str]:
    return sorted(key.name for key in desired.objects if key.cluster == cluster and key.resource == resource)


def one(desired: Desired, cluster: str, resource: str) -> dict[str, Any]:
    (found,) = [obj for key, obj in desired.objects.items() if (key.cluster, key.resource) == (cluster, resource)]
    return found


def condition(desired: Desired, cluster: str, kind: str) -> dict[str, Any] | None:
    for key, status in desired.statuses.items():
        if key.cluster == cluster and key.resource == "serviceexports":
            assert key.group == MCS_GROUP
            return next((each for each in status["conditions"] if each["type"] == kind), None)
    return None


def everything(state: DesiredState) -> Desired:
    """Return what the services of a state want, each object as its owner wants it."""
    objects: dict[ObjectKey, dict[str, Any]] = {}
    statuses: dict[ObjectKey, dict[str, Any]] = {}
    kept: set[ObjectKey] = set()
    owners: dict[ObjectKey, ObjectKey] = {}
    for key in state:
        part = state.part(key)
        objects |= {place: each for place, each in part.objects.items() if state.is_for(place, key)}
        kept |= {place for place in part.kept if state.owner(place) == key}
        statuses |= part.statuses
        owners |= {place: owner for place, owner in part.owners.items() if state.owner(place) == key}
    return Desired(objects, statuses, frozenset(kept), state.problems(), owners)


def desired_state(sources: Mapping[ServiceKey, Mapping[str, ClusterView]], exports: Exports) -> Desired:
    """Return what has to be there because of all services, computed at once."""
    state = DesiredState()
    for key, views in sources.items():
        state.update(key, desired_of(key, views, exports))
    return everything(state)
