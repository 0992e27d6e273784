"""RoundRobin: exact turns over the ready endpoints, in the listed order, or smoothly by weight.

Without weights the position is "the one after the last that was picked", so endpoints that are out are stepped over and
the others still take exact turns. With weights `smooth` keeps count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mcproxy.upstream.balancing.affinity_balancer import AffinityBalancer
from mcproxy.upstream.balancing.smooth_weighted import SmoothWeightedRoundRobin, relative_weights
from mcproxy.upstream.endpoint import Endpoint, is_ready, is_unchecked


class RoundRobin(AffinityBalancer):
    """One position in a list of endpoints. A watch that continues a list takes no turn."""

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
            if endpoint.ready and not exclude:  # the usual case
                self._next = (self._next + 1) % len(self.endpoints)
                return endpoint
        elif not self._weights_read:
            self._read_weights()
        return self._select(is_ready, exclude) or self._select(is_unchecked, exclude)

    def _may_prefer(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        return True

    def _read_weights(self) -> None:
        """Read the weights, with the first pick: only then those of a reloaded configuration are in force."""
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
