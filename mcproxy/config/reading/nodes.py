"""A YAML document as marked nodes (values with their positions in the file), and places in a document.

Nodes have line and column, which every later check can report. A `Place` is a node with its document and key path. The
model is built from places, and errors are reported at places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mcproxy.config.model import Mark

Path = tuple[str | int, ...]
Value = str | int | float | bool | None

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_-]*\Z")


@dataclass(frozen=True, slots=True)
class Scalar:
    value: Value = field(repr=False)
    mark: Mark
    text: str = field(
        repr=False
    )  # as written in the file, before ${ENV}, so that messages never show values of variables


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Mapping:
    entries: dict[str, Entry]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a mapping: the position of its key, and its value."""

    mark: Mark
    node: Node


Node = Scalar | Sequence | Mapping


def key_path(path: Path) -> str:
    """Render a path as an operator would write it: ``clusters[2].labels["a.b/c"]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.match(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


@dataclass(frozen=True, slots=True)
class Document:
    """A file that was read. `broken` has the paths of values that are already reported and count as absent."""

    file: str
    directory: str  # absolute; the base of relative file names in the document
    root: Mapping
    broken: set[Path] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Place:
    document: Document
    path: Path
    node: Node
    key_mark: Mark  # position of this value's key, or of the value itself in a list

    @property
    def mark(self) -> Mark:
        return self.node.mark

    @property
    def key(self) -> str:
        return key_path(self.path)

    def has(self, name: str) -> bool:
        """Whether the key is present, with any value."""
        return isinstance(self.node, Mapping) and name in self.node.entries

    def reported_keys(self) -> list[str]:
        """Return the keys that were already reported as unknown or as having a wrong value."""
        names = self.node.entries if isinstance(self.node, Mapping) else ()
        return [name for name in names if (*self.path, name) in self.document.broken]

    @property
    def is_broken(self) -> bool:
        """Whether a violation of the schema was reported for this value or below it."""
        depth = len(self.path)
        return any(path[:depth] == self.path for path in self.document.broken)

    def get(self, name: str) -> Place | None:
        """Return the value of a key, or None if it is absent, empty or already reported as wrong."""
        if not isinstance(self.node, Mapping):
            return None
        entry = self.node.entries.get(name)
        path = (*self.path, name)
        if entry is None or path in self.document.broken:
            return None
        if isinstance(entry.node, Scalar) and entry.node.value is None:
            return None
        return Place(self.document, path, entry.node, entry.mark)

    def items(self) -> Iterator[Place]:
        """Yield the entries of a list, without already reported ones."""
        if isinstance(self.node, Sequence):
            for index, node in enumerate(self.node.items):
                path = (*self.path, index)
                if path not in self.document.broken:
                    yield Place(self.document, path, node, node.mark)

    def entries(self) -> Iterator[tuple[str, Place]]:
        """Yield the keys of a mapping with their values, without already reported ones."""
        if isinstance(self.node, Mapping):
            for name in self.node.entries:
                place = self.get(name)
                if place is not None:
                    yield name, place

    def children(self, name: str) -> Iterator[Place]:
        """Yield the entries of the list under a key; none if the key is absent."""
        place = self.get(name)
        if place is not None:
            yield from place.items()

    def text(self, name: str) -> str | None:
        place = self.get(name)
        return place.string if place is not None else None

    @property
    def value(self) -> Value:
        return self.node.value if isinstance(self.node, Scalar) else None

    @property
    def string(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    @property
    def shown(self) -> str:
        """The value as written in the file, quoted for a message, and cut if it is long."""
        return quote(self.node.text) if isinstance(self.node, Scalar) else self.key


def quote(text: str) -> str:
    """Quote a value for a message on one line, and cut it if it is long."""
    cut = text if len(text) <= 60 else text[:57] + "…"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut) + '"'


def root_place(document: Document) -> Place:
    return Place(document, (), document.root, document.root.mark)
