"""Values of a mapping that the schema has accepted, with the model's defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcproxy.config.context import Context
from mcproxy.config.model import IPNetwork
from mcproxy.config.reading.nodes import Place
from mcproxy.config.units import parse_duration, parse_size
from mcproxy.config.urls import AddressError, parse_network


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads the keys of one mapping, which may be absent; the schema has checked the types."""

    place: Place | None

    def _get(self, key: str) -> Place | None:
        return self.place.get(key) if self.place is not None else None

    def sub(self, key: str) -> Fields:
        return Fields(self._get(key))

    def text(self, key: str, default: str) -> str:
        place = self._get(key)
        return place.string or default if place is not None else default

    def integer(self, key: str, default: int) -> int:
        place = self._get(key)
        if place is None or not isinstance(place.value, int | float):
            return default
        return int(place.value)  # 1e3 and 2.0 are whole numbers too

    def number(self, key: str, default: float) -> float:
        place = self._get(key)
        return float(place.value) if place is not None and isinstance(place.value, int | float) else default

    def boolean(self, key: str, default: bool) -> bool:
        place = self._get(key)
        return place.value if place is not None and isinstance(place.value, bool) else default

    def duration(self, key: str, default: float) -> float:
        return duration_at(self._get(key), default)

    def size(self, key: str, default: int) -> int:
        place = self._get(key)
        if place is None:
            return default
        return parse_size(place.string) if place.string is not None else self.integer(key, default)

    def networks(self, key: str, context: Context) -> tuple[IPNetwork, ...]:
        place = self._get(key)
        return tuple(_networks(place.items(), context)) if place is not None else ()


def texts(place: Place | None, key: str) -> Iterable[str]:
    """Yield the texts in the list under a key; nothing where there is none."""
    if place is not None:
        yield from (item.string or "" for item in place.children(key))


def duration_at(place: Place | None, default: float) -> float:
    """Return the duration written at `place`; a number there can only be 0."""
    if place is None:
        return default
    return parse_duration(place.string) if place.string is not None else 0.0


def _networks(places: Iterable[Place], context: Context) -> Iterable[IPNetwork]:
    for place in places:
        try:
            yield parse_network(place.string or "")
        except AddressError as error:
            context.error(place, f"{place.shown} {error.what}", error.right)
