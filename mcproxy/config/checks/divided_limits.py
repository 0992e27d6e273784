"""Checks of limits that workers divide among themselves (`daemon.processes.child`)."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import AUTO, Cluster, Daemon, Server
from mcproxy.config.reading.context import Context
from mcproxy.config.sections.entries import Named


def check_workers(
    context: Context,
    daemon: Daemon,
    clusters: Sequence[Named[Cluster]],
    servers: Sequence[Named[Server]],
    *,
    has_services: bool,
) -> None:
    """Warn of a `maxConnections` that is less than the processes: each of them may have one connection.

    The number for Auto is unknown, because the file may be for another machine. The keeper counts as one where the file
    has aggregates, API services, or services across clusters (`has_services`).
    """
    if daemon.workers in (1, AUTO):
        return
    keeper = has_services or any(server.value and server.value.merges_documents for server in servers)
    processes = int(daemon.workers) + keeper
    for cluster in clusters:
        connections = cluster.place.get("connections")
        place = connections.get("maxConnections") if connections is not None else None
        if cluster.value is None or place is None or not 0 < cluster.value.connections.max_connections < processes:
            continue
        what = (
            f"is divided among {processes} processes, and each may have one connection: so up to {processes} are open"
        )
        context.warn(place, "divided-limit", what, f"write at least {processes}, or fewer daemon.workers")
