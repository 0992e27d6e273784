"""What an object's fields are: the API's own definitions, read once and only when something asks.

Server-side apply, strategic merge patches, managedFields, strict decoding, Tables and OpenAPI all need the same facts
(which lists are maps, and by which keys; what a column's description says), so all of them ask here. The definitions
are those that a kube-apiserver publishes under /openapi/v2, with the defaults of its v3 documents added; a custom
resource brings its own schema in its CRD.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping
from importlib import resources as package_files
from typing import Any

from mcproxy.demo.apimachinery.resources import ResourceInfo

JSONDict = dict[str, Any]
Schema = Mapping[str, Any]
"""A JSON Schema as OpenAPI v2 has it; `{}` where nothing is known."""

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
PREFIX = "#/definitions/"
UNKNOWN: Schema = {}


@functools.cache
def definitions() -> Mapping[str, JSONDict]:
    """Every built-in definition by name, as in /openapi/v2, plus `default` where v3 has one."""
    raw = (package_files.files("mcproxy.demo") / "data" / "definitions.json.gz").read_bytes()
    loaded: dict[str, JSONDict] = json.loads(gzip.decompress(raw))
    return loaded


@functools.cache
def _by_kind() -> Mapping[tuple[str, str, str], str]:
    """Definition names by (group, version, kind). Kinds that every group has (DeleteOptions) are left out."""
    names: dict[tuple[str, str, str], str] = {}
    for name, definition in definitions().items():
        kinds = definition.get("x-kubernetes-group-version-kind", ())
        if len(kinds) == 1:
            names[kinds[0]["group"], kinds[0]["version"], kinds[0]["kind"]] = name
    return names


def definition_name(group: str, version: str, kind: str) -> str | None:
    """The definition of a built-in kind."""
    return _by_kind().get((group, version, kind))


def of(resource: ResourceInfo) -> Schema:
    """The schema of a resource's objects. Custom resources get the real ObjectMeta for their metadata."""
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
    """Follow a `$ref`; what stands beside it (patch strategy, list type) wins over what the definition says."""
    if not schema:
        return UNKNOWN
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target = definitions().get(reference.removeprefix(PREFIX), {})
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "description")}
    return {**target, **beside} if beside else target


def named_field(schema: Schema, key: str) -> Schema | None:
    """The schema of a declared field, None when `key` is not declared (a key of a map is not)."""
    found: Schema | None = schema.get("properties", {}).get(key)
    return found


def child(schema: Schema, key: str) -> Schema:
    """The resolved schema of what lies under `key`, be it a field or a key of a map."""
    found = named_field(schema, key)
    if found is None:
        more = schema.get("additionalProperties")
        found = more if isinstance(more, Mapping) else None
    return resolve(found)


def element(schema: Schema) -> Schema:
    """The resolved schema of a list's elements."""
    return resolve(schema.get("items"))


def is_atomic_map(schema: Schema) -> bool:
    """Whether an object is owned and replaced as a whole."""
    return schema.get("x-kubernetes-map-type") == "atomic"


def list_keys(schema: Schema) -> tuple[str, ...] | None:
    """How a list's elements are told apart: None when it is atomic, () for a set, else the keys of a map.

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
    """The documentation of a field, as Table columns and `kubectl explain` show it; "" when there is none."""
    text: str = definitions().get(definition, {}).get("properties", {}).get(field, {}).get("description", "")
    return text


@functools.cache
def skeleton(definition: str) -> Mapping[str, Any]:
    """What an empty object of a type looks like in JSON: the fields that Go writes even when nothing is set.

    managedFields are worked out against it, which is why `f:spec` of a Deployment has no "." but that of a custom
    resource has. Never change the result.
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
    """`skeleton` of a resource; a custom resource's empty object is just that."""
    name = definition_name(resource.group, resource.version, resource.kind) if resource.builtin else None
    return skeleton(name) if name else {}


def completed(resource: ResourceInfo, obj: Mapping[str, Any]) -> JSONDict:
    """An object with all the fields that Go would write, for comparisons; the original is not changed."""
    return _overlay(empty_object(resource), obj)


def _overlay(below: Mapping[str, Any], obj: Mapping[str, Any]) -> JSONDict:
    out = {**below, **obj}
    for key, value in below.items():
        if isinstance(value, Mapping) and isinstance(obj.get(key), Mapping):
            out[key] = _overlay(value, obj[key])
    return out
