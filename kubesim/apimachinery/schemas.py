"""Schemas of objects: the API's own definitions, loaded once, on first use.

Used by server-side apply, strategic merge patches, managedFields, strict decoding, Tables and OpenAPI (which lists are
maps, and by which keys; descriptions of columns). The definitions are those that a kube-apiserver publishes under
/openapi/v2, with the defaults of its v3 documents added; a custom resource has its own schema in its CRD.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping
from importlib import resources as package_files
from typing import Any

from kubesim.apimachinery.resources import JSONDict, ResourceInfo

Schema = Mapping[str, Any]
"""A JSON Schema in OpenAPI v2's form; `{}` where it is unknown."""

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
PREFIX = "#/definitions/"
UNKNOWN: Schema = {}


@functools.cache
def definitions() -> Mapping[str, JSONDict]:
    """Return every built-in definition by name, as in /openapi/v2, with `default` where v3 has one."""
    raw = (package_files.files("kubesim") / "data" / "definitions.json.gz").read_bytes()
    loaded: dict[str, JSONDict] = json.loads(gzip.decompress(raw))
    return loaded


@functools.cache
def _by_kind() -> Mapping[tuple[str, str, str], str]:
    """Return definition names by (group, version, kind), without kinds that every group has (DeleteOptions)."""
    names: dict[tuple[str, str, str], str] = {}
    for name, definition in definitions().items():
        kinds = definition.get("x-kubernetes-group-version-kind", ())
        if len(kinds) == 1:
            names[kinds[0]["group"], kinds[0]["version"], kinds[0]["kind"]] = name
    return names


def definition_name(group: str, version: str, kind: str) -> str | None:
    """Return the name of the definition of a built-in kind."""
    return _by_kind().get((group, version, kind))


def of(resource: ResourceInfo) -> Schema:
    """Return the schema of a resource's objects, with the real ObjectMeta for custom resources."""
    if resource.builtin:
        name = definition_name(resource.group, resource.version, resource.kind)
        return definitions()[name] if name else UNKNOWN
    own = ((resource.crd_version or {}).get("schema") or {}).get("openAPIV3Schema") or {}
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **own.get("properties", {}),
        "metadata": {"$ref": PREFIX + OBJECT_META},
    }
    return {**own, "properties": properties}


def resolve(schema: Schema | None) -> Schema:
    """Resolve a `$ref`; its sibling keys (patch strategy, list type) win over those of the definition."""
    if not schema:
        return UNKNOWN
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target = definitions().get(reference.removeprefix(PREFIX), {})
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "description")}
    return {**target, **beside} if beside else target


def named_field(schema: Schema, key: str) -> Schema | None:
    """Return the schema of a declared field, or None (a key of a map is not declared)."""
    found: Schema | None = schema.get("properties", {}).get(key)
    return found


def child(schema: Schema, key: str) -> Schema:
    """Return the resolved schema of `key`, a field or a key of a map."""
    found = named_field(schema, key)
    if found is None:
        more = schema.get("additionalProperties")
        found = more if isinstance(more, Mapping) else None
    return resolve(found)


def element(schema: Schema) -> Schema:
    """Return the resolved schema of a list's elements."""
    return resolve(schema.get("items"))


def is_atomic_map(schema: Schema) -> bool:
    """Return whether an object is owned and replaced as a whole."""
    return schema.get("x-kubernetes-map-type") == "atomic"


def list_keys(schema: Schema) -> tuple[str, ...] | None:
    """Return the keys that identify a list's elements: None for an atomic list, () for a set, else those of a map.

    Without x-kubernetes-list-type the patch strategy decides, as in kube-openapi's schemaconv.
    """
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        return tuple(schema.get("x-kubernetes-list-map-keys", ()))
    if kind == "set":
        return ()
    if kind is None and "merge" in schema.get("x-kubernetes-patch-strategy", "").split(","):
        key = schema.get("x-kubernetes-patch-merge-key")
        return (key,) if key else ()
    return None


def description(definition: str, field: str) -> str:
    """Return the description of a field, as in Table columns and `kubectl explain`; "" when there is none."""
    text: str = definitions().get(definition, {}).get("properties", {}).get(field, {}).get("description", "")
    return text


@functools.cache
def skeleton(definition: str) -> Mapping[str, Any]:
    """Return the JSON of an empty object of a type: the fields that Go writes even if nothing is set.

    managedFields are computed against it; therefore `f:spec` of a custom resource has a ".", and that of a Deployment
    none. The caller must not change the result.
    """
    schema = definitions()[definition]
    required = schema.get("required", ())
    out: JSONDict = {}
    for name, raw in schema.get("properties", {}).items():
        if raw.get("default") == {} and "$ref" in raw:
            out[name] = skeleton(raw["$ref"].removeprefix(PREFIX))
        elif name in required:
            out[name] = raw.get("default")
    return out


def empty_object(resource: ResourceInfo) -> Mapping[str, Any]:
    """Return the `skeleton` of a resource; that of a custom resource is empty."""
    name = definition_name(resource.group, resource.version, resource.kind) if resource.builtin else None
    return skeleton(name) if name else {}


def completed(resource: ResourceInfo, obj: Mapping[str, Any]) -> JSONDict:
    """Return a copy of an object with all fields that Go would write, for comparisons."""
    return _overlay(empty_object(resource), obj)


def _overlay(below: Mapping[str, Any], obj: Mapping[str, Any]) -> JSONDict:
    out = {**below, **obj}
    for key, value in below.items():
        if isinstance(value, Mapping) and isinstance(obj.get(key), Mapping):
            out[key] = _overlay(value, obj[key])
    return out
