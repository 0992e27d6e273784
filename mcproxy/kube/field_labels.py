"""The field labels of built-in resources: the names in a fieldSelector, and the paths of their values in the object.

Source: the strategies and conversions of k8s.io/kubernetes `pkg/registry` and `pkg/apis` (ToSelectableFields,
AddFieldLabelConversionsFor…). Custom resources define their field labels in `selectableFields` of the definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class FieldLabel(NamedTuple):
    """The source of a field label's value: the first of `paths` that is not empty, else `default`."""

    paths: tuple[str, ...]
    default: str = ""


def _same(*paths: str) -> dict[str, FieldLabel]:
    return {path: FieldLabel((path,)) for path in paths}


METADATA: Mapping[str, FieldLabel] = _same("metadata.name", "metadata.namespace")
"""The labels that every resource has."""

FIELD_LABELS: Mapping[tuple[str, str], Mapping[str, FieldLabel]] = {
    ("", "pods"): {
        **_same(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ),
        "spec.hostNetwork": FieldLabel(("spec.hostNetwork",), "false"),
    },
    ("", "nodes"): {"spec.unschedulable": FieldLabel(("spec.unschedulable",), "false")},
    ("", "namespaces"): _same("status.phase"),
    ("", "secrets"): _same("type"),
    ("", "services"): _same("spec.clusterIP", "spec.type"),
    ("", "replicationcontrollers"): {"status.replicas": FieldLabel(("status.replicas",), "0")},
    ("apps", "replicasets"): {"status.replicas": FieldLabel(("status.replicas",), "0")},
    ("batch", "jobs"): {"status.successful": FieldLabel(("status.succeeded",), "0")},
    ("certificates.k8s.io", "certificatesigningrequests"): _same("spec.signerName"),
    ("", "events"): {
        **_same(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ),
        "source": FieldLabel(("source.component", "reportingComponent")),
    },
    ("events.k8s.io", "events"): _same(
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "reason",
        "type",
        "reportingController",
    ),
}
"""Field labels in addition to METADATA, by group and resource."""


def scalar(value: Any) -> str:
    """Return a decoded JSON value in the form that a field selector compares; "" for null, lists and objects."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if isinstance(value, (dict, list)) or value is None else str(value)


def value_at(obj: Mapping[str, Any], path: str) -> str:
    """Return the scalar at a dotted path; "" when absent."""
    current: Any = obj
    for part in path.split("."):
        if not isinstance(current, Mapping) or part not in current:
            return ""
        current = current[part]
    return scalar(current)


def field_value(obj: Mapping[str, Any], label: FieldLabel) -> str:
    """Return the value of a field label in a decoded object."""
    return next((value for path in label.paths if (value := value_at(obj, path))), label.default)


def unknown_field_label(label: str, known: Sequence[str], *, custom: bool) -> str:
    """Return a kube-apiserver's message for a field label that the resource does not have."""
    if not custom and len(known) == len(METADATA):
        return f'"{label}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    return f"field label not supported: {label}"
