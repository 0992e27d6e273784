"""The part of an API server's OpenAPI v2 document that is merged: its own paths and their references. Pure.

Clients read the merged document as one: a reference that leads nowhere, or a key that a schema cannot have, makes all
of it unreadable for them (gnostic, kube-openapi `pkg/util/proto`). So such a document is left out as a whole, with its
cause, and unused parts are dropped. References to parameters are replaced by what they refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from mcproxy.aggregate.discovery.openapi_merge import JSONDict, decode, kinds_of
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.kube.nesting import TooDeep, refuse_deep

MAX_COMMAS = 200_000
"""Elements of one document, about; a kube-apiserver's own has 40,000."""
_DEFINITIONS, _PARAMETERS = "#/definitions/", "#/parameters/"
_MAX_OWN = 8 * 1024 * 1024  # bytes of the part
_TOO_LARGE = f"an OpenAPI document of more than {_MAX_OWN // 1024**2} MiB"

_TEXT, _LIST, _MAP, _BOOL, _NUMBER, _ANY = (str,), (list,), (dict,), (bool,), (int, float), (object,)
Keys = Mapping[str, tuple[type, ...]]
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_SCHEMA: Keys = MappingProxyType(
    {
        **dict.fromkeys(("$ref", "format", "title", "description", "pattern", "discriminator"), _TEXT),
        **dict.fromkeys(("maximum", "minimum", "multipleOf"), _NUMBER),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), (int,)),
        **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "readOnly"), _BOOL),
        **dict.fromkeys(("required", "enum", "allOf"), _LIST),
        **dict.fromkeys(("properties", "xml", "externalDocs"), _MAP),
        "additionalProperties": (bool, dict),
        "type": (str, list),
        "items": (dict, list),
        "default": _ANY,
        "example": _ANY,
    }
)
_PATH: Keys = MappingProxyType({**dict.fromkeys(_METHODS, _MAP), "parameters": _LIST})
_OPERATION: Keys = MappingProxyType(
    {
        **dict.fromkeys(("summary", "description", "operationId"), _TEXT),
        **dict.fromkeys(("tags", "consumes", "produces", "schemes", "parameters", "security"), _LIST),
        **dict.fromkeys(("responses", "externalDocs"), _MAP),
        "deprecated": _BOOL,
    }
)
_RESPONSE: Keys = MappingProxyType({"description": _TEXT, "schema": _MAP, "headers": _MAP, "examples": _MAP})
_PARAMETER: Keys = MappingProxyType(
    {
        **{key: kinds for key, kinds in _SCHEMA.items() if key not in ("$ref", "properties", "allOf")},
        **dict.fromkeys(("name", "in", "collectionFormat"), _TEXT),
        **dict.fromkeys(("required", "allowEmptyValue"), _BOOL),
        "schema": _MAP,
    }
)


def own_part(body: bytes, takes: Callable[[str], bool], owns: Callable[[tuple[Any, ...]], bool]) -> bytes:
    """Return of an OpenAPI v2 document the paths that `takes` allows, and definitions.

    These are those of the kinds that it `owns`, and what they and the paths refer to. Raises DiscoveryError.
    """
    try:
        refuse_deep(body)
    except TooDeep as error:
        raise DiscoveryError(f"an OpenAPI document that is {error}") from None
    _refuse_many(body)
    document = decode(body)
    if document.get("swagger") != "2.0":
        raise DiscoveryError("not an OpenAPI document of version 2")
    parameters = _Parameters(_mapping(document.get("parameters")))
    definitions = _mapping(document.get("definitions"))
    paths: JSONDict = {}
    schemas: list[Any] = []
    for path, item in _mapping(document.get("paths")).items():
        if takes(path):
            paths[path] = _path(item, parameters, schemas)
    taken: JSONDict = {}
    own = (name for name, schema in definitions.items() if any(owns(kind) for kind in kinds_of(schema)))
    waiting = [*schemas, *({"$ref": _DEFINITIONS + name} for name in own)]
    while waiting:
        for name in _checked(waiting.pop()):
            if name not in definitions:
                raise DiscoveryError(f"an OpenAPI document that refers to a definition it does not have: {name[:100]}")
            if name not in taken:
                taken[name] = definitions[name]
                waiting.append(definitions[name])
    part = msgspec.json.encode({"swagger": "2.0", "paths": paths, "definitions": taken})
    if len(part) > _MAX_OWN:
        raise DiscoveryError(_TOO_LARGE)
    _refuse_many(part)
    return part


def _refuse_many(text: bytes) -> None:
    """Raise DiscoveryError for more elements than `MAX_COMMAS`, or as many objects and arrays within one another."""
    if text.count(b",") > MAX_COMMAS or text.count(b"{") + text.count(b"[") > MAX_COMMAS:
        raise DiscoveryError(f"an OpenAPI document with more than {MAX_COMMAS} elements")


class _Parameters:
    """The parameters of a document, of which each may be referred to many times.

    Each is checked once. Its size in every place is counted before it is copied: few bytes of a document could become
    very many.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._checked: dict[str, tuple[JSONDict, int]] = {}
        self._room = _MAX_OWN

    def get(self, name: str, schemas: list[Any]) -> JSONDict:
        """Return the parameter; its schema is added to `schemas` the first time. Raises DiscoveryError."""
        found = self._checked.get(name)
        if found is None:
            one = _parameter(self._known.get(name), schemas)
            found = self._checked[name] = one, len(msgspec.json.encode(one))
        self._room -= found[1]
        if self._room < 0:
            raise DiscoveryError(_TOO_LARGE)
        return found[0]


def _path(item: Any, parameters: _Parameters, schemas: list[Any]) -> JSONDict:
    """Return a path item with its parameters in place; its schemas are added to `schemas`."""
    found = _keys(item, _PATH)
    if "parameters" in found:
        found["parameters"] = _parameters(found["parameters"], parameters, schemas)
    for method in _METHODS:
        if method not in found:
            continue
        operation = found[method] = _keys(found[method], _OPERATION)
        if "parameters" in operation:
            operation["parameters"] = _parameters(operation["parameters"], parameters, schemas)
        responses = {}
        for code, response in _mapping(operation.get("responses")).items():
            one = responses[code] = _keys(response, _RESPONSE)
            one.setdefault("description", "")
            if "schema" in one:
                schemas.append(one["schema"])
        operation["responses"] = responses
    return found


def _parameters(found: list[Any], known: _Parameters, schemas: list[Any]) -> list[JSONDict]:
    result = []
    for parameter in found:
        reference = _mapping(parameter).get("$ref")
        if isinstance(reference, str) and reference.startswith(_PARAMETERS):
            result.append(known.get(reference[len(_PARAMETERS) :], schemas))
        else:
            result.append(_parameter(parameter, schemas))
    return result


def _parameter(found: Any, schemas: list[Any]) -> JSONDict:
    one = _keys(found, _PARAMETER)
    if not isinstance(one.get("name"), str) or not isinstance(one.get("in"), str):
        raise DiscoveryError("an OpenAPI document with a parameter that has no name")
    if "schema" in one:
        schemas.append(one["schema"])
    return one


def _checked(root: Any) -> Iterator[str]:
    """Yield the definitions that a schema refers to. Raises DiscoveryError for what is no schema."""
    waiting = [root]
    while waiting:
        schema = _keys(waiting.pop(), _SCHEMA)
        reference = schema.get("$ref")
        if reference is not None:
            if not reference.startswith(_DEFINITIONS):
                raise DiscoveryError("an OpenAPI document that refers to what is not its own")
            yield reference[len(_DEFINITIONS) :]
        waiting.extend(schema.get("properties", {}).values())
        waiting.extend(schema.get("allOf", ()))
        for key in ("additionalProperties", "items"):
            value = schema.get(key)
            waiting.extend(value if isinstance(value, list) else [value] if isinstance(value, dict) else [])
        for key in ("required", "type"):
            words = schema.get(key)
            if isinstance(words, list) and not all(isinstance(word, str) for word in words):
                raise DiscoveryError(f"an OpenAPI document with a schema whose {key} is not made of words")


def _keys(value: Any, known: Keys) -> JSONDict:
    """Return an object that has these keys and extensions alone. Raises DiscoveryError."""
    if not isinstance(value, dict):
        raise DiscoveryError("an OpenAPI document with something else where an object must be")
    for key, one in value.items():
        if key.startswith("x-"):
            continue
        kinds = known.get(key)
        if (
            kinds is None
            or not isinstance(one, kinds)
            or (isinstance(one, bool) and bool not in kinds and kinds != _ANY)
        ):
            raise DiscoveryError(f"an OpenAPI document in which {key[:100]!r} is wrong where it stands")
    return dict(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
