"""The parts of a child: those that its SingleProcessService uses in place of the parts of an only process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcproxy.config import model
from mcproxy.daemon.channel import Channel
from mcproxy.daemon.daemon_log import LineObserver
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.processes.admin_relay import ChannelAdmin
from mcproxy.daemon.processes.availability_relay import KeeperAvailability, WorkerAvailability
from mcproxy.daemon.processes.children import Role
from mcproxy.daemon.processes.common_log import CommonLog
from mcproxy.daemon.processes.endpoints_relay import KeeperServices, WorkerServices
from mcproxy.daemon.processes.health import ChannelHealth
from mcproxy.daemon.processes.keeper_links import WorkerAggregates
from mcproxy.daemon.processes.socket_table import InheritedSockets
from mcproxy.dispatch.shared_memory import SharedTables
from mcproxy.net.client_table import ClientTableOfProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The properties of a child, from the message `start`."""

    reactor: Any
    channel: Channel
    observer: LineObserver
    sockets: InheritedSockets
    descriptors: Mapping[str, int]
    """By name, as the supervisor passes them; each is the child's own."""
    role: str
    name: str
    index: int
    column: int
    """Of shared memory."""
    secret: bytes
    """Random; all children of a supervisor have the same."""


def make_parts(start: Start) -> ProcessParts:
    """Return the parts; handlers of their messages are registered with the channel."""
    start.observer.divert = CommonLog(start.channel).divert
    health = ChannelHealth(start.channel, start.reactor)
    start.channel.on("lead", lambda message: health.lead(message["leads"]))
    tables = SharedTables.of_process(start.descriptors, start.column, start.reactor)
    if start.role == Role.KEEPER:
        return ProcessParts(
            sockets=start.sockets,
            make_services=lambda shared, caches: KeeperServices(shared, caches, start.channel),
            make_availability=lambda shared: KeeperAvailability(shared, start.channel),
            health=health,
            limit_tables=tables,
        )
    return ProcessParts(
        sockets=start.sockets,
        make_aggregates=WorkerAggregates.maker(start.channel),
        make_services=lambda shared, caches: WorkerServices(start.channel),
        make_availability=lambda shared: WorkerAvailability(shared, start.channel),
        health=health,
        limit_tables=tables,
        admin=ChannelAdmin(start.channel),
        client_table=lambda address: ClientTableOfProcess(tables.connections(address)),
        secret=start.secret,
    )


def config_of_process(config: model.Config, index: int | None, workers: int) -> model.Config:
    """Return `config` with one process's part of each cluster's `connections.maxConnections`.

    `index` is the worker's, from 0; None: the keeper's, which counts where there are aggregates. The parts sum up to
    the whole, but each process may have one connection.
    """
    aggregates = any(server.merges_documents for server in config.servers)
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
