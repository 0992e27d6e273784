"""RoundRobin: exact turns over the ready endpoints, in the listed order, or smoothly by weight.

Without weights the position is "the one after the last that was picked", so endpoints that are out are stepped over and
the others still take exact turns. With weights `smooth` keeps count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mcproxy.upstream.endpoint import Endpoint, is_ready, is_untried
from mcproxy.upstream.informers import InformerAware
from mcproxy.upstream.smooth import Smooth
from mcproxy.upstream.turns import resumed_at, uneven_weights


class RoundRobin(InformerAware):
    """One position in a list of endpoints. A watch that goes on from a list takes no turn."""

    __slots__ = ("_even", "_next", "_smooth", "_weighed")

    def __init__(self, endpoints: Sequence[Endpoint], previous: RoundRobin | None = None) -> None:
        """Start at the first endpoint, or, after a reload, at the first of `previous`'s order that is still there."""
        super().__init__(endpoints, previous)
        self._next: int = 0 if previous is None else resumed_at(previous.endpoints, previous._next, self.endpoints)
        self._smooth = None if previous is None else previous._debts_of(self.endpoints)
        self._weighed = False
        self._even = False

    def _debts_of(self, endpoints: Sequence[Endpoint]) -> Smooth | None:
        if self._smooth is None:
            return None
        own = {endpoint: index for index, endpoint in enumerate(self.endpoints)}
        return self._smooth.reordered([own.get(endpoint) for endpoint in endpoints])

    def _turn(self, exclude: Collection[Endpoint]) -> Endpoint | None:
        if self._even:
            endpoint = self.endpoints[self._next]
            if endpoint.ready and not exclude:  # the usual case
                self._next = (self._next + 1) % len(self.endpoints)
                return endpoint
        elif not self._weighed:
            self._weigh()
        return self._take(is_ready, exclude) or self._take(is_untried, exclude)

    def _leaves_room_for(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        return True

    def _weigh(self) -> None:
        """Read the weights, with the first pick: only then those of a reloaded configuration are in force."""
        self._weighed = True
        weights = uneven_weights(self.endpoints)
        self._even = weights is None and bool(self.endpoints)
        if weights is None:
            self._smooth = None
        else:
            self._smooth = (self._smooth or Smooth(len(weights))).weighing(weights)

    def _take(self, fit: Callable[[Endpoint], bool], exclude: Collection[Endpoint]) -> Endpoint | None:
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
            index = self._smooth.turn(among, allowed)
        self._next = (index + 1) % count
        return endpoints[index]
