"""The checks of /readyz that a process knows itself: no shutdown, its listeners, its clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mcproxy.kube.healthz import Check

if TYPE_CHECKING:
    from mcproxy.daemon.service import LiveListener
    from mcproxy.upstream.cluster import Cluster


def checks_of(stopping: bool, listeners: Iterable[LiveListener], clusters: Mapping[str, Cluster]) -> Sequence[Check]:
    """Return the checks; the first is named as that of a kube-apiserver.

    A cluster without a ready endpoint fails the whole only if no other one has any: where many clusters are served, one
    that is away must not take the others from their clients, at all replicas at once. Causes name no address.
    """
    found = [Check("shutdown", "process is shutting down" if stopping else "")]
    found += [
        Check(f"listener/{live.config.name}", "" if live.socket.accepting or stopping else "it does not accept")
        for live in listeners
    ]
    causes = {name: _cause(cluster) for name, cluster in clusters.items()}
    all_away = all(causes.values())
    found += [Check(f"cluster/{name}", cause, all_away) for name, cause in causes.items()]
    return found


def _cause(cluster: Cluster) -> str:
    if any(endpoint.ready for endpoint in cluster.endpoints):
        return ""
    if any(endpoint.unchecked for endpoint in cluster.endpoints):
        return "its endpoints have not been checked yet"
    return f"none of its {len(cluster.endpoints)} endpoints is ready"
