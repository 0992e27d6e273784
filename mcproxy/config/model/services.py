"""The sections `serviceExports` and `serviceDiscovery`: services of some clusters that other clusters import."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from mcproxy.config.model.keys import ClusterName, IPNetwork, Key, Name, SchemaDefinition, Seconds, one_of, within

DERIVED_PREFIX = "derived-"
"""The prefix of the name of an imported Service, before the name of the exported one."""
LEASE_NAMESPACE, LEASE_NAME = "kube-system", "mcproxy-services"
"""The default namespace and name of the Lease, if `lease` omits them."""

MAX_SERVICE_NAMESPACES = 10
"""Limit of the namespaces of a cluster that are watched separately. If exports and ingresses name more, one watch
covers all namespaces, which needs the right to read them all: separate watches would cost every cluster hundreds."""


class ExportAs(enum.StrEnum):
    """The name of a Service in importing clusters."""

    DERIVED = "Derived"
    """``derived-NAME``."""
    SAME_NAME = "SameName"
    """The exported Service's: an existing Service is used, and keeps its own endpoints (Karmada's
    MultiClusterService)."""


class Unreachable(enum.StrEnum):
    """What happens to the imports of a source that cannot be reached."""

    KEEP = "Keep"
    REMOVE = "Remove"


class ExportType(enum.StrEnum):
    """The type of Service that is created in an importing cluster."""

    CLUSTER_SET_IP = "ClusterSetIP"
    HEADLESS = "Headless"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    """A port of an imported Service, with the fields of a Service's ports."""

    name: str = ""
    """The name of the port, which is that of a port of the endpoints. Required where there are several."""
    port: Annotated[int, within(1, 65535)]
    """The port of the derived Service."""
    target_port: Annotated[int | str | None, SchemaDefinition("servicePort")] = None
    """The port of the pods: its number, or its name. Left out: the port of the endpoints with this name."""
    protocol: Annotated[str, one_of("TCP", "UDP", "SCTP")] = "TCP"
    """The protocol."""
    app_protocol: str | None = None
    """The application protocol, such as kubernetes.io/h2c. Left out: that of the exported Service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseName:
    """The Lease, in each cluster that is written to, by which only one of several daemons writes."""

    namespace: Annotated[str, SchemaDefinition("namespace")] = LEASE_NAMESPACE
    """Its namespace, which must exist."""
    name: Annotated[str, SchemaDefinition("leaseName")] = LEASE_NAME
    """The name of the Lease."""

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.name}"


class ExportBounds(NamedTuple):
    """Limits of the exported part of a service of one source. The excess is omitted and reported."""

    endpoints: int = 10_000
    slices: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExport:
    name: Name
    """The name of the export, in status and messages."""
    namespace: Annotated[str, SchemaDefinition("namespace")]
    """The namespace of the service, which is the same in all clusters; it must exist where the service is imported,
    unless `createNamespaces` is true."""
    service: Annotated[str, SchemaDefinition("serviceName")]
    """The name of the Service. Importing clusters get it under the name that `as` says."""
    from_clusters: Annotated[tuple[ClusterName, ...], Key("from")]
    """The clusters whose endpoints are exported."""
    to: tuple[ClusterName, ...]
    """The clusters that import them. With `as: Derived`, a cluster that is also in from has its own endpoints behind
    the derived Service as well."""
    made_as: Annotated[ExportAs, Key("as")] = ExportAs.DERIVED
    """Derived: importing clusters get the Service derived-NAME, without a selector. A name beyond 63 characters is cut
    and ends in 10 characters of a hash. SameName: the Service NAME; an existing one is used as it is, with its own
    endpoints and the imported ones; otherwise it is created without a selector."""
    type: ExportType | None = None
    """ClusterSetIP: the derived Service has an address of its own in each importing cluster. Headless: its name
    resolves to the addresses of the pods. Left out: as the exported Service."""
    ports: tuple[ServicePort, ...] = ()
    """The ports of the derived Service. Empty: those of the exported one."""
    allowed_cidrs: Annotated[tuple[IPNetwork, ...], Key("allowedCIDRs")] = ()
    """The networks in which endpoints may be, whatever a cluster in from says: its pod networks. Endpoints elsewhere
    are not exported. Empty: all addresses but loopback, link-local and unspecified ones."""
    unreachable: Unreachable = Unreachable.KEEP
    """What happens to the imports of a source that cannot be reached. Keep: they stay as they are. Remove: they go when
    it has not been reached for `after`, and come back with it."""
    after: Seconds = 0.0
    """How long a source must be out of reach before `unreachable: Remove` removes its imports; required with it."""
    create_namespaces: bool = False
    """Whether the namespace is created in a cluster of `to` that lacks it. It is never deleted. Otherwise services are
    imported there once the namespace exists."""
    lease: LeaseName = LeaseName()
    """The Lease in each cluster of `to` by which only one of several daemons writes to it. All entries that write to a
    cluster name the same one."""
    max_endpoints: Annotated[int, within(1, 100000)] = ExportBounds().endpoints
    """How many endpoints of each source are exported; an endpoint counts as often as it has addresses. Excess slices
    are left out whole, in the order of their names, and reported."""
    max_slices: Annotated[int, within(1, 1000)] = ExportBounds().slices
    """How many EndpointSlices of each source are exported. One of more than 100 endpoints becomes several in importing
    clusters."""

    @property
    def bounds(self) -> ExportBounds:
        """Limits of the exported part of each source."""
        return ExportBounds(self.max_endpoints, self.max_slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDiscovery:
    """Whether multicluster.x-k8s.io ServiceExports and ServiceImports in clusters are watched (KEP-1645)."""

    enabled: bool = False
    """Whether these objects are watched."""
    #: If enabled, filled in by the loader if the file omits them.
    clusters: Annotated[tuple[ClusterName, ...], Key(omit_empty=True)] = ()
    """The clusters that take part: one cluster set, in which a namespace means the same everywhere. Left out: all
    clusters of the file except those that only serve API services."""
    allowed_cidrs: Annotated[tuple[IPNetwork, ...], Key("allowedCIDRs")] = ()
    """The networks in which endpoints of exported services may be, whatever a cluster says: its pod networks. Empty:
    all addresses but loopback, link-local and unspecified ones."""


def lease_of(exports: Iterable[ServiceExport], cluster: str) -> LeaseName:
    """Return the Lease in an importing cluster; all entries that write there name the same Lease."""
    return next((each.lease for each in exports if cluster in each.to), LeaseName())
