"""What differs between the one process of a daemon and a process of several; chosen when the process is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcproxy.daemon.aggregates import LazyAggregates
from mcproxy.daemon.figures import Figures
from mcproxy.daemon.runtime import AggregatesOwner
from mcproxy.daemon.shared_limits import SharedLimits
from mcproxy.dispatch.limit_tables import LimitTables, LocalTables
from mcproxy.kube.healthz import Check
from mcproxy.net.client_table import ClientTable
from mcproxy.net.listening_sockets import ListeningSockets, LocalSockets
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.proxy.admin.source import AdminSource
from mcproxy.proxy.request_batch import SIZE
from mcproxy.upstream.health_exchange import HealthExchange
from mcproxy.upstream.shared import Shared


class AggregatesOfProcess(AggregatesOwner, Protocol):
    """The aggregates of a process: their live state, or the way to the process that has it."""

    def figures(self) -> list[Figures]:
        """Return the figures of each aggregate whose state is here (`daemon.figures`)."""

    def checks(self) -> list[Check]:
        """Return the readiness of each aggregate whose state is here."""

    async def save(self) -> None:
        """Save all state (at a shutdown)."""

    def stop(self) -> None:
        """End everything at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """The parts that `daemon.service.Service` is made with. The defaults are those of one process."""

    sockets: ListeningSockets = field(default_factory=LocalSockets)
    make_aggregates: Callable[[Any, Shared], AggregatesOfProcess] = LazyAggregates
    """``(reactor, shared) -> owner``"""
    limit_tables: LimitTables = field(default_factory=LocalTables)
    """Where flow controls count."""
    shared_limits: SharedLimits | None = None
    """Limits over replicas; None where another process has them."""
    client_table: Callable[[str], ClientTable[Any]] = lambda address: ClientTable()
    """Makes the table of the connections of a listener, by its address."""
    metrics: Metrics = field(default_factory=Metrics)
    """What this process counts."""
    batch_size: int = SIZE
    """Requests of which metrics and logs are told at once (`proxy.request_batch`)."""
    admin: AdminSource | None = None
    """What Admin listeners show; None where there are none (the keeper)."""
    health: HealthExchange | None = None
    """The way to the processes that share the health of endpoints; None: this one checks for itself."""
