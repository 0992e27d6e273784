"""Parts of a process that are imported and created when a configuration first needs them.

These parts are cluster caches, aggregates, services, ingresses, the availability of API services, and limits over
replicas. Their live state outlives reloads. In a daemon of several processes, the keeper has caches, aggregates,
services and probes, the workers have ingresses, and the supervisor has the limits over replicas.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from mcproxy.apiservices.availability import Availability
from mcproxy.config import model
from mcproxy.config.model import FlowControlType
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.cache_status import cache_checks, of_aggregates
from mcproxy.kube.healthz import Check
from mcproxy.net.wall_time import wall_clock
from mcproxy.observe.metrics.families import INGRESS_EJECTIONS
from mcproxy.requests.batch import RequestBatch
from mcproxy.requests.in_flight import RequestsInFlight
from mcproxy.services.cache_scopes import uses_services
from mcproxy.services.endpoint_table import EndpointTable

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.aggregate.aggregates import Aggregates
    from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
    from mcproxy.aggregate.member_caches import MemberCaches
    from mcproxy.aggregate.request import AggregateHandler
    from mcproxy.apiservices.prober import Prober
    from mcproxy.dispatch.replicas.agent import LeaseAgent
    from mcproxy.dispatch.replicas.engine_thread import EngineThread
    from mcproxy.dispatch.replicas.leases import LeasedLimit
    from mcproxy.dispatch.tables.shared_memory import SharedMemory
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.observe.metrics.metrics import Metrics
    from mcproxy.observe.recorders import Recorder
    from mcproxy.observe.spans import Spans
    from mcproxy.services.controller.export_controller import ExportController
    from mcproxy.services.ingress.ingress_request import IngressRequest
    from mcproxy.services.ingress.live_ingresses import Ingresses, IngressResources
    from mcproxy.services.ingress.pod_pools import PodPools
    from mcproxy.services.live_services import LiveServices
    from mcproxy.services.service_caches import ServiceCaches
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


class LazyMemberCaches:
    """The caches of clusters, which aggregates and services share. They are created when a caller first needs them."""

    def __init__(self, reactor: Any, shared: UpstreamContext) -> None:
        self._reactor = reactor
        self._shared = shared
        self._caches: MemberCaches | None = None

    def get(self) -> MemberCaches:
        """Return the caches, which the first call creates."""
        if self._caches is None:
            from mcproxy.aggregate.member_caches import MemberCaches

            self._caches = MemberCaches(self._shared, self.in_thread, time.time)
        return self._caches

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """Call a function with arguments in a thread."""
        from twisted.internet.threads import deferToThreadPool

        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *arguments)

    async def save(self) -> None:
        """Save all state (at a shutdown)."""
        if self._caches is not None:
            await self._caches.save()

    def stop(self) -> None:
        """End everything at once. Call it after the readers of the caches have ended."""
        if self._caches is not None:
            self._caches.stop()


class PreparedAggregates(Protocol):
    """The aggregates of a configuration that is not in force yet."""

    @property
    def handlers(self) -> Mapping[str, AggregateHandler]:
        """The handler of the requests to each aggregate, by its name."""

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers that keep the last decisions of an aggregate's members while these are unavailable."""

    def documents(self, server: model.Server, backend: str, visibility: ServiceVisibility) -> AggregateHandler:
        """Return the handler of requests that need the merged documents of a server with API services.

        `backend` is the server's aggregate or, without an aggregate, a cluster that its requests can go to.
        """

    def activate(self) -> None:
        """Put the configuration in force: start and stop reflectors, and adapt the views of servers."""


class LazyAggregates:
    """The owner of aggregates (`process_parts.AggregatesOfProcess`), which costs nothing without aggregates."""

    def __init__(self, reactor: Any, shared: UpstreamContext, caches: LazyMemberCaches) -> None:
        """`caches` are owned by the caller."""
        self._reactor = reactor
        self._shared = shared
        self._caches = caches
        self._owner: Aggregates | None = None
        self._availability: Availability | None = None

    def follow_availability(self, availability: Availability) -> None:
        """Mark unavailable API services as stale in merged documents."""
        self._availability = availability

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration. Live state changes only when it is activated."""
        if self._owner is None:
            if not any(server.merges_documents for server in config.servers):
                return NO_AGGREGATES
            self._owner = self._make()
        return self._owner.prepare(config, clusters, reviewers)

    def figures(self) -> list[Figures]:
        """Return the figures of each aggregate."""
        return [] if self._owner is None else of_aggregates(self._owner)

    def checks(self) -> list[Check]:
        """Return the readiness of each aggregate."""
        return [] if self._owner is None else list(cache_checks(self._owner.live, self._owner.now))

    def stop(self) -> None:
        """Stop all aggregates at once, without the caches, which their owner stops."""
        if self._owner is not None:
            self._owner.stop()

    def _make(self) -> Aggregates:
        from mcproxy.aggregate.aggregates import Aggregates

        owner = Aggregates(self._shared, self._caches.get(), self._caches.in_thread)
        owner.follow_availability(self._availability)
        return owner


class _NoAggregates:
    """The prepared aggregates (none) of a configuration, if no configuration has had an aggregate so far."""

    handlers: Mapping[str, AggregateHandler] = MappingProxyType({})

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        raise KeyError(aggregate)

    def documents(self, server: model.Server, backend: str, visibility: ServiceVisibility) -> AggregateHandler:
        raise KeyError(backend)

    def activate(self) -> None:
        pass


NO_AGGREGATES = _NoAggregates()


class LazyServices:
    """Services in the process that has the caches (`process_parts.ServicesOfProcess`)."""

    def __init__(self, shared: UpstreamContext, caches: LazyMemberCaches) -> None:
        """`caches` are owned by the caller."""
        self.endpoints = EndpointTable()
        self._shared = shared
        self._caches = caches
        self._owner: LiveServices | None = None

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force; `clusters` has all its clusters."""
        if self._owner is None:
            if not needs_services(config):
                return
            from mcproxy.services.live_services import LiveServices

            self._owner = LiveServices(self._caches.get(), self.endpoints, self._make_controller)
        self._owner.activate(config, clusters)

    def figures(self) -> Figures:
        """Return the figures of services, if there are any (`services.controller.export_figures`)."""
        if self._owner is None:
            return {}
        from mcproxy.daemon.status.cache_status import of_services

        return of_services(self._owner)

    def checks(self) -> list[Check]:
        """Return the readiness of the caches."""
        return [] if self._owner is None else self._owner.checks()

    async def leave(self) -> None:
        """Stop writing to clusters, and free their Leases for other replicas."""
        if self._owner is not None:
            await self._owner.leave()

    def _make_controller(self, caches: ServiceCaches) -> ExportController:
        from mcproxy.services.controller.export_controller import ExportController
        from mcproxy.services.controller.writable_cluster import ControllerParts
        from mcproxy.services.lease import LeaseLock

        clock = self._shared.reactor
        parts = ControllerParts(
            clock=clock,
            random=self._shared.random,
            counts=self._shared.metrics.counts,
            identity=f"{socket.gethostname()[:150]}_{uuid.uuid4()}",
            boot_seconds=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
            make_lease=lambda cluster, where: LeaseLock(cluster, clock, where),
        )
        return ExportController(caches, parts)

    def stop(self) -> None:
        """Stop all services at once, without the caches, which their owner stops."""
        if self._owner is not None:
            self._owner.stop()


def needs_services(config: model.Config) -> bool:
    """Whether a configuration has services, or an earlier configuration can have left services in clusters."""
    if uses_services(config) or config.daemon.state_dir is None:
        return uses_services(config)
    from mcproxy.services import exports_state_file

    return exports_state_file.exists(config.daemon.state_dir)


class LazyIngresses:
    """The ingresses of a process, which cost nothing without Ingress listeners."""

    def __init__(
        self,
        shared: UpstreamContext,
        deadlines: Deadlines,
        metrics: Metrics,
        table: EndpointTable,
        *,
        cluster: Callable[[str], Cluster | None],
        batch_size: int,
        secret: bytes,
    ) -> None:
        """`cluster` returns the cluster in force with a given name, or None.

        `secret` is the key of affinity cookies if no listener has a certificate. All workers have the same.
        """
        self.in_flight: RequestsInFlight[IngressRequest] = RequestsInFlight(shared.reactor)
        self._shared = shared
        self._deadlines = deadlines
        self._metrics = metrics
        self._table = table
        self._cluster = cluster
        self._batch_size = batch_size
        self._secret = secret
        self._batch: RequestBatch[IngressRequest] | None = None
        self._pods: PodPools | None = None
        self._resources: IngressResources | None = None

    def prepare(
        self,
        config: model.Config,
        previous: Ingresses | None,
        access_log: Recorder | None,
        spans: Spans | None = None,
    ) -> Ingresses | None:
        """Create the ingresses of a new configuration; None if it has no Ingress listener. Those in force stay."""
        if not any(listener.serves is model.Serves.INGRESS for listener in config.listeners):
            return None
        from mcproxy.services.ingress.live_ingresses import Ingresses

        tracer = None
        if spans is not None:
            from mcproxy.services.ingress.request_spans import IngressRequestTracer

            tracer = IngressRequestTracer(spans)
        return Ingresses.build(config, previous, self._made(), access_log, tracer)

    def _made(self) -> IngressResources:
        if self._resources is None:
            from mcproxy.services.ingress.ingress_request import RequestIDs
            from mcproxy.services.ingress.live_ingresses import IngressResources
            from mcproxy.services.ingress.pod_pools import LiveTargets, PodPools
            from mcproxy.services.ingress.port_forward import PortForwarder
            from mcproxy.services.ingress.request_events import IngressReporter

            shared = self._shared
            forwarder = PortForwarder(shared.reactor, self._cluster)
            self._pods = PodPools(shared.connect, forwarder, shared.contexts, self._deadlines)
            self._batch = RequestBatch(shared.reactor, IngressReporter(), self._batch_size)
            self._metrics.read_at_flush(self._batch.flush)
            self._resources = IngressResources(
                clock=shared.reactor,
                table=self._table,
                targets=LiveTargets(self._pods, self._cluster),
                in_flight=self.in_flight,
                batch=self._batch,
                counts=self._metrics.of_ingresses,
                random=shared.random,
                request_ids=RequestIDs(),
                ejected=lambda *labels: self._metrics.counts.increase(INGRESS_EJECTIONS, labels),
                secret=self._secret,
            )
        return self._resources

    def stop(self) -> None:
        """End everything at once. Call it after the requests are cut."""
        if self._batch is not None:
            self._batch.close()
        if self._pods is not None:
            self._pods.close()


class ProbedAvailability:
    """The availability of API services in the process that probes them."""

    def __init__(self, shared: UpstreamContext) -> None:
        self.known = Availability(wall_clock(shared.reactor))
        self._shared = shared
        self._prober: Prober | None = None

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force; `clusters` has all its clusters."""
        use_registrations(self.known, config)
        registrations = {each: clusters[each.cluster] for each, _ in self.known.all()}
        if self._prober is None:
            if not registrations:
                return
            from mcproxy.apiservices.prober import Prober

            self._prober = Prober(
                self.known, self._shared.reactor, self._shared.random, counts=self._shared.metrics.counts
            )
            self.known.on_suspicion(self._prober.suspected)
        self._prober.update(registrations)

    def stop(self) -> None:
        """End everything at once."""
        if self._prober is not None:
            self._prober.stop()


def use_registrations(known: Availability, config: model.Config) -> None:
    """Tell `known` to cover the API services of a configuration."""
    known.use({server.name: server.api_services for server in config.servers if server.api_services})


class SharedLimits:
    """The limits shared with other replicas; created when a configuration first has such a limit."""

    def __init__(self, reactor: Any, table: Callable[[], SharedMemory]) -> None:
        """`table` returns the shared memory; it is called when a limit is first shared."""
        self._reactor = reactor
        self._table = table
        self._agent: LeaseAgent | None = None

    @property
    def figures(self) -> dict[str, Any] | None:
        """The shared state for the command `status`; None if no limit is shared."""
        if self._agent is None or not self._agent.limits:
            return None
        return {"replicas": self._agent.replicas, "away": self._agent.away, "limits": self._agent.limits}

    def configured(self, config: model.Config) -> None:
        """Apply the limits of a configuration that came into force."""
        state = config.daemon.shared_state
        if self._agent is None:
            if state is None or not any(control.shared for control in config.flow_controls):
                return
            self._agent = self._make_agent()
        self._agent.configure(state.redis if state is not None else None, _replica_limits(config))

    async def stop(self) -> None:
        """Release this replica's shares to the other replicas, within half a second."""
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.stop()

    def abort(self) -> None:
        """End at once. The other replicas get this replica's shares when its leases expire."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.abort()

    def _make_agent(self) -> LeaseAgent:
        from mcproxy.dispatch.replicas.agent import LeaseAgent

        return LeaseAgent(self._reactor, self._table(), _name_of_replica(), connect=self._connect)

    def _connect(self, redis: model.RedisConfig) -> EngineThread:
        from mcproxy.dispatch.replicas.engine_thread import EngineThread

        return EngineThread(self._reactor, redis, _make_engine)


def _make_engine(redis: model.RedisConfig) -> Any:
    from mcproxy.dispatch.replicas.redis_client import RedisEngine

    return RedisEngine(redis)


def _name_of_replica() -> str:
    """Return a unique name of this replica that an operator can locate."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def _replica_limits(config: model.Config) -> Iterator[LeasedLimit]:
    from mcproxy.dispatch.replicas.leases import LeasedLimit
    from mcproxy.dispatch.tables.limit_shares import LimitId

    for control in config.flow_controls:
        if not control.shared:
            continue
        if control.type is FlowControlType.TOKEN_BUCKET:
            yield LeasedLimit(LimitId(control.name, "bucket", control.per), control.qps, control.burst)
        if control.max:  # a limit of 0 refuses all requests without shared state
            yield LeasedLimit(LimitId(control.name, "short", control.per), control.max)
        if control.max_long_running:
            yield LeasedLimit(LimitId(control.name, "long", control.per), control.max_long_running)
