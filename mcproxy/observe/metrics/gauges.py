"""The gauges: what the daemon is now, read from the status document (`mcproxy status -o json`). Pure.

Each metric is a path into the document: nothing is counted here, and what the document does not have makes no series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mcproxy.observe.metrics.counts import Labels
from mcproxy.observe.metrics.families import Family

Sample = tuple[Labels, tuple[float]]
Document = Mapping[str, Any]
Read = Callable[[Document], Iterator[tuple[tuple[Any, ...], Any]]]
"""Yields the values of the labels and the value; None and what is no number make no series."""

GAUGES: tuple[tuple[Family, Read], ...] = ()


def gauges_of(status: Document) -> Iterator[tuple[Family, Iterator[Sample]]]:
    """Yield each family with the series that the document has, found as they are asked for."""
    for family, read in GAUGES:
        yield family, _samples(read, status)


def _samples(read: Read, status: Document) -> Iterator[Sample]:
    for labels, value in read(status):
        if isinstance(value, int | float):  # bool too
            yield tuple(map(str, labels)), (value + 0,)
