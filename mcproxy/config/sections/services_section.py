"""Reads the sections `serviceExports` and `serviceDiscovery`: services of some clusters that other clusters import."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import (
    DERIVED_PREFIX,
    ExportAs,
    IPNetwork,
    LeaseName,
    Server,
    ServiceDiscovery,
    ServiceExport,
    ServicePort,
    Unreachable,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, Sections, references
from mcproxy.config.sections.model_reader import networks_at, read


def check_exports(context: Context, exports: ListSection[ServiceExport]) -> None:
    """Report entries of the section that would conflict in a cluster."""
    _unique_services(context, exports)
    _one_lease(context, exports)


def export(context: Context, place: Place, sections: Sections) -> ServiceExport | None:
    """Return the export written at `place`."""
    ports = _ports(context, place)
    targets, clusters = place.get("to"), sections.clusters.names
    allowed = pod_networks(context, place.get("allowedCIDRs"))
    from_clusters = references(context, place.get("from"), clusters, "cluster")
    to = references(context, targets, clusters, "cluster")
    if targets is not None and len(from_clusters) == 1 and from_clusters == to:
        what = f"{to[0]} is the only cluster in from too, so nothing is exported to another one"
        context.error(targets, what, "name another cluster")
    service = place.get("service")
    if service is None or service.string is None or not place.text("name") or not place.text("namespace"):
        return None
    made = read(
        context,
        place,
        ServiceExport,
        from_clusters=from_clusters,
        to=to,
        ports=ports,
        allowed_cidrs=allowed,
    )
    _check_unreachable(context, place, made)
    return made


def _check_unreachable(context: Context, place: Place, export: ServiceExport) -> None:
    """Report `unreachable: Remove` without `after`, and an `after` that has no effect."""
    after = place.get("after")
    if export.unreachable is Unreachable.REMOVE:
        if not export.after:
            context.error(
                after or place.get("unreachable") or place,
                "needs the time after which imports are removed",
                "write after: 10m",
            )
    elif after is not None and export.after:
        context.error(after, "has no effect without unreachable: Remove", "add that, or leave this out")


def _ports(context: Context, export: Place) -> tuple[ServicePort, ...]:
    """Return the ports. Names, and pairs of port and protocol, must be unique, as in a Service."""
    entries = list(export.children("ports"))
    names: dict[str, Place] = {}
    numbers: dict[tuple[int, str], Place] = {}
    ports = []
    for entry in entries:
        port = read(context, entry, ServicePort)
        ports.append(port)
        where = entry.get("name") or entry
        if len(entries) > 1 and not port.name:
            context.error(where, "has no name, and there are several ports", "add name: NAME")
        elif names.setdefault(port.name, where) is not where:
            what = f"{where.shown} is the name of another port already, at {names[port.name].mark}"
            context.error(where, what, "give one of the two another name")
        number = (port.port, port.protocol)
        if entry.get("port") is not None and numbers.setdefault(number, entry) is not entry:
            what = f"is {port.protocol} port {port.port} again, which is at {numbers[number].mark} already"
            context.error(entry, what, "keep one of the two")
    return tuple(ports)


def _unique_services(context: Context, exports: ListSection[ServiceExport]) -> None:
    """Report two entries that write the same Service to one cluster, because they would overwrite each other."""
    claims: dict[tuple[str, str, str, ExportAs], Place] = {}
    for place, value in exports.valid:
        for cluster in value.to:
            first = claims.setdefault((cluster, value.namespace, value.service, value.made_as), place)
            if first is not place:
                prefix = DERIVED_PREFIX if value.made_as is ExportAs.DERIVED else ""
                made = f"{value.namespace}/{prefix}{value.service} in cluster {cluster}"
                what = f"{made} is made by another export already, at {first.mark}"
                context.error(place, what, "name all clusters in the from of one of the two")
                break


def _one_lease(context: Context, exports: ListSection[ServiceExport]) -> None:
    """Report entries with different Leases for one cluster, because two daemons could write to it at the same time."""
    leases: dict[str, tuple[Place, LeaseName]] = {}
    for place, value in exports.valid:
        for cluster in value.to:
            first, lease = leases.setdefault(cluster, (place, value.lease))
            if lease != value.lease:
                what = f"is another one than that by which cluster {cluster} is written to at {first.mark}"
                right = f"write {{namespace: {lease.namespace}, name: {lease.name}}}"
                context.error(place.get("lease") or place, what, right)
                break


def build_service_discovery(context: Context, sections: Sections) -> ServiceDiscovery:
    """Return the section; `clusters` defaults to all clusters except those that only serve API services."""
    names, settings = sections.clusters.names, sections.merged.section("serviceDiscovery")
    enabled, written = settings.get("enabled"), settings.get("clusters")
    is_enabled = enabled is not None and enabled.value is True
    if written is not None:
        chosen = references(context, written, names, "cluster")
    else:
        chosen = _whole_clusters(names, sections.servers.values) if is_enabled else ()
    allowed = pod_networks(context, settings.get("allowedCIDRs"))
    return read(context, settings, ServiceDiscovery, clusters=chosen, allowed_cidrs=allowed)


def _whole_clusters(names: Sequence[str], servers: Sequence[Server]) -> tuple[str, ...]:
    services = [service for server in servers for service in server.api_services]
    extending = {service.cluster for service in services} - {name for server in servers for name in server.clusters}
    return tuple(dict.fromkeys(name for name in names if name not in extending))


def pod_networks(context: Context, place: Place | None, *, reached_here: bool = False) -> tuple[IPNetwork, ...]:
    """Return the pod networks listed at `place`; report networks that never contain pods.

    `reached_here`: this machine connects to the addresses, so loopback and link-local addresses are possible, for pods
    or services of this machine. Clusters do not accept such addresses in EndpointSlices.
    """
    found: list[IPNetwork] = []
    for item in place.items() if place is not None else ():
        for network in networks_at([item], context):
            found.append(network)
            if reached_here and (network.is_loopback or network.is_link_local):
                what = (
                    f"{item.shown} has addresses of this machine: those who may write endpoints in a cluster reach it"
                )
                context.warn(item, "local-addresses", what, "write a pod network such as 10.2.0.0/16")
            elif network.is_loopback or network.is_link_local or network.is_multicast or network.is_unspecified:
                what = f"{item.shown} has no pods: loopback, link-local and multicast addresses are refused"
                context.error(item, what, "write a pod network such as 10.2.0.0/16")
    return tuple(found)
