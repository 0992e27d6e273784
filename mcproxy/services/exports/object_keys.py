"""Keys and owners of the objects that exports are made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mcproxy.services.well_known import (
    DISCOVERY_GROUP,
    EXPORTS,
    IMPORTS,
    MANAGED_BY,
    MANAGER,
    MCS_GROUP,
    SERVICES,
    SLICE_MANAGED_BY,
    SLICES,
    SOURCE_SERVICE,
)

CLUSTERSET = "clusterset"
"""The prefix of Services and EndpointSlices that ServiceExports make."""


class ObjectKey(NamedTuple):
    """An object of a cluster."""

    cluster: str
    group: str
    version: str
    resource: str
    namespace: str
    name: str


class ServiceKey(NamedTuple):
    """A service that is exported; all that is derived from it is in the same namespace."""

    namespace: str
    service: str


def service_object(cluster: str, namespace: str, name: str) -> ObjectKey:
    """Return the key of a Service."""
    return ObjectKey(cluster, "", "v1", SERVICES, namespace, name)


def slice_object(cluster: str, namespace: str, name: str) -> ObjectKey:
    """Return the key of an EndpointSlice."""
    return ObjectKey(cluster, DISCOVERY_GROUP, "v1", SLICES, namespace, name)


def import_object(cluster: str, version: str, namespace: str, name: str) -> ObjectKey:
    """Return the key of a ServiceImport in this version of the API."""
    return ObjectKey(cluster, MCS_GROUP, version, IMPORTS, namespace, name)


def export_object(cluster: str, version: str, namespace: str, name: str) -> ObjectKey:
    """Return the key of a ServiceExport in this version of the API."""
    return ObjectKey(cluster, MCS_GROUP, version, EXPORTS, namespace, name)


def is_discovered(key: ObjectKey) -> bool:
    """Whether an object of ours is there because of ServiceExports, and not of an entry of the file."""
    return key.resource == IMPORTS or key.name.startswith(f"{CLUSTERSET}-")


def managed_by_label(resource: str) -> str:
    """Return the label that says who manages objects of a resource."""
    return SLICE_MANAGED_BY if resource == SLICES else MANAGED_BY


def is_ours(resource: str, labels: Mapping[str, Any]) -> bool:
    """Whether an object with these labels is one that this program made: only such ones are changed or deleted."""
    return labels.get(managed_by_label(resource)) == MANAGER


def source_of(resource: str, namespace: str, labels: Mapping[str, Any]) -> ServiceKey | None:
    """Return what an object of ours is derived from; None for any other object."""
    service = labels.get(SOURCE_SERVICE)
    if not is_ours(resource, labels) or not isinstance(service, str):
        return None
    return ServiceKey(namespace, service)
