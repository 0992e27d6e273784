"""Parses YAML to nodes with marks, within limits, and converts it to JSON as kubectl and kube-apiservers do. Pure.

PyYAML's own composers recurse; libyaml's does so in C, where some ten thousand brackets crash the process. The scanner
takes time quadratic in the depth. So this module builds the nodes from the parser's events, which arrive while the text
is being read, and stops at the first event beyond a limit. The scanner is at most 1,024 characters (the limit of a
simple key) ahead of that event.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_DEPTH = 100
"""Maximum nesting depth of lists and mappings."""
MAX_EVENTS = 5000
"""Maximum of events of one text: a key or value is one event, a list or mapping two. Each takes 2 to 3 us."""

# Any, because typeshed's types of these nodes have the marks of only one of the two parsers (PyYAML's and libyaml's).
_SCALAR: Any = yaml.ScalarNode
_MAPPING: Any = yaml.MappingNode
_SEQUENCE: Any = yaml.SequenceNode
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
# Matches directives, each of which the parser compares with all previous ones. Line ends are those of YAML 1.1.
_TAG_DIRECTIVE = re.compile("(?:^|[\\n\\r\\x85\\u2028\\u2029])\\ufeff?%TAG")


class YAMLLimitExceeded(yaml.YAMLError):
    """The text exceeds a limit, which the message names."""


def compose(text: str, *, depth: int = MAX_DEPTH, events: int = MAX_EVENTS, aliases: bool = False) -> yaml.Node | None:
    """Return the root of the only document in `text`; None if there is none. Scalars keep their text.

    With `aliases` a node can occur at several places, also within itself, so a short text can expand without end.
    Callers that allow aliases must only look up entries (`entry`). Raises yaml.YAMLError, also YAMLLimitExceeded.
    """
    roots = _read(text, _Composer(depth, documents=1, aliases=aliases), events)
    return roots[0] if roots else None


def compose_all(text: str, *, documents: int, depth: int = MAX_DEPTH, events: int = MAX_EVENTS) -> list[yaml.Node]:
    """Return the roots of at most `documents` documents, without aliases; `events` is the limit for all of them.

    Raises yaml.YAMLError, also YAMLLimitExceeded.
    """
    return _read(text, _Composer(depth, documents=documents, aliases=False), events)


def _read(text: str, reader: _Composer, events: int) -> list[yaml.Node]:
    if tag_directive(text) is not None:
        raise YAMLLimitExceeded("it has %TAG directives")
    for number, event in enumerate(yaml.parse(text, Loader=_LOADER), 1):
        if number > events:
            raise YAMLLimitExceeded(f"it has more than {events} keys and values")
        reader.take(event)
    return reader.roots


def tag_directive(text: str) -> int | None:
    """Return the position of the first %TAG directive, if any."""
    match = _TAG_DIRECTIVE.search(text) if "%TAG" in text else None
    return None if match is None else match.end() - len("%TAG")


def plain(node: yaml.Node | None) -> Any:
    """Convert nodes that were read without aliases to strings, lists and dicts; the last of equal keys applies.

    Raises YAMLLimitExceeded for a key that is a list or mapping.
    """
    if node is None or isinstance(node, yaml.ScalarNode):
        return None if node is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [plain(each) for each in node.value]
    found = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YAMLLimitExceeded("a key of it is a list or mapping")
        found[key.value] = plain(value)
    return found


def entry(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """Return the value at a path of keys, the last one for duplicate keys; None if there is none."""
    for name in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in reversed(node.value) if _is(key, name)), None)
    return node


def text_of(node: yaml.Node | None) -> str | None:
    """Return the text of a scalar, None for any other node."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def items(node: yaml.Node | None) -> list[yaml.Node]:
    """Return the nodes of a list; no nodes for any other node."""
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _is(node: yaml.Node, name: str) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == name


class _Composer:
    """Builds nodes; the open lists and mappings are on an explicit stack, without recursion."""

    def __init__(self, depth: int, *, documents: int, aliases: bool) -> None:
        self.roots: list[yaml.Node] = []
        self._depth = depth
        self._aliases = aliases
        self._documents = 0
        self._most = documents
        self._open: list[yaml.Node] = []
        self._keys: list[yaml.Node | None] = []  # for each open mapping, the key whose value comes next
        self._anchors: dict[str, yaml.Node] = {}

    def take(self, event: Any) -> None:
        """Process the next event. Raises YAMLLimitExceeded."""
        if isinstance(event, yaml.ScalarEvent):
            self._add(_SCALAR(event.tag, event.value, event.start_mark, event.end_mark, event.style), event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) >= self._depth:
                raise YAMLLimitExceeded(f"it is nested more than {self._depth} levels deep")
            kind = _MAPPING if isinstance(event, yaml.MappingStartEvent) else _SEQUENCE
            node = kind(event.tag, [], event.start_mark, None, event.flow_style)
            self._add(node, event)
            self._open.append(node)
            self._keys.append(None)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._keys.pop()
            self._open.pop().end_mark = event.end_mark
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._named(event), event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > self._most:
                most = "one document" if self._most == 1 else f"{self._most} documents"
                raise YAMLLimitExceeded(f"it has more than {most}")
            self._anchors.clear()  # anchors of one document do not apply to the next one

    def _named(self, event: Any) -> yaml.Node:
        name = event.anchor
        if not self._aliases:
            raise YAMLLimitExceeded("it has aliases")
        if name not in self._anchors:
            raise YAMLLimitExceeded("it has an alias of nothing")
        return self._anchors[name]

    def _add(self, node: yaml.Node, event: Any) -> None:
        if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._anchors[event.anchor] = node
        if not self._open:
            self.roots.append(node)
        elif isinstance(self._open[-1], yaml.SequenceNode):
            self._open[-1].value.append(node)
        elif self._keys[-1] is None:
            self._keys[-1] = node
        else:
            self._open[-1].value.append((self._keys[-1], node))
            self._keys[-1] = None


# Converts YAML to JSON by the rules of sigs.k8s.io/yaml, as kubectl and kube-apiservers do. Pure.
#
# The rules are those of YAML 1.1 in goyaml.v2: `yes` and `on` are booleans, `010` is eight, `1_000` is a number, and
# dates are strings. YAML that is ambiguous in JSON is refused, and also YAML that the library accepts but only hostile
# bodies need (aliases, merge keys, explicit tags except `!!str`).

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
"""Maximum of characters of a number; a longer number is a string, because no value in JSON needs so many."""
_STRING_TAG, _LIST_TAG, _MAP_TAG = (f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))
_UNIQUE_KEYS = ((), ("metadata",), ("metadata", "labels"), ("metadata", "annotations"))


class RepeatedKey(yaml.YAMLError):
    """A key of the object, or of its metadata, is repeated; the message has the text of a kube-apiserver."""


def to_json(text: str) -> bytes:
    """Return the only document of `text` as JSON; keys that are repeated below other keys stay repeated.

    Raises yaml.YAMLError, also YAMLLimitExceeded and RepeatedKey.
    """
    root = compose(text)
    for path in _UNIQUE_KEYS:
        _refuse_repeated(entry(root, *path))
    return "".join(_pieces(root)).encode()


def _refuse_repeated(node: yaml.Node | None) -> None:
    seen: set[str] = set()
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name = text_of(key)
        if name is not None and name in seen:
            raise RepeatedKey(f'line {key.start_mark.line + 1}: key "{name[:200]}" already set in map')
        seen.add(name or "")


def _pieces(node: yaml.Node | None) -> Iterator[str]:
    """Yield JSON. Recursion is as deep as the nodes, at most `MAX_DEPTH`."""
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
        raise YAMLLimitExceeded(f"it has the tag {node.tag[:100]}")


def _name(key: yaml.Node) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise YAMLLimitExceeded("a key of it is a list or mapping")
    value = _value(key)
    if value is None:
        raise YAMLLimitExceeded("a key of it is null")
    if value == "<<" and not key.style:
        raise YAMLLimitExceeded("it has merge keys")
    return value if isinstance(value, str) else _encoded(value)


def _encoded(value: str | float | None) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise YAMLLimitExceeded("it has a number that is not finite")
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
