"""Routing: finds a request's virtual server, and the cluster of this server. Immutable, one per Runtime."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from mcproxy.apiservices.api_service_registry import Registry
from mcproxy.config import model
from mcproxy.kube.query_parameters import without_dropped_pairs
from mcproxy.kube.status import StatusError
from mcproxy.net.name_table import NameTable
from mcproxy.proxy import cluster_path
from mcproxy.proxy.cors import CORSPolicy
from mcproxy.proxy.root_probes import RootProbes
from mcproxy.upstream.cluster import Cluster

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.request import AggregateHandler
    from mcproxy.apiservices.availability import Availability
    from mcproxy.dispatch.plan import Dispatch, Plan
    from mcproxy.http.messages import RequestHead
    from mcproxy.identity.authentication.authenticator import Authenticator, NoAuthentication
    from mcproxy.identity.authorization.authorizer import Authorizer, ImpersonationAuthorizer
    from mcproxy.identity.own_grants import MastersGrant
    from mcproxy.identity.upstream_identity_headers import UpstreamIdentityHeaders
    from mcproxy.kube.requestinfo import RequestInfo


class SessionRegistry(Protocol):
    """Keeps the watches, followed logs and tunnels whose duration is limited (`proxy.sessions`)."""

    def begin(self, request: Any) -> None:
        """The response to a long-running request has begun."""

    def end(self, request: Any) -> None:
        """A registered request has ended."""

    def server_of(self, request: Any) -> VirtualServer | None:
        """Return the server in force for a request; None if the server was removed."""


class ReviewAPIHandler(Protocol):
    """Answers reviews that API servers create at a server (`proxy.review_api`)."""

    def kind_of(self, info: RequestInfo) -> Any:
        """Return the kind of review that a request creates; None if only the backend can answer it."""

    def serve(
        self, request: Any, kind: Any, info: RequestInfo, plan: Plan, target: bytes
    ) -> Coroutine[Deferred[Any], Any, None]:
        """Answer a review on a server with one cluster. Raises StatusError."""

    def serve_aggregate(self, admitted: Any, kind: Any) -> Coroutine[Deferred[Any], Any, None]:
        """Answer a review on a server with an aggregate. Raises StatusError."""


class TunnelAcceptor(Protocol):
    """Accepts tunnels of clusters that dial out (`proxy.tunnel_requests`)."""

    @property
    def names(self) -> Collection[str]:
        """The tunnels that edges may open at the server."""
        ...

    def serve(self, request: Any, target: bytes) -> Coroutine[Deferred[Any], Any, None]:
        """Answer a request. Raises StatusError."""


class OwnObjects(Protocol):
    """Answers requests for a server's own objects, which replace its backend's (`proxy.api_service_objects`,
    `proxy.extension_authentication`).
    """

    home: str
    """The cluster of an aggregate that gets requests for the backend's objects; "": the whole aggregate."""

    def takes(self, info: RequestInfo, head: RequestHead) -> bool:
        """Whether this handler answers a request."""

    def serve(self, request: Any, info: RequestInfo, target: bytes, handle: Any) -> Coroutine[Deferred[Any], Any, None]:
        """Answer a request, or begin to; `handle` is as of `proxy.subrequest.fetch`. Raises StatusError."""


class AggregateBackend:
    """The aggregate behind a server."""

    __slots__ = ("clock", "clusters", "handler", "members", "name", "read_authorizer", "read_impersonation")

    def __init__(
        self,
        config: model.AggregateBackendConfig,
        clusters: Mapping[str, Cluster],
        *,
        handler: AggregateHandler,
        clock: IReactorTime,
        read_authorizer: Authorizer | None,
        read_impersonation: ImpersonationAuthorizer,
    ) -> None:
        """`clusters` has every cluster of the configuration, by name.

        For read requests, the last two replace the server's own authorizers: they also use the last decisions of
        unavailable members.
        """
        self.name = config.aggregate
        self.members = config.members  # their names, in the aggregate's order
        names = (*config.members, *([config.primary] if config.primary is not None else ()))
        #: all clusters that can get requests, including the primary, in that order
        self.clusters = {name: clusters[name] for name in dict.fromkeys(names)}
        self.handler = handler
        self.read_authorizer = read_authorizer
        self.read_impersonation = read_impersonation
        self.clock = clock


class VirtualServer:
    """One virtual API server: its authenticator, authorizer and policies, and the clusters behind it."""

    __slots__ = (
        "access_log",
        "aggregate",
        "api_services",
        "authenticates",
        "authenticator",
        "authorizer",
        "availability",
        "clusters",
        "cors",
        "dispatch",
        "documents",
        "impersonation",
        "masters_grants",
        "name",
        "only_cluster",
        "own_objects",
        "review_api",
        "root_probes",
        "session_registry",
        "sessions",
        "token_decides",
        "tunnels",
        "upstream_headers",
    )

    def __init__(
        self,
        config: model.Server,
        clusters: Mapping[str, Cluster],
        *,
        authenticator: Authenticator | NoAuthentication,
        authorizer: Authorizer | None,
        impersonation: ImpersonationAuthorizer,
        dispatch: Dispatch,
        upstream_headers: Mapping[str, UpstreamIdentityHeaders],
        session_registry: SessionRegistry | None = None,
        aggregate: AggregateBackend | None = None,
        availability: Availability | None = None,
        masters_grants: Mapping[str, MastersGrant] = MappingProxyType({}),
        review_api: ReviewAPIHandler | None = None,
        own_objects: Sequence[OwnObjects] = (),
        documents: Mapping[str, AggregateBackend] = MappingProxyType({}),
        tunnels: TunnelAcceptor | None = None,
    ) -> None:
        """`clusters` and `upstream_headers` are by name and have every cluster of the configuration.

        `aggregate` is set for a server with such a backend. `availability` has the conditions of API services.
        `masters_grants` has, by authorizing cluster, the decisions whether API services get the group system:masters.
        `review_api` answers API servers' reviews, `own_objects` answer requests for the server's own objects.
        `documents` answer requests for the merged documents of one-cluster backends with API services, by the cluster
        of the request. `tunnels` is set for a server that accepts tunnels.
        """
        self.name = config.name
        self.tunnels = tunnels
        self.review_api = review_api
        self.sessions = config.sessions
        self.session_registry = session_registry
        self.access_log = config.access_log
        self.authenticator = authenticator
        self.cors = None if config.cors is None else CORSPolicy(config.cors)
        self.authenticates = config.authentication is not None
        self.authorizer = authorizer
        self.dispatch = dispatch
        self.impersonation = impersonation
        self.masters_grants = masters_grants
        self.upstream_headers = upstream_headers
        backend = config.backend
        self.only_cluster = clusters[backend.cluster] if isinstance(backend, model.ClusterBackend) else None
        names = () if self.only_cluster is not None else config.clusters
        self.clusters = {name.encode(): clusters[name] for name in names}
        self.aggregate = aggregate
        self.availability = availability
        #: answers probes at the root, if the proxy answers them itself
        self.root_probes: RootProbes | None = None
        if config.api_services or isinstance(backend, model.ClustersBackend):
            self.root_probes = RootProbes(config, clusters, availability)
        self.documents = documents
        #: the API services with their clusters; None without API services
        self.api_services: Registry[tuple[Cluster, model.APIService]] | None = None
        if config.api_services:
            self.api_services = Registry((each, (clusters[each.cluster], each)) for each in config.api_services)
        self.own_objects = tuple(own_objects)
        #: whether a member sees the bearer token of a request to the aggregate (`filters.authenticate`)
        self.token_decides = aggregate is not None and any(
            cluster.config.identity is model.UpstreamIdentity.PASSTHROUGH for cluster in aggregate.clusters.values()
        )

    def answers_itself(self, info: RequestInfo, head: RequestHead) -> OwnObjects | None:
        """Return the handler of a request for the server's own objects, None for other requests."""
        for objects in self.own_objects:
            if objects.takes(info, head):
                return objects
        return None

    def destination(self, target: bytes) -> tuple[Cluster | None, bytes, model.APIService | None]:
        """Return the cluster that `target` names (None: the server's aggregate or tunnels), the target for this
        cluster, and the API service.

        An API service takes precedence over the backend. Its target keeps only the part of the query that Go parses,
        since API servers can parse queries differently. Raises StatusError (404) if the server has no such
        cluster.
        """
        services = self.api_services
        found = None if services is None else services.find(target)
        if found is not None:
            return found[0], without_dropped_pairs(target), found[1]
        if self.only_cluster is not None:
            return self.only_cluster, target, None
        if self.tunnels is not None:
            return None, target, None
        if self.aggregate is not None:
            name, below = cluster_path.split_aggregate(target, self.clusters)
            if name:
                return self.clusters[name], below, None
            if services is not None and below is not target:  # the target had Karmada's prefix for the whole aggregate
                found = services.find(below)
                if found is not None:
                    return found[0], without_dropped_pairs(below), found[1]
            return None, below, None
        name, below = cluster_path.split(target, self.name, self.clusters)
        return self.clusters[name], below, None


class Routes:
    """The virtual servers of one listener."""

    __slots__ = ("_default", "_names")

    def __init__(self, servers: Iterable[tuple[model.Server, VirtualServer]], *, dials: bool = False) -> None:
        """`dials`: for a listener that dials hubs, which ask for no server name: its only server is the default."""
        servers = tuple(servers)
        self._names = NameTable((name, live) for config, live in servers for name in config.server_names)
        self._default = next((live for config, live in servers if config.default), None)
        if dials and len(servers) == 1:
            self._default = servers[0][1]

    def names(self, host: bytes) -> bool:
        """Whether a Host header names a server, so that the default server is not used."""
        return self._names.find(host_name(host)) is not None

    def find(self, server_name: str | None, host: bytes) -> VirtualServer:
        """Return the server for a TLS server name and a Host header (both in lower case).

        The TLS name decides, else Host, else the default server. Raises StatusError: 421 (RFC 9110 15.5.20) if both
        name different servers; 404 if neither names a server and there is no default.
        """
        by_tls = self._names.find(server_name) if server_name else None
        by_host = self._names.find(host_name(host)) if host else None
        if by_tls is not None and by_host is not None and by_tls is not by_host:
            raise StatusError(
                421,
                "the Host header and the TLS server name are those of different servers; open a connection for each",
                reason="MisdirectedRequest",
            )
        server = by_tls or by_host or self._default
        if server is None:
            raise StatusError(
                404,
                "no server here has this name; the configuration's serverNames say which there are",
                details={},
            )
        return server


def host_name(host: bytes) -> str:
    """Return the name in a Host header, without port, final dot, and the brackets of an IPv6 address."""
    name = host.decode("latin-1")
    if name.startswith("["):
        return name[1 : name.find("]")]
    return name.partition(":")[0].rstrip(".")
