"""The sections `serviceExports` and `serviceDiscovery`: services of some clusters that other clusters import."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from mcproxy.config.model.keys import IPNetwork, Key, Seconds

DERIVED_PREFIX = "derived-"
"""The prefix of the name of an imported Service; the name of the exported one follows."""
LEASE_NAMESPACE, LEASE_NAME = "kube-system", "mcproxy-services"
"""Where the Lease is, unless `lease` says so."""

MAX_SERVICE_NAMESPACES = 10
"""Of one cluster. Where exports and ingresses name more, the objects of all namespaces are watched at once, which takes
the right to read them all: a watch for each would cost every cluster hundreds of them."""


class ExportAs(enum.StrEnum):
    """Under which name importing clusters have a Service."""

    DERIVED = "Derived"
    """``derived-NAME``."""
    SAME_NAME = "SameName"
    """The exported one's: one that is there is used, and its own endpoints stay (Karmada's MultiClusterService)."""


class Unreachable(enum.StrEnum):
    """What becomes of the imports of a source that cannot be reached."""

    KEEP = "Keep"
    REMOVE = "Remove"


class ExportType(enum.StrEnum):
    """The type of Service that is created in an importing cluster."""

    CLUSTER_SET_IP = "ClusterSetIP"
    HEADLESS = "Headless"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    """A port of an imported Service, with the fields of a Service's ports."""

    name: str = ""  # "": the only one
    port: int
    target_port: int | str | None = None  # of the pods; None: the port of the endpoints that has this name
    protocol: str = "TCP"  # TCP | UDP | SCTP
    app_protocol: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseName:
    """The Lease, in each cluster that is written to, by which one of several daemons writes."""

    namespace: str = LEASE_NAMESPACE
    name: str = LEASE_NAME

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.name}"


class ExportBounds(NamedTuple):
    """How much of one service of one source is exported; what goes beyond is left out, and reported."""

    endpoints: int = 10_000
    slices: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExport:
    name: str
    namespace: str
    service: str
    from_clusters: Annotated[tuple[str, ...], Key("from")]
    to: tuple[str, ...]  # one that is in both has its own endpoints behind the derived Service too
    made_as: Annotated[ExportAs, Key("as")] = ExportAs.DERIVED
    type: ExportType | None = None  # None: as the source is
    ports: tuple[ServicePort, ...] = ()  # empty: those of the source
    #: What addresses a source may name; empty: all but loopback, link-local and unspecified ones.
    allowed_cidrs: Annotated[tuple[IPNetwork, ...], Key("allowedCIDRs")] = ()
    unreachable: Unreachable = Unreachable.KEEP
    after: Seconds = 0.0  # for which a source is not reached until `unreachable: Remove` removes its imports
    create_namespaces: bool = False
    lease: LeaseName = LeaseName()
    max_endpoints: int = ExportBounds().endpoints
    max_slices: int = ExportBounds().slices

    @property
    def bounds(self) -> ExportBounds:
        """How much of each source is exported."""
        return ExportBounds(self.max_endpoints, self.max_slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDiscovery:
    """Whether multicluster.x-k8s.io ServiceExports and ServiceImports in clusters are followed (KEP-1645)."""

    enabled: bool = False
    #: Resolved where the file leaves them out, if it is enabled.
    clusters: Annotated[tuple[str, ...], Key(omit_empty=True)] = ()
    allowed_cidrs: Annotated[tuple[IPNetwork, ...], Key("allowedCIDRs")] = ()  # as in `ServiceExport`


def lease_of(exports: Iterable[ServiceExport], cluster: str) -> LeaseName:
    """Return the Lease of a cluster that is written to; all entries that write there name the same one."""
    return next((each.lease for each in exports if cluster in each.to), LeaseName())
