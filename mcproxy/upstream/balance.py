"""Which endpoint takes the next request: round robin over the ready ones, in the order of the file.

The position is "the one after the last that was picked", so endpoints that are out are stepped over and the others
still take exact turns. It is apart from the cluster, because later each dispatch policy has a position of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_state import Health


class RoundRobin:
    """One position in a list of endpoints."""

    __slots__ = ("_endpoints", "_next")

    def __init__(self, endpoints: Sequence[Endpoint], previous: RoundRobin | None = None) -> None:
        """Start at the first endpoint, or, after a reload, at the first of `previous`'s order that is still there."""
        self._endpoints = tuple(endpoints)
        self._next = 0 if previous is None else previous.position_in(self._endpoints)

    def pick(self, exclude: Collection[Endpoint] = ()) -> Endpoint | None:
        """Return the next ready endpoint outside `exclude`; if there is none, one that was never checked; else None."""
        return self._take(Health.READY, exclude) or self._take(Health.UNCHECKED, exclude)

    def position_in(self, endpoints: Sequence[Endpoint]) -> int:
        """Return where in `endpoints` this position lies; 0 if none of the own endpoints is there."""
        count = len(self._endpoints)
        for step in range(count):
            candidate = self._endpoints[(self._next + step) % count]
            for index, endpoint in enumerate(endpoints):
                if endpoint is candidate:
                    return index
        return 0

    def _take(self, status: Health, exclude: Collection[Endpoint]) -> Endpoint | None:
        endpoints, count = self._endpoints, len(self._endpoints)
        for step in range(count):
            index = (self._next + step) % count
            endpoint = endpoints[index]
            if endpoint.health.status is status and endpoint not in exclude:
                self._next = (index + 1) % count
                return endpoint
        return None
