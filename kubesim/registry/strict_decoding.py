"""Strict decoding: unknown and duplicate fields, and values of a wrong type.

Kubernetes refuses such fields (fieldValidation=Strict), warns of them (Warn, the default) or drops them silently
(Ignore); a value of a wrong type is always refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.schemas import Schema
from kubesim.apimachinery.status import bad_request
from kubesim.patch.json_patch import go_kind

JSONDict = dict[str, Any]
GO_TYPES = {"string": "string", "integer": "int32", "boolean": "bool", "number": "float64"}


def decode(resource: ResourceInfo, obj: JSONDict, body: bytes, mode: str) -> list[str]:
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


def _open(schema: Schema) -> bool:
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
        elif not _open(schema):
            found.append(here)
            if prune:
                del value[key]


def check_types(resource: ResourceInfo, obj: Mapping[str, Any]) -> None:
    """Check the types of values of a built-in type. Raises APIError 400.

    Custom resources are validated against their schema instead (validation.py).
    """
    if resource.builtin:
        _check(resource, schemas.of(resource), obj, resource.kind)


def _check(resource: ResourceInfo, schema: Schema, value: Any, path: str) -> None:
    kind = schema.get("type")
    if value is None or kind is None or ("properties" not in schema and schema.get("format") == "int-or-string"):
        return
    if schema.get("description", "").startswith("Quantity is a fixed-point"):
        return
    if kind == "object" and isinstance(value, Mapping):
        for key, item in value.items():
            below = schemas.child(schema, key)
            _check(resource, below, item, f"{path}.{key}" if key in schema.get("properties", {}) else path)
    elif kind == "array" and isinstance(value, list):
        for item in value:
            _check(resource, schemas.element(schema), item, path)
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
