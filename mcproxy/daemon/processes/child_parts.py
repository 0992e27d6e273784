"""The parts of a child: what its Service uses instead of what the only process of a daemon has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcproxy.daemon.listening_sockets import InheritedSockets
from mcproxy.daemon.logging import LineObserver
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.processes.admin import ChannelAdmin
from mcproxy.daemon.processes.channel import Channel
from mcproxy.daemon.processes.children import Role
from mcproxy.daemon.processes.common_log import CommonLog
from mcproxy.daemon.processes.health_exchange import ChannelHealth
from mcproxy.daemon.processes.keeper import WorkerAggregates
from mcproxy.dispatch.shared_memory import SharedTables
from mcproxy.net.client_table import ClientTableOfProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a child is, as the message `start` says."""

    reactor: Any
    channel: Channel
    observer: LineObserver
    sockets: InheritedSockets
    descriptors: Mapping[str, int]
    """By name, as `Processes` passes them; each is the child's own."""
    role: str
    name: str
    index: int
    column: int
    """Of shared memory."""


def make_parts(start: Start) -> ProcessParts:
    """Return the parts; handlers of their messages are registered with the channel."""
    start.observer.divert = CommonLog(start.channel).divert
    health = ChannelHealth(start.channel, start.reactor)
    start.channel.on("lead", lambda message: health.lead(message["leads"]))
    tables = SharedTables.of_process(start.descriptors, start.column, start.reactor)
    if start.role == Role.KEEPER:
        return ProcessParts(sockets=start.sockets, health=health, limit_tables=tables)
    return ProcessParts(
        sockets=start.sockets,
        make_aggregates=WorkerAggregates.maker(start.channel),
        health=health,
        limit_tables=tables,
        admin=ChannelAdmin(start.channel),
        client_table=lambda address: ClientTableOfProcess(tables.connections(address)),
    )
