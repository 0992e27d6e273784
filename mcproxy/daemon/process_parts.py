"""The parts of a process that differ between a daemon of one process and a daemon of several; chosen at its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcproxy.apiservices.availability import Availability
from mcproxy.config import model
from mcproxy.daemon import process_setup
from mcproxy.daemon.lazy_parts import (
    LazyAggregates,
    LazyMemberCaches,
    LazyServices,
    PreparedAggregates,
    ProbedAvailability,
    SharedLimits,
)
from mcproxy.daemon.status import Figures
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.identity.authorization.authorizer import ReviewersByCluster
from mcproxy.kube.healthz import Check
from mcproxy.net.client_table import ClientTable
from mcproxy.net.listening_sockets import ListeningSockets, LocalSockets
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.proxy.admin.admin_interface import AdminSource
from mcproxy.requests.batch import SIZE
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.tunnels.other_processes import OtherProcesses
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.health_sharing import HealthExchange
from mcproxy.upstream.upstream_context import UpstreamContext


class AggregatesOwner(Protocol):
    """The interface of the owner of all live aggregate state (`aggregate.aggregates.Aggregates`) for a Runtime."""

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration. Live state changes only when it is activated.

        `reviewers` returns the reviewers of users' rights in each member, for given cache times.
        """


class AggregatesOfProcess(AggregatesOwner, Protocol):
    """The aggregates of a process: their live state, or the connection to the process that has it."""

    def follow_availability(self, availability: Availability) -> None:
        """Mark unavailable API services as stale in the merged documents of this process."""

    def figures(self) -> list[Figures]:
        """Return the figures of each aggregate whose state this process has (`daemon.status`)."""

    def checks(self) -> list[Check]:
        """Return the readiness of each aggregate whose state this process has."""

    def stop(self) -> None:
        """Stop all aggregates at once, without the caches, which their owner stops."""


class AvailabilityOwner(Protocol):
    """The availability of API services in this process (`lazy_parts.ProbedAvailability`)."""

    @property
    def known(self) -> Availability:
        """The current availability; the same object over all reloads."""

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""

    def stop(self) -> None:
        """End everything at once."""


class ServicesOfProcess(Protocol):
    """Services of a process: their caches, or the reports of the process that has the caches."""

    @property
    def endpoints(self) -> EndpointTable:
        """The endpoints of all backends of ingresses; the same object over all reloads."""

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""

    def figures(self) -> Figures:
        """Return the figures of services, if this process has the caches."""

    async def leave(self) -> None:
        """Stop writing to clusters and free their Leases for other replicas, if this process writes."""

    def checks(self) -> list[Check]:
        """Return the readiness of the caches, if this process has them."""

    def stop(self) -> None:
        """Stop all services at once, without the caches, which their owner stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """The parts of a `daemon.service.SingleProcessService`. The defaults are for a daemon of one process."""

    sockets: ListeningSockets = field(default_factory=LocalSockets)
    make_aggregates: Callable[[Any, UpstreamContext, LazyMemberCaches], AggregatesOfProcess] = LazyAggregates
    """``(reactor, shared, caches) -> owner`` of aggregates; the Service owns the caches."""
    make_services: Callable[[UpstreamContext, LazyMemberCaches], ServicesOfProcess] = LazyServices
    """``(shared, caches) -> owner`` of services; the Service owns the caches."""
    make_availability: Callable[[UpstreamContext], AvailabilityOwner] = ProbedAvailability
    """Makes the availability of API services."""
    limit_tables: LimitTables | None = None
    """The tables of flow controls; None: each configuration has its own tables."""
    shared_limits: SharedLimits | None = None
    """Limits over replicas; None: another process has them."""
    client_table: Callable[[str], ClientTable[Any]] = lambda address: ClientTable()
    """Returns the connection table of a listener, by its address."""
    metrics: Metrics = field(default_factory=Metrics)
    """The metrics of this process."""
    batch_size: int = SIZE
    """Number of requests in a batch for metrics and logs (`requests.batch`)."""
    admin: AdminSource | None = None
    """The source of Admin listeners; None in a process without listeners (the keeper)."""
    secret: bytes = field(default_factory=lambda: os.urandom(32))
    """The key of affinity cookies if no listener has a certificate; random, the same in all workers."""
    instance: str = field(default_factory=process_setup.daemon_instance)
    """The name of this daemon for hubs (`tunnels.protocol.INSTANCE`): the same in all workers, and after an upgrade."""
    process: str = "hub"
    """The name of this process in tickets of tunnels."""
    other_tunnels: OtherProcesses | None = None
    """The tunnels of other processes; None: there are no other processes."""
    health: HealthExchange | None = None
    """The connection to processes that share the health of endpoints; None: this process makes its own checks."""
