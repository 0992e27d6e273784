"""The inputs of the desired state (configuration, views of clusters), and the state itself. Pure values."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mcproxy.config import model
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey

MAX_EXPORTS = 2000
"""Services that one cluster may export by ServiceExports (`controller.object_index`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All that is known of one cluster about one service. Objects are JSON, as the cluster has sent them.

    A cluster that is away keeps its last known view; one that was never read since the start has `known` False.
    """

    known: bool = True
    """Whether everything below has been read (or restored from a file) once; else nothing is concluded from it."""
    unreachable_for: float = 0.0
    """Seconds for which what is below, or nothing, has been the last that was known; 0: it is followed."""
    namespace_exists: bool | None = None
    """None: not followed, so that an attempt to write tells."""
    cluster_id: str = ""
    """The id of the cluster in its clusterset (`controller.cluster_views`); "": its name in the configuration."""
    families_refused: bool = False
    """Whether the cluster has refused the Service of a ServiceImport, since it has none of its IP families."""
    multicluster_version: str | None = None
    """The version in which the cluster serves ServiceExports and ServiceImports; None: it does not."""
    service: bytes | None = None
    slices: tuple[bytes, ...] = ()
    """EndpointSlices with the label kubernetes.io/service-name of the service, in any order."""
    export: bytes | None = None
    """The ServiceExport with the service's name."""
    export_admitted: bool = True
    """Whether the ServiceExport is among those of the cluster that count (`controller.object_index`)."""
    derived: Mapping[ObjectKey, bytes] = field(default_factory=dict)
    """What of `derived_names` the cluster has, whoever made it, and all objects of ours that are derived from the
    service (`object_keys.source_of`)."""


class ProblemKind(enum.StrEnum):
    """Why something is not as an export says."""

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
    """Something that an operator should know about: one line of log, status and status page. Bounded text."""

    key: ServiceKey
    kind: ProblemKind
    cluster: str
    """Where it is: a source for what it sends, an importing cluster for what is in the way there."""
    export: str
    """The name of the entry of `serviceExports`; "" for what was discovered."""
    message: str
    """What is wrong and, where there is something, what to do, in one line."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The objects that clusters have to have. Equal inputs give equal values, whatever the order within them."""

    objects: Mapping[ObjectKey, dict[str, Any]] = field(default_factory=dict)
    """Apply configurations, without status; never changed in place (clusters share parts of them)."""
    statuses: Mapping[ObjectKey, dict[str, Any]] = field(default_factory=dict)
    """`status` of ServiceImports that are in `objects`, and of ServiceExports, which are their users'. Conditions are
    without lastTransitionTime: `conflict_resolution.with_transition_times` adds it."""
    kept: frozenset[ObjectKey] = frozenset()
    """Objects of ours that stay as they are, neither written nor deleted: their source is not known."""
    problems: tuple[ExportProblem, ...] = ()
    owners: Mapping[ObjectKey, ObjectKey] = field(default_factory=dict)
    """Of what is in `objects`: with which object of the cluster it goes (a Service or a ServiceImport)."""


class Exports:
    """The exports and the discovery of the configuration, by service. Immutable."""

    __slots__ = ("_by_key", "clusters", "discovery")

    def __init__(
        self,
        exports: tuple[model.ServiceExport, ...],
        discovery: model.ServiceDiscovery,
        clusters: tuple[str, ...],
    ) -> None:
        """`clusters`: the names of all clusters of the configuration, by which names of objects are told apart."""
        self.discovery = discovery
        self.clusters = frozenset(clusters)
        by_key: dict[ServiceKey, list[model.ServiceExport]] = {}
        for export in exports:
            by_key.setdefault(ServiceKey(export.namespace, export.service), []).append(export)
        self._by_key = {key: tuple(found) for key, found in by_key.items()}

    def of(self, key: ServiceKey) -> tuple[model.ServiceExport, ...]:
        """Return the entries of `serviceExports` for a service, in the order of the file."""
        return self._by_key.get(key, ())

    def __iter__(self) -> Iterator[ServiceKey]:
        return iter(self._by_key)
