"""The section `servers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mcproxy.config.model.dispatch import ClusterBackend, Policy
from mcproxy.config.model.keys import NOT_A_KEY, Key, Seconds


@dataclass(frozen=True, slots=True)
class ClustersBackend:
    """No API at the root; each cluster under /clusters/NAME/… (`"*"` is already resolved)."""

    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AggregateBackend:
    """Several clusters as one API at the root, and each member's own under /clusters/NAME/…."""

    aggregate: str
    members: Annotated[tuple[str, ...], NOT_A_KEY]  # in the order of the aggregate
    primary: Annotated[str | None, NOT_A_KEY] = None

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that requests can be for: the members, and the primary last where it is none of them."""
        return tuple(dict.fromkeys((*self.members, *([self.primary] if self.primary is not None else ()))))


Backend = ClusterBackend | ClustersBackend | AggregateBackend


@dataclass(frozen=True, slots=True)
class CORS:
    allowed_origins: tuple[str, ...]  # scheme://host[:port], lower case, no default port; the first label may be "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How long watches and tunnels may last."""

    max_age: Seconds = 0.0  # 0: no limit
    end_with_credential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class APIService:
    """A group-version that an extension API server serves, as with an APIService of kube-aggregator.

    The default priorities are those of the APIServices of CustomResourceDefinitions (kube-apiserver,
    `pkg/controlplane/controller/crdregistration`).
    """

    DEFAULT_GROUP_PRIORITY: ClassVar[int] = 1000
    DEFAULT_VERSION_PRIORITY: ClassVar[int] = 100

    group: str  # never "": the core group has no aggregation
    version: str
    cluster: str  # the API server
    group_priority_minimum: int = DEFAULT_GROUP_PRIORITY  # 1 to 20000; a group has the highest of its versions
    version_priority: int = DEFAULT_VERSION_PRIORITY  # 1 to 1000
    #: Resolved: the cluster whose accounts are valid at the API server, and that reviews what users may do there. An
    #: API server extends the backend's API, as with kube-aggregator, and serves no reviews: it is the backend's cluster
    #: then (of an aggregate the primary, else the first member). One with `Impersonate` is a separate cluster.
    authority: Annotated[str, NOT_A_KEY] = ""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def object_name(self) -> str:
        """The name that its APIService object has."""
        return f"{self.version}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    #: Names; already resolved where the file leaves them out.
    listeners: Annotated[tuple[str, ...], Key(omit_empty=True)]
    server_names: tuple[str, ...] = ()  # lower case; exact or one-label wildcard
    default: bool = False
    backend: Backend
    authentication: str | None = None  # the name of a set; None: no authentication
    authorization: str | None = None  # None: the clusters themselves decide
    access_log: bool = True
    cors: CORS | None = None
    sessions: Sessions = Sessions()
    dispatch: tuple[Policy, ...] | None = None  # None: everything passes
    api_services: tuple[APIService, ...] = ()  # in the order of the file; each group-version once

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters of the backend; policies and API services may have others."""
        return (self.backend.cluster,) if isinstance(self.backend, ClusterBackend) else self.backend.clusters

    @property
    def home(self) -> str:
        """The name of the cluster whose API the backend is: the primary of an aggregate, else its first member.

        "" for several clusters, which have no API at the root.
        """
        backend = self.backend
        if isinstance(backend, AggregateBackend):
            return backend.primary or next(iter(backend.members), "")
        return backend.cluster if isinstance(backend, ClusterBackend) else ""

    @property
    def merges_documents(self) -> bool:
        """Whether the process with the caches merges discovery and OpenAPI of several API servers for it."""
        return isinstance(self.backend, AggregateBackend) or bool(self.api_services)

    @property
    def document_backends(self) -> tuple[str, ...]:
        """The clusters that may get requests for merged documents, for a server with one cluster and API services."""
        if not self.api_services or not isinstance(self.backend, ClusterBackend):
            return ()
        policies = (policy.backend.cluster for policy in self.dispatch or () if policy.backend is not None)
        return tuple(dict.fromkeys((self.backend.cluster, *policies)))

    @property
    def reached_clusters(self) -> tuple[str, ...]:
        """The names of all clusters that requests can go to: of the backend, of policies, of API services."""
        policies = (policy.backend.cluster for policy in self.dispatch or () if policy.backend is not None)
        services = (service.cluster for service in self.api_services)
        return tuple(dict.fromkeys((*self.clusters, *policies, *services)))

    @property
    def reviewing_clusters(self) -> tuple[str, ...]:
        """The names of the clusters that review requests where the authorizer names none."""
        policies = (policy.backend.cluster for policy in self.dispatch or () if policy.backend is not None)
        services = (service.authority for service in self.api_services)
        return tuple(dict.fromkeys((*self.clusters, *policies, *services)))
