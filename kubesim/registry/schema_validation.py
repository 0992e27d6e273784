"""Validation of objects by the schema of their kind: strict decoding, and the CRD's schema of custom resources.

Unknown and duplicate fields are refused (fieldValidation=Strict), warned of (Warn, the default) or dropped silently
(Ignore); a value of a wrong type is always refused. Of a CRD's schema types, enums, bounds, required fields and simple
CEL rules are checked.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.schemas import Schema
from kubesim.apimachinery.status import StatusCause, bad_request, field_required, field_too_many
from kubesim.registry.patches import go_kind

SKIPPED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)
TERM = re.compile(r"\s*self\.(\w+) *(==|!=|<=|>=|<|>) *('[^']*'|\d+)\s*\Z")
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def validate(resource: ResourceInfo, obj: Mapping[str, Any]) -> list[StatusCause]:
    """Return the errors, in Kubernetes' order: those of the schema, or if there are none, those of rules."""
    root = schemas.of(resource)
    causes: list[StatusCause] = []
    rules: list[StatusCause] = []
    for key, value in obj.items():
        if key not in ("apiVersion", "kind", "metadata"):
            below = schemas.child(root, key)
            _check(below, value, key, causes)
            _rules(below, value, key, rules)
    causes += [field_required(key) for key in root.get("required", ()) if key not in obj]
    if causes and _has_rules(root):
        return [*causes, StatusCause("FieldValueInvalid", SKIPPED, "<nil>")]
    return causes or rules


def _check(schema: Schema, value: Any, path: str, causes: list[StatusCause]) -> None:
    if value is None or schema.get("x-kubernetes-int-or-string"):
        return
    if not _is(schema.get("type"), value):
        kind = _kind(value)
        text = f'Invalid value: "{kind}": {path} in body must be of type {schema["type"]}: "{kind}"'
        causes.append(StatusCause("FieldValueTypeInvalid", text, path))
        return
    if isinstance(value, Mapping):
        missing = [key for key in schema.get("required", ()) if key not in value]
        causes += [field_required(f"{path}.{key}") for key in missing]
        for key, item in sorted(value.items()):
            _check(schemas.child(schema, key), item, f"{path}.{key}", causes)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _check(schemas.element(schema), item, f"{path}[{at}]", causes)
        if "maxItems" in schema and len(value) > schema["maxItems"]:
            causes.append(field_too_many(path, value, schema["maxItems"]))
    _bounds(schema, value, path, causes)


def _is(kind: str | None, value: Any) -> bool:
    if kind is None or kind not in TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])


def _kind(value: Any) -> str:
    return next(
        (kind for kind in ("boolean", "string", "integer", "number", "object", "array") if _is(kind, value)), ""
    )


def _bounds(schema: Schema, value: Any, path: str, causes: list[StatusCause]) -> None:
    shown = json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def invalid(text: str) -> None:
        causes.append(StatusCause("FieldValueInvalid", f"Invalid value: {shown}: {path} in body {text}", path))

    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        names = ", ".join(json.dumps(item) for item in allowed)
        causes.append(
            StatusCause("FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {names}", path)
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            invalid(f"should be greater than or equal to {schema['minimum']}")
        if "maximum" in schema and value > schema["maximum"]:
            invalid(f"should be less than or equal to {schema['maximum']}")
    if isinstance(value, str):
        if "minLength" in schema and len(value) < schema["minLength"]:
            invalid(f"should be at least {schema['minLength']} chars long")
        if "maxLength" in schema and len(value) > schema["maxLength"]:
            causes.append(
                StatusCause("FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes", path)
            )
        if "pattern" in schema and not re.search(schema["pattern"], value):
            invalid(f"should match '{schema['pattern']}'")


def _has_rules(schema: Schema) -> bool:
    below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return bool(schema.get("x-kubernetes-validations")) or any(
        _has_rules(item) for item in below if isinstance(item, Mapping) and "$ref" not in item
    )


def _fulfils(rule: str, value: Any) -> bool:
    """Return whether a value fulfils a rule such as `self.color != 'green' || self.size < 50`.

    Any other CEL counts as fulfilled, so that nothing is refused that a real API server accepts.
    """
    for term in rule.split("||"):
        found = TERM.match(term)
        if found is None or found[1] not in value:
            return True
        wanted = found[3][1:-1] if found[3][0] == "'" else int(found[3])
        if COMPARE[found[2]](value[found[1]], wanted):
            return True
    return False


def _rules(schema: Schema, value: Any, path: str, causes: list[StatusCause]) -> None:
    for rule in schema.get("x-kubernetes-validations") or ():
        if not _fulfils(rule["rule"], value):
            text = rule.get("message") or f"failed rule: {rule['rule']}"
            causes.append(StatusCause("FieldValueInvalid", f"Invalid value: {text}", path))
    if isinstance(value, Mapping):
        for key, item in value.items():
            _rules(schemas.child(schema, key), item, f"{path}.{key}", causes)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _rules(schemas.element(schema), item, f"{path}[{at}]", causes)


GO_TYPES = {"string": "string", "integer": "int32", "boolean": "bool", "number": "float64"}


def decode_strictly(resource: ResourceInfo, obj: JSONDict, body: bytes, mode: str) -> list[str]:
    """Prune `obj` in place; return the warnings. `mode` is Strict, Warn or Ignore.

    `body` is the JSON that was sent (duplicate fields are only visible there); empty for other media types.
    Raises APIError 400.
    """
    check_types(resource, obj)
    found = duplicate_fields(body) + unknown_fields(resource, obj)
    prune(resource, obj)
    if found and mode == "Strict":
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: strict decoding '
            f"error: {', '.join(found)}"
        )
    return found if mode == "Warn" else []


def unknown_fields(resource: ResourceInfo, obj: Mapping[str, Any]) -> list[str]:
    """Return `unknown field "spec.bogus"` for each, in the order of the object."""
    found: list[str] = []
    _walk(schemas.of(resource), obj, "", found, prune=False)
    return [f'unknown field "{path}"' for path in found]


def prune(resource: ResourceInfo, obj: JSONDict) -> None:
    """Drop unknown fields in place."""
    _walk(schemas.of(resource), obj, "", [], prune=True)


def _is_open(schema: Schema) -> bool:
    """Return whether the schema allows any value."""
    return (
        not schema.get("properties")
        or bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        or bool(schema.get("x-kubernetes-embedded-resource"))
    )


def _walk(schema: Schema, value: Any, path: str, found: list[str], *, prune: bool) -> None:
    if isinstance(value, list):
        for at, item in enumerate(value):
            _walk(schemas.element(schema), item, f"{path}[{at}]", found, prune=prune)
        return
    if not isinstance(value, dict):
        return
    declared = schema.get("properties") or {}
    for key in list(value):
        here = f"{path}.{key}" if path else key
        if key in declared or isinstance(schema.get("additionalProperties"), Mapping):
            _walk(schemas.child(schema, key), value[key], here, found, prune=prune)
        elif not _is_open(schema):
            found.append(here)
            if prune:
                del value[key]


def check_types(resource: ResourceInfo, obj: Mapping[str, Any]) -> None:
    """Check the types of values of a built-in type. Raises APIError 400.

    Custom resources are validated against their schema instead (`validate`).
    """
    if resource.builtin:
        _check_type(resource, schemas.of(resource), obj, resource.kind)


def _check_type(resource: ResourceInfo, schema: Schema, value: Any, path: str) -> None:
    kind = schema.get("type")
    if value is None or kind is None or ("properties" not in schema and schema.get("format") == "int-or-string"):
        return
    if schema.get("description", "").startswith("Quantity is a fixed-point"):
        return
    if kind == "object" and isinstance(value, Mapping):
        for key, item in value.items():
            below = schemas.child(schema, key)
            _check_type(resource, below, item, f"{path}.{key}" if key in schema.get("properties", {}) else path)
    elif kind == "array" and isinstance(value, list):
        for item in value:
            _check_type(resource, schemas.element(schema), item, path)
    elif not _fits(kind, value):
        wanted = "int64" if schema.get("format") == "int64" else GO_TYPES.get(kind, "object")
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: json: cannot '
            f"unmarshal {go_kind(value)} into Go struct field {path} of type {wanted}"
        )


def _fits(kind: str, value: Any) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return False


def duplicate_fields(body: bytes) -> list[str]:
    """Return `duplicate field "metadata.name"` for each duplicate key of a JSON body; none for other bodies."""
    if body.lstrip()[:1] != b"{":
        return []
    try:
        document = json.loads(body, object_pairs_hook=_Pairs)
    except ValueError:
        return []
    found: list[str] = []
    _duplicates(document, "", found)
    return [f'duplicate field "{path}"' for path in dict.fromkeys(found)]


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, in order and with duplicates."""


def _duplicates(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, item in value:
            here = f"{path}.{key}" if path else key
            if key in seen:
                found.append(here)
            seen.add(key)
            _duplicates(item, here, found)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _duplicates(item, f"{path}[{at}]", found)
