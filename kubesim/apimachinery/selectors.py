"""Label and field selectors of query parameters as predicates over objects, and the LabelSelectors of objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from mcproxy.kube import selectors
from mcproxy.kube.field_labels import FIELD_LABELS, METADATA, FieldLabel, field_value, unknown_field_label

Matcher = Callable[[JSONDict], bool]

_STORED_EVENT = {
    "regarding.kind": "involvedObject.kind",
    "regarding.namespace": "involvedObject.namespace",
    "regarding.name": "involvedObject.name",
    "regarding.uid": "involvedObject.uid",
    "reportingController": "reportingComponent",
}
"""Fields of events.k8s.io in the stored form, which is that of the core group."""


def field_labels(resource: ResourceInfo) -> dict[str, FieldLabel]:
    """Return the field labels of a resource, with the places of their values in the stored object."""
    labels = dict(METADATA)
    if resource.crd_version is not None:
        for entry in resource.crd_version.get("selectableFields") or ():
            path = str(entry["jsonPath"]).lstrip(".")
            labels[path] = FieldLabel((path,))
        return labels
    labels.update(FIELD_LABELS.get((resource.group, resource.plural), {}))
    if (resource.group, resource.plural) == ("events.k8s.io", "events"):
        labels.update({label: FieldLabel((path,)) for label, path in _STORED_EVENT.items()})
    return labels


def field_matcher(text: str, resource: ResourceInfo) -> Matcher | None:
    """Return a fieldSelector as a predicate; None selects everything. Raises APIError, StatusError 400."""
    terms = selectors.parse_field_selector(text)
    if not terms:
        return None
    known = field_labels(resource)
    for term in terms:
        if term.field not in known:
            raise status.bad_request(unknown_field_label(term.field, list(known), custom=not resource.builtin))
    checks = [(known[term.field], term.negated, term.value) for term in terms]

    def matches(obj: JSONDict) -> bool:
        return all((field_value(obj, label) == value) is not negated for label, negated, value in checks)

    return matches


def label_matcher(text: str) -> Matcher | None:
    """Return a labelSelector as a predicate; None selects everything. Raises StatusError 400."""
    matcher = selectors.label_matcher(selectors.parse_label_selector(text))
    if matcher is None:
        return None
    return lambda obj: matcher(obj["metadata"].get("labels") or {})


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector matches some labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_matches(item, labels) for item in selector.get("matchExpressions") or ())


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or ()
    if operator == "In":
        return bool(labels.get(key) in values)
    if operator == "NotIn":
        return bool(labels.get(key) not in values)
    return bool((key in labels) == (operator == "Exists"))
