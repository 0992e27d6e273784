"""The numbers of counters and histograms, by the values of their labels. Pure.

A series is a list of numbers that the counting code keeps and changes in place: the value of a counter, or the
non-cumulative counts of a histogram's buckets and the sum of its values. `take` returns numbers as JSON, and another
process adds them to its own (`add`), so that one process has the counts of all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from typing import Any, Protocol

from mcproxy.observe.metrics.families import COUNTED, INTERNAL, REQUESTS, Family

Labels = tuple[str, ...]
Series = list[float]

Changes = dict[str, list[Any]]
"""``{name of the family: [values of the labels, numbers, values of the labels, numbers, …]}``: JSON.

A long series has only its non-zero numbers: ``{index: number}``."""

_MANY = 32

MAX_SERIES = 10_000
"""Limit of the `mcproxy_requests_total` series with verb, resource and code, per process and in the sum."""
OTHER = "other"


class _LabelSets(Sized, Container[Labels], Protocol):
    """The label values that have series."""


def within_bound(known: _LabelSets, labels: Labels) -> Labels:
    """Return the labels under which a request is counted.

    Beyond the limit of series, these are only server, cluster and class of the code."""
    if len(known) < MAX_SERIES or labels in known:
        return labels
    server, cluster, _, _, code = labels
    return server, cluster, OTHER, OTHER, code if code == OTHER else f"{code[0]}xx"


def observe(series: Series, bounds: tuple[float, ...], value: float) -> None:
    """Count a value in a histogram."""
    series[bisect_left(bounds, value)] += 1
    series[-1] += value


def count_sorted(series: Series, bounds: Sequence[float], values: Sequence[float]) -> None:
    """Count many values, in ascending order, in the buckets of a histogram. The caller adds their sum.

    One search finds all values of a bucket, which is cheaper than counting each value.
    """
    begin, number = 0, len(values)
    while begin < number:
        bucket = bisect_left(bounds, values[begin])
        end = bisect_right(values, bounds[bucket], begin) if bucket < len(bounds) else number
        series[bucket] += end - begin
        begin = end


class MetricCounts:
    """The series of all families."""

    def __init__(self, families: Iterable[Family] = (*COUNTED, *INTERNAL)) -> None:
        self.families = tuple(families)
        self._series: dict[str, dict[Labels, Series]] = {family.name: {} for family in self.families}
        self._sizes = {family.name: family.size for family in self.families}

    def __len__(self) -> int:
        """The number of series."""
        return sum(map(len, self._series.values()))

    def series(self, family: Family, labels: Labels) -> Series:
        """Return the numbers of a series, which callers change in place; those of a new series are zero."""
        found = self._series[family.name]
        numbers = found.get(labels)
        if numbers is None:
            numbers = found[labels] = [0] * family.size
        return numbers

    def of(self, family: Family) -> Mapping[Labels, Series]:
        """Return all series of a family."""
        return self._series[family.name]

    def increase(self, family: Family, labels: Labels, amount: float = 1) -> None:
        """Increase a counter."""
        self.series(family, labels)[0] += amount

    def observe(self, family: Family, labels: Labels, value: float) -> None:
        """Count a value in a histogram."""
        observe(self.series(family, labels), family.bounds, value)

    def take(self, most: int = 2000) -> Changes:
        """Return the counts since the last call, and reset them to zero; empty without counts.

        `most` limits the number of series, so that a call takes at most 2 ms. Call it again for further series.
        """
        taken: Changes = {}
        left = most
        for name, found in self._series.items():
            changed: list[Any] = []
            for labels, numbers in found.items():
                if any(numbers):
                    changed += (labels, _nonzero(numbers))
                    numbers[:] = [0] * len(numbers)
                    left -= 1
                    if not left:
                        break
            if changed:
                taken[name] = changed
            if not left:
                break
        return taken

    def add(self, changes: Mapping[str, list[Any]]) -> None:
        """Add numbers taken from other counts, without families unknown to this program."""
        for name, changed in changes.items():
            found, size = self._series.get(name), self._sizes.get(name, 0)
            if found is None:
                continue
            for labels, numbers in zip(changed[::2], changed[1::2], strict=True):
                if isinstance(numbers, dict):
                    numbers = _expanded(numbers, size)
                if len(numbers) != size:
                    continue
                labels = tuple(labels)
                if name == REQUESTS.name:
                    labels = within_bound(found, labels)
                mine = found.get(labels)
                if mine is None:
                    found[labels] = list(numbers)
                else:
                    mine[:] = [one + other for one, other in zip(mine, numbers, strict=True)]


def _nonzero(numbers: Series) -> Any:
    if len(numbers) < _MANY:
        return numbers.copy()
    return {str(index): number for index, number in enumerate(numbers) if number}


def _expanded(numbers: Mapping[str, float], size: int) -> Series:
    """Return all numbers of a series, given its non-zero numbers; [] if an index is out of range."""
    given: Series = [0] * size
    for index, number in numbers.items():
        if not int(index) < size:
            return []
        given[int(index)] = number
    return given
