"""ConsistentHash of ingresses: which endpoint a client has, whatever else comes and goes. Pure.

A cluster first, by rendezvous hashing and its weight (`balancing.consistent_hash`), then an endpoint on a ring (Karger
et al. 1997; nginx calls it ketama). Rendezvous hashing would compare thousands of endpoints for each client; a ring
takes one search. All is made of the names of clusters and the addresses of endpoints, so each process and replica has
the same, and what a client chooses as its key costs the same whatever it is.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Container, Sequence
from hashlib import blake2b

from mcproxy.config.model import HashBy
from mcproxy.http.messages import first_value
from mcproxy.services.ingress.backend_endpoint import BackendEndpoint
from mcproxy.services.ingress.cookie_affinity import cookie_pattern

MOST_POINTS = 160
"""Points of one endpoint on a ring, as ketama has them; of a ring with few endpoints."""
RING = 1 << 15
"""Points of a ring at most, about, so that one of thousands of endpoints is made in some milliseconds."""
_POINT = 8  # bytes
_PER_DIGEST = 8  # points that one digest gives


def client_key(by: HashBy | None) -> Callable[[bytes, str], bytes]:
    """Return what tells clients apart: a function of a request's fields and its client's address.

    A request without the field or cookie is known by the address.
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
    """Return where a key is on each ring."""
    return int.from_bytes(blake2b(key, digest_size=_POINT).digest(), "big")


def points_of(name: str, number: int) -> list[int]:
    """Return the first points of an endpoint; with more of them these stay."""
    found: list[int] = []
    for round_ in range(-(-number // _PER_DIGEST)):
        digest = blake2b(name.encode(), digest_size=64, salt=round_.to_bytes(2, "big")).digest()
        found += [int.from_bytes(digest[at : at + _POINT], "big") for at in range(0, 64, _POINT)]
    return found[:number]


class HashRing:
    """The endpoints of one cluster that may be chosen."""

    __slots__ = ("_endpoints", "_places")

    def __init__(self, endpoints: Sequence[BackendEndpoint]) -> None:
        number = MOST_POINTS
        while number > _PER_DIGEST and number * len(endpoints) > RING:
            number //= 2
        owners = {point: each for each in endpoints for point in points_of(each.name, number)}
        self._places = sorted(owners)
        self._endpoints = [owners[place] for place in self._places]

    def pick(self, place: int, tried: Container[BackendEndpoint] = ()) -> BackendEndpoint:
        """Return the endpoint at a place of the ring, or the next one; there is one that was not tried."""
        endpoints = self._endpoints
        index = bisect(self._places, place)
        while True:
            endpoint = endpoints[index if index < len(endpoints) else 0]
            if endpoint not in tried:
                return endpoint
            index = index + 1 if index < len(endpoints) else 1
