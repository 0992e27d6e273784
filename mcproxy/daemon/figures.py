"""The figures of the command `status`: connections and requests by version of HTTP, and what was refused as a flood.

The versions are named as in the access log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcproxy.daemon.service import LiveListener
    from mcproxy.daemon.shared_limits import SharedLimits
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


def of_shared_limits(shared: SharedLimits | None) -> Figures:
    """Return the state of limits over replicas, under the key `sharedState`; nothing where there are none."""
    found = None if shared is None else shared.figures
    return {} if found is None else {"sharedState": found}


def summed(processes: Sequence[Figures]) -> Figures:
    """Return the figures of several processes as those of one: each listener and cluster once, with sums.

    A process that has none (one that starts, the keeper's listeners) counts as nothing. A listener accepts while one
    process does.
    """
    return {
        "listeners": _each(processes, "listeners", ("name", "bind")),
        "clusters": _each(processes, "clusters", ("name",)),
    }


def _each(processes: Sequence[Figures], section: str, identity: Sequence[str]) -> list[Figures]:
    found: dict[tuple[Any, ...], Figures] = {}
    for process in processes:
        for entry in process.get(section, ()):
            key = tuple(entry[name] for name in identity)
            found[key] = _sum(found[key], entry) if key in found else entry
    return list(found.values())


def _sum(one: Any, other: Any) -> Any:
    """Add numbers, also those in mappings; of anything else either is true, or they are the same."""
    if isinstance(one, dict):
        return {
            key: _sum(one[key], other[key]) if key in one and key in other else {**other, **one}[key]
            for key in {**one, **other}
        }
    if isinstance(one, int) and not isinstance(one, bool):
        return one + other
    return one or other


def _by_version(counts: Iterable[Mapping[str, tuple[int, int]]]) -> Figures:
    connections: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for each in counts:
        for version, (number, open_requests) in each.items():
            connections[version] += number
            requests[version] += open_requests
    return {"connections": dict(connections), "requests": dict(requests)}
