"""The inputs of the desired state (configuration, views of clusters), and the state itself. Pure values."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mcproxy.config import model
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey

MAX_EXPORTS = 2000
"""Maximum of services that one cluster can export by ServiceExports (`controller.object_index`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The known state of one service in one cluster. Objects are JSON as received from the cluster.

    An unreachable cluster keeps its last known view. `known` is False for a cluster not read since the start.
    """

    known: bool = True
    """Whether all other fields have been read (or restored from a file) once; if False, no conclusion is drawn."""
    unreachable_for: float = 0.0
    """Seconds since the view was last up to date; 0: the cluster is followed."""
    namespace_exists: bool | None = None
    """None: the namespaces are not followed, so only an attempt to write shows whether the namespace exists."""
    cluster_id: str = ""
    """The id of the cluster in its clusterset (`controller.cluster_views`); "": its configured name is its id."""
    families_refused: bool = False
    """Whether the cluster has refused the Service of a ServiceImport because the cluster lacks its IP families."""
    multicluster_version: str | None = None
    """The version in which the cluster serves ServiceExports and ServiceImports; None if it does not serve them."""
    service: bytes | None = None
    slices: tuple[bytes, ...] = ()
    """EndpointSlices with the label kubernetes.io/service-name of the service, in any order."""
    export: bytes | None = None
    """The ServiceExport with the service's name."""
    export_admitted: bool = True
    """Whether the ServiceExport is within the quota of the cluster (`controller.object_index`)."""
    derived: Mapping[ObjectKey, bytes] = field(default_factory=dict)
    """The existing objects with names of `derived_names`, managed or foreign, and all managed objects derived from
    the service (`object_keys.source_of`)."""


class ProblemKind(enum.StrEnum):
    """Why an export is not carried out as specified."""

    NO_NAMESPACE = "NoNamespace"
    NO_SERVICE = "NoService"
    INVALID_SERVICE_TYPE = "InvalidServiceType"
    IMPORTED_SERVICE = "ImportedService"
    UNREADABLE = "Unreadable"
    FOREIGN_OBJECT = "ForeignObject"
    ADDRESSES_REFUSED = "AddressesRefused"
    ADDRESS_TYPE = "AddressType"
    TOO_MANY = "TooMany"
    CONFLICT = "Conflict"
    EXPORTED_TWICE = "ExportedTwice"
    NAME_TAKEN = "NameTaken"
    NO_PORT = "NoPort"
    UNREACHABLE = "Unreachable"


class ExportProblem(NamedTuple):
    """A problem of an export, shown in the log, the status document and the status page. Bounded text."""

    key: ServiceKey
    kind: ProblemKind
    cluster: str
    """The cluster with the objects at fault: a source, or an importing cluster with conflicting objects."""
    export: str
    """The name of the entry of `serviceExports`; "" for ServiceExports."""
    message: str
    """The problem and, if known, the remedy, in one line."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired objects of all clusters. Equal inputs give equal values, whatever their order."""

    objects: Mapping[ObjectKey, dict[str, Any]] = field(default_factory=dict)
    """Apply configurations, without status; never changed in place, because clusters share parts of them."""
    statuses: Mapping[ObjectKey, dict[str, Any]] = field(default_factory=dict)
    """`status` of the ServiceImports in `objects`, and of the users' ServiceExports. Conditions have no
    lastTransitionTime; `conflict_resolution.with_transition_times` adds it."""
    kept: frozenset[ObjectKey] = frozenset()
    """Managed objects that are neither written nor deleted, because the state of their source is unknown."""
    problems: tuple[ExportProblem, ...] = ()
    owners: Mapping[ObjectKey, ObjectKey] = field(default_factory=dict)
    """The owners (a Service or a ServiceImport of the same cluster) of `objects`."""


class Exports:
    """The exports and the discovery of the configuration, by service. Immutable."""

    __slots__ = ("_by_key", "clusters", "discovery")

    def __init__(
        self,
        exports: tuple[model.ServiceExport, ...],
        discovery: model.ServiceDiscovery,
        clusters: tuple[str, ...],
    ) -> None:
        """`clusters`: the names of all configured clusters, needed to make unambiguous object names."""
        self.discovery = discovery
        self.clusters = frozenset(clusters)
        by_key: dict[ServiceKey, list[model.ServiceExport]] = {}
        for export in exports:
            by_key.setdefault(ServiceKey(export.namespace, export.service), []).append(export)
        self._by_key = {key: tuple(found) for key, found in by_key.items()}

    def of(self, key: ServiceKey) -> tuple[model.ServiceExport, ...]:
        """Return the entries of `serviceExports` for a service, in the order of the configuration."""
        return self._by_key.get(key, ())

    def __iter__(self) -> Iterator[ServiceKey]:
        return iter(self._by_key)
