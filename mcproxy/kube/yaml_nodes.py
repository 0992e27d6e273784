"""YAML as nodes with marks, read within bounds. Pure.

PyYAML's own composers recurse, libyaml's in C, where some ten thousand brackets crash the process; its scanner takes
time quadratic in the depth. So nodes are made from the parser's events, which come while the text is being read, and
reading ends at the first event beyond a bound: at most 1,024 characters (the limit of a simple key) have been scanned
ahead of it.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_DEPTH = 100
"""Nesting depth of lists and mappings."""
MAX_EVENTS = 5000
"""Events of one text: a key or value is one event, a list or mapping two. Each takes 2 to 3 us."""

# In typeshed, their types have the marks of only one of the two parsers.
_SCALAR: Any = yaml.ScalarNode
_MAPPING: Any = yaml.MappingNode
_SEQUENCE: Any = yaml.SequenceNode
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
# Each is compared with all before it. Line ends are those of YAML 1.1.
_TAG_DIRECTIVE = re.compile("(?:^|[\\n\\r\\x85\\u2028\\u2029])\\ufeff?%TAG")


class Refused(yaml.YAMLError):
    """The text is beyond a bound; the message names it."""


def compose(text: str, *, depth: int = MAX_DEPTH, events: int = MAX_EVENTS, aliases: bool = False) -> yaml.Node | None:
    """Return the root of the only document in `text`; None if there is none. Scalars keep their text.

    With `aliases` a node may occur at several places, also within itself, so a short text can expand without end: such
    callers only look up entries (`entry`). Raises yaml.YAMLError, of which Refused is one.
    """
    roots = _read(text, _Composer(depth, documents=1, aliases=aliases), events)
    return roots[0] if roots else None


def compose_all(text: str, *, documents: int, depth: int = MAX_DEPTH, events: int = MAX_EVENTS) -> list[yaml.Node]:
    """Return the roots of at most so many documents, without aliases; `events` is the limit for all of them together.

    Raises yaml.YAMLError, of which Refused is one.
    """
    return _read(text, _Composer(depth, documents=documents, aliases=False), events)


def _read(text: str, reader: _Composer, events: int) -> list[yaml.Node]:
    if tag_directive(text) is not None:
        raise Refused("it has %TAG directives")
    for number, event in enumerate(yaml.parse(text, Loader=_LOADER), 1):
        if number > events:
            raise Refused(f"it has more than {events} keys and values")
        reader.take(event)
    return reader.roots


def tag_directive(text: str) -> int | None:
    """Return the position of the first %TAG directive, if any. The parser compares each with all others."""
    match = _TAG_DIRECTIVE.search(text) if "%TAG" in text else None
    return None if match is None else match.end() - len("%TAG")


def plain(node: yaml.Node | None) -> Any:
    """Return nodes that were read without aliases as strings, lists and dicts; the last of equal keys applies.

    Raises Refused for a key that is a list or mapping.
    """
    if node is None or isinstance(node, yaml.ScalarNode):
        return None if node is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [plain(each) for each in node.value]
    found = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise Refused("a key of it is a list or mapping")
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
    """Return the nodes of a list, none of any other node."""
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
        self._keys: list[yaml.Node | None] = []  # of each open mapping: the key whose value is awaited
        self._anchors: dict[str, yaml.Node] = {}

    def take(self, event: Any) -> None:
        """Take the next event. Raises Refused."""
        if isinstance(event, yaml.ScalarEvent):
            self._add(_SCALAR(event.tag, event.value, event.start_mark, event.end_mark, event.style), event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) >= self._depth:
                raise Refused(f"it is nested more than {self._depth} levels deep")
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
                raise Refused(f"it has more than {most}")
            self._anchors.clear()  # anchors of one document do not apply to the next

    def _named(self, event: Any) -> yaml.Node:
        name = event.anchor
        if not self._aliases:
            raise Refused("it has aliases")
        if name not in self._anchors:
            raise Refused("it has an alias of nothing")
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
