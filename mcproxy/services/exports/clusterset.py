"""Computes the objects that the ServiceExports of one service create in clusters. Pure.

Source: KEP-1645, with `serviceDiscovery.clusters` as the clusterset. Every cluster of the set that has the namespace
and serves the API imports an exported service, the exporters too. It gets a ServiceImport, the Service
`clusterset-SERVICE` with the addresses for the ServiceImport, and the EndpointSlices of all exporters. Where exports
conflict, the oldest ServiceExport decides, and the status of each one reports the conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mcproxy.config import model
from mcproxy.services.api_types import MCS_SOURCE_CLUSTER, UnreadableObject
from mcproxy.services.endpoint_slices import AllowedAddresses
from mcproxy.services.exports.apply_configurations import endpoint_slice, service, service_import, slice_labels
from mcproxy.services.exports.conflict_resolution import (
    Constituent,
    MergedService,
    conflict_condition,
    families_condition,
    invalid_conditions,
    merge_by_precedence,
    not_admitted_conditions,
    ready_condition,
    valid_conditions,
)
from mcproxy.services.exports.desired_builder import DesiredBuilder, ObservedImport, ObservedService
from mcproxy.services.exports.export_types import MAX_EXPORTS, ProblemKind
from mcproxy.services.exports.exported_slices import HINTED, SourceSlice, read_slices, slice_ports, with_zone_hints
from mcproxy.services.exports.object_keys import (
    CLUSTERSET,
    ObjectKey,
    export_object,
    import_object,
    label_value,
    service_name,
    service_object,
    slice_name,
    slice_object,
)
from mcproxy.services.exports.source_objects import Export, ExportedService, read_export, read_service

_NEWEST = datetime.max.replace(tzinfo=UTC)


class Exporter(NamedTuple):
    """A cluster that exports the service."""

    cluster: str
    service: ExportedService
    export: Export
    slices: tuple[SourceSlice, ...]
    hinted: tuple[SourceSlice, ...] = ()
    """The slices with zone hints; empty if hints are not used (`exported_slices.with_zone_hints`)."""
    cut: str = ""
    """Description of the parts that exceed the bounds and are left out."""


def add_discovered(work: DesiredBuilder) -> None:
    """Add the objects that the ServiceExports of one service require."""
    discovery = work.exports.discovery
    if not discovery.enabled:
        return
    work.report.export = ""
    exporters = _exporters_oldest_first(work)
    unknown = frozenset(cluster for cluster in discovery.clusters if not work.known(cluster))
    constituents = [
        Constituent(each.cluster, each.service, each.export.labels, each.export.annotations) for each in exporters
    ]
    merged = merge_by_precedence(constituents) if constituents else None
    undecided = False
    for cluster in dict.fromkeys(discovery.clusters):
        if work.known(cluster) and work.views[cluster].multicluster_version is not None:
            undecided |= _import(work, cluster, exporters, constituents, unknown)
    if merged is not None:
        _add_statuses(work, exporters, merged, undecided=undecided)


def _exporters_oldest_first(work: DesiredBuilder) -> list[Exporter]:
    """Return the clusters with a valid ServiceExport, the oldest first; set the status of the invalid ones."""
    key, discovery = work.key, work.exports.discovery
    allowed = AllowedAddresses(discovery.allowed_cidrs)
    found: list[Exporter] = []
    for cluster in sorted(set(discovery.clusters)):
        if not work.known(cluster):
            continue
        view = work.views[cluster]
        if view.export is None or view.multicluster_version is None:
            continue
        try:
            export = read_export(view.export)
            read = None if view.service is None else read_service(view.service)
        except UnreadableObject as error:
            work.report.count(cluster, ProblemKind.UNREADABLE, f"the exported Service cannot be read: {error}")
            continue
        refused = _refusal(key.service, read)
        place = export_object(cluster, view.multicluster_version, key.namespace, key.service)
        if refused is not None or read is None:
            assert refused is not None
            work.statuses[place] = {"conditions": invalid_conditions(*refused)}
            continue
        if not view.export_admitted:
            message = f"The cluster exports more than {MAX_EXPORTS} services, of which the oldest are imported."
            work.statuses[place] = {"conditions": not_admitted_conditions(message)}
            work.report.count(cluster, ProblemKind.TOO_MANY, message)
            continue
        slices = read_slices(cluster, view.slices, allowed, work.report, model.ExportBounds())
        found.append(Exporter(cluster, read, export, slices, cut=work.report.message(cluster, ProblemKind.TOO_MANY)))
    hinted = with_zone_hints([(each.service, each.slices) for each in found])
    found = [each._replace(hinted=slices) for each, slices in zip(found, hinted, strict=True)] if hinted else found
    return sorted(found, key=lambda each: (each.export.created or _NEWEST, each.cluster))


def _refusal(name: str, read: ExportedService | None) -> tuple[str, str] | None:
    """Return why a Service is not exported: a reason of the condition Valid, and a sentence."""
    if read is None:
        return "NoService", f'There is no Service "{name}" in this namespace.'
    if read.type == "ExternalName":
        return "InvalidServiceType", "A Service of type ExternalName cannot be exported."
    if read.imported:
        return "InvalidServiceType", "The Service is itself imported from other clusters, and is not exported again."
    return None


def _import(
    work: DesiredBuilder,
    cluster: str,
    exporters: Sequence[Exporter],
    found: Sequence[Constituent],
    unknown: frozenset[str],
) -> bool:
    """Add the imports of one cluster; return whether they include parts from clusters of unknown state."""
    key, view, observed = work.key, work.views[cluster], work.observed(cluster)
    version = view.multicluster_version
    assert version is not None
    name = service_name(CLUSTERSET, *key)
    place = import_object(cluster, version, key.namespace, key.service)
    derived = service_object(cluster, key.namespace, name)
    existing = observed.imports.get(key.service)
    if existing is not None and not existing.ours:
        if exporters:
            _report_foreign(work, cluster, f"ServiceImport {key.service}")
        return False
    behind = observed.services.get(name)
    if behind is not None and not behind.ours:
        if exporters:
            _report_foreign(work, cluster, f"Service {name}")
        return False
    if view.namespace_exists is False:
        return False
    kept = observed.slices_of(frozenset(map(label_value, unknown)), mcs=True)
    ids = {work.cluster_id(each) for each in unknown} | {observed.slices[each].get(MCS_SOURCE_CLUSTER) for each in kept}
    listed = () if existing is None else tuple(each for each in existing.clusters if each in ids)
    undecided = bool(kept or listed)
    work.kept |= kept
    held = existing.constituent if existing is not None and undecided else None
    constituents = ([held] if held is not None else []) + list(found)
    if not constituents:
        return undecided
    merged = merge_by_precedence(constituents)
    if not merged.service.ports and not merged.service.headless:
        return undecided
    if held is not None and behind is not None and _import_is_complete(held.service, merged.service, behind.service):
        work.kept |= {place, derived}
    else:
        work.objects[derived] = service(key, name, merged.service)
        work.objects[place] = service_import(
            key,
            version,
            merged.service,
            merged.labels,
            merged.annotations,
            name,
            None if behind is None else behind.service,
        )
        clusters = sorted({*listed, *(work.cluster_id(each.cluster) for each in exporters)})
        refused = view.families_refused or _status_reports_refusal(existing, merged.service)
        work.statuses[place] = _import_status(clusters, version, merged.service, behind, name, refused=refused)
    for exporter in exporters:
        _add_slices(work, cluster, exporter, merged.service, name, place)
    return undecided


def _import_is_complete(held: ExportedService, merged: ExportedService, behind: ExportedService) -> bool:
    """Whether a ServiceImport has all ports of the merged service, and the addresses of its Service (`behind`)."""
    addresses = () if held.headless else behind.cluster_ips
    return set(merged.ports) <= set(held.ports) and held.cluster_ips == addresses


def _add_slices(
    work: DesiredBuilder, cluster: str, exporter: Exporter, merged: ExportedService, name: str, owner: ObjectKey
) -> None:
    labels = slice_labels(work.key, exporter.cluster, work.cluster_id(exporter.cluster), name, headless=merged.headless)
    hinted = merged.traffic_distribution in HINTED
    for each in (hinted and exporter.hinted) or exporter.slices:
        copy = slice_name(CLUSTERSET, exporter.cluster, each.name, work.exports.clusters, each.part)
        endpoints = each.local_endpoints if exporter.cluster == cluster else each.endpoints
        ports = slice_ports(each, exporter.service, merged)
        imported = slice_object(cluster, work.key.namespace, copy)
        work.owners[imported] = owner
        work.objects[imported] = endpoint_slice(work.key.namespace, copy, labels, each.address_type, endpoints, ports)


def _status_reports_refusal(existing: ObservedImport | None, merged: ExportedService) -> bool:
    """Whether the existing status reports that the cluster lacks these IP families (known also after a restart)."""
    found = families_condition(merged.families)
    return existing is not None and existing.not_ready == (found["reason"], found["message"])


def _import_status(
    clusters: Sequence[str],
    version: str,
    merged: ExportedService,
    behind: ObservedService | None,
    name: str,
    *,
    refused: bool,
) -> dict[str, Any]:
    """Return the status of a ServiceImport with the Service `name`. `refused`: the cluster lacks its IP families."""
    status: dict[str, Any] = {"clusters": [{"cluster": each} for each in clusters]}
    if version == "v1alpha1":
        return status
    if merged.headless:
        found = ready_condition(is_ready=True, message="The endpoints are imported.")
    elif behind is not None and behind.service.cluster_ips:
        found = ready_condition(is_ready=True, message=f'The service is reached through Service "{name}".')
    elif behind is None and refused:
        found = families_condition(merged.families)
    else:
        found = ready_condition(is_ready=False, message=f'Service "{name}" has no address yet.')
    return {**status, "conditions": [found]}


def _add_statuses(
    work: DesiredBuilder, exporters: Sequence[Exporter], merged: MergedService, *, undecided: bool
) -> None:
    """Add the status of valid exports, unless a cluster of unknown state possibly conflicts with them."""
    if undecided:
        return
    for each in exporters:
        version = work.views[each.cluster].multicluster_version
        assert version is not None
        place = export_object(each.cluster, version, work.key.namespace, work.key.service)
        work.statuses[place] = {
            "conditions": [
                *valid_conditions(each.cut),
                conflict_condition(merged.conflicts),
            ]
        }


def _report_foreign(work: DesiredBuilder, cluster: str, what: str) -> None:
    work.report.count(
        cluster,
        ProblemKind.FOREIGN_OBJECT,
        f"{what} in namespace {work.key.namespace} is not one of mcproxy's, so it is left alone and the service is not"
        " imported there: rename it, or leave the cluster out of `serviceDiscovery`",
    )
