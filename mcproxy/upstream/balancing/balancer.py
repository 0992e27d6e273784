"""Endpoint selection: the interface between dispatch and the load-balancing strategies.

A cluster has one balancer for requests without a policy; each dispatch policy has its own balancer over its endpoints.
All strategies follow these rules: an endpoint that is out or disabled is not picked; an endpoint that was never checked
is picked only while none is ready; a reload keeps the position of an unchanged rotation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from mcproxy.config.model import Strategy
from mcproxy.upstream.balancing.consistent_hash import ConsistentHash
from mcproxy.upstream.balancing.least_requests import LeastRequests
from mcproxy.upstream.balancing.round_robin import RoundRobin
from mcproxy.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


class Balancer(Protocol):
    """One strategy over a list of endpoints."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints to choose from, in the listed order."""

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """Return the endpoint for a request, or None if none is available.

        `exclude`: the endpoints on which the request has failed already. `user` (name), `info` (request info) and
        `target` (path and query) relate a watch to its list (`affinity_balancer`).
        """


def make_balancer(strategy: Strategy, endpoints: Sequence[Endpoint], previous: Balancer | None = None) -> Balancer:
    """Return a balancer over `endpoints`, which continues from `previous` if the strategy is the same.

    `previous` is not changed. Weights are read at the first pick, because a kept endpoint has its old weight until the
    reload is complete.
    """
    if strategy is Strategy.LEAST_REQUESTS:
        return LeastRequests(endpoints, previous if isinstance(previous, LeastRequests) else None)
    if strategy is Strategy.CONSISTENT_HASH:
        return ConsistentHash(endpoints)
    return RoundRobin(endpoints, previous if isinstance(previous, RoundRobin) else None)
