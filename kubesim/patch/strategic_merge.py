"""Strategic merge patch: lists of objects are merged by a key that the type declares.

The rules are those of k8s.io/apimachinery/pkg/util/strategicpatch (`$patch`, `$retainKeys`, `$setElementOrder/…`,
`$deleteFromPrimitiveList/…`); the API definitions name the lists to merge and their keys (x-kubernetes-patch-strategy,
x-kubernetes-patch-merge-key). Custom resources do not support this kind of patch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.schemas import Schema
from kubesim.apimachinery.status import bad_request, rejected

JSONDict = dict[str, Any]
ORDER = "$setElementOrder/"
DELETE_FROM = "$deleteFromPrimitiveList/"
RETAIN = "$retainKeys"
PATCH = "$patch"


def merge(schema: Schema, original: Mapping[str, Any], patch: Mapping[str, Any]) -> JSONDict:
    """Return `original` merged with `patch`; neither is changed.

    Raises APIError 400 or 422 for an invalid patch.
    """
    directive = patch.get(PATCH)
    if directive == "replace":
        whole: JSONDict = _plain(patch)
        return whole
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type found: {directive}")
    result = dict(original)
    if (retained := patch.get(RETAIN)) is not None:
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(DELETE_FROM):
            field = key.removeprefix(DELETE_FROM)
            if isinstance(result.get(field), list):
                result[field] = [item for item in result[field] if item not in value]
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(schema, result, key, value, patch.get(ORDER + key))
    for key, order in patch.items():
        field = key.removeprefix(ORDER)
        if key.startswith(ORDER) and field not in patch and isinstance(result.get(field), list):
            result[field] = _ordered(_merge_key(schemas.child(schema, field)), result[field], result[field], order)
    return result


def _merge_field(schema: Schema, result: JSONDict, key: str, value: Any, order: list[Any] | None) -> None:
    if value is None:
        result.pop(key, None)
        return
    below = schemas.child(schema, key)
    strategy = below.get("x-kubernetes-patch-strategy", "").split(",")
    old = result.get(key)
    if isinstance(value, Mapping):
        keep = isinstance(old, Mapping) and "replace" not in strategy
        result[key] = merge(below, old if keep and old is not None else {}, value)
    elif isinstance(value, list) and "merge" in strategy:
        result[key] = _merge_list(below, old if isinstance(old, list) else [], value, order)
    else:
        result[key] = _plain(value)


def _merge_key(schema: Schema) -> str | None:
    key: str | None = schema.get("x-kubernetes-patch-merge-key")
    return key


def _merge_list(schema: Schema, old: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    key = _merge_key(schema)
    if key is None:
        merged = [*old, *(item for item in dict.fromkeys(patch) if item not in old)]
    else:
        merged = _merge_by_key(schema, key, old, patch)
    special = [item for item in patch if isinstance(item, Mapping) and PATCH in item]
    if any(item[PATCH] == "replace" for item in special):
        return merged
    return _ordered(key, old, merged, [item for item in patch if item not in special] if order is None else order)


def _merge_by_key(schema: Schema, key: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if any(not isinstance(item, Mapping) for item in patch):
        raise rejected()
    if any(item.get(PATCH) == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get(PATCH) != "replace"]
    result = list(old)
    element = schemas.element(schema)
    for item in patch:
        if key not in item:
            raise rejected()
        same = [at for at, candidate in enumerate(result) if candidate.get(key) == item[key]]
        if item.get(PATCH) == "delete":
            result = [candidate for candidate in result if candidate.get(key) != item[key]]
        elif same:
            result[same[0]] = merge(element, result[same[0]], item)
        else:
            result.append(merge(element, {}, item))
    return result


def _ordered(key: str | None, server: list[Any], merged: list[Any], order: list[Any]) -> list[Any]:
    """Order the items that the client named as it did; those that only the server has keep their places.

    An item that is new to the server goes before those that only the server has.
    """

    def identity(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, Mapping) else item

    wanted = [identity(item) for item in order]
    stood = {identity(item): at for at, item in enumerate(server)}
    known = {identity(item): item for item in merged}
    mine = [known[name] for name in wanted if name in known]
    others = [item for item in merged if identity(item) not in wanted]
    result: list[Any] = []
    while mine and others:
        at = stood.get(identity(mine[0]))
        take_other = at is not None and stood.get(identity(others[0]), len(server)) < at
        result.append(others.pop(0) if take_other else mine.pop(0))
    return result + mine + others


def _plain(value: Any) -> Any:
    """Return a copy without nulls and directives, for a new value."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return copy.copy(value)
