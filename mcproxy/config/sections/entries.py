"""Named entries of sections, and references to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from mcproxy.config.model import Config
from mcproxy.config.model.keys import keys_of
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Place, root_place
from mcproxy.config.server_names import is_server_name
from mcproxy.config.suggestions import suggest

# -- Documents merged section by section: lists one after the other, single sections key by key ------------------------
# What is defined twice is an error that shows both places, whether in one file or in two.

SINGLE_SECTIONS = tuple(key.path[0] for key in keys_of(Config) if key.is_model)
"""The sections that are mappings."""
LIST_SECTIONS = tuple(key.path[0] for key in keys_of(Config) if key.item is not None)
"""The sections that are lists of entries with a name."""


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

    def section(self, section: str) -> Settings:
        """Return a single section as one mapping."""
        return Settings(self, section)


@dataclass(frozen=True, slots=True)
class Settings:
    """A single section of all files."""

    merged: Merged
    section: str

    def get(self, key: str) -> Place | None:
        """Return the value of a key, or None where it is absent, empty or already reported as wrong."""
        return self.merged.setting(self.section, key)


def merge(context: Context, documents: Iterable[Document]) -> Merged:
    """Put documents together; doubled names and settings are reported."""
    merged = Merged(tuple(documents))
    for section in SINGLE_SECTIONS:
        first: dict[str, Place] = {}
        for key, place in merged.settings(section):
            if key in first:
                what = f"is set already, at {first[key].key_mark}"
                context.problems.error(place.key_mark, place.key, what, "keep one of the two")
            first.setdefault(key, place)
    for section in LIST_SECTIONS:
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


# -- Named entries of sections, and references to them -----------------------------------------------------------------

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """An entry of a list section. `value` is None if the entry has errors; others may still refer to its name."""

    name: str | None
    place: Place
    value: T | None


def build_all(
    context: Context, merged: Merged, section: str, build: Callable[[Context, Place], T | None]
) -> list[Named[T]]:
    return [Named(place.text("name"), place, build(context, place)) for place in merged.entries(section)]


def names_of(merged: Merged, section: str) -> list[str]:
    """Return the names of a section's entries, valid or not."""
    return [name for place in merged.entries(section) if (name := place.text("name"))]


def references(context: Context, places: Place, known: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return the names in a list, each once; unknown and doubled ones are reported."""
    right = list(known)
    found: dict[str, Place] = {}
    for place in places.items():
        name = place.string
        if name is None:
            continue
        if name in found:
            context.error(place, f"{place.shown} is in the list already, at {found[name].mark}", "keep one of the two")
        elif name not in right:
            context.error(place, f"there is no {kind} {place.shown}", suggest(name, right))
        else:
            found[name] = place
    return tuple(found)


def server_names(context: Context, places: Place) -> tuple[str, ...]:
    """Return the server names in a list, lower case, in order; ill-formed and doubled ones are reported."""
    found: dict[str, Place] = {}
    for place in places.items():
        name = (place.string or "").lower().rstrip(".")
        if not is_server_name(name):
            right = "write a DNS name, *. and a DNS name, or an IP address"
            context.error(place, f"{place.shown} is not a server name", right)
        elif name in found:
            context.error(place, f"{place.shown} is in the list already, at {found[name].mark}", "keep one of the two")
        else:
            found[name] = place
    return tuple(found)
