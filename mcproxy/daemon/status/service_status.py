"""Services: the state of their caches, and the number of endpoints of the backends of ingresses in each cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.aggregate_status import MAX_REFLECTORS, of_stores
from mcproxy.services.endpoint_table import EndpointState, EndpointTable

if TYPE_CHECKING:
    from mcproxy.services.live_services import LiveServices

MAX_PROBLEMS = 20
"""Backends of one cluster whose problem is shown; all are counted."""


def of_services(owner: LiveServices) -> Figures:
    """Return the figures of services.

    The caches are those that services read; the objects of one that an aggregate reads too are counted with both.
    """
    return {
        "serviceCaches": of_stores(owner.caches.stores, owner.now, MAX_REFLECTORS),
        "serviceEndpoints": of_endpoints(owner.endpoints),
        **({} if owner.exports is None else owner.exports.figures()),
    }


def of_endpoints(table: EndpointTable) -> list[Figures]:
    """Return, for each cluster: its backends, of which nothing is known, or only what was; and their endpoints."""
    clusters: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        found = clusters.setdefault(
            key.cluster,
            {
                "cluster": key.cluster,
                "backends": 0,
                "unknown": 0,
                "stale": 0,
                "ready": 0,
                "terminating": 0,
                "problems": 0,
                "problemBackends": [],
            },
        )
        ready = sum(endpoint.state is EndpointState.READY for endpoint in value.endpoints)
        found["backends"] += 1
        found["unknown"] += not value.known
        found["stale"] += value.stale
        found["ready"] += ready
        found["terminating"] += len(value.endpoints) - ready
        if value.problem:
            found["problems"] += 1
            if len(found["problemBackends"]) < MAX_PROBLEMS:
                found["problemBackends"].append(
                    {"service": f"{key.namespace}/{key.service}", "port": str(key.port), "cause": value.problem}
                )
    return [clusters[name] for name in sorted(clusters)]
