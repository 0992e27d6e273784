"""The weights of endpoints, as the strategies use them."""

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
