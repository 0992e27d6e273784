"""Documents merged section by section: lists one after the other, single sections key by key.

What is defined twice is an error that shows both places, whether in one file or in two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcproxy.config.context import Context
from mcproxy.config.reading.nodes import Document, Place, root_place

_SINGLE = ("daemon", "logging")
_NAMED = (
    "listeners",
    "certificates",
    "clusters",
    "authentication",
    "authorization",
    "flowControls",
    "aggregates",
    "servers",
)


@dataclass(frozen=True, slots=True)
class Merged:
    documents: tuple[Document, ...]

    def entries(self, section: str) -> Iterator[Place]:
        """Yield the entries of a list section, in the order of the files."""
        for document in self.documents:
            yield from root_place(document).children(section)

    def settings(self, section: str) -> Iterator[tuple[str, Place]]:
        """Yield keys and values of a single section from all files."""
        for document in self.documents:
            place = root_place(document).get(section)
            if place is not None:
                yield from place.entries()

    def setting(self, section: str, key: str) -> Place | None:
        return next((place for name, place in self.settings(section) if name == key), None)


def merge(context: Context, documents: Iterable[Document]) -> Merged:
    """Put documents together; doubled names and settings are reported."""
    merged = Merged(tuple(documents))
    for section in _SINGLE:
        first: dict[str, Place] = {}
        for key, place in merged.settings(section):
            if key in first:
                what = f"is set already, at {first[key].key_mark}"
                context.problems.error(place.key_mark, place.key, what, "keep one of the two")
            first.setdefault(key, place)
    for section in _NAMED:
        unique_names(context, merged.entries(section))
    return merged


def unique_names(context: Context, entries: Iterable[Place]) -> None:
    """Report each entry whose `name` another one before it has."""
    first: dict[str, Place] = {}
    for entry in entries:
        name = entry.get("name")
        if name is None or name.string is None:
            continue
        if name.string in first:
            what = f"the name {name.shown} is taken already, at {first[name.string].mark}"
            context.error(name, what, "give one of the two another name")
        else:
            first[name.string] = name
