"""The Runtime: the live objects of one configuration.

A Runtime is an immutable snapshot. `build` makes the next Runtime while the current one stays in force, and reuses each
object whose configuration is unchanged. When the new one is complete and all its sockets are bound, each listener swaps
one reference. A request keeps the pipeline with which it started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from mcproxy.config import model
from mcproxy.daemon.identity_registry import IdentityRegistry
from mcproxy.daemon.lazy_parts import LazyIngresses, PreparedAggregates
from mcproxy.daemon.process_parts import AggregatesOwner, AvailabilityOwner, ServicesOfProcess
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.plan import Dispatch
from mcproxy.http.connection_pool import Connect, ConnectionPool
from mcproxy.net import alpn
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.recorders import Recorder, Recorders
from mcproxy.proxy.admin.admin_pipeline import AdminParts, AdminPipeline
from mcproxy.proxy.api_requests import APIRequestsInFlight
from mcproxy.proxy.pipeline import Pipeline
from mcproxy.proxy.request import Request
from mcproxy.proxy.review_api import ReviewAPI
from mcproxy.proxy.routes import AggregateBackend, OwnObjects, Routes, VirtualServer
from mcproxy.proxy.sessions import Sessions
from mcproxy.proxy.tunnel_requests import TunnelServer
from mcproxy.requests.batch import RequestBatch
from mcproxy.tunnels.hub import TunnelHub
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_sharing import HealthExchange
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
    from mcproxy.aggregate.writes.held_bodies import BodyBuffers
    from mcproxy.observe.audit.log import AuditLog
    from mcproxy.observe.spans import Spans
    from mcproxy.proxy.audit_trail import RequestAuditor
    from mcproxy.proxy.request_spans import RequestTracer
    from mcproxy.services.ingress.ingress_handler import IngressHandler
    from mcproxy.services.ingress.live_ingresses import Ingresses


class OpenAccessLog(Recorder, Protocol):
    """An access log that its owner closes."""

    def close(self) -> None: ...


class RequestLogOpener(Protocol):
    """Opens the logs of requests (`observe.request_logs.RequestLogs`). Its methods raise OSError."""

    def open_access(self, config: model.AccessLogConfig) -> OpenAccessLog: ...

    def open_audit(self, config: model.AuditLogConfig) -> AuditLog: ...

    def spans(self) -> Spans | None:
        """Return the receiver of spans if requests are traced. This method does not raise."""


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """Resources of the process that every Runtime uses."""

    shared: UpstreamContext
    in_flight: APIRequestsInFlight
    request_logs: RequestLogOpener
    metrics: Metrics
    sessions: Sessions
    aggregates: AggregatesOwner | None = None
    availability: AvailabilityOwner | None = None
    limit_tables: LimitTables | None = None
    admin: AdminParts | None = None
    """The parts of Admin listeners; None in a process without listeners."""
    batch: RequestBatch[Request] | None = None
    """Passes requests to metrics and logs; None if requests are not recorded."""
    review_bodies: BodyBuffers | None = None
    """The budget for bodies of reviews from API servers; None in a process without listeners."""
    ingresses: LazyIngresses | None = None
    """The ingresses of this process; None in a process without listeners."""
    services: ServicesOfProcess | None = None
    """The endpoints of ingresses."""
    tunnels: TunnelHub | None = None
    """The tunnels of clusters that dial out."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One configuration and the live objects that serve it; the maps are by name."""

    config: model.Config
    clusters: Mapping[str, Cluster]
    certificates: Mapping[str, CertificateStore | None]  # by listener
    pipelines: Mapping[str, Pipeline | AdminPipeline | IngressHandler]  # by listener
    access_log: OpenAccessLog | None
    audit_log: AuditLog | None
    identity: IdentityRegistry
    flow_controls: FlowControls
    dispatches: Mapping[str, Dispatch]  # by server
    servers: Mapping[str, VirtualServer]
    aggregates: PreparedAggregates | None = None
    availability: AvailabilityOwner | None = None
    ingresses: Ingresses | None = None
    services: ServicesOfProcess | None = None

    def activate(self) -> None:
        """Start background work, and give reused objects their new settings."""
        for cluster in self.clusters.values():
            cluster.start()
        self.identity.activate()
        self.flow_controls.activate()
        if self.aggregates is not None:
            self.aggregates.activate()
        if self.availability is not None:
            self.availability.activate(self.config, self.clusters)
        if self.ingresses is not None:
            self.ingresses.activate()
        if self.services is not None:  # must follow the aggregates, because services read their stores
            self.services.activate(self.config, self.clusters)

    def discard(self, keep: Runtime | None) -> None:
        """Close each live object that `keep` does not share."""
        for name, cluster in self.clusters.items():
            cluster.stop(None if keep is None else keep.clusters.get(name))
        self.identity.discard(None if keep is None else keep.identity)
        if self.ingresses is not None:
            self.ingresses.discard(None if keep is None else keep.ingresses)
        if self.access_log is not None and (keep is None or keep.access_log is not self.access_log):
            self.access_log.close()
        if self.audit_log is not None and (keep is None or keep.audit_log is not self.audit_log):
            self.audit_log.close()


def build(config: model.Config, previous: Runtime | None, resources: ProcessResources) -> Runtime:
    """Make the Runtime of `config`, reusing the objects of `previous` whose configuration is equal.

    If it raises CredentialError, PairError or OSError, nothing has changed.
    """
    clusters = {
        cluster.name: Cluster.build(
            cluster, resources.shared, None if previous is None else previous.clusters.get(cluster.name)
        )
        for cluster in config.clusters
    }
    certificates = {listener.name: certificate_store(config, listener, previous) for listener in config.listeners}
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
    spans = resources.request_logs.spans() if config.listeners else None
    tracer = _tracer(spans)
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
                masters_grants=identity.masters_grants(server),
                dispatch=dispatches[server.name],
                upstream_headers=identity.upstream_headers,
                session_registry=resources.sessions,
                availability=None if resources.availability is None else resources.availability.known,
                review_api=_review_api(server, identity, resources),
                own_objects=_own_objects(config, server, resources),
                aggregate=_aggregate(
                    config, server, clusters, aggregates, identity, resources, dispatches[server.name]
                ),
                documents=_documents(
                    config, server, clusters, aggregates, identity, resources, dispatches[server.name]
                ),
                tunnels=_tunnels(server, resources),
            ),
        )
        for server in config.servers
    ]
    ingresses = None
    if resources.ingresses is not None:
        before_it = None if previous is None else previous.ingresses
        ingresses = resources.ingresses.prepare(config, before_it, access_log, spans)
    pipelines: dict[str, Pipeline | AdminPipeline | IngressHandler] = {}
    for listener in config.listeners:
        if ingresses is not None and listener.name in ingresses.handlers:
            pipelines[listener.name] = ingresses.handlers[listener.name]
            continue
        if listener.serves is model.Serves.ADMIN and resources.admin is not None:
            pipelines[listener.name] = AdminPipeline(
                listener,
                resources.admin,
                authenticator=identity.authenticator_of(listener),
                authorizer=identity.authorizer_of(listener),
            )
            continue
        pipelines[listener.name] = Pipeline(
            Routes(
                ((server, live) for server, live in servers if listener.name in server.listeners),
                dials=listener.dial is not None,
            ),
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
        resources.availability,
        ingresses,
        resources.services,
    )


def _tunnels(server: model.Server, resources: ProcessResources) -> TunnelServer | None:
    if not isinstance(server.backend, model.TunnelsBackend) or resources.tunnels is None:
        return None
    return TunnelServer(server.backend.tunnels, resources.tunnels, resources.sessions.server_named)


def _own_objects(config: model.Config, server: model.Server, resources: ProcessResources) -> list[OwnObjects]:
    """Return the handlers of requests for objects that the proxy itself answers, for a server with API services."""
    if not server.api_services or resources.availability is None:
        return []
    from mcproxy.apiservices.extension_authentication import trusted
    from mcproxy.proxy.api_service_objects import APIServiceObjects
    from mcproxy.proxy.extension_authentication import ExtensionAuthentication

    known = resources.availability.known
    found: list[OwnObjects] = [APIServiceObjects(server, known, resources.shared.reactor)]
    if data := trusted(server, config):
        found.append(ExtensionAuthentication(server.home, data, known))
    return found


def _aggregate(
    config: model.Config,
    server: model.Server,
    clusters: Mapping[str, Cluster],
    aggregates: PreparedAggregates | None,
    identity: IdentityRegistry,
    resources: ProcessResources,
    dispatch: Dispatch,
) -> AggregateBackend | None:
    backend = server.backend
    if not isinstance(backend, model.AggregateBackendConfig) or aggregates is None:
        return None
    name = backend.aggregate
    authorizer, impersonation = identity.cached_read_authorizers(
        server, lambda reviewers: aggregates.stale_reviewers(server.name, name, reviewers)
    )
    return AggregateBackend(
        backend,
        clusters,
        handler=aggregates.documents(server, name, _visibility(config, server, identity, resources, dispatch))
        if server.api_services
        else aggregates.handlers[name],
        clock=resources.shared.reactor,
        read_authorizer=authorizer,
        read_impersonation=impersonation,
    )


def _review_api(server: model.Server, identity: IdentityRegistry, resources: ProcessResources) -> ReviewAPI | None:
    reviewer = identity.server_reviewer(server)
    if reviewer is None or resources.review_bodies is None:
        return None
    return ReviewAPI(server.name, reviewer, resources.review_bodies, resources.shared.reactor)


def _documents(
    config: model.Config,
    server: model.Server,
    clusters: Mapping[str, Cluster],
    aggregates: PreparedAggregates | None,
    identity: IdentityRegistry,
    resources: ProcessResources,
    dispatch: Dispatch,
) -> Mapping[str, AggregateBackend]:
    """Return the handlers of a single-cluster server's merged documents, by the target cluster of requests.

    A cluster that authenticates clients itself (`Passthrough`, no authentication here) answers such requests itself.
    """
    if not server.api_services or not isinstance(server.backend, model.ClusterBackend) or aggregates is None:
        return {}
    visibility = _visibility(config, server, identity, resources, dispatch)
    return {
        name: AggregateBackend(
            model.AggregateBackendConfig(aggregate=name, members=(name,)),
            clusters,
            handler=aggregates.documents(server, name, visibility),
            clock=resources.shared.reactor,
            read_authorizer=None,
            read_impersonation=identity.impersonation(server),
        )
        for name in server.document_backends
        if server.authentication is not None or clusters[name].config.identity is not model.UpstreamIdentity.PASSTHROUGH
    }


def _visibility(
    config: model.Config,
    server: model.Server,
    identity: IdentityRegistry,
    resources: ProcessResources,
    dispatch: Dispatch,
) -> ServiceVisibility:
    """Return the object that decides which users may discover the API services of a server."""
    from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility

    backend, reads = server.backend, model.ReadsConfig()
    if isinstance(backend, model.AggregateBackendConfig):
        reads = next((each.reads for each in config.aggregates if each.name == backend.aggregate), reads)
    times = model.SubjectAccessReview(cache_allowed=reads.cache_allowed, cache_denied=reads.cache_denied)
    by_server = reads.authorize is model.ReadAuthorization.SERVER
    return ServiceVisibility(
        server.api_services,
        resources.shared.reactor,
        dispatch=dispatch,
        authorizer=identity.authorizer(server),
        reviewers=None if by_server else identity.reviewers.as_seen_by(times),
    )


def certificate_store(
    config: model.Config, listener: model.ListenerConfig, previous: Runtime | None
) -> CertificateStore | None:
    """Return the certificates of a listener: the store in force if they are unchanged, or else a new one."""
    if listener.tls is None:
        return None
    chosen, hosts = _listener_certificates(config, listener.tls), dict(listener.tls.hosts)
    if previous is not None:
        for old in previous.config.listeners:
            same = old.tls == listener.tls and old.protocols == listener.protocols
            if same and _listener_certificates(previous.config, listener.tls) == chosen:
                return previous.certificates[old.name]
    return CertificateStore.build(chosen, listener.tls.min_version, alpn.names_of(listener.protocols), hosts)


def _listener_certificates(config: model.Config, tls: model.ListenerTLS) -> list[model.Certificate]:
    by_name = {certificate.name: certificate for certificate in config.certificates}
    return [by_name[name] for name in tls.all_certificates if name in by_name]


def _request_logs(
    config: model.Config, previous: Runtime | None, resources: ProcessResources
) -> tuple[OpenAccessLog | None, AuditLog | None, RequestAuditor | None]:
    """Return the logs of requests: the open logs if their configuration is unchanged, else new ones. Raises OSError."""
    before = None if previous is None else previous.config.logging
    access, audit = config.logging.access, config.logging.audit
    access_log: OpenAccessLog | None = None
    audit_log: AuditLog | None = None
    auditor: RequestAuditor | None = None
    if audit is not None:
        from mcproxy.proxy.audit_trail import RequestAuditor

        if previous is not None and before is not None and before.audit == audit:
            audit_log = previous.audit_log
        else:
            audit_log = resources.request_logs.open_audit(audit)
        assert audit_log is not None
        auditor = RequestAuditor(audit_log)
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


def _tracer(spans: Spans | None) -> RequestTracer | None:
    """Return the tracer of requests to servers; None without tracing, or if another process receives requests."""
    if spans is None:
        return None
    from mcproxy.proxy.request_spans import RequestTracer

    return RequestTracer(spans)


def make_upstream_context(
    reactor: Any,
    deadlines: Any,
    endpoint_out: Callable[[Endpoint], None],
    health: HealthExchange | None = None,
    metrics: Metrics | None = None,
    tunnels: TunnelHub | None = None,
) -> UpstreamContext:
    """Return the resources shared by all clusters, with pools of the HTTP client in `http/`."""

    def pool(
        connect: Connect,
        settings: model.Connections,
        protocol: model.UpstreamProtocol,
        violated: Callable[[str], None],
    ) -> ConnectionPool:
        return ConnectionPool(
            connect,
            deadlines,
            protocol=protocol,
            violated=violated,
            max_idle=settings.max_idle,
            max_connections=settings.max_connections,
            idle_timeout=settings.idle_timeout,
        )

    return UpstreamContext.of(reactor, pool, endpoint_out, health, metrics, tunnels)
