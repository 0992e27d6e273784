"""Merges the exports of one service from several clusters, and finds the properties that conflict. Pure.

Source: KEP-1645, Constraints and Conflict Resolution: of values that cannot be merged the one of the first constituent
(with ServiceExports the oldest) is taken; ports are merged, first by name and then by protocol and number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mcproxy.services.exports.source_objects import FAMILIES, MAX_PORTS, Port, Service


class Constituent(NamedTuple):
    """A service of one cluster that is part of the merged one."""

    cluster: str
    service: Service
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class Conflict(NamedTuple):
    """A property in which constituents disagree: KEP-1645's reason, and a sentence about it."""

    reason: str
    message: str


class Merged(NamedTuple):
    """The merged service."""

    service: Service
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    conflicts: tuple[Conflict, ...]


def merge_by_precedence(constituents: Sequence[Constituent]) -> Merged:
    """Return what constituents are together, of which the first one has precedence. There must be at least one."""
    first = constituents[0]
    families = {family for each in constituents for family in each.service.families}
    service = first.service._replace(
        ports=_merged_ports(constituents),
        families=tuple(sorted(families, key=(*first.service.families, *FAMILIES).index)),
    )
    return Merged(service, first.labels, first.annotations, _conflicts(constituents))


def port_names(source: Service, merged: Service) -> Mapping[str, str]:
    """Return the names of the merged service's ports by those of one constituent.

    A port that the constituent does not have with this protocol and number is left out: nothing is sent there to
    endpoints of a service that exposes another number under that name.
    """
    names = {port.address: port.name for port in merged.ports}
    return {port.name: names[port.address] for port in source.ports if port.address in names}


def _merged_ports(constituents: Sequence[Constituent]) -> tuple[Port, ...]:
    ports: list[Port] = []
    names, addresses = set[str](), set[tuple[str, int]]()
    for each in constituents:
        for port in each.service.ports:
            if port.name in names or port.address in addresses or len(ports) == MAX_PORTS:
                continue
            if ports and ("" in names or not port.name):
                continue  # a Service with several ports has a name for each
            names.add(port.name)
            addresses.add(port.address)
            ports.append(port)
    return tuple(ports)


def _conflicts(constituents: Sequence[Constituent]) -> tuple[Conflict, ...]:
    return tuple(conflict for prop in _PROPERTIES if (conflict := _conflict(constituents, prop)) is not None)


class _Property(NamedTuple):
    reason: str
    name: str
    value: Callable[[Constituent], object]
    """None: the constituent says nothing about it, and disagrees with nobody."""
    taken: Callable[[Constituent], str]


def _conflict(constituents: Sequence[Constituent], prop: _Property) -> Conflict | None:
    values = [(each, value) for each in constituents if (value := prop.value(each)) is not None]
    if not values:
        return None
    first, taken = values[0]
    others = sum(value != taken for _, value in values)
    if not others:
        return None
    using = f'Using {prop.taken(first)} from oldest service export in "{first.cluster}".'
    return Conflict(prop.reason, f"Conflicting {prop.name}. {using} {others}/{len(values)} clusters disagree.")


def _type(each: Constituent) -> str:
    return "Headless" if each.service.headless else "ClusterSetIP"


def _quoted(value: Callable[[Constituent], object]) -> Callable[[Constituent], str]:
    return lambda each: f'"{value(each)}"'


def _policy(each: Constituent) -> str:
    return each.service.internal_traffic_policy or "Cluster"


def _distribution(each: Constituent) -> str:
    return each.service.traffic_distribution or ""


_PROPERTIES = (
    _Property(
        "PortConflict",
        "ports",
        lambda each: frozenset(each.service.ports),
        lambda each: "the union of all, in doubt the one",
    ),
    _Property("TypeConflict", "type", _type, _quoted(_type)),
    _Property(
        "SessionAffinityConflict",
        "session affinity",
        lambda each: each.service.session_affinity,
        _quoted(lambda each: each.service.session_affinity),
    ),
    _Property(
        "SessionAffinityConfigConflict",
        "session affinity config",
        lambda each: each.service.affinity_timeout or 0,
        lambda each: "that",
    ),
    _Property("AnnotationsConflict", "exported annotations", lambda each: dict(each.annotations), lambda each: "those"),
    _Property("LabelsConflict", "exported labels", lambda each: dict(each.labels), lambda each: "those"),
    _Property("InternalTrafficPolicyConflict", "internal traffic policy", _policy, _quoted(_policy)),
    _Property("TrafficDistributionConflict", "traffic distribution", _distribution, _quoted(_distribution)),
    _Property(
        "IPFamilyConflict",
        "IP families",
        lambda each: frozenset(each.service.families) or None,
        lambda each: "the union of all, first those",
    ),
)
