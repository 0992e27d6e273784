"""What each process may have of a limit that is divided among them, since it is not counted over all of them."""

from __future__ import annotations

from dataclasses import replace

from mcproxy.config import model


def config_of_process(config: model.Config, index: int | None, workers: int) -> model.Config:
    """Return `config` with one process's part of each cluster's `connections.maxConnections`.

    `index` is the worker's, from 0; None: the keeper's, which counts where there are aggregates. The parts sum up to
    the whole, but each process may have one connection.
    """
    aggregates = any(isinstance(server.backend, model.AggregateBackend) for server in config.servers)
    processes = workers + aggregates
    position = workers if index is None else index
    clusters = tuple(
        replace(
            cluster,
            connections=replace(
                cluster.connections, max_connections=share(cluster.connections.max_connections, position, processes)
            ),
        )
        if cluster.connections.max_connections
        else cluster
        for cluster in config.clusters
    )
    return replace(config, clusters=clusters)


def share(limit: int, position: int, processes: int) -> int:
    """Return one process's part of `limit`, at least 1; the first ones get what cannot be divided."""
    return max(1, limit // processes + (position < limit % processes))
