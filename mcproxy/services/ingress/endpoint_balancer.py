"""Load balancing of a backend: chooses a cluster by weight, then one of its endpoints by the strategy. Pure.

The candidates are the first of these groups that is not empty:

1. ready endpoints that are not ejected (`endpoint_health`);
2. all ready endpoints: if all are ejected, the fault is likely elsewhere (nginx does the same);
3. terminating endpoints that still serve, when a rolling update has removed all others.

A cluster with a weight of 0 never gets a request, and a cluster without candidates leaves its share to the others.
Weighted round robin is smooth, as in nginx (`balancing.round_robin`): the weights 3 and 1 give the sequence aaba. The
rotation refers to names of clusters and addresses of endpoints, so it continues over reloads and when endpoints come
and go. ConsistentHash has no rotation (`HashRing`).

*Slow start*: the share of a new or formerly ejected endpoint grows from a tenth to the whole within the configured
time: some of its turns are skipped, and LeastRequests counts it as busier. nginx' `slow_start` does the same ("when
unhealthy server becomes healthy, or when the server becomes available after a period of time it was considered
unavailable"). The first endpoints of a new backend do not count as new.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Container, Mapping, Sequence
from hashlib import blake2b
from math import inf

from mcproxy.config.model import HashBy, Strategy
from mcproxy.http.messages import first_value
from mcproxy.services.ingress.backend_endpoints import BackendMember
from mcproxy.services.ingress.cookie_affinity import cookie_pattern
from mcproxy.services.ingress.endpoint_health import BackendEndpoint
from mcproxy.upstream.balancing.consistent_hash import ranking
from mcproxy.upstream.balancing.round_robin import SmoothWeightedRoundRobin

MAX_COMPARED = 64
"""Maximum of endpoints, next in turn, that LeastRequests compares for one request."""
LEAST_SHARE = 0.1
"""The fraction of its share that a new endpoint has at first, as Envoy's min_weight_percent."""


class EndpointBalancer:
    """Chooses the endpoints of requests for one backend."""

    __slots__ = (
        "_among",
        "_chosen",
        "_clock",
        "_dirty",
        "_hashes",
        "_least",
        "_members",
        "_next",
        "_only",
        "_random",
        "_rings",
        "_slow_start",
        "_smooth",
        "_turns",
        "_warm_at",
        "_weights",
    )

    def __init__(
        self,
        members: Mapping[str, BackendMember],
        weights: Mapping[str, int],
        strategy: Strategy,
        random: Callable[[], float],
        previous: EndpointBalancer | None = None,
        *,
        slow_start: float = 0.0,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`members`: the endpoints, by cluster. `random` returns a float in [0, 1).

        `slow_start`: seconds until a new or recovered endpoint has its whole share. `clock` returns the time, on the
        scale of `BackendEndpoint.since`.

        The rotation begins at a random endpoint, so that processes that start together use different endpoints first.
        """
        self._members = dict(members)
        self._weights = tuple(weights[name] for name in self._members)
        self._least = strategy is Strategy.LEAST_REQUESTS
        self._hashes = strategy is Strategy.CONSISTENT_HASH
        self._rings: dict[int, HashRing] = {}  # by index of the cluster; made on first use
        self._slow_start = 0.0 if self._hashes else slow_start
        self._clock = clock
        self._warm_at = -inf  # the time at which the newest endpoint has its whole share
        self._random = random
        self._dirty = True
        self._chosen: frozenset[BackendEndpoint] | None = None  # all candidates, computed by `may_choose`
        self._among: tuple[int, ...] = ()
        self._turns: list[tuple[BackendEndpoint, ...]] = [() for _ in self._members]
        self._next = [-1] * len(self._turns)  # index of the next endpoint, by cluster; -1: none yet
        self._only = -1  # index of the only cluster with candidates; -1: none or several have candidates
        self._smooth = SmoothWeightedRoundRobin(len(self._turns))
        if previous is not None:
            before = list(previous._members)
            indices = [before.index(name) if name in before else None for name in self._members]
            self._smooth = previous._smooth.reordered(indices)
            for index, old in enumerate(indices):
                if old is not None:
                    self._turns[index], self._next[index] = previous._turns[old], previous._next[old]
        self._smooth.with_weights(self._weights)

    def changed(self) -> None:
        """Have the next pick recompute the candidates, because endpoints or their usability have changed."""
        self._dirty = True

    @property
    def has_endpoints(self) -> bool:
        """Whether there is an endpoint for a request; ejected and terminating endpoints count too."""
        if self._dirty:
            self._update_candidates()
        return bool(self._among)

    def pick(self, tried: Container[BackendEndpoint] = (), key: bytes = b"") -> BackendEndpoint | None:
        """Return the endpoint for a request that has failed at `tried`; None if none is left.

        `key` is the client's key for ConsistentHash.
        """
        if self._dirty:
            self._update_candidates()
        only = self._only
        if only >= 0 and not tried and not self._least and not self._hashes and self._warm_at == -inf:  # the usual case
            turns = self._turns[only]
            index = self._next[only]
            self._next[only] = index + 1 if index + 1 < len(turns) else 0
            return turns[index]
        allowed = self._among
        if tried:
            allowed = tuple([index for index in allowed if any(each not in tried for each in self._turns[index])])
        if not allowed:
            return None
        if self._hashes:
            return self._hashed(allowed, tried, key)
        if self._warm_at != -inf and self._clock() >= self._warm_at:
            self._warm_at = -inf
        cluster = allowed[0] if only >= 0 else self._smooth.select(self._among, allowed)
        return self._least_busy(cluster, tried) if self._least else self._in_turn(cluster, tried)

    def may_choose(self, endpoint: BackendEndpoint) -> bool:
        """Whether an endpoint is a candidate, so that a client may stay with it."""
        if self._dirty:
            self._update_candidates()
        if self._chosen is None:
            self._chosen = frozenset(each for index in self._among for each in self._turns[index])
        return endpoint in self._chosen

    def _in_turn(self, cluster: int, tried: Container[BackendEndpoint]) -> BackendEndpoint:
        turns, index = self._turns[cluster], self._next[cluster]
        left = 2 * len(turns)  # steps; after them slow start skips no endpoint, because all endpoints can be new
        while True:  # ends, because there is an untried endpoint
            endpoint = turns[index]
            index = index + 1 if index + 1 < len(turns) else 0
            left -= 1
            if endpoint not in tried and (self._warm_at == -inf or left < 0 or self._random() < self._share(endpoint)):
                self._next[cluster] = index
                return endpoint

    def _share(self, endpoint: BackendEndpoint) -> float:
        """Return the fraction of its share that an endpoint gets at present, LEAST_SHARE to 1."""
        return min(1.0, max(LEAST_SHARE, (self._clock() - endpoint.since) / self._slow_start))

    def _hashed(self, allowed: Sequence[int], tried: Container[BackendEndpoint], key: bytes) -> BackendEndpoint:
        """Return the endpoint of a client. Another cluster is used only after all endpoints of the first were tried."""
        cluster = allowed[0]
        if len(allowed) > 1:
            names = tuple(self._members)
            order = ranking([names[each] for each in allowed], [self._weights[each] for each in allowed], key.hex())
            cluster = allowed[order[0]]
        ring = self._rings.get(cluster)
        if ring is None:
            ring = self._rings[cluster] = HashRing(self._turns[cluster])
        return ring.pick(ring_place(key), tried)

    def _least_busy(self, cluster: int, tried: Container[BackendEndpoint]) -> BackendEndpoint:
        turns, index = self._turns[cluster], self._next[cluster]
        best: BackendEndpoint | None = None
        after = compared = 0
        least, warm = inf, self._warm_at == -inf
        for _ in range(len(turns)):
            endpoint = turns[index]
            index = index + 1 if index + 1 < len(turns) else 0
            if endpoint in tried:
                continue
            compared += 1
            busy = endpoint.in_flight if warm else (endpoint.in_flight + 1) / self._share(endpoint)
            if busy < least:
                best, after, least = endpoint, index, busy
                if not busy:
                    break
            if compared >= MAX_COMPARED:
                break
        assert best is not None
        self._next[cluster] = after
        return best

    def _update_candidates(self) -> None:
        """Compute the candidates."""
        self._dirty = False
        self._chosen = None
        all_ = [
            each.endpoints if weight else () for each, weight in zip(self._members.values(), self._weights, strict=True)
        ]
        found = [tuple([each for each in endpoints if each.ready and each.usable]) for endpoints in all_]
        if not any(found):
            found = [tuple([each for each in endpoints if each.ready]) for endpoints in all_]
            if not any(found):
                found = [tuple(endpoints) for endpoints in all_]
        for index, turns in enumerate(found):
            if turns != self._turns[index]:
                self._next[index] = self._resumed(self._turns[index], self._next[index], turns)
                self._turns[index] = turns
            elif turns and self._next[index] < 0:
                self._next[index] = self._first(turns)
        self._rings.clear()
        if self._slow_start:
            newest = max((each.since for turns in found for each in turns), default=-inf)
            self._warm_at = newest + self._slow_start
        self._among = tuple([index for index, turns in enumerate(found) if turns])
        self._only = self._among[0] if len(self._among) == 1 else -1

    def _resumed(self, before: Sequence[BackendEndpoint], position: int, turns: Sequence[BackendEndpoint]) -> int:
        """Return the index of the next endpoint after a change: of the next one in the old order that still exists."""
        if not turns:
            return -1
        if position >= 0:
            places = {endpoint: index for index, endpoint in enumerate(turns)}
            for step in range(len(before)):
                place = places.get(before[(position + step) % len(before)])
                if place is not None:
                    return place
        return self._first(turns)

    def _first(self, turns: Sequence[BackendEndpoint]) -> int:
        return int(self._random() * len(turns)) % len(turns)


# -- ConsistentHash -------------------------------------------------------------------------------------------
#
# ConsistentHash of ingresses: a client keeps its endpoint while other endpoints come and go. Pure.
#
# The cluster is chosen by weighted rendezvous hashing (`balancing.consistent_hash`), then the endpoint on a hash ring
# (Karger et al. 1997; nginx calls it ketama). Rendezvous hashing would compare thousands of endpoints for each client;
# a ring takes one search. Both depend only on the names of clusters and the addresses of endpoints, so each process and
# replica makes the same choice. The choice costs the same for every key that a client can send.


MOST_POINTS = 160
"""Points of one endpoint on a ring with few endpoints, as in ketama."""
RING_POINTS = 1 << 15
"""Approximate maximum of points of a ring, so that a ring of thousands of endpoints is built in some milliseconds."""
_POINT = 8  # bytes
_PER_DIGEST = 8  # points from one digest


def client_key(by: HashBy | None) -> Callable[[bytes, str], bytes]:
    """Return the function that computes a client's key from a request's fields and the client's address.

    For a request without the field or cookie, the key is the address.
    """
    if by is None or not (by.header or by.cookie):
        return lambda _, address: address.encode()
    if by.header:
        name = by.header.lower().encode()

        def of_field(fields: bytes, address: str) -> bytes:
            return first_value(fields, name) or address.encode()

        return of_field
    find = cookie_pattern((by.cookie or "").encode(), rb"[^;\s]+").search

    def of_cookie(fields: bytes, address: str) -> bytes:
        found = find(fields)
        return address.encode() if found is None else found[1]

    return of_cookie


def ring_place(key: bytes) -> int:
    """Return the position of a key on every ring."""
    return int.from_bytes(blake2b(key, digest_size=_POINT).digest(), "big")


def points_of(name: str, number: int) -> list[int]:
    """Return the first `number` points of an endpoint on a ring; a larger number only adds points."""
    found: list[int] = []
    for round_ in range(-(-number // _PER_DIGEST)):
        digest = blake2b(name.encode(), digest_size=64, salt=round_.to_bytes(2, "big")).digest()
        found += [int.from_bytes(digest[at : at + _POINT], "big") for at in range(0, 64, _POINT)]
    return found[:number]


class HashRing:
    """A hash ring of the candidates of one cluster."""

    __slots__ = ("_endpoints", "_places")

    def __init__(self, endpoints: Sequence[BackendEndpoint]) -> None:
        number = MOST_POINTS
        while number > _PER_DIGEST and number * len(endpoints) > RING_POINTS:
            number //= 2
        owners = {point: each for each in endpoints for point in points_of(each.name, number)}
        self._places = sorted(owners)
        self._endpoints = [owners[place] for place in self._places]

    def pick(self, place: int, tried: Container[BackendEndpoint] = ()) -> BackendEndpoint:
        """Return the first untried endpoint at or after a position of the ring; there must be one."""
        endpoints = self._endpoints
        index = bisect(self._places, place)
        while True:
            endpoint = endpoints[index if index < len(endpoints) else 0]
            if endpoint not in tried:
                return endpoint
            index = index + 1 if index < len(endpoints) else 1
