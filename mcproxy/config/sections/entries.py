"""Merges documents section by section, and resolves references to named entries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mcproxy.config.model import (
    Aggregate,
    Authentication,
    Authorization,
    Certificate,
    ClusterConfig,
    Config,
    FlowControl,
    Ingress,
    ListenerConfig,
    Server,
    ServiceExport,
    Tunnel,
)
from mcproxy.config.model.keys import keys_of
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Place, root_place
from mcproxy.config.server_names import is_server_name
from mcproxy.config.suggestions import suggest

# -- Documents merged section by section: list sections are concatenated, mapping sections merged key by key -----------
# A duplicate definition, in one or two files, is an error that shows both positions.

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
        """Yield keys and values of a mapping section from all files."""
        for document in self.documents:
            place = root_place(document).get(section)
            if place is not None:
                yield from place.entries()

    def setting(self, section: str, key: str) -> Place | None:
        return next((place for name, place in self.settings(section) if name == key), None)

    def section(self, section: str) -> MappingSection:
        """Return a mapping section, merged from all files."""
        return MappingSection(self, section)


@dataclass(frozen=True, slots=True)
class MappingSection:
    """A mapping section, merged from all files."""

    merged: Merged
    section: str

    def get(self, key: str) -> Place | None:
        """Return the value of a key, or None where it is absent, empty or already reported as wrong."""
        return self.merged.setting(self.section, key)


def merge(context: Context, documents: Iterable[Document]) -> Merged:
    """Merge documents; report duplicate names and settings."""
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
    """Report each entry with the `name` of an earlier one."""
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
    """An entry of a list section. `value` is None if the entry has errors; others can still refer to its name."""

    name: str | None
    place: Place
    value: T | None


class ListSection(list[Named[T]]):
    """The entries of a list section, in the order of the files."""

    @property
    def names(self) -> list[str]:
        """The names of the entries, valid or not."""
        return [entry.name for entry in self if entry.name]

    @property
    def by_name(self) -> dict[str, Named[T]]:
        return {entry.name: entry for entry in self if entry.name}

    @property
    def valid(self) -> list[tuple[Place, T]]:
        """The entries without errors."""
        return [(entry.place, entry.value) for entry in self if entry.value is not None]

    @property
    def values(self) -> tuple[T, ...]:
        return tuple(value for _, value in self.valid)

    @property
    def valid_by_name(self) -> dict[str, T]:
        return {entry.name: entry.value for entry in self if entry.name and entry.value is not None}


@dataclass(slots=True)
class Sections:
    """The list sections of the file. Each is built after the sections that its entries refer to."""

    merged: Merged
    tunnels: ListSection[Tunnel] = field(default_factory=ListSection)
    certificates: ListSection[Certificate] = field(default_factory=ListSection)
    listeners: ListSection[ListenerConfig] = field(default_factory=ListSection)
    clusters: ListSection[ClusterConfig] = field(default_factory=ListSection)
    authentication: ListSection[Authentication] = field(default_factory=ListSection)
    authorization: ListSection[Authorization] = field(default_factory=ListSection)
    aggregates: ListSection[Aggregate] = field(default_factory=ListSection)
    servers: ListSection[Server] = field(default_factory=ListSection)
    exports: ListSection[ServiceExport] = field(default_factory=ListSection)
    ingresses: ListSection[Ingress] = field(default_factory=ListSection)
    flow_controls: ListSection[FlowControl] = field(default_factory=ListSection)

    def build(
        self, context: Context, section: str, build: Callable[[Context, Place, Sections], T | None]
    ) -> ListSection[T]:
        entries = self.merged.entries(section)
        return ListSection(Named(place.text("name"), place, build(context, place, self)) for place in entries)


def reference(context: Context, place: Place | None, known: Collection[str], kind: str, none: str = "") -> str | None:
    """Return the name at `place` if it is in `known`, else report it; `none` is the remedy if `known` is empty."""
    if place is None or place.string is None:
        return None
    if place.string not in known:
        remedy = none if none and not known else suggest(place.string, known)
        context.error(place, f"there is no {kind} {place.shown}", remedy)
        return None
    return place.string


def references(context: Context, places: Place | None, known: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return the names in a list, each once; report unknown and duplicate names."""
    right = list(known)
    found: dict[str, Place] = {}
    for place in places.items() if places is not None else ():
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


def server_names(context: Context, places: Place | None) -> tuple[str, ...]:
    """Return the server names in a list, in lower case and in order; report malformed and duplicate names."""
    found: dict[str, Place] = {}
    for place in places.items() if places is not None else ():
        name = (place.string or "").lower().rstrip(".")
        if not is_server_name(name):
            right = "write a DNS name, *. and a DNS name, or an IP address"
            context.error(place, f"{place.shown} is not a server name", right)
        elif name in found:
            context.error(place, f"{place.shown} is in the list already, at {found[name].mark}", "keep one of the two")
        else:
            found[name] = place
    return tuple(found)
