"""The section `servers`: virtual API servers, with backends, CORS, sessions and API services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mcproxy.config.model.dispatch import ClusterBackend, Policy
from mcproxy.config.model.keys import NOT_A_KEY, ClusterName, Key, Name, Seconds, ServerName, within


@dataclass(frozen=True, slots=True)
class ClustersBackend:
    """Several clusters without an API at the root, each under /clusters/NAME/… (`"*"` is already resolved)."""

    clusters: tuple[str, ...]
    """Names of clusters, each served under /clusters/NAME/…; "*" is all of the file."""


@dataclass(frozen=True, slots=True)
class AggregateBackendConfig:
    """Several clusters as one API at the root, and each member's own under /clusters/NAME/…."""

    aggregate: Name
    """The name of an aggregate: its members as one API, and also each one under /clusters/NAME/…."""
    members: Annotated[tuple[str, ...], NOT_A_KEY]  # in the order of the aggregate
    primary: Annotated[str | None, NOT_A_KEY] = None

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters to which requests can go: the members, then the primary if it is not a member."""
        return tuple(dict.fromkeys((*self.members, *([self.primary] if self.primary is not None else ()))))


@dataclass(frozen=True, slots=True)
class TunnelsBackend:
    """Accepts tunnels below /mcproxy.io/v1/tunnels/ (`"*"` is already resolved)."""

    tunnels: tuple[str, ...]
    """Names of tunnels that edges may open at this server; "*" is all of the file."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """No cluster gets a request from this server."""
        return ()


Backend = ClusterBackend | ClustersBackend | AggregateBackendConfig | TunnelsBackend


@dataclass(frozen=True, slots=True)
class CORS:
    allowed_origins: tuple[str, ...]  # lower case, no default port
    """Origins as browsers send them, scheme://host or scheme://host:port; the first label of the host may be a wildcard
    (https://*.example.com), which stands for exactly one label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsConfig:
    """How long watches and tunnels may last."""

    max_age: Seconds = 0.0
    """They end after this time, minus a random part of up to 10 %; 0 is no limit."""
    end_with_credential: bool = False
    """They end, within about 10 s, when the certificate or token that opened them expires or is no longer accepted
    after a reload. A token that a cluster or webhook reviews is reviewed again when the cached answer has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class APIService:
    """A group-version that an extension API server serves, as with an APIService of kube-aggregator.

    The default priorities are those of the APIServices of CustomResourceDefinitions (kube-apiserver,
    `pkg/controlplane/controller/crdregistration`).
    """

    DEFAULT_GROUP_PRIORITY: ClassVar[int] = 1000
    DEFAULT_VERSION_PRIORITY: ClassVar[int] = 100

    group: str
    """The API group. The core group has no aggregation."""
    version: str
    """The version of the group."""
    cluster: ClusterName
    """The entry of clusters that is the API server. It usually has identity: RequestHeader, with frontProxy."""
    group_priority_minimum: Annotated[int, within(1, 20000)] = DEFAULT_GROUP_PRIORITY
    """The place of the group among the groups in discovery: higher ones first, then by name. Of several versions of a
    group the highest number counts. The default is that of groups of CustomResourceDefinitions; groups of Kubernetes
    itself have 16600 and more."""
    version_priority: Annotated[int, within(1, 1000)] = DEFAULT_VERSION_PRIORITY
    """The place of the version within its group: higher ones first, then in Kubernetes' order of versions (v2, v1,
    v1beta2, v1beta1, v1alpha1, others by name). The first is the group's preferred version."""
    #: Set by the loader: the cluster whose accounts are valid at the API server, and that reviews rights there. An
    #: extension API server serves no reviews, as with kube-aggregator, so this is the backend's cluster (of an
    #: aggregate the primary, else the first member). An API server with `Impersonate` is itself a separate cluster.
    authority: Annotated[str, NOT_A_KEY] = ""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def object_name(self) -> str:
        """The name of its APIService object."""
        return f"{self.version}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: Name
    """The server's name in logs."""
    #: Filled in by the loader if the file omits them.
    listeners: Annotated[tuple[Name, ...], Key(omit_empty=True, required=False)]
    """Names of the listeners that serve it. Left out: all that serve API and do not dial; a listener with dial has only
    servers that name it."""
    server_names: tuple[ServerName, ...] = ()  # lower case
    """Host names of the server: exact ones, or wildcards of one label (*.example.com)."""
    default: bool = False
    """Also take requests that match no other server of the listener."""
    backend: Backend
    """What is served: a cluster, several under /clusters/NAME/…, an aggregate, or tunnels of clusters that dial out."""
    authentication: Name | None = None  # None: no authentication
    """The name of the set of authenticators. none: no authentication; every client that can connect is accepted as
    system:anonymous. Required beyond loopback and unix sockets."""
    authorization: Name | None = None
    """The name of the authorizer. Left out: the clusters alone decide. Required beyond loopback and unix sockets,
    besides authentication, for clusters with identity Proxy."""
    access_log: bool = True
    """Whether its requests are in the access log."""
    cors: CORS | None = None
    """Web pages of other origins that may use the server from a browser (CORS). Left out: none."""
    sessions: SessionsConfig = SessionsConfig()
    """How long watches and tunnels (exec, attach, portforward, followed logs) may last."""
    dispatch: tuple[Policy, ...] | None = None
    """Policies, in order: the first with a rule that matches a request applies, and only that one; a request that none
    matches is refused with 403. Left out: everything passes."""
    api_services: tuple[APIService, ...] = ()  # each group-version once
    """API servers that each serve a group-version in addition to the backend (as behind kube-aggregator): requests
    below /apis/GROUP/VERSION go to the owner's cluster entry, even if the backend serves them too. For a backend of one
    cluster, or an aggregate."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the backend's clusters; policies and API services can have others."""
        return (self.backend.cluster,) if isinstance(self.backend, ClusterBackend) else self.backend.clusters

    @property
    def home(self) -> str:
        """The name of the cluster whose API the backend is: the primary of an aggregate, else its first member.

        "" for several clusters, which have no API at the root.
        """
        backend = self.backend
        if isinstance(backend, AggregateBackendConfig):
            return backend.primary or next(iter(backend.members), "")
        return backend.cluster if isinstance(backend, ClusterBackend) else ""

    @property
    def merges_documents(self) -> bool:
        """Whether the process with the caches merges discovery and OpenAPI of several API servers for this server."""
        return isinstance(self.backend, AggregateBackendConfig) or bool(self.api_services)

    @property
    def document_backends(self) -> tuple[str, ...]:
        """The clusters that can get requests for merged documents, for a server with one cluster and API services."""
        if not self.api_services or not isinstance(self.backend, ClusterBackend):
            return ()
        policies = (policy.backend.cluster for policy in self.dispatch or () if policy.backend is not None)
        return tuple(dict.fromkeys((self.backend.cluster, *policies)))

    @property
    def reached_clusters(self) -> tuple[str, ...]:
        """The names of all clusters to which requests can go: of the backend, policies and API services."""
        policies = (policy.backend.cluster for policy in self.dispatch or () if policy.backend is not None)
        services = (service.cluster for service in self.api_services)
        return tuple(dict.fromkeys((*self.clusters, *policies, *services)))

    @property
    def reviewing_clusters(self) -> tuple[str, ...]:
        """The names of the clusters that review requests if the authorizer names no cluster."""
        policies = (policy.backend.cluster for policy in self.dispatch or () if policy.backend is not None)
        services = (service.authority for service in self.api_services)
        return tuple(dict.fromkeys((*self.clusters, *policies, *services)))
