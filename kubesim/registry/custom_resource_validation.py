"""Validation of custom resources by their CRD's schema: types, enums, bounds, required fields, simple CEL rules."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.schemas import Schema
from kubesim.apimachinery.status import Cause

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


def validate(resource: ResourceInfo, obj: Mapping[str, Any]) -> list[Cause]:
    """Return the errors, in Kubernetes' order: those of the schema, or if there are none, those of rules."""
    root = schemas.of(resource)
    causes: list[Cause] = []
    rules: list[Cause] = []
    for key, value in obj.items():
        if key not in ("apiVersion", "kind", "metadata"):
            below = schemas.child(root, key)
            _check(below, value, key, causes)
            _rules(below, value, key, rules)
    causes += [Cause("FieldValueRequired", "Required value", key) for key in root.get("required", ()) if key not in obj]
    if causes and _has_rules(root):
        return [*causes, Cause("FieldValueInvalid", SKIPPED, "<nil>")]
    return causes or rules


def _check(schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if value is None or schema.get("x-kubernetes-int-or-string"):
        return
    if not _is(schema.get("type"), value):
        kind = _kind(value)
        text = f'Invalid value: "{kind}": {path} in body must be of type {schema["type"]}: "{kind}"'
        causes.append(Cause("FieldValueTypeInvalid", text, path))
        return
    if isinstance(value, Mapping):
        missing = [key for key in schema.get("required", ()) if key not in value]
        causes += [Cause("FieldValueRequired", "Required value", f"{path}.{key}") for key in missing]
        for key, item in sorted(value.items()):
            _check(schemas.child(schema, key), item, f"{path}.{key}", causes)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _check(schemas.element(schema), item, f"{path}[{at}]", causes)
        if "maxItems" in schema and len(value) > schema["maxItems"]:
            text = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
            causes.append(Cause("FieldValueTooMany", text, path))
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


def _bounds(schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    shown = json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def invalid(text: str) -> None:
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {shown}: {path} in body {text}", path))

    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        names = ", ".join(json.dumps(item) for item in allowed)
        causes.append(Cause("FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {names}", path))
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
                Cause("FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes", path)
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


def _rules(schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    for rule in schema.get("x-kubernetes-validations") or ():
        if not _fulfils(rule["rule"], value):
            text = rule.get("message") or f"failed rule: {rule['rule']}"
            causes.append(Cause("FieldValueInvalid", f"Invalid value: {text}", path))
    if isinstance(value, Mapping):
        for key, item in value.items():
            _rules(schemas.child(schema, key), item, f"{path}.{key}", causes)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _rules(schemas.element(schema), item, f"{path}[{at}]", causes)
