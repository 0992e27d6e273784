"""Which endpoint takes the next request: the seam between those who dispatch and the strategies.

A cluster has one balance for requests without a policy, and each dispatch policy has one of its own over its endpoints.
All strategies agree on this much: an endpoint that is out or disabled is not picked; one that was never checked is
picked only while none is ready; what a reload did not change keeps its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from mcproxy.config.model import Strategy
from mcproxy.upstream.consistent_hash import ConsistentHash
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.least_requests import LeastRequests
from mcproxy.upstream.round_robin import RoundRobin

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


class Balance(Protocol):
    """One strategy over a list of endpoints."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Those it chooses from, in the listed order."""

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """Return the endpoint for a request, or None if none can be had.

        `exclude` holds those that the request was tried on in vain. `user` is its user's name, `info` what it is about
        and `target` its path and query: they tell which watch goes on from which list (`served`).
        """


def make(strategy: Strategy, endpoints: Sequence[Endpoint], previous: Balance | None = None) -> Balance:
    """Return a balance over `endpoints` that goes on where `previous` is, if that is of the same strategy.

    `previous` is not changed. Weights are read with the first pick: until the reload is done, an endpoint that stays
    has that of the old configuration.
    """
    if strategy is Strategy.LEAST_REQUESTS:
        return LeastRequests(endpoints, previous if isinstance(previous, LeastRequests) else None)
    if strategy is Strategy.CONSISTENT_HASH:
        return ConsistentHash(endpoints)
    return RoundRobin(endpoints, previous if isinstance(previous, RoundRobin) else None)
