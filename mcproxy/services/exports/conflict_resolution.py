"""Merges the exports of one service from several clusters, and finds the properties that conflict. Pure.

Source: KEP-1645, Constraints and Conflict Resolution. Ports are merged, first by name and then by protocol and number.
The IP families are those of all constituents. Every other value is that of the first constituent (with ServiceExports:
of the oldest one).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mcproxy.services.exports.source_objects import FAMILIES, MAX_PORTS, ExportedService, Port


class Constituent(NamedTuple):
    """The service of one cluster, as a part of the merged service."""

    cluster: str
    service: ExportedService
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class PropertyConflict(NamedTuple):
    """A property in which constituents disagree: KEP-1645's reason, and a sentence about it."""

    reason: str
    message: str


class MergedService(NamedTuple):
    """The merged service."""

    service: ExportedService
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    conflicts: tuple[PropertyConflict, ...]


def merge_by_precedence(constituents: Sequence[Constituent]) -> MergedService:
    """Merge at least one constituent; the first one has precedence."""
    first = constituents[0]
    families = {family for each in constituents for family in each.service.families}
    service = first.service._replace(
        ports=_merged_ports(constituents),
        families=tuple(sorted(families, key=(*first.service.families, *FAMILIES).index)),
    )
    return MergedService(service, first.labels, first.annotations, _conflicts(constituents))


def port_names(source: ExportedService, merged: ExportedService) -> Mapping[str, str]:
    """Return the port names of the merged service by the port names of one constituent.

    A port is left out if the constituent has another protocol or number under that name, so that its endpoints do not
    get the port's traffic.
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
                continue  # every port of a Service with several ports has a name
            names.add(port.name)
            addresses.add(port.address)
            ports.append(port)
    return tuple(ports)


def _conflicts(constituents: Sequence[Constituent]) -> tuple[PropertyConflict, ...]:
    return tuple(conflict for prop in _PROPERTIES if (conflict := _conflict(constituents, prop)) is not None)


class _Property(NamedTuple):
    reason: str
    name: str
    value: Callable[[Constituent], object]
    """None: the constituent does not specify the property, so it conflicts with no other."""
    taken: Callable[[Constituent], str]


def _conflict(constituents: Sequence[Constituent], prop: _Property) -> PropertyConflict | None:
    values = [(each, value) for each in constituents if (value := prop.value(each)) is not None]
    if not values:
        return None
    first, taken = values[0]
    others = sum(value != taken for _, value in values)
    if not others:
        return None
    using = f'Using {prop.taken(first)} from oldest service export in "{first.cluster}".'
    return PropertyConflict(prop.reason, f"Conflicting {prop.name}. {using} {others}/{len(values)} clusters disagree.")


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


# -- conditions -----------------------------------------------------------------------------------------------
#
# Builds the conditions of ServiceExports and ServiceImports, with their transition times. Pure.
#
# Source: sigs.k8s.io/mcs-api `v1beta1` (types, reasons), apimachinery `meta.SetStatusCondition` (times).


TRUE, FALSE = "True", "False"
IP_FAMILY_NOT_SUPPORTED = "IPFamilyNotSupported"
_READY = "The Service is ready to be imported."


def mcs_condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    """Return a condition without its time."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def valid_conditions(cut: str = "") -> list[dict[str, Any]]:
    """Return the conditions Valid and Ready of an exported ServiceExport. `cut`: describes the parts left out."""
    return [
        mcs_condition("Valid", TRUE, "Valid", "The Service can be exported."),
        mcs_condition("Ready", TRUE, "Ready", f"Not all is exported: {cut}." if cut else _READY),
    ]


def invalid_conditions(reason: str, message: str) -> list[dict[str, Any]]:
    """Return the conditions Valid and Ready of a ServiceExport whose service is not exported."""
    ready_condition = "Pending" if reason == "NoService" else "Failed"
    return [mcs_condition("Valid", FALSE, reason, message), mcs_condition("Ready", FALSE, ready_condition, message)]


def not_admitted_conditions(message: str) -> list[dict[str, Any]]:
    """Return the conditions Valid and Ready of a ServiceExport that is valid but exceeds the quota."""
    return [valid_conditions()[0], mcs_condition("Ready", FALSE, "Failed", message)]


def conflict_condition(conflicts: Sequence[PropertyConflict]) -> dict[str, Any]:
    """Return the condition Conflict for all ServiceExports of a service."""
    if not conflicts:
        return mcs_condition("Conflict", FALSE, "NoConflicts", "The exported Services agree.")
    reasons = ",".join(each.reason for each in conflicts)
    return mcs_condition("Conflict", TRUE, reasons, " ".join(each.message for each in conflicts))


def ready_condition(*, is_ready: bool, message: str) -> dict[str, Any]:
    """Return the condition Ready of a ServiceImport."""
    return (
        mcs_condition("Ready", TRUE, "Ready", message)
        if is_ready
        else mcs_condition("Ready", FALSE, "Pending", message)
    )


def families_condition(families: Sequence[str]) -> dict[str, Any]:
    """Return the condition Ready of a ServiceImport whose Service has no address: the cluster lacks its IP families."""
    message = f"The cluster supports none of the IP families of the service: {', '.join(families)}."
    return mcs_condition("Ready", FALSE, IP_FAMILY_NOT_SUPPORTED, message)


def with_transition_times(status: Mapping[str, Any], observed: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    """Return a status whose conditions have a lastTransitionTime: the observed time, or `now` after a transition.

    `now` is an RFC 3339 time in UTC; only a change of a condition's `status` is a transition.
    """
    before: dict[str, Mapping[str, Any]] = {}
    conditions = (observed or {}).get("conditions")
    if isinstance(conditions, list):
        before = {
            each["type"]: each for each in conditions if isinstance(each, dict) and isinstance(each.get("type"), str)
        }
    filled = []
    for each in status.get("conditions", ()):
        known = before.get(each["type"])
        time = now
        if (
            known is not None
            and known.get("status") == each["status"]
            and isinstance(known.get("lastTransitionTime"), str)
        ):
            time = known["lastTransitionTime"]
        filled.append({**each, "lastTransitionTime": time})
    return {**status, "conditions": filled} if "conditions" in status else dict(status)
