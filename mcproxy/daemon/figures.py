"""The figures of the command `status`: connections and requests by version of HTTP, and what was refused as a flood.

The versions are named as in the access log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcproxy.daemon.service import LiveListener
    from mcproxy.upstream.cluster import Cluster

Figures = dict[str, Any]


def of_listener(live: LiveListener) -> Figures:
    """Return the figures of a listener; one that a reload has removed has connections until they are drained."""
    counts = live.factory.counts()
    connected = sum(connections for connections, _ in counts.values())
    return {
        "name": live.config.name,
        "bind": str(live.config.bind),
        "accepting": live.socket.accepting,
        "handshakes": max(0, live.socket.connections - connected),
        **_by_version([counts]),
        "protection": dict(live.factory.protection),
    }


def of_clusters(clusters: Mapping[str, Cluster]) -> list[Figures]:
    """Return the figures of each cluster, its endpoints together."""
    return [
        {"name": name, **_by_version(endpoint.pool.counts() for endpoint in cluster.endpoints)}
        for name, cluster in clusters.items()
    ]


def _by_version(counts: Iterable[Mapping[str, tuple[int, int]]]) -> Figures:
    connections: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for each in counts:
        for version, (number, open_requests) in each.items():
            connections[version] += number
            requests[version] += open_requests
    return {"connections": dict(connections), "requests": dict(requests)}
