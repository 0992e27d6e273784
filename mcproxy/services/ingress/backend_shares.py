"""The backends of a rule and their shares of its requests.

The share of a backend that has no endpoint is not given to the others: it is 500 or 503 (Gateway API, HTTPBackendRef),
unless the rule says `spill`. A client that an affinity cookie keeps at a pod stays with that pod's backend, as long as
the backend has a weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.services.ingress.backend import Backend
from mcproxy.services.ingress.backend_endpoint import BackendEndpoint
from mcproxy.upstream.balancing.round_robin import SmoothWeightedRoundRobin


class BackendShares:
    """Chooses the backend of a request, for one rule."""

    __slots__ = ("_among", "_smooth", "_spill", "_sticky", "backends", "weights")

    def __init__(self, shares: Sequence[tuple[Backend, int]], *, spill: bool, previous: BackendShares | None) -> None:
        """`previous`: that of the rule before a reload; the turns go on if the weights are the same."""
        self.backends = tuple(backend for backend, _ in shares)
        self.weights = tuple(weight for _, weight in shares)
        self._spill = spill
        self._among = tuple(index for index, weight in enumerate(self.weights) if weight)
        self._sticky = tuple(self.backends[index] for index in self._among if self.backends[index].affinity is not None)
        smooth = SmoothWeightedRoundRobin(len(shares))
        if previous is not None and previous.weights == self.weights:
            smooth = previous._smooth.reordered(range(len(self.weights)))
        self._smooth: SmoothWeightedRoundRobin = smooth.with_weights(self.weights)

    def choose(self, fields: bytes) -> tuple[Backend, BackendEndpoint | None] | None:
        """Return the backend for a request with these fields, and the endpoint that its cookie names, if any.

        None: no backend has a weight.
        """
        for backend in self._sticky:
            assert backend.affinity is not None
            named = backend.affinity.endpoint_of(fields)
            if named is not None and backend.balancer.may_choose(named):
                return backend, named
        among = self._among
        if self._spill:
            among = tuple(index for index in among if self.backends[index].balancer.available) or among
        if not among:
            return None
        return self.backends[among[0] if len(among) == 1 else self._smooth.select(among, among)], None
