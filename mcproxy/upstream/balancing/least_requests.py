"""LeastRequests: picks the endpoint with the fewest requests in flight relative to its weight; equal ones take turns.

Requests that wait for a connection count too; otherwise an endpoint that accepts no connections would get all requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

from mcproxy.upstream.balancing.affinity_balancer import AffinityBalancer
from mcproxy.upstream.balancing.round_robin import relative_weights
from mcproxy.upstream.endpoint import Endpoint, is_ready, is_unchecked


class LeastRequests(AffinityBalancer):
    """Picks the least busy endpoint. Among several equal ones, a watch goes to the endpoint that served its list."""

    __slots__ = ("_weights", "_weights_read")

    def __init__(self, endpoints: Sequence[Endpoint], previous: LeastRequests | None = None) -> None:
        super().__init__(endpoints, previous)
        self._weights: tuple[int, ...] | None = None
        self._weights_read = False

    def _next_endpoint(self, exclude: Collection[Endpoint]) -> Endpoint | None:
        self._read_weights()
        index, _ = self._least(is_ready, exclude)
        if index < 0:
            index, _ = self._least(is_unchecked, exclude)
            if index < 0:
                return None
        self._next = (index + 1) % len(self.endpoints)
        return self.endpoints[index]

    def _may_prefer(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        """Return whether an endpoint is among the least busy ones."""
        self._read_weights()
        return self._load(endpoint) == self._least(is_ready, exclude)[1]

    def _read_weights(self) -> None:
        """Read the weights, at the first pick: only then those of a reloaded configuration are in force."""
        if not self._weights_read:
            self._weights_read = True
            self._weights = relative_weights([endpoint.config.weight for endpoint in self.endpoints])

    def _least(self, fit: Callable[[Endpoint], bool], exclude: Collection[Endpoint]) -> tuple[int, float]:
        """Return the index and load of the least busy endpoint, the next in turn among equal ones. The index is -1 if
        no endpoint is available.
        """
        endpoints, weights, start = self.endpoints, self._weights, self._next
        chosen, least = -1, inf
        for index in (*range(start, len(endpoints)), *range(start)):
            endpoint = endpoints[index]
            if fit(endpoint) and endpoint not in exclude:
                load = endpoint.load if weights is None else endpoint.load / weights[index]
                if load < least:
                    chosen, least = index, load
        return chosen, least

    def _load(self, endpoint: Endpoint) -> float:
        return endpoint.load / (1 if self._weights is None else self._weights[self.endpoints.index(endpoint)])
