"""The paths of fields in a published schema, for field selectors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcproxy.aggregate.discovery.openapi_merge import decode

_KINDS = "x-kubernetes-group-version-kind"
_PREFIX = "#/components/schemas/"
_SCALARS = ("string", "integer", "number", "boolean")  # a tuple: the compared value may be of any type


class SchemaNode:
    """The schema of one place of an object. Schemas that refer to themselves make cycles of nodes.

    `fields`: the fields of an object. `others`: the schema of any other key of a map, None for nothing. `scalar`: it
    is a string, number or boolean. `open`: the schema is incomplete, so other paths may exist.
    """

    __slots__ = ("fields", "open", "others", "scalar")

    def __init__(self) -> None:
        self.fields: dict[str, SchemaNode] = {}
        self.others: SchemaNode | None = None
        self.scalar = False
        self.open = False

    def has(self, path: str) -> bool | None:
        """Return whether there is a scalar at a dotted path; None where the schema does not say."""
        node = self
        for part in path.split("."):
            child = node.fields.get(part, node.others)
            if child is None:
                return None if node.open else False
            node = child
        if node.scalar:
            return True
        return None if node.open and not node.fields else False


def read_schema(document: bytes, group: str, version: str, kind: str) -> SchemaNode | None:
    """Return the schema of a kind in an OpenAPI v3 document, None if it has none. Raises DiscoveryError."""
    components = _mapping(decode(document).get("components"))
    schemas = _mapping(components.get("schemas"))
    wanted = {"group": group, "version": version, "kind": kind}
    for schema in schemas.values():
        kinds = _mapping(schema).get(_KINDS)
        if isinstance(kinds, list) and wanted in kinds:
            return _Reader(schemas).node(schema)
    return None


class _Reader:
    """Makes one node of each named schema, however often it is referred to."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._named: dict[str, SchemaNode] = {}

    def node(self, root: Any) -> SchemaNode:
        """Return the node of a schema; without recursion, since a schema may nest as deep as JSON does."""
        first = SchemaNode()
        waiting = [(first, root)]
        while waiting:
            node, schema = waiting.pop()
            self._fill(node, _mapping(schema), waiting)
        return first

    def _fill(self, node: SchemaNode, schema: Mapping[str, Any], waiting: list[tuple[SchemaNode, Any]]) -> None:
        schema = self._resolved(schema)
        alternatives = schema.get("oneOf") or schema.get("anyOf")
        if schema.get("type") in _SCALARS or schema.get("x-kubernetes-int-or-string") is True:
            node.scalar = True
            return
        if isinstance(alternatives, list) and "properties" not in schema:
            node.scalar = all(_mapping(one).get("type") in _SCALARS for one in alternatives)
            node.open = not node.scalar
            return
        if schema.get("type") == "array":
            return
        properties = _mapping(schema.get("properties"))
        for name, child in properties.items():
            node.fields[name] = self._child(child, waiting)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and more:
            node.others = self._child(more, waiting)
        elif more is not False and (more is not None or not properties):
            node.open = True
        node.open = node.open or schema.get("x-kubernetes-preserve-unknown-fields") is True

    def _child(self, schema: Any, waiting: list[tuple[SchemaNode, Any]]) -> SchemaNode:
        name = _reference(_mapping(schema))
        if name is not None and name in self._named:
            return self._named[name]
        node = SchemaNode()
        if name is not None:
            self._named[name] = node
        waiting.append((node, schema))
        return node

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow references; a chain that comes back to itself ends in an empty schema."""
        seen: set[str] = set()
        while (name := _reference(schema)) is not None:
            if name in seen:
                return {}
            seen.add(name)
            schema = _mapping(self._schemas.get(name))
        return schema


def _reference(schema: Mapping[str, Any]) -> str | None:
    """Return the name that a schema refers to: directly, or as `allOf` with one entry, next to a description."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and "properties" not in schema:
        schema = _mapping(parts[0])
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_PREFIX):
        return reference[len(_PREFIX) :]
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
