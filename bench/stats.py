"""The few statistics that a noisy machine allows: medians, and ratios taken within one round.

Two subjects that ran within the same few seconds saw about the same machine; the same two an hour apart did not. So a
comparison is the median of the ratios of single rounds, and its spread is given beside it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the smallest and the largest value that it stands for, of `count` values."""

    median: float
    low: float
    high: float
    count: int

    def show(self, digits: int = 2, scale: float = 1.0) -> str:
        """Return ``median [low to high]``, each value divided by `scale`."""
        median, low, high = (f"{value / scale:,.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median} [{low} to {high}]"


def spread(values: Sequence[float]) -> Spread:
    """Sum `values` up; ValueError when there are none."""
    if not values:
        raise ValueError("no values: every round failed")
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` (0 to 1) of `values` lies; ValueError when there are none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def paired_ratios(rounds: Sequence[Mapping[str, float]], over: str, under: str) -> list[float]:
    """Return over/under of each round in which both were measured; `rounds` maps subject to value."""
    return [values[over] / values[under] for values in rounds if over in values and values.get(under)]


def shuffled_rounds(subjects: Sequence[T], rounds: int, rng: random.Random) -> list[list[T]]:
    """Return the order of `subjects` in each round, so that none always runs after the same neighbour."""
    orders = []
    for _ in range(rounds):
        order = list(subjects)
        rng.shuffle(order)
        orders.append(order)
    return orders
