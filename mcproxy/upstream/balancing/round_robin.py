"""RoundRobin: the ready endpoints take turns, in the listed order, or smoothly by weight.

Without weights the position is the one after the last picked endpoint, so endpoints that are out are skipped and the
others still take exact turns. With weights `SmoothWeightedRoundRobin` selects the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import gcd

from mcproxy.upstream.balancing.affinity_balancer import AffinityBalancer
from mcproxy.upstream.endpoint import Endpoint, is_ready, is_unchecked

# Smooth weighted round robin, as in nginx: picks in proportion to weights, interleaved instead of in runs. Pure.
#
# Each pick adds every participant's weight to its current weight. The participant with the largest current weight is
# selected, and the sum of all weights is subtracted from it. Beginning with current weights of zero, each participant
# is selected as often as its weight in one round; then all current weights are zero again.
#
# nginx keeps the current weights when a peer fails or returns. Then a weight accumulated in a large round is used up in
# a small one: with weights 100, 1, 1, if the heavy peer fails, one of the light ones is selected fifty times in a row.
# Here current weights are scaled to the new round and capped at half of it.


class SmoothWeightedRoundRobin:
    """The current weights of `count` participants, identified by their index."""

    __slots__ = ("_current", "_participants", "_total", "_weights")

    def __init__(self, count: int) -> None:
        self._weights: tuple[int, ...] = (1,) * count
        self._current = [0] * count
        self._participants: tuple[int, ...] = ()
        self._total = 1  # the sum of the weights in `_participants`, the unit of `_current`

    def with_weights(self, weights: tuple[int, ...]) -> SmoothWeightedRoundRobin:
        """Continue with these weights; return self."""
        self._weights = weights
        self._participants = ()
        return self

    def reordered(self, indices: Sequence[int | None]) -> SmoothWeightedRoundRobin:
        """Return a copy for other participants. `indices`: the former index of each, None for a new one."""
        copy = SmoothWeightedRoundRobin(len(indices))
        copy._current = [0 if index is None else self._current[index] for index in indices]
        copy._total = self._total
        return copy

    def select(self, among: tuple[int, ...], allowed: Sequence[int]) -> int:
        """Select one of `allowed`, which must not be empty; all participants `among` accumulate their weight."""
        if among != self._participants:
            self._rescale(among)
        current, weights = self._current, self._weights
        for index in among:
            current[index] += weights[index]
        chosen = max(allowed, key=current.__getitem__)  # the first one among equals
        current[chosen] -= self._total
        return chosen

    def _rescale(self, among: tuple[int, ...]) -> None:
        """Scale the current weights to the round of the new participants; all others start at zero."""
        before, total = self._total, sum([self._weights[index] for index in among])
        half = total // 2
        current = [0] * len(self._current)
        for index in among:
            current[index] = min(half, max(-half, self._current[index] * total // before))
        self._current, self._participants, self._total = current, among, total


def relative_weights(weights: Sequence[int]) -> tuple[int, ...] | None:
    """Return the smallest integers in the proportion of `weights`; None if all are equal."""
    if len(set(weights)) < 2:
        return None
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


class RoundRobin(AffinityBalancer):
    """Rotates over a list of endpoints. A watch that continues a list takes no turn."""

    __slots__ = ("_even", "_smooth", "_weights_read")

    def __init__(self, endpoints: Sequence[Endpoint], previous: RoundRobin | None = None) -> None:
        super().__init__(endpoints, previous)
        self._smooth = None if previous is None else previous._rotation_for(self.endpoints)
        self._weights_read = False
        self._even = False

    def _rotation_for(self, endpoints: Sequence[Endpoint]) -> SmoothWeightedRoundRobin | None:
        if self._smooth is None:
            return None
        own = {endpoint: index for index, endpoint in enumerate(self.endpoints)}
        return self._smooth.reordered([own.get(endpoint) for endpoint in endpoints])

    def _next_endpoint(self, exclude: Collection[Endpoint]) -> Endpoint | None:
        if self._even:
            endpoint = self.endpoints[self._next]
            if endpoint.ready and not exclude:  # the usual case, without a search
                self._next = (self._next + 1) % len(self.endpoints)
                return endpoint
        elif not self._weights_read:
            self._read_weights()
        return self._select(is_ready, exclude) or self._select(is_unchecked, exclude)

    def _may_prefer(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        return True

    def _read_weights(self) -> None:
        """Read the weights, at the first pick: only then those of a reloaded configuration are in force."""
        self._weights_read = True
        weights = relative_weights([endpoint.config.weight for endpoint in self.endpoints])
        self._even = weights is None and bool(self.endpoints)
        if weights is None:
            self._smooth = None
        else:
            self._smooth = (self._smooth or SmoothWeightedRoundRobin(len(weights))).with_weights(weights)

    def _select(self, fit: Callable[[Endpoint], bool], exclude: Collection[Endpoint]) -> Endpoint | None:
        endpoints, count = self.endpoints, len(self.endpoints)
        if self._smooth is None:
            for step in range(count):
                index = (self._next + step) % count
                if fit(endpoints[index]) and endpoints[index] not in exclude:
                    break
            else:
                return None
        else:
            among = tuple([index for index in range(count) if fit(endpoints[index])])
            allowed = [index for index in among if endpoints[index] not in exclude] if exclude else among
            if not allowed:
                return None
            index = self._smooth.select(among, allowed)
        self._next = (index + 1) % count
        return endpoints[index]
