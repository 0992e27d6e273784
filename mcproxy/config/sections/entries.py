"""Named entries of sections, and references to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mcproxy.config.reading.context import Context
from mcproxy.config.reading.merged_sections import Merged
from mcproxy.config.reading.nodes import Place
from mcproxy.config.server_names import is_server_name
from mcproxy.config.suggestions import suggest

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
