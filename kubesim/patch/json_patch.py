"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) on plain dicts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery.status import bad_request, rejected

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
