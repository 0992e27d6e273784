"""Label and field selectors: parsing with Kubernetes' errors, and matching.

Sources: apimachinery `labels.Parse` and `fields.ParseSelector`; the field labels of built-in resources are in FIELDS,
those of custom resources in `selectableFields`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mcproxy.demo.apimachinery import status
from mcproxy.demo.apimachinery.resources import ResourceInfo

JSONDict = dict[str, Any]
Matcher = Callable[[JSONDict], bool]

_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_TOKEN = re.compile(r"\s*(!=|==|=|!|,|\(|\)|>|<|[^\s!=,()<>]+)")
_VALUE_HELP = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

FIELDS: dict[tuple[str, str], Mapping[str, str]] = {
    ("", "pods"): {
        name: name
        for name in (
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        )
    },
    ("", "nodes"): {"spec.unschedulable": "spec.unschedulable"},
    ("", "namespaces"): {"status.phase": "status.phase"},
    ("", "secrets"): {"type": "type"},
    ("", "services"): {"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
    ("", "replicationcontrollers"): {"status.replicas": "status.replicas"},
    ("apps", "replicasets"): {"status.replicas": "status.replicas"},
    ("batch", "jobs"): {"status.successful": "status.succeeded"},
    ("certificates.k8s.io", "certificatesigningrequests"): {"spec.signerName": "spec.signerName"},
    ("", "events"): {
        "involvedObject.kind": "involvedObject.kind",
        "involvedObject.namespace": "involvedObject.namespace",
        "involvedObject.name": "involvedObject.name",
        "involvedObject.uid": "involvedObject.uid",
        "involvedObject.apiVersion": "involvedObject.apiVersion",
        "involvedObject.resourceVersion": "involvedObject.resourceVersion",
        "involvedObject.fieldPath": "involvedObject.fieldPath",
        "reason": "reason",
        "reportingComponent": "reportingComponent",
        "source": "source.component",
        "type": "type",
    },
    ("events.k8s.io", "events"): {
        "regarding.kind": "involvedObject.kind",
        "regarding.namespace": "involvedObject.namespace",
        "regarding.name": "involvedObject.name",
        "regarding.uid": "involvedObject.uid",
        "reason": "reason",
        "type": "type",
        "reportingController": "reportingComponent",
    },
}
"""Field labels besides metadata.name and metadata.namespace, and the paths of their values in the stored object."""


def field_labels(resource: ResourceInfo) -> dict[str, str]:
    """Return the field labels of a resource, with their paths."""
    labels = {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace"}
    if resource.crd_version is not None:
        for entry in resource.crd_version.get("selectableFields") or ():
            path = str(entry["jsonPath"]).lstrip(".")
            labels[path] = path
    else:
        labels.update(FIELDS.get((resource.group, resource.plural), {}))
    return labels


def value_at(obj: JSONDict, path: str) -> str:
    """Return the value of a path as a field selector compares it; "" when absent."""
    current: Any = obj
    for part in path.split("."):
        if not isinstance(current, dict) or part not in current:
            return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
        current = current[part]
    if isinstance(current, bool):
        return "true" if current else "false"
    return "" if isinstance(current, (dict, list)) or current is None else str(current)


def field_matcher(text: str, resource: ResourceInfo) -> Matcher | None:
    """Return a fieldSelector as a predicate; None selects everything. Raises APIError 400."""
    terms = [_field_term(term, text) for term in _split_escaped(text) if term]
    if not terms:
        return None
    known = field_labels(resource)
    for label, _, _ in terms:
        if label not in known:
            raise status.bad_request(_unknown_field(label, known, resource))
    checks = [(known[label], operator == "!=", value) for label, operator, value in terms]

    def matches(obj: JSONDict) -> bool:
        return all((value_at(obj, path) == value) is not negated for path, negated, value in checks)

    return matches


def _unknown_field(label: str, known: Mapping[str, str], resource: ResourceInfo) -> str:
    if resource.builtin and len(known) == 2:
        return f'"{label}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    return f"field label not supported: {label}"


def _split_escaped(text: str) -> list[str]:
    parts, current, escaped = [], "", False
    for char in text:
        if escaped:
            current, escaped = current + char, False
        elif char == "\\":
            current, escaped = current + char, True
        elif char == ",":
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current]


def _field_term(term: str, whole: str) -> tuple[str, str, str]:
    for index, char in enumerate(term):
        for operator in ("!=", "==", "="):
            if char in "!=" and term.startswith(operator, index):
                return term[:index], operator, _unescape(term[index + len(operator) :])
    raise status.bad_request(f"invalid selector: '{whole}'; can't understand '{term}'")


def _unescape(value: str) -> str:
    out, escaped = "", False
    for char in value:
        if escaped:
            if char not in "\\,=":
                raise status.bad_request(f"invalid field selector: invalid escape sequence: {ord(char)}")
            out, escaped = out + char, False
        elif char == "\\":
            escaped = True
        elif char in ",=":
            raise status.bad_request(f"invalid field selector: unescaped character in value: {ord(char)}")
        else:
            out += char
    return out


def label_matcher(text: str) -> Matcher | None:
    """Return a labelSelector as a predicate; None selects everything. Raises APIError 400."""
    requirements = _Labels(text).parse()
    if not requirements:
        return None

    def matches(obj: JSONDict) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(_requirement(labels, *requirement) for requirement in requirements)

    return matches


def _requirement(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    if operator == "exists":
        return key in labels
    if operator == "!":
        return key not in labels
    if operator == "in":
        return key in labels and labels[key] in values
    if operator == "notin":
        return key not in labels or labels[key] not in values
    try:
        number = int(labels[key])
    except (KeyError, ValueError):
        return False
    return number > int(values[0]) if operator == ">" else number < int(values[0])


class _Labels:
    """A recursive-descent parser of label selectors, with the error messages of apimachinery."""

    def __init__(self, text: str) -> None:
        self.tokens = [match.group(1) for match in _TOKEN.finditer(text) if match.group(1)]
        self.position = 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def parse(self) -> list[tuple[str, str, tuple[str, ...]]]:
        requirements: list[tuple[str, str, tuple[str, ...]]] = []
        while True:
            token = self.peek()
            if not token:
                return requirements
            if token != "!" and not _is_word(token):
                raise _parse_error(f"found '{token}', expected: !, identifier, or 'end of string'")
            requirements.append(self.requirement())
            token = self.next()
            if not token:
                return requirements
            if token != ",":
                raise _parse_error(f"found '{token}', expected: ',' or 'end of string'")
            following = self.peek()
            if following != "!" and not _is_word(following):
                raise _parse_error(f"found '{following}', expected: identifier after ','")

    def requirement(self) -> tuple[str, str, tuple[str, ...]]:
        if self.peek() == "!":
            self.next()
            return self.key(), "!", ()
        key = self.key()
        operator = self.peek()
        if operator in ("", ","):
            return key, "exists", ()
        self.next()
        if operator in ("in", "notin"):
            return key, operator, _checked(key, self.values())
        if operator in ("=", "==", "!=", ">", "<"):
            value = self.next() if _is_word(self.peek()) else ""
            name = {"=": "in", "==": "in", "!=": "notin"}.get(operator, operator)
            if name in ("<", ">") and not re.fullmatch(r"[+-]?[0-9]+", value):
                text = "for 'Gt', 'Lt' operators, the value must be an integer"
                raise _parse_error(f'values[0]: Invalid value: "{value}": {text}')
            return key, name, _checked(key, (value,))
        raise _parse_error(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def key(self) -> str:
        token = self.next()
        if not _is_word(token):
            raise _parse_error(f"found '{token}', expected: identifier")
        return token

    def values(self) -> tuple[str, ...]:
        token = self.next()
        if token != "(":
            raise _parse_error(f"found '{token}' expected: '('")
        found: list[str] = []
        while True:
            token = self.next()
            if _is_word(token):
                found.append(token)
                token = self.next()
            elif token in (",", ")"):
                found.append("")
            else:
                raise _parse_error(f"found '{token}', expected: ',', ')' or identifier")
            if token == ")":
                return tuple(found)
            if token != ",":
                raise _parse_error(f"found '{token}', expected: ',' or ')'")


def _is_word(token: str) -> bool:
    return bool(token) and token not in ("!=", "==", "=", "!", ",", "(", ")", ">", "<")


def _checked(key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if len(value) > 63 or not _VALUE.match(value):
            raise _parse_error(f'values[{index}][{key}]: Invalid value: "{value}": {_VALUE_HELP}')
    return values


def _parse_error(text: str) -> status.APIError:
    return status.bad_request(f"unable to parse requirement: {text}")
