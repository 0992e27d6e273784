"""Accumulates the desired objects of one service in all clusters, and its problems, during their computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mcproxy.services.api_types import (
    IMPORTS,
    SERVICE_NAME,
    SERVICES,
    SLICES,
    SOURCE_CLUSTER,
    SOURCE_SERVICE,
    UnreadableObject,
)
from mcproxy.services.exports.conflict_resolution import Constituent
from mcproxy.services.exports.export_types import ClusterView, Desired, ExportProblem, Exports, ProblemKind
from mcproxy.services.exports.object_keys import CLUSTERSET, ObjectKey, ServiceKey, is_ours, label_value, service_name
from mcproxy.services.exports.source_objects import ExportedService, read_import, read_labels, read_service

# -- objects that a cluster has -------------------------------------------------------------------------------
#
# The existing objects of one service in an importing cluster: managed ones, and foreign ones of the same names. Pure.


class ObservedService(NamedTuple):
    """An existing Service, managed or foreign, that has the name of a derived Service."""

    ours: bool
    service: ExportedService


class ObservedImport(NamedTuple):
    """An existing ServiceImport, managed or foreign, that has the name of the service."""

    ours: bool
    clusters: tuple[str, ...]
    """The ids of the clusters in its status."""
    constituent: Constituent
    """The properties of the service in the ServiceImport, in the form of an exported service."""
    not_ready: tuple[str, str] = ("", "")
    """Reason and message of its condition Ready, if its status is False."""


class ExistingObjects:
    """The existing objects of one cluster that have names of the objects derived from one service."""

    __slots__ = ("imports", "services", "slices")

    def __init__(self, view: ClusterView) -> None:
        self.services: dict[str, ObservedService] = {}
        self.imports: dict[str, ObservedImport] = {}
        self.slices: dict[ObjectKey, Mapping[str, str]] = {}
        """Labels of the managed imported slices."""
        for key, data in view.derived.items():
            try:
                labels = read_labels(data)
                ours = is_ours(key.resource, labels)
                if key.resource == SERVICES:
                    self.services[key.name] = ObservedService(ours, read_service(data))
                elif key.resource == IMPORTS:
                    self.imports[key.name] = _import(ours, data)
                elif key.resource == SLICES and ours:
                    self.slices[key] = labels
            except UnreadableObject:
                # An object that cannot be decoded counts as foreign: it is not written, and nothing is imported.
                if key.resource == SERVICES:
                    self.services[key.name] = ObservedService(False, ExportedService())
                elif key.resource == IMPORTS:
                    self.imports[key.name] = ObservedImport(False, (), Constituent("", ExportedService()))

    def slices_of(self, sources: frozenset[str], *, mcs: bool) -> frozenset[ObjectKey]:
        """Return the slices imported from these clusters (label values), by ServiceImports or by the configuration."""
        return frozenset(
            key
            for key, labels in self.slices.items()
            if labels.get(SOURCE_CLUSTER) in sources and _is_discovered(key.namespace, labels) == mcs
        )


def _is_discovered(namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether ServiceExports (rather than `serviceExports`) caused a managed slice."""
    return labels.get(SERVICE_NAME) == service_name(CLUSTERSET, namespace, labels.get(SOURCE_SERVICE, ""))


def _import(ours: bool, data: bytes) -> ObservedImport:
    found = read_import(data)
    constituent = Constituent("", found.service, found.labels, found.annotations)
    return ObservedImport(ours, found.clusters, constituent, found.not_ready)


class ProblemReport:
    """The problems of one service, found in one computation of its desired state."""

    __slots__ = ("_found", "_key", "export")

    def __init__(self, key: ServiceKey, export: str = "") -> None:
        self._key = key
        self._found: dict[tuple[str, str, ProblemKind], tuple[int, str]] = {}
        self.export = export
        """The name of the entry of `serviceExports` that is being computed; "" for ServiceExports."""

    def count(self, cluster: str, kind: ProblemKind, message: str) -> None:
        """Count a problem; the message that sorts first is kept, so that the order of calls does not matter."""
        place = (self.export, cluster, kind)
        number, first = self._found.get(place, (0, message))
        self._found[place] = (number + 1, min(first, message))

    def message(self, cluster: str, kind: ProblemKind) -> str:
        """Return the message of a kind of problem in a cluster; "" if none was counted."""
        return self._found.get((self.export, cluster, kind), (0, ""))[1]

    def problems(self) -> tuple[ExportProblem, ...]:
        """Return the problems, sorted by export, cluster and kind."""
        return tuple(
            ExportProblem(
                self._key, kind, cluster, export, message if number == 1 else f"{message} (and {number - 1} more)"
            )
            for (export, cluster, kind), (number, message) in sorted(self._found.items())
        )


class DesiredBuilder:
    """One service: its inputs, and the objects computed so far."""

    __slots__ = ("_observed", "exports", "kept", "key", "objects", "owners", "report", "statuses", "views")

    def __init__(self, key: ServiceKey, views: Mapping[str, ClusterView], exports: Exports) -> None:
        self.key = key
        self.views = views
        self.exports = exports
        self.report = ProblemReport(key)
        self.objects: dict[ObjectKey, dict[str, Any]] = {}
        self.statuses: dict[ObjectKey, dict[str, Any]] = {}
        self.owners: dict[ObjectKey, ObjectKey] = {}
        self.kept: set[ObjectKey] = set()
        self._observed: dict[str, ExistingObjects] = {}

    def known(self, cluster: str) -> bool:
        """Whether the state of a cluster is known, so that conclusions can be drawn from it."""
        return known(self.views, cluster)

    def cluster_id(self, cluster: str) -> str:
        """Return the id of a cluster for labels and the status of ServiceImports (KEP-1645)."""
        view = self.views.get(cluster)
        return (view.cluster_id if view is not None else "") or label_value(cluster)

    def observed(self, cluster: str) -> ExistingObjects:
        """Return the existing objects with names of derived objects in a cluster whose state is known."""
        found = self._observed.get(cluster)
        if found is None:
            found = self._observed[cluster] = ExistingObjects(self.views[cluster])
        return found

    def done(self) -> Desired:
        """Return the computed state."""
        kept = frozenset(key for key in self.kept if key not in self.objects)
        return Desired(self.objects, self.statuses, kept, self.report.problems(), self.owners)


def known(views: Mapping[str, ClusterView], cluster: str) -> bool:
    """Whether the state of a cluster is known, so that conclusions can be drawn from it."""
    view = views.get(cluster)
    return view is not None and view.known
