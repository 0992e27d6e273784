"""The merge of OpenAPI documents, v2 and v3: a union of paths, with definitions renamed on conflict. Pure.

Source: k8s.io/kube-openapi `pkg/aggregator` (MergeSpecsIgnorePathConflictRenamingDefinitions). The first document with
a path wins. A definition with the name of an earlier one but other content gets a new name, and so do all definitions
that refer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from mcproxy.kube.discovery import DiscoveryError
from mcproxy.kube.nesting import TooDeep, refuse_deep
from mcproxy.kube.numbers import json_float

JSONDict = dict[str, Any]

_KINDS = "x-kubernetes-group-version-kind"
_MAX_COMMAS = 1_000_000
"""Maximum JSON elements per document: decoding needs up to 100 bytes for each. A kube-apiserver's v2 has 40,000."""


class Spec(NamedTuple):
    """One document; `takes` returns whether a path is merged.

    `owns`: if set, the document belongs to an API service. It returns whether the service's definitions may claim a
    group, version and kind; definitions that claim such a kind are merged, too. Definitions that differ only in these
    claims count as equal, as in kube-openapi.
    """

    body: bytes
    takes: Callable[[str], bool]
    owns: Callable[[tuple[Any, ...]], bool] | None = None


def everything(path: str) -> bool:
    """Accept every path (for `Spec.takes`)."""
    return bool(path)


def merge_specs(specs: Sequence[Spec]) -> bytes:
    """Merge documents of the same OpenAPI version into one. Raises DiscoveryError."""
    try:
        return _merge(specs)
    except RecursionError:
        raise DiscoveryError("an OpenAPI document is nested too deeply") from None


def _merge(specs: Sequence[Spec]) -> bytes:
    documents = [decode(spec.body) for spec in specs]
    v3 = "openapi" in documents[0]
    if any(("openapi" in document) != v3 for document in documents):
        raise DiscoveryError("OpenAPI documents of different versions")
    base = documents[0]
    paths = {path: item for path, item in _paths(base).items() if specs[0].takes(path)}
    schemas = dict(_schemas(base, v3=v3))
    claimed = _Claimed({_kind(kind) for schema in schemas.values() for kind in _kinds_of(schema)}, {})
    prefix = "#/components/schemas/" if v3 else "#/definitions/"
    for spec, document in zip(specs[1:], documents[1:], strict=True):
        added = {path: item for path, item in _paths(document).items() if path not in paths and spec.takes(path)}
        _add(paths, schemas, claimed, added, _schemas(document, v3=v3), prefix, spec.owns)
    merged = {**base, "paths": dict(sorted(paths.items()))}
    ordered = dict(sorted(schemas.items()))
    if v3:
        merged["components"] = {**base.get("components", {}), "schemas": ordered}
    else:
        merged["definitions"] = ordered
    return msgspec.json.encode(merged)


class _Claimed(NamedTuple):
    """The kinds (group, version, kind) and the number suffixes of names that the definitions of a merge already use.

    Both sets only grow, so that later documents do not have to scan a large earlier document. Definitions can have any
    names, so the search for a free number has no upper bound.
    """

    kinds: set[tuple[Any, ...]]
    numbers: dict[str, int]


def _add(
    paths: JSONDict,
    schemas: JSONDict,
    claimed: _Claimed,
    added: JSONDict,
    known: Mapping[str, Any],
    prefix: str,
    owns: Callable[[tuple[Any, ...]], bool] | None,
) -> None:
    """Add the paths `added`, and the definitions in `known` to which they refer."""
    roots: list[Any] = [added]
    if owns is not None:
        roots += [
            {"$ref": prefix + name}
            for name, schema in known.items()
            if any(owns(_kind(one)) for one in _kinds_of(schema))
        ]
    needed = _closure(roots, known, prefix)
    changed = _changed(needed, schemas, known, _same if owns is None else _same_but_kinds)
    names = {prefix + name: prefix + _free_name(name, schemas, known, claimed.numbers) for name in sorted(changed)}
    found: set[tuple[Any, ...]] = set()
    for name in needed:
        if name in schemas and name not in changed:
            continue
        schema = _renamed(known[name], names)
        if name in changed or owns is not None:
            own = [
                kind
                for kind in _kinds_of(schema)
                if _kind(kind) not in claimed.kinds and (owns is None or owns(_kind(kind)))
            ]
            schema = {key: value for key, value in schema.items() if key != _KINDS}
            if own:
                schema[_KINDS] = own
        found.update(map(_kind, _kinds_of(schema)))
        schemas[names.get(prefix + name, prefix + name).removeprefix(prefix)] = schema
    claimed.kinds.update(found)
    paths.update((path, _renamed(item, names)) for path, item in added.items())


def _closure(roots: Any, known: Mapping[str, Any], prefix: str) -> dict[str, set[str]]:
    """Return all definitions that `roots` refer to, directly or indirectly, each with its own references."""
    found: dict[str, set[str]] = {}
    waiting = list(_references(roots, prefix))
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found[name] = set(_references(known[name], prefix))
            waiting.extend(found[name])
    return found


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _same_but_kinds(one: Any, other: Any) -> bool:
    return one == other or (
        isinstance(one, dict)
        and isinstance(other, dict)
        and {key: value for key, value in one.items() if key != _KINDS}
        == {key: value for key, value in other.items() if key != _KINDS}
    )


def _changed(
    needed: Mapping[str, set[str]],
    schemas: Mapping[str, Any],
    known: Mapping[str, Any],
    same: Callable[[Any, Any], bool],
) -> set[str]:
    """Return the definitions whose content in `schemas` differs, and the definitions that refer to them."""
    referrers: dict[str, list[str]] = {}
    for name, references in needed.items():
        if name in schemas:
            for reference in references:
                referrers.setdefault(reference, []).append(name)
    changed: set[str] = set()
    waiting = [name for name in needed if name in schemas and not same(schemas[name], known[name])]
    while waiting:
        name = waiting.pop()
        if name not in changed:
            changed.add(name)
            waiting.extend(referrers.get(name, ()))
    return changed


def _references(value: Any, prefix: str) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            reference = one.get("$ref")
            if isinstance(reference, str) and reference.startswith(prefix):
                yield reference[len(prefix) :]
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if not names:
        return value
    if isinstance(value, dict):
        return {
            key: names.get(item, item) if key == "$ref" and isinstance(item, str) else _renamed(item, names)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return value


def _free_name(name: str, schemas: Mapping[str, Any], known: Mapping[str, Any], numbers: dict[str, int]) -> str:
    number = numbers.get(name, 2)
    while (free := f"{name}_v{number}") in schemas or free in known:
        number += 1
    numbers[name] = number + 1
    return free


def kinds_of(schema: Any) -> list[tuple[Any, ...]]:
    """Return the kinds that a definition claims, each as group, version and kind (strings)."""
    return [_kind(kind) for kind in _kinds_of(schema)]


def _kinds_of(schema: Any) -> list[Any]:
    kinds = schema.get(_KINDS) if isinstance(schema, dict) else None
    return kinds if isinstance(kinds, list) else []


def _kind(kind: Any) -> tuple[Any, ...]:
    return tuple(str(kind.get(key)) for key in ("group", "version", "kind")) if isinstance(kind, dict) else ()


_VALUE = msgspec.json.Decoder(float_hook=json_float)


def decode(body: bytes) -> JSONDict:
    """Decode an OpenAPI document. Raises DiscoveryError for any other content, and for too many elements."""
    if body.count(b",") > _MAX_COMMAS:
        raise DiscoveryError(f"an OpenAPI document with more than {_MAX_COMMAS} elements")
    try:
        document = _VALUE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(f"not an OpenAPI document: {error}") from None
    if not isinstance(document, dict):
        raise DiscoveryError("not an OpenAPI document")
    return document


def _paths(document: Mapping[str, Any]) -> JSONDict:
    return _mapping(document.get("paths"))


def _schemas(document: Mapping[str, Any], *, v3: bool) -> JSONDict:
    found = _mapping(document.get("components")).get("schemas") if v3 else document.get("definitions")
    return {name: schema for name, schema in _mapping(found).items() if isinstance(schema, dict)}


def _mapping(value: Any) -> JSONDict:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


# -- the part of an API server --------------------------------------------------------------------------------
#
# The merged part of an API server's OpenAPI v2 document: its own paths and the definitions that they refer to. Pure.
#
# A dangling reference or an unknown key in a schema makes the whole merged document unreadable for clients (gnostic,
# kube-openapi `pkg/util/proto`). So an API server's document with such a fault is left out completely, and the cause
# is reported. Unused parts are dropped. References to parameters are replaced by the parameters.


MAX_PART_COMMAS = 200_000
"""Approximate maximum of JSON elements in one document; a kube-apiserver's own document has 40,000."""
_DEFINITIONS, _PARAMETERS = "#/definitions/", "#/parameters/"
_MAX_OWN = 8 * 1024 * 1024  # maximum bytes of the merged part
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
    """Return an OpenAPI v2 document that is reduced to the paths that `takes` accepts and to the needed definitions.

    Needed are the definitions of kinds that `owns` accepts, and all definitions to which these or the paths refer.
    Raises DiscoveryError.
    """
    try:
        refuse_deep(body)
    except TooDeep as error:
        raise DiscoveryError(f"an OpenAPI document that is {error}") from None
    _refuse_many(body)
    document = decode(body)
    if document.get("swagger") != "2.0":
        raise DiscoveryError("not an OpenAPI document of version 2")
    parameters = _Parameters(_checked_mapping(document.get("parameters")))
    definitions = _checked_mapping(document.get("definitions"))
    paths: JSONDict = {}
    schemas: list[Any] = []
    for path, item in _checked_mapping(document.get("paths")).items():
        if takes(path):
            paths[path] = _own_path(item, parameters, schemas)
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
    """Raise DiscoveryError if there are more than `MAX_PART_COMMAS` elements, or more objects and arrays than that."""
    if text.count(b",") > MAX_PART_COMMAS or text.count(b"{") + text.count(b"[") > MAX_PART_COMMAS:
        raise DiscoveryError(f"an OpenAPI document with more than {MAX_PART_COMMAS} elements")


class _Parameters:
    """The shared parameters of a document; many operations can refer to each of them.

    Each parameter is checked once. Its size is counted at each reference before it is copied, since a small document
    can expand to a very large one.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._checked: dict[str, tuple[JSONDict, int]] = {}
        self._room = _MAX_OWN

    def get(self, name: str, schemas: list[Any]) -> JSONDict:
        """Return a parameter; the first call adds its schema to `schemas`. Raises DiscoveryError."""
        found = self._checked.get(name)
        if found is None:
            one = _parameter(self._known.get(name), schemas)
            found = self._checked[name] = one, len(msgspec.json.encode(one))
        self._room -= found[1]
        if self._room < 0:
            raise DiscoveryError(_TOO_LARGE)
        return found[0]


def _own_path(item: Any, parameters: _Parameters, schemas: list[Any]) -> JSONDict:
    """Return a path item with its parameter references replaced; add its schemas to `schemas`."""
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
        for code, response in _checked_mapping(operation.get("responses")).items():
            one = responses[code] = _keys(response, _RESPONSE)
            one.setdefault("description", "")
            if "schema" in one:
                schemas.append(one["schema"])
        operation["responses"] = responses
    return found


def _parameters(found: list[Any], known: _Parameters, schemas: list[Any]) -> list[JSONDict]:
    result = []
    for parameter in found:
        reference = _checked_mapping(parameter).get("$ref")
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
    """Yield the definitions that a schema refers to. Raises DiscoveryError if it is not a schema."""
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
    """Return a copy of an object. Raises DiscoveryError if it has other keys than these and extensions (`x-`)."""
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


def _checked_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
