"""Checks of an object's content: names, immutable fields and the commonest mistakes, in Kubernetes' words."""

from __future__ import annotations

import re
from typing import Any

from mcproxy.demo import status
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.resources import ResourceInfo
from mcproxy.demo.status import Cause

JSONDict = dict[str, Any]

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
SUBDOMAIN_HELP = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
PATH_NAMES = frozenset({"rbac.authorization.k8s.io"})
"""Groups whose names may hold almost anything."""


def validate_create(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> None:
    """Raises APIError 422."""
    causes = _name(resource, obj)
    if causes:
        raise status.invalid(resource.group, resource.kind, obj["metadata"].get("name", ""), causes)


def _name(resource: ResourceInfo, obj: JSONDict) -> list[Cause]:
    name = obj["metadata"].get("name", "")
    if not name:
        text = "Required value: name or generateName is required"
        return [Cause("FieldValueRequired", text, "metadata.name")]
    if resource.group in PATH_NAMES or SUBDOMAIN.match(name):
        return []
    return [Cause("FieldValueInvalid", f'Invalid value: "{name}": {SUBDOMAIN_HELP}', "metadata.name")]


def validate_update(cluster: SimulatedCluster, resource: ResourceInfo, old: JSONDict, new: JSONDict) -> None:
    """Raises APIError 422."""


def validate_status(resource: ResourceInfo, new: JSONDict) -> None:
    """Raises APIError 422."""


def check_quota(cluster: SimulatedCluster, resource: ResourceInfo, namespace: str, name: str) -> None:
    """Raises APIError 403."""
