"""Keys, owners and names of the objects that exports create. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mcproxy.services.api_types import (
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
"""The prefix of the Services and EndpointSlices that ServiceExports create."""


class ObjectKey(NamedTuple):
    """The key of an object in a cluster."""

    cluster: str
    group: str
    version: str
    resource: str
    namespace: str
    name: str


class ServiceKey(NamedTuple):
    """An exported service; all objects derived from it are in the same namespace."""

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
    """Whether ServiceExports, rather than an entry of `serviceExports`, caused a managed object."""
    return key.resource == IMPORTS or key.name.startswith(f"{CLUSTERSET}-")


def managed_by_label(resource: str) -> str:
    """Return the label that names the manager of objects of a resource."""
    return SLICE_MANAGED_BY if resource == SLICES else MANAGED_BY


def is_ours(resource: str, labels: Mapping[str, Any]) -> bool:
    """Whether mcproxy has created an object with these labels: only such objects are changed or deleted."""
    return labels.get(managed_by_label(resource)) == MANAGER


def source_of(resource: str, namespace: str, labels: Mapping[str, Any]) -> ServiceKey | None:
    """Return the service from which a managed object is derived; None for a foreign object."""
    service = labels.get(SOURCE_SERVICE)
    if not is_ours(resource, labels) or not isinstance(service, str):
        return None
    return ServiceKey(namespace, service)


# -- names ----------------------------------------------------------------------------------------------------
#
# Makes names of derived objects: readable, within Kubernetes' limits, and different for different sources. Pure.
#
# The name of a slice is exact (`imported-CLUSTER-SLICE`) unless it would be too long or ambiguous. Then it ends with
# ``-h`` and 128 bits of a hash of its source. An exact name with such an ending gets a hash too. So an exact name never
# equals a name with a hash, and a hostile cluster cannot choose a name that collides with another source's.
#
# The name of a Service (`derived-SERVICE`) that would exceed 63 characters is cut, and ends with a short hash that
# clients can compute too (services.md). If somebody has chosen a service name that gives the same hash, the existing
# Service keeps its name (`DesiredState`).


MAX_NAME = 253
MAX_LABEL = 63
"""Maximum of characters of a Service's name, and of the value of a label."""

_HASHED = re.compile(r"-h[0-9a-f]{32}\Z")


def slice_name(prefix: str, cluster: str, name: str, clusters: Collection[str], part: int = 0) -> str:
    """Return the name of a copied EndpointSlice: ``PREFIX-CLUSTER-NAME``, or ``CLUSTER-NAME`` without a prefix.

    `clusters` are the names of all clusters. An ambiguous name (of the slice `b-c` of cluster `a`, if there is a
    cluster `a-b`) gets a hash, and so do all parts of a split slice except the first.
    """
    ambiguous = any(
        other.startswith(f"{cluster}-") and f"{cluster}-{name}".startswith(f"{other}-") for other in clusters
    )
    exact = f"{prefix}-{cluster}-{name}" if prefix else f"{cluster}-{name}"
    identity = f"{prefix}/{cluster}/{name}" + (f"/{part}" if part else "")
    return _bounded(exact, identity, MAX_NAME, ambiguous or part > 0)


def service_name(prefix: str, namespace: str, service: str) -> str:
    """Return the name of the Service derived from `service`: ``PREFIX-SERVICE``.

    A name that would be too long ends in ``-`` and 10 characters of lower-case base32hex(SHA-256("NAMESPACE/SERVICE")).
    """
    name = f"{prefix}-{service}"
    if len(name) <= MAX_LABEL:
        return name
    digest = base64.b32hexencode(hashlib.sha256(f"{namespace}/{service}".encode()).digest()).decode().lower()[:10]
    return f"{name[: MAX_LABEL - 11].rstrip('-')}-{digest}"


def label_value(name: str) -> str:
    """Return a cluster's name as a label value, within 63 characters."""
    return _bounded(name, name, MAX_LABEL, ambiguous=False)


def _bounded(name: str, identity: str, limit: int, ambiguous: bool) -> str:
    if len(name) <= limit and not ambiguous and not _HASHED.search(name):
        return name
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return f"{name[: limit - 34].rstrip('-.')}-h{digest}"
