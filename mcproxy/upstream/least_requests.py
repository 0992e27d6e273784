"""LeastRequests: the endpoint with the fewest requests in flight for its weight; those that have the same take turns.

Requests that wait for a connection count too: else an endpoint that accepts nothing would look idle and get them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import TYPE_CHECKING

from mcproxy.upstream.endpoint import Endpoint, is_ready, is_untried
from mcproxy.upstream.served import Served
from mcproxy.upstream.turns import resumed_at, uneven_weights

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


class LeastRequests:
    """Fewest first. Among the least busy, a watch goes to where its list was answered."""

    __slots__ = ("_next", "_served", "_weighed", "_weights", "endpoints")

    def __init__(self, endpoints: Sequence[Endpoint], previous: LeastRequests | None = None) -> None:
        self.endpoints = tuple(endpoints)
        self._next: int = 0 if previous is None else resumed_at(previous.endpoints, previous._next, self.endpoints)
        self._served: Served = Served(self.endpoints, None if previous is None else previous._served)
        self._weights: tuple[int, ...] | None = None
        self._weighed = False

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """As `balance.Balance.pick`."""
        if not self._weighed:  # with the first pick: only then a reload's weights are in force
            self._weighed = True
            self._weights = uneven_weights(self.endpoints)
        index, least = self._least(is_ready, exclude)
        if index < 0:
            index, least = self._least(is_untried, exclude)
            if index < 0:
                return None
        if info is not None and (info.verb == "list" or info.verb == "watch"):
            known = self._served.preferred(user, info, target)
            if known is not None and known.ready and known not in exclude and self._load(known) == least:
                return known
            self._served.note(user, info, self.endpoints[index])
        self._next = (index + 1) % len(self.endpoints)
        return self.endpoints[index]

    def _least(self, fit: Callable[[Endpoint], bool], exclude: Collection[Endpoint]) -> tuple[int, float]:
        """Return the index of the least busy, the next in turn if there are several, and its load; -1 if none fits."""
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
