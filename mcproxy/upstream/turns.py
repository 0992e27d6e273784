"""What the strategies have in common: how they read weights, and where turns go on after a reload."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from mcproxy.upstream.endpoint import Endpoint


def uneven_weights(endpoints: Sequence[Endpoint]) -> tuple[int, ...] | None:
    """Return the smallest whole numbers in the proportion of the weights; None if all are the same."""
    weights = [endpoint.config.weight for endpoint in endpoints]
    if len(set(weights)) < 2:
        return None
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def resumed_at(before: Sequence[Endpoint], turn: int, now: Sequence[Endpoint]) -> int:
    """Return the place in `now` of whose turn it is, if it was that of number `turn` of `before`.

    Who is gone is stepped over; if nobody of `before` is there any more, the first begins.
    """
    order = (*before[turn:], *before[:turn])
    return next((now.index(endpoint) for endpoint in order if endpoint in now), 0)
