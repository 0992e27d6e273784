"""Keys and owners of the objects that exports are made of. Pure."""

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


# -- names ----------------------------------------------------------------------------------------------------
#
# Names of derived objects: readable, within Kubernetes' bounds, and never one name for two sources. Pure.
#
# A name of a slice is exact (`imported-CLUSTER-SLICE`) unless it is too long or could be read in two ways. Such a one
# ends with ``-h`` and 128 bits of a hash of what it stands for; a name that ends so by itself gets a hash too. So an
# exact name never equals one with a hash, and a hostile cluster cannot choose a name that takes another source's place.
#
# The name of a Service (`derived-SERVICE`) that would pass 63 characters is cut, and ends with a short hash that
# anybody can compute who has to know it (services.md). Of two that share one, for somebody has searched for the
# other, the one that is there keeps it (`DesiredState`).


MAX_NAME = 253
MAX_LABEL = 63
"""Characters of a Service's name, and of the value of a label."""

_HASHED = re.compile(r"-h[0-9a-f]{32}\Z")


def slice_name(prefix: str, cluster: str, name: str, clusters: Collection[str], part: int = 0) -> str:
    """Return the name of the copy of an EndpointSlice: ``PREFIX-CLUSTER-NAME``, without prefix ``CLUSTER-NAME``.

    `clusters` are the names of all clusters: where one of them continues with the beginning of `name` (`a` and `a-b`,
    for the slice `b-c` of `a`), the name has a hash. So have all parts of a slice but the first.
    """
    ambiguous = any(
        other.startswith(f"{cluster}-") and f"{cluster}-{name}".startswith(f"{other}-") for other in clusters
    )
    exact = f"{prefix}-{cluster}-{name}" if prefix else f"{cluster}-{name}"
    identity = f"{prefix}/{cluster}/{name}" + (f"/{part}" if part else "")
    return _bounded(exact, identity, MAX_NAME, ambiguous or part > 0)


def service_name(prefix: str, namespace: str, service: str) -> str:
    """Return the name of the Service that is derived from `service`: ``PREFIX-SERVICE``.

    One that is too long ends in ``-`` and 10 characters of lower-case base32hex(SHA-256("NAMESPACE/SERVICE")).
    """
    name = f"{prefix}-{service}"
    if len(name) <= MAX_LABEL:
        return name
    digest = base64.b32hexencode(hashlib.sha256(f"{namespace}/{service}".encode()).digest()).decode().lower()[:10]
    return f"{name[: MAX_LABEL - 11].rstrip('-')}-{digest}"


def label_value(name: str) -> str:
    """Return a cluster's name as the value of a label, which may be 63 characters long."""
    return _bounded(name, name, MAX_LABEL, ambiguous=False)


def _bounded(name: str, identity: str, limit: int, ambiguous: bool) -> str:
    if len(name) <= limit and not ambiguous and not _HASHED.search(name):
        return name
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return f"{name[: limit - 34].rstrip('-.')}-h{digest}"
