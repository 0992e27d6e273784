"""A sketch of the names with the largest sums in several measures, in limited memory for any input. Pure.

The algorithm is Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in
data streams", 2005), except that many names are dropped at once, and each name has all measures. With `kept` names for
each measure and a total of N, each name with more than N / (kept + 1) is present. No name is shown with more than its
true amount.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

MEASURES = 4
_KEPT, _MOST = 128, 2048
_FLOORS = MEASURES  # index of the floors in an entry

Amounts = list[float]
"""A number for each measure."""


class Sketch:
    """The names of one window of time."""

    __slots__ = ("_entries", "_floors", "_kept", "_most", "totals")

    def __init__(self, kept: int = _KEPT, most: int = _MOST) -> None:
        """When there are `most` names, drop all names that are not among the `kept` largest of any measure."""
        self._kept = kept
        self._most = most
        # The amounts of a name since it was added, and upper bounds of its amounts before.
        self._entries: dict[str, list[Any]] = {}
        self._floors: Amounts = [0.0] * MEASURES  # upper bounds of the amounts of dropped names
        self.totals: Amounts = [0.0] * MEASURES

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[str, Amounts]]:
        """Yield each name with the lower bounds of its amounts."""
        return ((name, entry[:MEASURES]) for name, entry in self._entries.items())

    def add(self, name: str, one: float, two: float, three: float, four: float) -> None:
        """Add an amount of each measure to a name. The loop is unrolled, because calls are frequent."""
        entry = self._entries.get(name)
        if entry is not None:
            entry[0] += one
            entry[1] += two
            entry[2] += three
            entry[3] += four
            return
        if len(self._entries) >= self._most:
            self.compact()
        self._entries[name] = [one, two, three, four, self._floors]

    def compact(self) -> None:
        """Drop names that are not among the largest of any measure."""
        entries = self._entries
        names, found = list(entries), list(entries.values())
        kept: dict[str, list[Any]] = {}
        floors = []
        for measure, floor in enumerate(self._floors):
            values = [entry[measure] + entry[_FLOORS][measure] for entry in found]
            least = (
                sorted(values, reverse=True)[self._kept] if len(values) > self._kept else 0.0
            )  # fast if most are equal
            first = [name for name, value in zip(names, values, strict=True) if value > least]
            if least > 0:
                equal = (name for name, value in zip(names, values, strict=True) if value == least)
                first += islice(equal, self._kept - len(first))
            kept |= {name: entries[name] for name in first if entries[name][measure]}
            floors.append(max(floor, least))
        self._entries, self._floors = kept, floors


class Windows:
    """Sketches of the last minutes, one for each kind of name (user, address)."""

    def __init__(
        self,
        kinds: int,
        clock: Callable[[], float],
        *,
        seconds: float = 60.0,
        windows: int = 5,
        kept: int = _KEPT,
        most: int = _MOST,
    ) -> None:
        """`clock` returns monotonic seconds. Amounts older than `windows` * `seconds` are dropped."""
        self._clock = clock
        self._seconds = seconds
        self._kinds, self._kept, self._most = kinds, kept, most
        self._begun = clock()
        self._current = self._new()
        self._before: deque[tuple[float, list[Sketch]]] = deque(maxlen=windows - 1)  # with their start times

    def _new(self) -> list[Sketch]:
        return [Sketch(self._kept, self._most) for _ in range(self._kinds)]

    def current(self) -> list[Sketch]:
        """Return the sketches of the current window, one for each kind."""
        now = self._clock()
        if now - self._begun >= self._seconds:
            for sketch in self._current:
                sketch.compact()
            self._before.append((self._begun, self._current))
            self._current, self._begun = self._new(), now
        oldest = now - self._seconds * ((self._before.maxlen or 0) + 1)
        while self._before and self._before[0][0] < oldest:
            self._before.popleft()
        return self._current

    def span(self) -> float:
        """Return the seconds that the sketches cover."""
        self.current()
        return self._clock() - (self._before[0][0] if self._before else self._begun)

    def all_of(self, kind: int) -> tuple[dict[str, Amounts], Amounts]:
        """Return the amounts of each name of a kind over all windows, and the totals."""
        self.current()
        found: dict[str, Amounts] = {}
        totals: Amounts = []
        for sketches in (*(sketches for _, sketches in self._before), self._current):
            sketch = sketches[kind]
            totals = _sum(totals, sketch.totals)
            for name, amounts in sketch:
                known = found.get(name)
                found[name] = amounts if known is None else _sum(known, amounts)
        return found, totals


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return [mine + yours for mine, yours in zip(one, other, strict=True)] if one else list(other)
