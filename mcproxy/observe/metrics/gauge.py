"""A metric that is read from the status document. A missing value makes no series. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcproxy.observe.metrics.counts import Labels
from mcproxy.observe.metrics.families import Family, Kind

Document = Mapping[str, Any]
Sample = tuple[Labels, tuple[float]]
Found = Iterable[tuple[tuple[Any, ...], Any]]
"""The values of the labels, and the value; None and other non-numbers make no series."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric, and a function that reads it from the document."""

    family: Family
    read: Callable[[Document], Found]
    combine: Callable[[float, float], float] | None = None
    """Combines two values with the same labels (of a process and its successor); None: labels are unique."""

    def samples(self, status: Document) -> Iterator[Sample]:
        """Yield the metric's series in the document."""
        samples = _samples(self.read(status))
        return samples if self.combine is None else _combined(samples, self.combine)


def _samples(found: Found) -> Iterator[Sample]:
    for labels, value in found:
        if isinstance(value, int | float):  # bool is an int
            yield tuple(map(str, labels)), (value + 0,)


def _combined(samples: Iterator[Sample], combine: Callable[[float, float], float]) -> Iterator[Sample]:
    values: dict[Labels, float] = {}
    for labels, (value,) in samples:
        values[labels] = combine(values[labels], value) if labels in values else value
    return ((labels, (value,)) for labels, value in values.items())


def gauge(
    name: str,
    help_text: str,
    labels: tuple[str, ...],
    read: Callable[[Document], Found],
    combine: Callable[[float, float], float] | None = None,
    kind: Kind = "gauge",
) -> Gauge:
    """Make a gauge or, with the `kind` counter, a count since the start by one process for all processes."""
    return Gauge(Family(name, kind, help_text, labels), read, combine)


def add(one: float, other: float) -> float:
    """Return the sum; a function for `combine`."""
    return one + other


# -- readers of the document ----------------------------------------------------------------------------------------


def objects(entry: Document, key: str) -> Iterable[Document]:
    """Return the objects of a list."""
    return entry.get(key) or ()


def mapping(entry: Document, key: str) -> Document:
    """Return an object."""
    return entry.get(key) or {}


def entries(key: str, value: str, labels: tuple[str, ...] = ("name",)) -> Callable[[Document], Found]:
    """Return a function that reads a number from each object of a list."""
    return lambda status: (
        (tuple(entry.get(label) for label in labels), entry.get(value)) for entry in objects(status, key)
    )


def inner(outer: str, key: str, value: str, labels: tuple[str, ...]) -> Callable[[Document], Found]:
    """Return a reader of a number in each object of inner lists; the outer object's name is the first label."""
    return lambda status: (
        ((one.get("name"), *(other.get(label) for label in labels)), other.get(value))
        for one in objects(status, outer)
        for other in objects(one, key)
    )


def by_key(key: str, value: str) -> Callable[[Document], Found]:
    """Return a reader of the numbers in an object of each object of a list; its keys are the second label."""
    return lambda status: (
        ((entry.get("name"), name), number)
        for entry in objects(status, key)
        for name, number in mapping(entry, value).items()
    )
