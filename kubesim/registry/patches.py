"""PATCH: JSON Patch (RFC 6902), JSON Merge Patch (RFC 7386), strategic merge patch and, by `server_side_apply`, apply.

The content type selects the kind. A strategic merge patch merges lists of objects by a key that the type declares, as
k8s.io/apimachinery/pkg/util/strategicpatch (`$patch`, `$retainKeys`, `$setElementOrder/…`,
`$deleteFromPrimitiveList/…`): the API definitions name the lists and their keys (x-kubernetes-patch-strategy,
x-kubernetes-patch-merge-key). Custom resources do not support it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.schemas import Schema
from kubesim.apimachinery.status import APIError, bad_request, not_found, rejected, unsupported_media_type
from kubesim.registry import server_side_apply

Doc = Any


def merge_patch(target: Doc, patch: Doc) -> Doc:
    """Apply RFC 7386, section 2. Neither argument is changed."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Doc, operations: Any) -> Doc:
    """Apply the operations to a copy of `target`.

    Raises APIError: 400 when `operations` is not an array of objects, else 422 with Kubernetes' generic message (a
    failing `test`, a missing path, an unknown operation): a real server does not say which.
    """
    if not isinstance(operations, list):
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {go_kind(operations)} into Go value of type "
            "[]handlers.jsonPatchOp"
        )
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise rejected() from error
    return document


def go_kind(value: Any) -> str:
    """Return the name of a JSON value's type in errors of Go's encoding/json."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    names = {str: "string", int: "number", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "value")


def _operate(document: Doc, operation: Mapping[str, Any]) -> Doc:
    name = operation["op"]
    path = pointer(operation["path"])
    if name == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    if name == "replace":
        _get(document, path)
        return _add(_remove(document, path), path, copy.deepcopy(operation["value"]))
    if name == "remove":
        return _remove(document, path)
    if name in ("move", "copy"):
        source = pointer(operation["from"])
        value = copy.deepcopy(_get(document, source))
        if name == "move":
            if path[: len(source)] == source and path != source:
                raise ValueError("a value cannot be moved into itself")
            document = _remove(document, source)
        return _add(document, path, value)
    if name == "test":
        return _test(document, path, operation.get("value"))
    raise ValueError(f"unknown operation {name!r}")


def _test(document: Doc, path: list[str], expected: Doc) -> Doc:
    try:
        found = _get(document, path)
    except KeyError:
        found = None
    if not equal(found, expected):
        raise ValueError("test failed")
    return document


def equal(left: Doc, right: Doc) -> bool:
    """Compare JSON values: True is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def pointer(text: str) -> list[str]:
    """Return the reference tokens of a JSON Pointer (RFC 6901). Raises ValueError."""
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON Pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")]


def _index(items: list[Any], token: str, *, end: bool) -> int:
    """Return an array index; a negative one counts from the end, as in Kubernetes' library."""
    if token == "-" and end:
        return len(items)
    if not token.lstrip("-").isascii() or not token.removeprefix("-").isdigit() or (token[0] == "0" and len(token) > 1):
        raise ValueError(f"{token!r} is not an index")
    number = int(token)
    limit = len(items) if end else len(items) - 1
    if number < 0:
        number += limit + 1
    if not 0 <= number <= limit:
        raise IndexError(token)
    return number


def _get(document: Doc, path: list[str]) -> Doc:
    for token in path:
        document = document[_index(document, token, end=False)] if isinstance(document, list) else document[token]
    return document


def _add(document: Doc, path: list[str], value: Doc) -> Doc:
    if not path:
        return value
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], end=True), value)
    else:
        parent[path[-1]] = value
    return document


def _remove(document: Doc, path: list[str]) -> Doc:
    if not path:
        return None
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(parent, path[-1], end=False)]
    else:
        del parent[path[-1]]
    return document


ORDER = "$setElementOrder/"
DELETE_FROM = "$deleteFromPrimitiveList/"
RETAIN = "$retainKeys"
PATCH = "$patch"


def strategic_merge(schema: Schema, original: Mapping[str, Any], patch: Mapping[str, Any]) -> JSONDict:
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
        result[key] = strategic_merge(below, old if keep and old is not None else {}, value)
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
            result[same[0]] = strategic_merge(element, result[same[0]], item)
        else:
            result.append(strategic_merge(element, {}, item))
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


JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def media_type(content_type: str) -> str:
    """Return a Content-Type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def check_media_type(content_type: str, resource: ResourceInfo) -> str:
    """Return the kind of patch. Raises APIError 415, in two forms, as a real server."""
    kind = media_type(content_type)
    if kind == STRATEGIC_PATCH and not resource.builtin:
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH, APPLY_PATCH))
    if kind not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH):
        raise APIError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    return kind


def apply_patch(
    current: JSONDict | None,
    body: bytes,
    content_type: str,
    *,
    resource: ResourceInfo,
    field_manager: str,
    force: bool,
    now: str,
    subresource: str = "",
) -> JSONDict:
    """Return the patched object; `current` is not changed and shares nothing with it.

    Only an apply patch may create (`current` None). `subresource` is that of the object to which it is applied.

    An apply patch sets managedFields itself; after any other the caller calls `managed_fields.update`. `now` is an RFC
    3339 time of whole seconds. Raises APIError: 400 (body), 404 (no object), 409 (apply conflict), 415, 422.
    """
    kind = check_media_type(content_type, resource)
    current = copy.deepcopy(current)
    if kind == APPLY_PATCH:
        config = server_side_apply.load_yaml(body)
        return server_side_apply.apply(
            current, config, resource=resource, manager=field_manager, force=force, now=now, subresource=subresource
        )
    if current is None:
        raise not_found(resource.group, resource.plural, "")
    patch = decode(body)
    if kind == JSON_PATCH:
        patched = json_patch(current, patch)
    elif not isinstance(patch, dict):
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {go_kind(patch)} into Go value of type "
            "map[string]interface {}"
        )
    elif kind == MERGE_PATCH:
        patched = merge_patch(current, patch)
    else:
        patched = strategic_merge(schemas.of(resource), current, patch)
    if not isinstance(patched, dict):
        raise bad_request("error decoding patch: the result is not an object")
    return patched


def decode(body: bytes) -> Any:
    """Decode a patch's JSON. Raises APIError 400 with Go's message."""
    try:
        return json.loads(body)
    except UnicodeDecodeError as error:
        raise bad_request("error decoding patch: invalid UTF-8") from error
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :]
        found = f"invalid character '{rest[0]}' looking for beginning of value" if rest.strip() else ""
        raise bad_request(f"error decoding patch: {found or 'unexpected end of JSON input'}") from error
