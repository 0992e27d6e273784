"""Checks of limits that workers divide among themselves (`daemon.processes.shares`)."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.context import Context
from mcproxy.config.model import AUTO, AggregateBackend, Cluster, Daemon, Server
from mcproxy.config.sections.section import Named


def check_workers(
    context: Context, daemon: Daemon, clusters: Sequence[Named[Cluster]], servers: Sequence[Named[Server]]
) -> None:
    """Warn of a `maxConnections` that is less than the processes: each of them may have one connection.

    Nothing is known of Auto, which may be for another machine.
    """
    if daemon.workers in (1, AUTO):
        return
    aggregates = any(server.value and isinstance(server.value.backend, AggregateBackend) for server in servers)
    processes = int(daemon.workers) + aggregates
    for cluster in clusters:
        connections = cluster.place.get("connections")
        place = connections.get("maxConnections") if connections is not None else None
        if cluster.value is None or place is None or not 0 < cluster.value.connections.max_connections < processes:
            continue
        what = (
            f"is divided among {processes} processes, and each may have one connection: so up to {processes} are open"
        )
        context.warn(place, "divided-limit", what, f"write at least {processes}, or fewer daemon.workers")
