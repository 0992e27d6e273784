"""YAML made JSON by the rules of sigs.k8s.io/yaml, by which kubectl and kube-apiservers read it. Pure.

These are those of YAML 1.1 as goyaml.v2 has them: `yes` and `on` are booleans, `010` is eight, `1_000` is a number, and
dates are strings. What has no one meaning in JSON is refused, and what that library accepts but a hostile body needs
(aliases, merge keys, explicit tags but `!!str`) as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import yaml

from mcproxy.kube import yaml_nodes
from mcproxy.kube.yaml_nodes import Refused

_CONSTANTS: dict[str, bool | float | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((f"{sign}{each}" for sign in ("", "+", "-") for each in (".inf", ".Inf", ".INF")), math.inf),
}
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-")
_MOST_DIGITS = 400
"""Of a number: more are the text of a string, as they are for no value that JSON could hold."""
_STRING_TAG, _LIST_TAG, _MAP_TAG = (f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))
_UNIQUE_KEYS = ((), ("metadata",), ("metadata", "labels"), ("metadata", "annotations"))


class RepeatedKey(yaml.YAMLError):
    """A key of the object, or of its metadata, stands twice; the message is in the words of a kube-apiserver."""


def to_json(text: str) -> bytes:
    """Return the only document of `text` as JSON; keys that are repeated elsewhere than in metadata stay so.

    Raises yaml.YAMLError, of which Refused and RepeatedKey are two.
    """
    root = yaml_nodes.compose(text)
    for path in _UNIQUE_KEYS:
        _refuse_repeated(yaml_nodes.entry(root, *path))
    return "".join(_pieces(root)).encode()


def _refuse_repeated(node: yaml.Node | None) -> None:
    seen: set[str] = set()
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name = yaml_nodes.text_of(key)
        if name is not None and name in seen:
            raise RepeatedKey(f'line {key.start_mark.line + 1}: key "{name[:200]}" already set in map')
        seen.add(name or "")


def _pieces(node: yaml.Node | None) -> Iterator[str]:
    """Yield JSON. Recursion is as deep as the nodes, which is `yaml_nodes.MAX_DEPTH`."""
    if node is None:
        yield "null"
    elif isinstance(node, yaml.ScalarNode):
        yield _encoded(_value(node))
    elif isinstance(node, yaml.SequenceNode):
        _refuse_tag(node, _LIST_TAG)
        yield "["
        for number, each in enumerate(node.value):
            yield "," if number else ""
            yield from _pieces(each)
        yield "]"
    else:
        _refuse_tag(node, _MAP_TAG)
        yield "{"
        for number, (key, value) in enumerate(node.value):
            yield f"{',' if number else ''}{json.dumps(_name(key))}:"
            yield from _pieces(value)
        yield "}"


def _refuse_tag(node: yaml.Node, *known: str) -> None:
    if node.tag and node.tag not in known:
        raise Refused(f"it has the tag {node.tag[:100]}")


def _name(key: yaml.Node) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise Refused("a key of it is a list or mapping")
    value = _value(key)
    if value is None:
        raise Refused("a key of it is null")
    if value == "<<" and not key.style:
        raise Refused("it has merge keys")
    return value if isinstance(value, str) else _encoded(value)


def _encoded(value: str | float | None) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Refused("it has a number that is not finite")
        if value.is_integer() and abs(value) < 1e21:  # as Go writes it
            value = int(value)
    return json.dumps(value)


def _value(node: yaml.ScalarNode) -> str | float | None:
    """Return a scalar's value: a string, bool, int, float or None."""
    text: str = node.value
    _refuse_tag(node, "!", _STRING_TAG)
    if bool(node.tag) or bool(node.style):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if (not text[0].isdigit() and text[0] not in "+-.") or _DATE.match(text) or len(text) > _MOST_DIGITS:
        return text
    number = text.replace("_", "")
    if _INTEGER.fullmatch(number):
        digits = number.lstrip("+-")
        value = int(digits, 8) if digits.isdigit() and digits[0] == "0" else int(digits, 0)
        return -value if number[0] == "-" else value
    return float(number) if _FLOAT.fullmatch(number) else text
