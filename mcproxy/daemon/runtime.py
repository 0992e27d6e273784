"""The Runtime: the live objects of one configuration.

A Runtime is an immutable snapshot. `build` makes the next one beside the one in force and reuses each object whose
configuration did not change; nothing in force is changed until the new one is complete and all its sockets are bound.
Then one reference is swapped in each listener. A request keeps the pipeline that it started with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from mcproxy.aggregate.request import AggregateHandler
from mcproxy.config import model
from mcproxy.daemon.identity_registry import IdentityRegistry
from mcproxy.dispatch.flow_controls import FlowControls
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.plan import Dispatch
from mcproxy.http.pool import Connect, Pool
from mcproxy.identity.authorization.authorizer import ReviewersByCluster
from mcproxy.net import alpn
from mcproxy.net.certificates import CertificateStore
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.record import Recorder
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy.admin.pipeline import AdminParts, AdminPipeline
from mcproxy.proxy.in_flight import InFlightRequests
from mcproxy.proxy.pipeline import Pipeline
from mcproxy.proxy.request_batch import RequestBatch
from mcproxy.proxy.routes import AggregateBackend, Routes, VirtualServer
from mcproxy.proxy.sessions import Sessions
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_exchange import HealthExchange
from mcproxy.upstream.shared import Shared

if TYPE_CHECKING:
    from mcproxy.observe.audit.log import AuditLog
    from mcproxy.observe.spans import Spans
    from mcproxy.proxy.audit_trail import Auditor
    from mcproxy.proxy.request_spans import RequestTracer


class PreparedAggregates(Protocol):
    """The aggregates of a configuration that is not in force yet."""

    @property
    def handlers(self) -> Mapping[str, AggregateHandler]:
        """What answers the requests to each aggregate, by its name."""

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers of an aggregate's members whose last decisions hold while a member is away."""

    def activate(self) -> None:
        """Put the configuration in force: reflectors start and stop, views follow."""


class AggregatesOwner(Protocol):
    """The one owner of all live state of aggregates (`aggregate.aggregates.Aggregates`)."""

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration; nothing that is live has changed until it is activated.

        `reviewers` returns, for cache times, the reviewers of what each member would let a user do.
        """


class OpenAccessLog(Recorder, Protocol):
    """An access log that its owner closes."""

    def close(self) -> None: ...


class RequestLogs(Protocol):
    """Opens the logs of requests (`observe.request_logs.RequestLogs`). Each method raises OSError."""

    def open_access(self, config: model.AccessLog) -> OpenAccessLog: ...

    def open_audit(self, config: model.AuditLog) -> AuditLog: ...

    def spans(self) -> Spans | None:
        """Return what takes spans, if requests are traced; raises nothing."""


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """Resources of the process that every Runtime is built with."""

    shared: Shared
    in_flight: InFlightRequests
    request_logs: RequestLogs
    metrics: Metrics
    sessions: Sessions
    aggregates: AggregatesOwner | None = None
    limit_tables: LimitTables | None = None
    admin: AdminParts | None = None
    """What Admin listeners are made of; None in a process without listeners."""
    batch: RequestBatch | None = None
    """Tells metrics and logs of requests; None: they are not told."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One configuration and the live objects that serve it; the maps are by name."""

    config: model.Config
    clusters: Mapping[str, Cluster]
    certificates: Mapping[str, CertificateStore | None]  # by listener
    pipelines: Mapping[str, Pipeline | AdminPipeline]  # by listener
    access_log: OpenAccessLog | None
    audit_log: AuditLog | None
    identity: IdentityRegistry
    flow_controls: FlowControls
    dispatches: Mapping[str, Dispatch]  # by server
    servers: Mapping[str, VirtualServer]
    aggregates: PreparedAggregates | None = None

    def activate(self) -> None:
        """Start background work, and give reused objects their new settings."""
        for cluster in self.clusters.values():
            cluster.start()
        self.identity.activate()
        self.flow_controls.activate()
        if self.aggregates is not None:
            self.aggregates.activate()

    def discard(self, keep: Runtime | None) -> None:
        """Close every live object that `keep` does not share."""
        for name, cluster in self.clusters.items():
            cluster.stop(None if keep is None else keep.clusters.get(name))
        self.identity.discard(None if keep is None else keep.identity)
        if self.access_log is not None and (keep is None or keep.access_log is not self.access_log):
            self.access_log.close()
        if self.audit_log is not None and (keep is None or keep.audit_log is not self.audit_log):
            self.audit_log.close()


def build(config: model.Config, previous: Runtime | None, resources: ProcessResources) -> Runtime:
    """Make the Runtime of `config`, reusing the objects of `previous` whose configuration is equal.

    Raises CredentialError, PairError or OSError; nothing has changed then.
    """
    clusters = {
        cluster.name: Cluster.build(
            cluster, resources.shared, None if previous is None else previous.clusters.get(cluster.name)
        )
        for cluster in config.clusters
    }
    certificates = {listener.name: _certificates(config, listener, previous) for listener in config.listeners}
    identity = IdentityRegistry(config, clusters, resources.shared, None if previous is None else previous.identity)
    flow_controls = FlowControls.build(
        config.flow_controls,
        resources.shared.reactor,
        None if previous is None else previous.flow_controls,
        resources.limit_tables,
        resources.metrics,
    )
    aggregates = (
        None
        if resources.aggregates is None
        else resources.aggregates.prepare(config, clusters, identity.reviewers.as_seen_by)
    )
    access_log, audit_log, auditor = _request_logs(config, previous, resources)
    tracer = _tracer(config, resources)
    recorders = Recorders.of(resources.metrics, access_log)
    before = {} if previous is None else previous.dispatches
    dispatches = {
        server.name: Dispatch(server, clusters, flow_controls, before.get(server.name)) for server in config.servers
    }
    servers = [
        (
            server,
            VirtualServer(
                server,
                clusters,
                authenticator=identity.authenticator(server),
                authorizer=identity.authorizer(server),
                impersonation=identity.impersonation(server),
                dispatch=dispatches[server.name],
                upstream_headers=identity.upstream_headers,
                session_registry=resources.sessions,
                aggregate=_aggregate(server, clusters, aggregates, identity, resources),
            ),
        )
        for server in config.servers
    ]
    pipelines: dict[str, Pipeline | AdminPipeline] = {}
    for listener in config.listeners:
        if listener.serves is model.Serves.ADMIN and resources.admin is not None:
            pipelines[listener.name] = AdminPipeline(
                listener,
                resources.admin,
                authenticator=identity.authenticator_of(listener),
                authorizer=identity.authorizer_of(listener),
            )
            continue
        pipelines[listener.name] = Pipeline(
            Routes((server, live) for server, live in servers if listener.name in server.listeners),
            trusted_proxies=listener.trusted_proxies,
            in_flight=resources.in_flight,
            recorders=recorders,
            auditor=auditor,
            tracer=tracer,
            batch=resources.batch,
        )
    return Runtime(
        config,
        MappingProxyType(clusters),
        MappingProxyType(certificates),
        MappingProxyType(pipelines),
        access_log,
        audit_log,
        identity,
        flow_controls,
        MappingProxyType(dispatches),
        MappingProxyType({server.name: live for server, live in servers}),
        aggregates,
    )


def _aggregate(
    server: model.Server,
    clusters: Mapping[str, Cluster],
    aggregates: PreparedAggregates | None,
    identity: IdentityRegistry,
    resources: ProcessResources,
) -> AggregateBackend | None:
    backend = server.backend
    if not isinstance(backend, model.AggregateBackend) or aggregates is None:
        return None
    name = backend.aggregate
    authorizer, impersonation = identity.of_reads(
        server, lambda reviewers: aggregates.stale_reviewers(server.name, name, reviewers)
    )
    return AggregateBackend(
        backend,
        clusters,
        handler=aggregates.handlers[name],
        clock=resources.shared.reactor,
        read_authorizer=authorizer,
        read_impersonation=impersonation,
    )


def _certificates(config: model.Config, listener: model.Listener, previous: Runtime | None) -> CertificateStore | None:
    if listener.tls is None:
        return None
    chosen = _chosen(config, listener.tls)
    if previous is not None:
        for old in previous.config.listeners:
            same = old.tls == listener.tls and old.protocols == listener.protocols
            if same and _chosen(previous.config, listener.tls) == chosen:
                return previous.certificates[old.name]
    return CertificateStore.build(chosen, listener.tls.min_version, alpn.names_of(listener.protocols))


def _chosen(config: model.Config, tls: model.ListenerTLS) -> list[model.Certificate]:
    by_name = {certificate.name: certificate for certificate in config.certificates}
    return [by_name[name] for name in tls.certificates if name in by_name]


def _request_logs(
    config: model.Config, previous: Runtime | None, resources: ProcessResources
) -> tuple[OpenAccessLog | None, AuditLog | None, Auditor | None]:
    """Return the logs of requests: open ones whose configuration is the same, and new ones. Raises OSError."""
    before = None if previous is None else previous.config.logging
    access, audit = config.logging.access, config.logging.audit
    access_log: OpenAccessLog | None = None
    audit_log: AuditLog | None = None
    auditor: Auditor | None = None
    if audit is not None:
        from mcproxy.proxy.audit_trail import Auditor

        if previous is not None and before is not None and before.audit == audit:
            audit_log = previous.audit_log
        else:
            audit_log = resources.request_logs.open_audit(audit)
        assert audit_log is not None
        auditor = Auditor(audit_log)
    if access is not None:
        if previous is not None and before is not None and before.access == access:
            access_log = previous.access_log
        else:
            try:
                access_log = resources.request_logs.open_access(access)
            except OSError:
                if audit_log is not None and (previous is None or audit_log is not previous.audit_log):
                    audit_log.close()
                raise
    return access_log, audit_log, auditor


def _tracer(config: model.Config, resources: ProcessResources) -> RequestTracer | None:
    """Return what traces requests, if they are traced and come to this process."""
    spans = resources.request_logs.spans() if config.listeners else None
    if spans is None:
        return None
    from mcproxy.proxy.request_spans import RequestTracer

    return RequestTracer(spans)


def make_shared(
    reactor: Any,
    deadlines: Any,
    endpoint_out: Callable[[Endpoint], None],
    health: HealthExchange | None = None,
    metrics: Metrics | None = None,
) -> Shared:
    """Return the resources shared by all clusters, with pools of the HTTP client in `http/`."""

    def pool(
        connect: Connect,
        settings: model.Connections,
        protocol: model.UpstreamProtocol,
        violated: Callable[[str], None],
    ) -> Pool:
        return Pool(
            connect,
            deadlines,
            protocol=protocol,
            violated=violated,
            max_idle=settings.max_idle,
            max_connections=settings.max_connections,
            idle_timeout=settings.idle_timeout,
        )

    return Shared.of(reactor, pool, endpoint_out, health, metrics)
