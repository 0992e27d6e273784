"""The choice of an endpoint: first a cluster by weight, then one of its endpoints by the strategy. Pure.

Who may be chosen, the first of these that there is any of:

1. endpoints that their cluster calls ready and that are not out (`backend_endpoint`);
2. all that their cluster calls ready: if all seem to be broken, the fault is likely not theirs (nginx does the same);
3. those that still serve while they end, for what is in front of a rolling update that has lost all others.

A cluster with a weight of 0 never gets a request, and a cluster without such endpoints leaves its share to the others.
By weight means smoothly, as nginx does it (`balancing.smooth_weighted`): with 3 and 1 the turns are aaba. All state of
the rotation is by the name of a cluster and the address of an endpoint: it continues where it was when endpoints come
and go, and over reloads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol

from mcproxy.config.model import Strategy
from mcproxy.services.ingress.backend_endpoint import BackendEndpoint
from mcproxy.upstream.balancing.smooth_weighted import SmoothWeightedRoundRobin

MAX_COMPARED = 64
"""Endpoints of a cluster that LeastRequests compares for one request: those that are next in turn."""


class Member(Protocol):
    """The endpoints of a backend in one cluster."""

    @property
    def endpoints(self) -> Sequence[BackendEndpoint]:
        """In the order of their addresses."""


class Balancer:
    """The choice for one backend."""

    __slots__ = (
        "_among",
        "_chosen",
        "_dirty",
        "_least",
        "_members",
        "_next",
        "_only",
        "_random",
        "_smooth",
        "_turns",
        "_weights",
    )

    def __init__(
        self,
        members: Mapping[str, Member],
        weights: Mapping[str, int],
        strategy: Strategy,
        random: Callable[[], float],
        previous: Balancer | None = None,
    ) -> None:
        """`members` are by the name of their cluster; `random` returns a float in [0, 1).

        The first turn is at random, so that many processes that begin together do not all begin with one endpoint.
        """
        self._members = dict(members)
        self._weights = tuple(weights[name] for name in self._members)
        self._least = strategy is Strategy.LEAST_REQUESTS
        self._random = random
        self._dirty = True
        self._chosen: frozenset[BackendEndpoint] | None = None  # all that may be chosen, once that was asked for
        self._among: tuple[int, ...] = ()
        self._turns: list[tuple[BackendEndpoint, ...]] = [() for _ in self._members]
        self._next = [-1] * len(self._turns)  # whose turn it is, by cluster; -1: none yet
        self._only = -1  # the one cluster that there is to choose from
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
        """Endpoints have come, gone, or are usable or not: look at them with the next pick."""
        self._dirty = True

    @property
    def available(self) -> bool:
        """Whether there is an endpoint for a request."""
        if self._dirty:
            self._look()
        return bool(self._among)

    def pick(self, tried: Container[BackendEndpoint] = ()) -> BackendEndpoint | None:
        """Return the endpoint for a request that has failed at `tried`; None if there is none."""
        if self._dirty:
            self._look()
        only = self._only
        if only >= 0 and not tried and not self._least:  # the usual case
            turns = self._turns[only]
            index = self._next[only]
            self._next[only] = index + 1 if index + 1 < len(turns) else 0
            return turns[index]
        allowed = self._among
        if tried:
            allowed = tuple([index for index in allowed if any(each not in tried for each in self._turns[index])])
        if not allowed:
            return None
        cluster = allowed[0] if only >= 0 else self._smooth.select(self._among, allowed)
        return self._least_busy(cluster, tried) if self._least else self._in_turn(cluster, tried)

    def may_choose(self, endpoint: BackendEndpoint) -> bool:
        """Whether `pick` could return an endpoint now: for a client that is to stay with it."""
        if self._dirty:
            self._look()
        if self._chosen is None:
            self._chosen = frozenset(each for index in self._among for each in self._turns[index])
        return endpoint in self._chosen

    def _in_turn(self, cluster: int, tried: Container[BackendEndpoint]) -> BackendEndpoint:
        turns, index = self._turns[cluster], self._next[cluster]
        while True:  # one is there that was not tried
            endpoint = turns[index]
            index = index + 1 if index + 1 < len(turns) else 0
            if endpoint not in tried:
                self._next[cluster] = index
                return endpoint

    def _least_busy(self, cluster: int, tried: Container[BackendEndpoint]) -> BackendEndpoint:
        turns, index = self._turns[cluster], self._next[cluster]
        best: BackendEndpoint | None = None
        after = compared = 0
        for _ in range(len(turns)):
            endpoint = turns[index]
            index = index + 1 if index + 1 < len(turns) else 0
            if endpoint in tried:
                continue
            compared += 1
            if best is None or endpoint.in_flight < best.in_flight:
                best, after = endpoint, index
                if not endpoint.in_flight:
                    break
            if compared >= MAX_COMPARED:
                break
        assert best is not None
        self._next[cluster] = after
        return best

    def _look(self) -> None:
        """Work out which endpoints may be chosen."""
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
        self._among = tuple([index for index, turns in enumerate(found) if turns])
        self._only = self._among[0] if len(self._among) == 1 else -1

    def _resumed(self, before: Sequence[BackendEndpoint], position: int, turns: Sequence[BackendEndpoint]) -> int:
        """Return whose turn it is among other endpoints: the first of the old order that is still there."""
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
