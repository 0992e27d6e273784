"""Messages about values that violate the schema: mistake and remedy, by the keyword that failed."""

from __future__ import annotations

from typing import Any

from mcproxy.config.reading.nodes import Mapping, Node, Scalar, Sequence, quote

Schema = dict[str, Any]
Message = tuple[str, str | None]  # what is wrong, what would be right

_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}


def describe(keyword: str, node: Node, schema: Schema) -> Message:
    """Return the message about the value `node`, which fails `keyword` of `schema`."""
    right: str | None = schema.get("errorMessage")
    match keyword:
        case "type":
            return f"is {_described(node, schema)}", _right_type(node, schema)
        case "enum":
            return f"{_shown(node)} is not known", _one_of(schema["enum"])
        case "pattern":
            empty = isinstance(node, Scalar) and node.value == ""
            return "is empty" if empty else f"{_shown(node)} has the wrong form", right
        case "minLength":
            return "is empty", right or "write a string, or leave the key out"
        case "maxLength":
            return f"is longer than {schema['maxLength']} characters", "shorten it"
        case "minimum":
            return f"{_shown(node)} is too small", right or f"write at least {schema['minimum']}"
        case "exclusiveMinimum":
            return f"{_shown(node)} is too small", right or f"write more than {schema['exclusiveMinimum']}"
        case "maximum" if schema["maximum"] == 0:  # of durations: 0 alone needs no unit
            return f"{_shown(node)} has no unit", right
        case "maximum":
            return f"{_shown(node)} is too large", f"write at most {schema['maximum']}"
        case "minItems":
            return "is an empty list", right or "give it at least one entry"
        case "minProperties":
            return "is empty", right
        case "maxProperties":
            return "has more than one key", right
    return "is not allowed", right or "see the description of the key in mcproxy.yaml(5)"


def _shown(node: Node) -> str:
    """Return a string in quotes, a number or constant as the file has it; cut where it is long."""
    text = node.text if isinstance(node, Scalar) else ""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return quote(text)
    return text if len(text) <= 60 else text[:57] + "…"


def _type_of(node: Node) -> str:
    if isinstance(node, Mapping):
        return "object"
    if isinstance(node, Sequence):
        return "array"
    value = node.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def _one_of(values: list[Any]) -> str:
    words = [str(value) for value in values]
    return f"write {words[0]}" if len(words) == 1 else f"write one of {', '.join(words)}"


def _described(node: Node, schema: Schema) -> str:
    kind = _type_of(node)
    if "writeOnly" in schema and isinstance(node, Scalar):
        return "not a string" if node.value is not None else "empty"
    if isinstance(node, Scalar) and node.value is not None:
        names = {"string": "the string", "boolean": "the boolean"}
        return f"{names.get(kind, 'the number')} {_shown(node)}"
    return {"object": "a mapping", "array": "a list"}.get(kind, "empty")


def _right_type(node: Node, schema: Schema) -> str:
    types = schema["type"]
    wanted = [kind for kind in ([types] if isinstance(types, str) else types) if kind != "null"]
    if isinstance(node, Scalar) and node.value is None:
        return "give it a value, or leave the key out"
    if "enum" in schema and getattr(node, "text", None) not in schema["enum"]:
        return _one_of(schema["enum"])
    if wanted == ["string"] and isinstance(node, Scalar):
        return "write it in quotes" if "writeOnly" in schema else f'write it in quotes: "{node.text}"'
    if wanted == ["array"] and isinstance(node, Scalar):
        return f"write a list: [{node.text}]"
    if "errorMessage" in schema:
        return str(schema["errorMessage"])
    return "write " + " or ".join(_TYPE_NAMES[kind] for kind in wanted)
