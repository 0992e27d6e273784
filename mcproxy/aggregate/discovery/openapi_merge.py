"""The merge of OpenAPI documents, v2 and v3: a union of paths, with definitions renamed on conflict. Pure.

Source: k8s.io/kube-openapi `pkg/aggregator` (MergeSpecsIgnorePathConflictRenamingDefinitions). A path that several have
is the first one's; a definition of the same name with other content gets a new name in the later document, and so do
the definitions that refer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mcproxy.kube.discovery import DiscoveryError

JSONDict = dict[str, Any]

_KINDS = "x-kubernetes-group-version-kind"
_MAX_COMMAS = 1_000_000
"""In one document; each element may take a hundred bytes while it is decoded. A kube-apiserver's own v2 has 40,000."""


class Spec(NamedTuple):
    """One document; `takes` says which of its paths are taken.

    `owns`: it is that of an API service, of which only what it owns is taken: it says which group, version and kind
    its definitions may claim, and those that do are taken, too. Definitions that differ in these claims alone are the
    same, as in kube-openapi.
    """

    body: bytes
    takes: Callable[[str], bool]
    owns: Callable[[tuple[Any, ...]], bool] | None = None


def everything(path: str) -> bool:
    """Take all paths."""
    return bool(path)


def merge_specs(specs: Sequence[Spec]) -> bytes:
    """Return one document of several of the same version of OpenAPI. Raises DiscoveryError."""
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
    """What the definitions of a merge have taken: group, version and kind, and numbers behind names.

    Both only grow, and are not searched again for each document: a large one would then cost something for every
    other one. A document may have any names, so there is no number at which the search ends.
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
    """Add the paths `added` and those of the definitions `known` that they need."""
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
    """Return all definitions that are referred to, directly or not, each with those that it refers to."""
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
    """Return the names that `schemas` has with other content, or with references to such a one."""
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
    """Return group, version and kind that a definition claims, each as strings."""
    return [_kind(kind) for kind in _kinds_of(schema)]


def _kinds_of(schema: Any) -> list[Any]:
    kinds = schema.get(_KINDS) if isinstance(schema, dict) else None
    return kinds if isinstance(kinds, list) else []


def _kind(kind: Any) -> tuple[Any, ...]:
    return tuple(str(kind.get(key)) for key in ("group", "version", "kind")) if isinstance(kind, dict) else ()


def decode(body: bytes) -> JSONDict:
    """Return an OpenAPI document. Raises DiscoveryError for what is none, and for too many elements."""
    if body.count(b",") > _MAX_COMMAS:
        raise DiscoveryError(f"an OpenAPI document with more than {_MAX_COMMAS} elements")
    try:
        document = msgspec.json.decode(body)
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
    """Return a JSON object; an empty one for what is none."""
    return value if isinstance(value, dict) else {}
