"""The fields of TokenReview and SubjectAccessReview, in JSON and in protobuf. Pure.

Source: k8s.io/api `authentication/v1/generated.proto` and `authorization/v1/generated.proto` (numbers), `types.go` (the
order of the fields in JSON). Bodies are not trusted: each value has the type of its field, or `ValueError` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from mcproxy.kube import protobuf

JSONDict = dict[str, Any]
_MAX_FIELDS = 10_000  # of one message
_VALUE_ITEMS = 1  # field number: of an ExtraValue


class Type(Enum):
    """What a field holds, in addition to messages."""

    STRING = "string"
    STRINGS = "strings"
    BOOL = "bool"
    EXTRA = "extra"  # a map of strings to lists of strings


class Field(NamedTuple):
    """One field: its number in protobuf, and what it holds; `many`: a list of messages."""

    number: int
    type: Type | Mapping[str, Field]
    many: bool = False


Schema = Mapping[str, Field]

_USER: Schema = {
    "username": Field(1, Type.STRING),
    "uid": Field(2, Type.STRING),
    "groups": Field(3, Type.STRINGS),
    "extra": Field(4, Type.EXTRA),
}
_REQUIREMENT: Schema = {
    "key": Field(1, Type.STRING),
    "operator": Field(2, Type.STRING),
    "values": Field(3, Type.STRINGS),
}
_SELECTOR: Schema = {"rawSelector": Field(1, Type.STRING), "requirements": Field(2, _REQUIREMENT, many=True)}
_RESOURCE: Schema = {
    "namespace": Field(1, Type.STRING),
    "verb": Field(2, Type.STRING),
    "group": Field(3, Type.STRING),
    "version": Field(4, Type.STRING),
    "resource": Field(5, Type.STRING),
    "subresource": Field(6, Type.STRING),
    "name": Field(7, Type.STRING),
    "fieldSelector": Field(8, _SELECTOR),
    "labelSelector": Field(9, _SELECTOR),
}
TOKEN_SPEC: Schema = {"token": Field(1, Type.STRING), "audiences": Field(2, Type.STRINGS)}
TOKEN_STATUS: Schema = {
    "authenticated": Field(1, Type.BOOL),
    "user": Field(2, _USER),
    "audiences": Field(4, Type.STRINGS),
    "error": Field(3, Type.STRING),
}
ACCESS_SPEC: Schema = {
    "resourceAttributes": Field(1, _RESOURCE),
    "nonResourceAttributes": Field(2, {"path": Field(1, Type.STRING), "verb": Field(2, Type.STRING)}),
    "user": Field(3, Type.STRING),
    "groups": Field(4, Type.STRINGS),
    "extra": Field(5, Type.EXTRA),
    "uid": Field(6, Type.STRING),
}
ACCESS_STATUS: Schema = {
    "allowed": Field(1, Type.BOOL),
    "denied": Field(4, Type.BOOL),
    "reason": Field(2, Type.STRING),
    "evaluationError": Field(3, Type.STRING),
}


def from_json(value: Any, schema: Schema) -> JSONDict:
    """Return the known fields of a decoded JSON object in Go's order; without empty ones, but for messages.

    Raises ValueError for a value of another type than its field.
    """
    if not isinstance(value, dict):
        raise ValueError("is no object")
    found: JSONDict = {}
    for name, field in schema.items():
        item = value.get(name)
        if item is None:
            continue
        known = _value(item, field)
        if known or isinstance(field.type, Mapping):
            found[name] = known
    return found


def _value(item: Any, field: Field) -> Any:
    if isinstance(field.type, Mapping):
        if not field.many:
            return from_json(item, field.type)
        return [from_json(each, field.type) for each in _list(item)]
    if field.type is Type.STRINGS:
        return _strings(item)
    if field.type is Type.EXTRA:
        if not isinstance(item, dict):
            raise ValueError("extra is no object")
        return {key: _strings([] if values is None else values) for key, values in sorted(item.items())}
    if not isinstance(item, str if field.type is Type.STRING else bool):
        raise ValueError(f"{field.type.value} expected")
    return item


def _list(item: Any) -> list[Any]:
    if not isinstance(item, list):
        raise ValueError("list expected")
    return item


def _strings(item: Any) -> list[str]:
    if not all(isinstance(each, str) for each in _list(item)):
        raise ValueError("strings expected")
    return list(item)


def from_protobuf(message: bytes, schema: Schema) -> JSONDict:
    """Return the fields of a message as `from_json` does. Raises protobuf.Malformed, which is a ValueError."""
    by_number = {field.number: name for name, field in schema.items()}
    found: JSONDict = {}
    for each in protobuf.scan(message, most=_MAX_FIELDS):
        name = by_number.get(each.number)
        if name is None:
            continue
        field, content = schema[name], message[each.content : each.end]
        if field.type is Type.BOOL:
            found[name] = any(byte & 0x7F for byte in content)
            continue
        if each.wire != protobuf.BYTES:
            raise protobuf.Malformed(f"field {each.number} has wire type {each.wire}")
        if isinstance(field.type, Mapping):
            inner = from_protobuf(content, field.type)
            if field.many:
                found.setdefault(name, []).append(inner)
            elif name in found:
                raise protobuf.Malformed(f"{name} stands twice")
            else:
                found[name] = inner
        elif field.type is Type.STRINGS:
            found.setdefault(name, []).append(_text(content))
        elif field.type is Type.EXTRA:
            key, values = _entry(content)
            found.setdefault(name, {})[key] = values
        else:
            found[name] = _text(content)
    ordered = {name: found[name] for name in schema if name in found}
    return {name: value for name, value in ordered.items() if value or isinstance(schema[name].type, Mapping)}


def _entry(message: bytes) -> tuple[str, list[str]]:
    entry = dict(protobuf.values(message))
    key, value = entry.get(protobuf.ENTRY_KEY, b""), entry.get(protobuf.ENTRY_VALUE, b"")
    if isinstance(key, int) or isinstance(value, int):
        raise protobuf.Malformed("an integer in extra")
    parts = [part for number, part in protobuf.values(value) if number == _VALUE_ITEMS]
    return _text(key), [_text(part) for part in parts if not isinstance(part, int)]


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise protobuf.Malformed("a string that is no UTF-8") from None


def to_protobuf(value: Mapping[str, Any], schema: Schema) -> bytes:
    """Return the message of fields such as `from_json` returns."""
    fields = sorted(((schema[name], item) for name, item in value.items()), key=lambda pair: pair[0].number)
    return b"".join(_encoded(field, item) for field, item in fields)


def _encoded(field: Field, item: Any) -> bytes:
    if isinstance(field.type, Mapping):
        items = item if field.many else [item]
        return b"".join(protobuf.encode_bytes(field.number, to_protobuf(each, field.type)) for each in items)
    if field.type is Type.BOOL:
        return protobuf.encode_varint(field.number << 3) + protobuf.encode_varint(int(item))
    if field.type is Type.STRING:
        return protobuf.encode_bytes(field.number, item.encode())
    if field.type is Type.STRINGS:
        return b"".join(protobuf.encode_bytes(field.number, each.encode()) for each in item)
    return b"".join(protobuf.encode_bytes(field.number, _encoded_entry(key, values)) for key, values in item.items())


def _encoded_entry(key: str, values: list[str]) -> bytes:
    items = b"".join(protobuf.encode_bytes(_VALUE_ITEMS, each.encode()) for each in values)
    return protobuf.encode_bytes(protobuf.ENTRY_KEY, key.encode()) + protobuf.encode_bytes(protobuf.ENTRY_VALUE, items)
