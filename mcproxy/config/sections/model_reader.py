"""Reads the fields of a model class, by `config.model.keys`, from a mapping that the schema check has accepted.

A key that is absent, or reported by the schema check, has the model's default. Callers pass values that a section
resolves or checks itself.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any, TypeVar

from mcproxy.config.model import IPNetwork
from mcproxy.config.model.keys import ModelKey, NumberForm, keys_of
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import MappingSection
from mcproxy.config.units import parse_duration, parse_size
from mcproxy.config.urls import AddressError, parse_network

M = TypeVar("M")


def read(context: Context, place: Place | MappingSection | None, model: type[M], **given: Any) -> M:
    """Return a model object with the keys at `place` (None: an empty mapping); `given` are its other fields.

    A required key that is absent or wrong (reported) has the value "", 0 or (); callers check these if necessary.
    """
    keys = (key for key in keys_of(model) if key.field not in given)
    return model(**{key.field: _value(context, place, key, key.default) for key in keys}, **given)


def read_over(context: Context, place: Place, made: M) -> M:
    """Return `made` with its values replaced by those of the keys at `place`."""
    keys = keys_of(type(made))
    values = {key.field: _value(context, place, key, getattr(made, key.field)) for key in keys}
    return dataclasses.replace(made, **values)  # type: ignore[type-var]


def _value(context: Context, place: Place | MappingSection | None, key: ModelKey, default: Any) -> Any:
    path = key.path
    for name in path[:-1]:
        place = place.get(name) if place is not None else None
    found = place.get(path[-1]) if place is not None else None
    kind = key.type
    if found is None:
        return default
    if key.is_model:
        return read(context, found, kind)
    if kind is str:
        return found.string if key.is_optional else found.string or default
    if kind is bool:
        return found.value if isinstance(found.value, bool) else default
    if key.item is not None:
        return _items(context, found, key)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(found.string) if found.string else default
    return _number(found, key, default)


def _items(context: Context, place: Place, key: ModelKey) -> tuple[Any, ...]:
    if key.is_mapping:
        return tuple((name, value.string or "") for name, value in place.entries())
    if key.item is str:
        return tuple(item.string or "" for item in place.items())
    if key.item is int:
        return tuple(integer_at(item, 0) for item in place.items())
    if key.item == IPNetwork:
        return tuple(networks_at(place.items(), context))
    assert isinstance(key.item, type), key
    return tuple(read(context, item, key.item) for item in place.items())


def _number(place: Place, key: ModelKey, default: Any) -> Any:
    """Return the number, or a string if the key allows it, such as the name of a port."""
    text = place.string
    match key.form:
        case NumberForm.DURATION:
            return duration_at(place, default)
        case NumberForm.SIZE if text is not None:
            return parse_size(text)
        case NumberForm.OCTAL:
            return int(text, 8) if text else default
    if key.type is float:
        return float(place.value) if isinstance(place.value, int | float) else default
    if key.type is not int and text is not None:
        return text
    return integer_at(place, default)


def integer_at(place: Place | None, default: int) -> int:
    """Return the whole number at `place`; 1e3 and 2.0 are also whole numbers."""
    return int(place.value) if place is not None and isinstance(place.value, int | float) else default


def duration_at(place: Place | None, default: float) -> float:
    """Return the duration at `place`; a number without a unit can only be 0."""
    if place is None:
        return default
    return parse_duration(place.string) if place.string is not None else 0.0


def texts(place: Place | None, key: str) -> Iterable[str]:
    """Yield the strings in the list under a key; none if the key is absent."""
    if place is not None:
        yield from (item.string or "" for item in place.children(key))


def networks_at(places: Iterable[Place], context: Context) -> Iterable[IPNetwork]:
    """Yield the networks at places; report invalid ones."""
    for place in places:
        try:
            yield parse_network(place.string or "")
        except AddressError as error:
            context.error(place, f"{place.shown} {error.what}", error.right)
