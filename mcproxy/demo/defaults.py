"""Defaults and server-set fields of built-in kinds, as far as clients see and rely on them."""

from __future__ import annotations

from typing import Any

from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.resources import ResourceInfo

JSONDict = dict[str, Any]

KEEPS_STATUS: frozenset[tuple[str, str]] = frozenset({("", "nodes")})
"""Resources with a status subresource whose create keeps the status that was sent."""


def apply(resource: ResourceInfo, obj: JSONDict, old: JSONDict | None = None) -> None:
    """Set the defaults of a versioned object, in place."""


def fill(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict, old: JSONDict | None = None) -> None:
    """Set what the server alone decides and nobody manages (status, allocated addresses), in place."""
