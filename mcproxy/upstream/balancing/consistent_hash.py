"""ConsistentHash: all requests of a user go to one endpoint, so that its caches serve the user.

The method is rendezvous hashing (Thaler and Ravishankar 1998), weighted by logarithms: an endpoint of weight 2 gets
twice as many users as an endpoint of weight 1. Each user has an order of preference over all endpoints, and the first
ready one is used. If an endpoint is out, only its users move, each to their next choice, until the endpoint returns.

The order depends only on the user's name and the endpoints' addresses. It is the same in every process and after every
restart, and independent of the endpoints' names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING

from mcproxy.upstream.balancing.round_robin import relative_weights
from mcproxy.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo

_CACHED = 4096  # maximum of cached users
_LONGEST_CACHED = 512  # maximum of characters of a cached name


class ConsistentHash:
    """Rendezvous hashing by user name. An informer's list and watch have the same user, hence the same endpoint."""

    __slots__ = ("_cached", "_rank", "endpoints")

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._rank: Callable[[str], tuple[int, ...]] | None = None
        self._cached: Callable[[str], tuple[int, ...]] | None = None

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """See `balancer.Balancer.pick`."""
        endpoints = self.endpoints
        order = self._order(user)
        for index in order:
            endpoint = endpoints[index]
            if endpoint.ready and endpoint not in exclude:
                return endpoint
        for index in order:
            endpoint = endpoints[index]
            if endpoint.unchecked and endpoint not in exclude:
                return endpoint
        return None

    def _order(self, user: str) -> tuple[int, ...]:
        if self._rank is None or self._cached is None:  # read at the first pick, when the weights are in force
            urls = [endpoint.config.url for endpoint in self.endpoints]
            weights = relative_weights([endpoint.config.weight for endpoint in self.endpoints])
            self._rank = partial(ranking, urls, weights or (1,) * len(urls))
            self._cached = lru_cache(_CACHED)(self._rank)
        return self._cached(user) if len(user) <= _LONGEST_CACHED else self._rank(user)


def ranking(urls: Sequence[str], weights: Sequence[int], user: str) -> tuple[int, ...]:
    """Return the indices of `urls` in the order of preference of `user`."""
    name = user.encode("utf-8", "surrogatepass")
    scores = []
    for url, weight in zip(urls, weights, strict=True):
        digest = blake2b(name, digest_size=8, key=blake2b(url.encode(), digest_size=32).digest()).digest()
        # 52 bits plus a half: never 0 or 1, and distinct as floats
        drawn = ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52
        scores.append(-log(drawn) / weight)  # the smallest score wins, with a chance in proportion to the weight
    return tuple(sorted(range(len(scores)), key=scores.__getitem__))
