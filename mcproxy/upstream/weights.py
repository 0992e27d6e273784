"""Relative weights of endpoints, and the position of a rotation after a reload."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from mcproxy.upstream.endpoint import Endpoint


def relative_weights(endpoints: Sequence[Endpoint]) -> tuple[int, ...] | None:
    """Return the smallest integers in the proportion of the weights; None if all weights are equal."""
    weights = [endpoint.config.weight for endpoint in endpoints]
    if len(set(weights)) < 2:
        return None
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def resume_index(before: Sequence[Endpoint], turn: int, now: Sequence[Endpoint]) -> int:
    """Return the index in `now` of the endpoint that is next, if `before[turn]` was next before the reload.

    Endpoints that were removed are skipped; 0 if none of `before` remains.
    """
    order = (*before[turn:], *before[:turn])
    return next((now.index(endpoint) for endpoint in order if endpoint in now), 0)
