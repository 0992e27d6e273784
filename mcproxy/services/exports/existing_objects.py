"""Objects of one service that an importing cluster has already: ours, and others with their names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.exports.conflict_resolution import Constituent
from mcproxy.services.exports.export_types import ClusterView
from mcproxy.services.exports.object_keys import CLUSTERSET, ObjectKey, is_ours
from mcproxy.services.exports.object_names import service_name
from mcproxy.services.exports.source_objects import Service, read_import, read_labels, read_service
from mcproxy.services.well_known import IMPORTS, SERVICE_NAME, SERVICES, SLICES, SOURCE_CLUSTER, SOURCE_SERVICE


class ObservedService(NamedTuple):
    """A Service that has the name of a derived one."""

    ours: bool
    service: Service


class ObservedImport(NamedTuple):
    """A ServiceImport that has the name of the service."""

    ours: bool
    clusters: tuple[str, ...]
    """Those that its status names, by their ids."""
    constituent: Constituent
    """What it says of the service, as if a cluster exported that."""
    not_ready: tuple[str, str] = ("", "")
    """Reason and message of its condition Ready, where that is False."""


class ExistingObjects:
    """The objects of one cluster that have names of derived objects of one service."""

    __slots__ = ("imports", "services", "slices")

    def __init__(self, view: ClusterView) -> None:
        self.services: dict[str, ObservedService] = {}
        self.imports: dict[str, ObservedImport] = {}
        self.slices: dict[ObjectKey, Mapping[str, str]] = {}
        """Labels of the imported slices of ours."""
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
                # It counts as foreign: it is never written to, and nothing is imported.
                if key.resource == SERVICES:
                    self.services[key.name] = ObservedService(False, Service())
                elif key.resource == IMPORTS:
                    self.imports[key.name] = ObservedImport(False, (), Constituent("", Service()))

    def slices_of(self, sources: frozenset[str], *, mcs: bool) -> frozenset[ObjectKey]:
        """Return the slices imported from these clusters (values of labels), by ServiceImports or by the file."""
        return frozenset(
            key
            for key, labels in self.slices.items()
            if labels.get(SOURCE_CLUSTER) in sources and _is_discovered(key.namespace, labels) == mcs
        )


def _is_discovered(namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether a slice of ours is there because of ServiceExports."""
    return labels.get(SERVICE_NAME) == service_name(CLUSTERSET, namespace, labels.get(SOURCE_SERVICE, ""))


def _import(ours: bool, data: bytes) -> ObservedImport:
    found = read_import(data)
    constituent = Constituent("", found.service, found.labels, found.annotations)
    return ObservedImport(ours, found.clusters, constituent, found.not_ready)
