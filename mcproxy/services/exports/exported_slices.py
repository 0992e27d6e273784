"""Converts the EndpointSlices of a source cluster for other clusters: addresses, ports and bounds. Pure, linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mcproxy.config import model
from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.endpoint_slices import AllowedAddresses, parse_address
from mcproxy.services.exports.apply_configurations import endpoint, is_ready, with_zone_hint
from mcproxy.services.exports.conflict_resolution import port_names
from mcproxy.services.exports.desired_builder import ProblemReport
from mcproxy.services.exports.export_types import ProblemKind
from mcproxy.services.exports.source_objects import (
    FAMILIES,
    ExportedEndpoint,
    ExportedService,
    ExportedSlice,
    Port,
    read_slice,
    read_slice_name,
)

MAX_WRITTEN = 100
"""Maximum of endpoints of one written slice, as in Kubernetes' own controller, so that a change writes no large
object."""

HINTED = frozenset(("PreferSameZone", "PreferClose"))
"""The values of trafficDistribution for which endpoints get hints for the clients of their zone (KEP-4444)."""


class SourceSlice(NamedTuple):
    """The imported part of one EndpointSlice, the same for all clusters except its own.

    A slice of more than `MAX_WRITTEN` endpoints is split.
    """

    name: str
    part: int
    address_type: str
    endpoints: Sequence[Mapping[str, Any]]
    local_endpoints: Sequence[Mapping[str, Any]]
    """The endpoints with names of nodes, for the slice's own cluster."""
    ports: tuple[Port, ...]
    """The ports of the slice, by name."""


def read_slices(
    cluster: str,
    read: Sequence[bytes],
    allowed: AllowedAddresses,
    report: ProblemReport,
    most: model.ExportBounds,
) -> tuple[SourceSlice, ...]:
    """Return the exportable slices of a service by name, within the bounds of one service.

    An endpoint counts once for each address. At most twice `most.endpoints` addresses are checked, refused ones
    included; the remaining slices are left out unread.
    """
    found: dict[str, bytes] = {}
    for data in sorted(read):
        try:
            name = read_slice_name(data)
        except UnreadableObject as error:
            report.count(cluster, ProblemKind.UNREADABLE, f"an EndpointSlice cannot be read: {error}")
            continue
        if name is not None:
            found.setdefault(name, data)
    slices: list[SourceSlice] = []
    number = addresses = examined = 0
    for name in sorted(found):
        if number < most.slices and examined < 2 * most.endpoints:
            try:
                each = read_slice(name, found[name])
            except UnreadableObject as error:
                report.count(cluster, ProblemKind.UNREADABLE, f"an EndpointSlice cannot be read: {error}")
                continue
            if each.address_type not in FAMILIES:
                report.count(
                    cluster, ProblemKind.ADDRESS_TYPE, f"EndpointSlice {name} has addresses that are no IP addresses"
                )
                continue
            examined += sum(len(one.addresses) for one in each.endpoints)
            made, added = _source_slices(cluster, each, allowed, report)
            if addresses + added <= most.endpoints:
                addresses += added
                number += 1
                slices += made
                continue
        report.count(
            cluster,
            ProblemKind.TOO_MANY,
            f"EndpointSlice {name} exceeds the limit: {most.slices} slices and {most.endpoints} endpoints of a service"
            " are exported",
        )
    return tuple(slices)


def with_zone_hints(
    sources: Sequence[tuple[ExportedService | None, tuple[SourceSlice, ...]]],
) -> Sequence[tuple[SourceSlice, ...]]:
    """Return the slices of each source, in which each endpoint has a hint for the clients of its zone (KEP-4444).

    The result is empty if no Service requests hints, or if a ready endpoint has no zone: kube-proxy uses hints only if
    all ready endpoints have them (kubernetes `pkg/proxy/topology.go`).
    """
    if not any(service is not None and service.traffic_distribution in HINTED for service, _ in sources):
        return ()
    every = (found for _, slices in sources for each in slices for found in each.endpoints)
    if not all("zone" in found for found in every if is_ready(found)):
        return ()
    return [tuple(map(_with_zone_hints, slices)) for _, slices in sources]


def _with_zone_hints(each: SourceSlice) -> SourceSlice:
    endpoints = [with_zone_hint(found) for found in each.endpoints]
    local = endpoints
    if each.local_endpoints is not each.endpoints:
        local = [with_zone_hint(found) for found in each.local_endpoints]
    return each._replace(endpoints=endpoints, local_endpoints=local)


def slice_ports(each: SourceSlice, source: ExportedService, merged: ExportedService) -> tuple[Port, ...]:
    """Return the ports of a slice under the merged service's names, without ports that the merged service lacks."""
    if not source.ports or (merged.headless and not merged.ports):
        return each.ports  # a headless Service needs no ports, but its slices can have some
    names = port_names(source, merged)
    return tuple(sorted(port._replace(name=names[port.name]) for port in each.ports if port.name in names))


def declared_ports(
    each: SourceSlice, source: ExportedService | None, declared: Sequence[model.ServicePort]
) -> tuple[Port, ...]:
    """Return the ports of a slice for the declared ports of an entry of `serviceExports`.

    `targetPort` is a port number of the pods, or the name of a port of the slice; the default is the slice's port of
    the declared name, or that of the source Service's port with the declared number.
    """
    by_name = {port.name: port for port in each.ports}
    ports: list[Port] = []
    for port in declared:
        target = port.target_port
        if isinstance(target, int):
            ports.append(Port(port.name, target, port.protocol, port.app_protocol))
            continue
        found = by_name.get(port.name if target is None else target)
        if found is None and target is None and source is not None:
            address = (port.protocol, port.port)
            found = next((by_name.get(of.name) for of in source.ports if of.address == address), None)
        if found is not None and found.protocol == port.protocol:
            app_protocol = port.app_protocol or found.app_protocol
            ports.append(Port(port.name, found.number, port.protocol, app_protocol))
    return tuple(sorted(ports, key=lambda port: port.name))


def _source_slices(
    cluster: str, each: ExportedSlice, allowed: AllowedAddresses, report: ProblemReport
) -> tuple[list[SourceSlice], int]:
    family = 4 if each.address_type == "IPv4" else 6
    by_addresses: dict[tuple[str, ...], ExportedEndpoint] = {}
    for found in each.endpoints:
        addresses = []
        for text in found.addresses:
            address = parse_address(text)
            if address is None or address.family != family or address not in allowed:
                report.count(
                    cluster,
                    ProblemKind.ADDRESSES_REFUSED,
                    f"address {text[:45]!a} of EndpointSlice {each.name} is not exported: it is not an address"
                    f" of type {each.address_type} that allowedCIDRs allows",
                )
                continue
            addresses.append(address)
        if addresses:
            key = tuple(address.text for address in addresses)
            # Two endpoints of a valid slice never have the same addresses. If two do, the choice ignores their order.
            before = by_addresses.get(key)
            by_addresses[key] = found if before is None else min(before, found, key=repr)
    ordered = sorted(by_addresses.items())
    plain = [endpoint(found, key, node=False) for key, found in ordered]
    local = plain
    if any(found.node for _, found in ordered):
        local = [endpoint(found, key, node=True) for key, found in ordered]
    made = []
    for start in range(0, len(plain) or 1, MAX_WRITTEN):
        part = slice(start, start + MAX_WRITTEN)
        some = plain[part]
        own = some if local is plain else local[part]
        made.append(SourceSlice(each.name, start // MAX_WRITTEN, each.address_type, some, own, each.ports))
    return made, sum(len(key) for key in by_addresses)
