"""Conditions of ServiceExports and ServiceImports, with their times. Pure.

Source: sigs.k8s.io/mcs-api `v1beta1` (types, reasons), apimachinery `meta.SetStatusCondition` (times).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcproxy.services.exports.conflict_resolution import Conflict

TRUE, FALSE = "True", "False"
IP_FAMILY_NOT_SUPPORTED = "IPFamilyNotSupported"
_READY = "The Service is ready to be imported."


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    """Return a condition without its time."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def valid(cut: str = "") -> list[dict[str, Any]]:
    """Return Valid and Ready of a ServiceExport whose service is exported; `cut`: what is left out of it."""
    return [
        condition("Valid", TRUE, "Valid", "The Service can be exported."),
        condition("Ready", TRUE, "Ready", f"Not all is exported: {cut}." if cut else _READY),
    ]


def invalid(reason: str, message: str) -> list[dict[str, Any]]:
    """Return Valid and Ready of a ServiceExport whose service is not exported."""
    ready = "Pending" if reason == "NoService" else "Failed"
    return [condition("Valid", FALSE, reason, message), condition("Ready", FALSE, ready, message)]


def not_admitted(message: str) -> list[dict[str, Any]]:
    """Return Valid and Ready of a ServiceExport that is in order, and one too many."""
    return [valid()[0], condition("Ready", FALSE, "Failed", message)]


def conflict_condition(conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return Conflict of all ServiceExports of a service."""
    if not conflicts:
        return condition("Conflict", FALSE, "NoConflicts", "The exported Services agree.")
    reasons = ",".join(each.reason for each in conflicts)
    return condition("Conflict", TRUE, reasons, " ".join(each.message for each in conflicts))


def ready(*, is_ready: bool, message: str) -> dict[str, Any]:
    """Return Ready of a ServiceImport."""
    return condition("Ready", TRUE, "Ready", message) if is_ready else condition("Ready", FALSE, "Pending", message)


def families_not_supported(families: Sequence[str]) -> dict[str, Any]:
    """Return Ready of a ServiceImport whose Service has no address in this cluster, for it has none of its families."""
    message = f"The cluster supports none of the IP families of the service: {', '.join(families)}."
    return condition("Ready", FALSE, IP_FAMILY_NOT_SUPPORTED, message)


def with_transition_times(status: Mapping[str, Any], observed: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    """Return a status whose conditions have their lastTransitionTime: the observed one, or `now` if that has changed.

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
