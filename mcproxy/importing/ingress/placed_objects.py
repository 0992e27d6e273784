"""Reads Kubernetes objects with the positions of their fields, so that each note can name file, line and column.

All functions raise PlacedError for a value of a wrong type: no value is guessed, because the API server would have
refused the object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading.nodes import Document, Mapping, Place, root_place
from mcproxy.config.reading.nodes import Sequence as SequenceNode
from mcproxy.config.reading.yaml_text import read_yaml_documents
from mcproxy.importing.fragment import Fragment, Note
from mcproxy.importing.object_files import MAX_OBJECTS, MAX_TEXT, UnusableError, read_bounded


class PlacedError(Exception):
    """A field cannot be used; the message names the fault."""

    def __init__(self, place: Place, what: str) -> None:
        super().__init__(what)
        self.place = place


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """One object. `place`: the place of the whole object."""

    api_version: str
    kind: str
    name: str
    namespace: str
    place: Place

    @property
    def origin(self) -> str:
        """The name of the object in notes."""
        return f"{self.kind} {self.namespace}/{self.name}"[:150]

    def note(self, place: Place | None, what: str) -> Note:
        """Return a note about a field, or about the whole object."""
        where = place or self.place
        return Note(self.origin, _below(self.place, where), what, str(where.key_mark))


def remark(made: Fragment, found: PlacedObject, place: Place | None, what: str) -> None:
    """Add a note to the fragment of an object."""
    made.notes.append(found.note(place, what))


def _below(whole: Place, place: Place) -> str:
    """Return the path of a field within its object, which may be an item of a list."""
    return Place(place.document, place.path[len(whole.path) :], place.node, place.key_mark).key


def read_placed(files: Sequence[str], namespace: str) -> list[PlacedObject]:
    """Return the objects in YAML or JSON files in order, with the items of `List`s. `namespace`: the default.

    Raises OSError; ConfigErrors, with line and column, for invalid YAML; UnusableError for a value that is no object.
    """
    found: list[PlacedObject] = []
    for file in files:
        problems = Problems()
        documents = read_yaml_documents(file, read_bounded(file), problems)
        if problems.errors or documents is None:
            raise ConfigErrors(problems.errors)
        for node in documents:
            if not isinstance(node, Mapping):
                raise UnusableError(f"{node.mark}: is not a Kubernetes object")
            whole = root_place(Document(file, os.path.dirname(os.path.abspath(file)), node))
            try:
                found += _objects_in(whole, namespace)
            except PlacedError as error:
                raise UnusableError(f"{error.place.mark}: {error}") from None
            if len(found) > MAX_OBJECTS:
                raise UnusableError(f"{file}: more than {MAX_OBJECTS} objects; import them in several steps")
    return found


def _objects_in(document: Place, namespace: str) -> Iterator[PlacedObject]:
    kind = text(document, "kind")
    if kind.endswith("List") and document.has("items"):
        version = text(document, "apiVersion")
        for item in items(document, "items"):
            yield _object(item, namespace, ("", "") if kind == "List" else (version, kind.removesuffix("List")))
    else:
        yield _object(document, namespace, ("", ""))


def _object(place: Place, namespace: str, of_list: tuple[str, str]) -> PlacedObject:
    metadata = mapping(place, "metadata")
    api_version, kind = text(place, "apiVersion") or of_list[0], text(place, "kind") or of_list[1]
    if not api_version or not kind:
        raise PlacedError(place, "is not a Kubernetes object: it has no kind and apiVersion")
    name = text(metadata, "name") if metadata is not None else ""
    if metadata is None or not name:
        raise PlacedError(place, f"a {kind} has no metadata.name")
    return PlacedObject(api_version, kind, name, text(metadata, "namespace") or namespace, place)


def text(place: Place | None, key: str) -> str:
    """Return the string value of a key, "" if absent."""
    found = place.get(key) if place is not None else None
    return _string(found) if found is not None else ""


def _string(place: Place) -> str:
    if place.string is None:
        raise PlacedError(place, "is not a string")
    if len(place.string) > MAX_TEXT or not place.string.isprintable():
        raise PlacedError(place, f"is longer than {MAX_TEXT} characters, or has some that cannot be printed")
    return place.string


def integer(place: Place, key: str) -> int:
    """Return the integer value of a key, 0 if absent."""
    found = place.get(key)
    if found is None:
        return 0
    if not isinstance(found.value, int) or isinstance(found.value, bool) or not 0 <= found.value < 2**31:
        raise PlacedError(found, "is not a whole number")
    return found.value


def mapping(place: Place | None, key: str) -> Place | None:
    """Return the mapping that is the value of a key; None if absent."""
    found = place.get(key) if place is not None else None
    if found is not None and not isinstance(found.node, Mapping):
        raise PlacedError(found, "is not a mapping")
    return found


def items(place: Place | None, key: str) -> Iterator[Place]:
    """Yield the mappings in the list that is the value of a key."""
    for item in _list(place, key):
        if not isinstance(item.node, Mapping):
            raise PlacedError(item, "is not a mapping")
        yield item


def texts(place: Place | None, key: str) -> list[str]:
    """Return the strings in the list that is the value of a key."""
    return [_string(item) for item in _list(place, key)]


def _list(place: Place | None, key: str) -> Iterator[Place]:
    found = place.get(key) if place is not None else None
    if found is not None:
        if not isinstance(found.node, SequenceNode):
            raise PlacedError(found, "is not a list")
        yield from found.items()


def others(place: Place | None, *known: str) -> Iterator[Place]:
    """Yield the values of keys that are not in `known`."""
    for key, value in place.entries() if place is not None else ():
        if key not in known:
            yield value
