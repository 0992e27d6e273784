"""Computes the objects that `serviceExports` of the configuration create for one service. Pure.

Source: services.md. Each cluster of `to` gets the EndpointSlices of all clusters of `from` (its own too, if listed) and
the Service `derived-SERVICE`, with the source's or the declared ports. The first source in `from` has precedence.
With `as: SameName` the Service has the name of the exported one. An existing Service is used unchanged; the slices of
its own cluster are not added, because it has those endpoints already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mcproxy.config import model
from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.endpoint_slices import AllowedAddresses
from mcproxy.services.exports.apply_configurations import endpoint_slice, service, slice_labels
from mcproxy.services.exports.conflict_resolution import Constituent, merge_by_precedence
from mcproxy.services.exports.desired_builder import DesiredBuilder, ProblemReport, known
from mcproxy.services.exports.export_types import ClusterView, ProblemKind
from mcproxy.services.exports.exported_slices import (
    HINTED,
    SourceSlice,
    declared_ports,
    read_slices,
    slice_ports,
    with_zone_hints,
)
from mcproxy.services.exports.object_keys import label_value, service_name, service_object, slice_name, slice_object
from mcproxy.services.exports.source_objects import ExportedService, Port, read_service

PREFIX = "derived"
"""Prefix of the names of derived Services in importing clusters."""
SLICE_PREFIX = "imported"


class Source(NamedTuple):
    """A cluster that exports the service."""

    cluster: str
    service: ExportedService | None
    """None: the cluster has no Service, so `ports` must be declared."""
    slices: tuple[SourceSlice, ...]
    hinted: tuple[SourceSlice, ...] = ()
    """The slices with zone hints; empty if hints are not used (`exported_slices.with_zone_hints`)."""


def add_exports(work: DesiredBuilder) -> None:
    """Add the objects that the entries of `serviceExports` for one service require."""
    key, report = work.key, work.report
    taken: dict[tuple[str, model.ExportAs], str] = {}
    for export in work.exports.of(key):
        report.export = export.name
        sources = _sources(export, work.views, report)
        unknown = [
            cluster
            for cluster in export.from_clusters
            if not work.known(cluster) and not _is_given_up(export, work.views.get(cluster))
        ]
        for cluster in dict.fromkeys(export.to):
            claim = (cluster, export.made_as)
            if claim in taken:
                report.count(
                    cluster,
                    ProblemKind.EXPORTED_TWICE,
                    f"serviceExports {taken[claim]!r} exports the service to this cluster already, so this entry does"
                    " nothing there: put both into one entry",
                )
                continue
            taken[claim] = export.name
            if not work.known(cluster):
                continue
            if export.made_as is model.ExportAs.SAME_NAME:
                others = [source for source in sources if source.cluster != cluster]
                _import_same_name(work, export, cluster, others, [each for each in unknown if each != cluster])
            else:
                _import_derived(work, export, cluster, sources, unknown)


def _import_derived(
    work: DesiredBuilder, export: model.ServiceExport, cluster: str, sources: Sequence[Source], unknown: Sequence[str]
) -> None:
    """Add the imports of one cluster, with its own slices if it is a source: the derived Service has no selector."""
    key, report, observed = work.key, work.report, work.observed(cluster)
    name = service_name(PREFIX, *key)
    existing = observed.services.get(name)
    if existing is not None and not existing.ours:
        report.count(
            cluster,
            ProblemKind.FOREIGN_OBJECT,
            f"Service {name} in namespace {key.namespace} is not one of mcproxy's, so it is left alone and nothing is"
            " imported beside it: rename it, or leave this cluster out of `to`",
        )
        return
    ours = existing.service if existing is not None else None
    _import(work, export, cluster, sources, unknown, name, ours)


def _import_same_name(
    work: DesiredBuilder, export: model.ServiceExport, cluster: str, others: Sequence[Source], unknown: Sequence[str]
) -> None:
    """Add the slices that one cluster imports for its Service with the exported name."""
    key, data = work.key, work.views[cluster].service
    if data is None:
        _import(work, export, cluster, others, unknown, key.service, None)
        return
    try:
        existing = read_service(data)
    except UnreadableObject as error:
        work.report.count(cluster, ProblemKind.UNREADABLE, f"the Service cannot be read: {error}")
        return
    if existing.imported:
        _import(work, export, cluster, others, unknown, key.service, existing)
    elif existing.type == "ExternalName":
        work.report.count(
            cluster,
            ProblemKind.INVALID_SERVICE_TYPE,
            f"Service {key.service} has type ExternalName there, so that it cannot have endpoints: rename it, or leave"
            " this cluster out of `to`",
        )
    else:
        work.kept |= work.observed(cluster).slices_of(frozenset(map(label_value, unknown)), mcs=False)
        constituents = [Constituent(each.cluster, each.service) for each in others if each.service is not None]
        for conflict in merge_by_precedence([Constituent(cluster, existing), *constituents]).conflicts:
            if conflict.reason in ("PortConflict", "TypeConflict"):
                message = f"Service {key.service}, which is there already, decides: {conflict.message}"
                work.report.count(cluster, ProblemKind.CONFLICT, message)
        _add_slices(work, export, cluster, others, key.service, existing)


def _import(
    work: DesiredBuilder,
    export: model.ServiceExport,
    cluster: str,
    sources: Sequence[Source],
    unknown: Sequence[str],
    name: str,
    existing: ExportedService | None,
) -> None:
    """Add a Service and its slices. `existing`: the managed Service that the cluster has already."""
    key, report, observed = work.key, work.report, work.observed(cluster)
    if work.views[cluster].namespace_exists is False and not export.create_namespaces:
        if sources:
            report.count(
                cluster,
                ProblemKind.NO_NAMESPACE,
                f"namespace {key.namespace} does not exist, so nothing is imported: create it",
            )
        return
    work.kept |= observed.slices_of(frozenset(map(label_value, unknown)), mcs=False)
    place = service_object(cluster, key.namespace, name)
    held = existing if unknown else None
    merged = _merged(export, sources, held, cluster, report)
    if merged is None:
        return
    if held is not None and set(merged.ports) <= set(held.ports):
        work.kept.add(place)
    else:
        work.objects[place] = service(key, name, merged)
    _add_slices(work, export, cluster, sources, name, merged)


def _add_slices(
    work: DesiredBuilder,
    export: model.ServiceExport,
    cluster: str,
    sources: Sequence[Source],
    name: str,
    merged: ExportedService,
) -> None:
    """Add the imported slices of a Service, and the Service as their owner."""
    key = work.key
    prefix = "" if export.made_as is model.ExportAs.SAME_NAME else SLICE_PREFIX
    hinted = merged.traffic_distribution in HINTED
    for source in sources:
        labels = slice_labels(key, source.cluster, work.cluster_id(source.cluster), name, headless=merged.headless)
        for each in (hinted and source.hinted) or source.slices:
            copy = slice_name(prefix, source.cluster, each.name, work.exports.clusters, each.part)
            ports = _ports(export, source, each, merged)
            imported = slice_object(cluster, key.namespace, copy)
            work.owners[imported] = service_object(cluster, key.namespace, name)
            work.objects[imported] = endpoint_slice(
                key.namespace,
                copy,
                labels,
                each.address_type,
                each.local_endpoints if source.cluster == cluster else each.endpoints,
                ports,
            )
            if each.ports and not ports:
                work.report.count(
                    source.cluster,
                    ProblemKind.NO_PORT,
                    f"no port of EndpointSlice {each.name} is a port of the imported Service, so that none of its"
                    " endpoints is reached: check `ports`",
                )


def _ports(export: model.ServiceExport, source: Source, each: SourceSlice, merged: ExportedService) -> tuple[Port, ...]:
    if export.ports:
        return declared_ports(each, source.service, export.ports)
    assert source.service is not None
    return slice_ports(each, source.service, merged)


def _merged(
    export: model.ServiceExport,
    sources: Sequence[Source],
    held: ExportedService | None,
    cluster: str,
    report: ProblemReport,
) -> ExportedService | None:
    """Return the Service for an importing cluster; None if no source can provide one.

    `held`: the cluster's present Service if the state of a source is unknown; then ports that can come from that source
    are kept.
    """
    constituents = [Constituent(cluster, held)] if held is not None else []
    constituents += [Constituent(source.cluster, source.service) for source in sources if source.service is not None]
    if constituents:
        merged, _, _, conflicts = merge_by_precedence(constituents)
    elif sources and export.ports:
        merged, conflicts = ExportedService(), ()
    else:
        return None
    headless = merged.headless if export.type is None else export.type is model.ExportType.HEADLESS
    ports = merged.ports
    if export.ports:
        ports = tuple(
            Port(port.name, port.port, port.protocol, port.app_protocol or _app_protocol(port, merged))
            for port in export.ports
        )
    if held is None:
        settled = {"PortConflict"} if export.ports else set[str]()
        settled |= {"TypeConflict"} if export.type is not None else set()
        for conflict in conflicts:
            if conflict.reason not in settled:
                report.count(
                    cluster, ProblemKind.CONFLICT, conflict.message.replace("oldest service export", "the Service")
                )
    if not ports and not headless:
        report.count(
            cluster, ProblemKind.NO_PORT, "the Service has no port, which only a headless one may: declare `ports`"
        )
        return None
    policy = merged.internal_traffic_policy
    if policy == "Local" and cluster not in (source.cluster for source in sources):
        policy = "Cluster"  # the importing cluster has no endpoints on its nodes: Local would drop all traffic
    return merged._replace(headless=headless, ports=ports, internal_traffic_policy=policy)


def _app_protocol(port: model.ServicePort, merged: ExportedService) -> str | None:
    return next((each.app_protocol for each in merged.ports if each.name == port.name), None)


def _is_given_up(export: model.ServiceExport, view: ClusterView | None) -> bool:
    """Whether a source has been unreachable for so long that its endpoints are removed."""
    if export.unreachable is not model.Unreachable.REMOVE or view is None:
        return False
    return view.unreachable_for >= export.after > 0


def _sources(export: model.ServiceExport, views: Mapping[str, ClusterView], report: ProblemReport) -> list[Source]:
    """Return the clusters of `from`, in order, whose state is known and that have the service."""
    allowed = AllowedAddresses(export.allowed_cidrs)
    found: list[Source] = []
    for cluster in dict.fromkeys(export.from_clusters):
        if _is_given_up(export, views.get(cluster)):
            message = f"it was not reached for {export.after:g} s, so its endpoints are removed (unreachable: Remove)"
            report.count(cluster, ProblemKind.UNREACHABLE, message)
            continue
        if not known(views, cluster):
            continue
        view = views[cluster]
        read = None
        if view.service is not None:
            try:
                read = read_service(view.service)
            except UnreadableObject as error:
                report.count(cluster, ProblemKind.UNREADABLE, f"the Service cannot be read: {error}")
                continue
        if read is not None and read.imported and export.made_as is model.ExportAs.SAME_NAME:
            read = None  # mcproxy has created this Service, because the cluster had none
        if read is None and not (export.ports and view.slices):
            report.count(
                cluster,
                ProblemKind.NO_SERVICE,
                f"there is no Service {export.service} in namespace {export.namespace}, so nothing comes from there",
            )
            continue
        if read is not None and read.imported:
            report.count(
                cluster,
                ProblemKind.IMPORTED_SERVICE,
                f"Service {export.service} is itself imported from another cluster, and is not exported again",
            )
            continue
        if read is not None and read.type == "ExternalName":
            report.count(
                cluster,
                ProblemKind.INVALID_SERVICE_TYPE,
                f"Service {export.service} has type ExternalName, and nothing that could be exported",
            )
            continue
        slices = read_slices(cluster, view.slices, allowed, report, export.bounds)
        found.append(Source(cluster, read, slices))
    hinted = with_zone_hints([(each.service, each.slices) for each in found])
    return [each._replace(hinted=slices) for each, slices in zip(found, hinted, strict=True)] if hinted else found
