"""The queue of changes to one cluster: it determines their order and times. Pure; the clock is an argument.

Changes of different sources take turns, so that a cluster whose endpoints change all the time delays only its own
changes. Only the newest change of an object is queued. The rate of writes is bounded, for the whole cluster and for
each object.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mcproxy.services.api_types import SOURCE_CLUSTER
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey
from mcproxy.services.writer.differences import PlannedWrite, Verb, status_place

RATE = 50.0
"""Writes per second to one cluster, in the long run."""
BURST = 200.0
"""Maximum burst of writes after a quiet time."""
OBJECT_GAP = 1.0
"""Minimum of seconds between two writes of one object."""
FIRST_RETRY, LAST_RETRY = 1.0, 300.0
"""Seconds until the first retry of a refused object; doubled for each further retry."""
SOON = 4.0
"""Maximum of seconds between retries that can succeed without human action."""
LAST_ABSENT = 300.0
"""Maximum of seconds until a retry in a missing namespace that the cluster does not have to have."""
LAST_BLOCK = 30.0
"""Maximum of seconds until a retry in a missing namespace, or where the proxy lacks a right."""


@dataclass(slots=True)
class _Object:
    """The state of one object that was or will be written."""

    not_before: float = 0.0
    retry: float = FIRST_RETRY
    tried: float = 0.0
    refused: str | None = None
    """The digest of the last refused change."""
    held: tuple[str, str, str] | None = None
    """The refused change that is not retried: its digest, and the object's uid and version."""


Scope = tuple[str, str]
"""A namespace and a resource in it; "" means all resources."""


class ClusterWriteQueue:
    """The queue of one cluster.

    A key (an object, or its status) with a change is in `_turns` if the change is due, in `_busy` while an earlier
    change of the key is in flight, and in `_delayed` otherwise.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._changes: dict[ObjectKey, tuple[ServiceKey, PlannedWrite]] = {}
        self._places: dict[ServiceKey, set[ObjectKey]] = {}
        self._turns: dict[str, deque[ObjectKey]] = {}
        self._delayed: list[tuple[float, ObjectKey]] = []
        self._queued: set[ObjectKey] = set()  # keys in `_turns` or `_delayed`; the change of a key may be gone
        self._objects: dict[ObjectKey, _Object] = {}
        self._busy: set[ObjectKey] = set()
        self._blocked: dict[Scope, tuple[float, float]] = {}  # end of the delay, and the next delay
        self._full_at = 0.0  # time at which the token bucket is full again

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def busy(self) -> int:
        """The number of changes in flight."""
        return len(self._busy)

    def replace(self, service: ServiceKey, changes: Iterable[PlannedWrite]) -> None:
        """Set the pending changes of a service, replacing former ones."""
        before = self._places.pop(service, set())
        places: set[ObjectKey] = set()
        for change in changes:
            place = place_of_change(change)
            places.add(place)
            self._changes[place] = (service, change)
            known = self._objects.get(place)
            if known is not None and known.held not in (None, _identity(change)):
                known.held = None
            if known is not None and known.refused not in (None, change.digest):
                known.refused = None  # the change differs from the refused one
                known.not_before = known.tried + OBJECT_GAP
                self._queued.discard(place)
            self._queue(place)
        for place in before - places:
            del self._changes[place]
        if places:
            self._places[service] = places

    def clear(self) -> None:
        """Drop all pending changes."""
        self._changes.clear()
        self._places.clear()
        self._turns.clear()
        self._delayed.clear()
        self._queued.clear()

    def take(self) -> tuple[ServiceKey, PlannedWrite] | None:
        """Return the next due change and its service; None if no change is due.

        The object is busy until `done`, `failed`, `block` or `drop` is called.
        """
        now = self._now()
        if self._tokens_at() > now:
            return None
        self._end_delays(now)
        for source in tuple(self._turns):
            turn = self._turns.pop(source)
            found = self._first(turn)
            if turn:
                self._turns[source] = turn  # last in the order
            if found is not None:
                service = self._remove(found[0])
                self._busy.add(found[0])
                self._full_at = max(self._full_at, now) + 1 / RATE
                return service, found[1]
        return None

    def next_at(self) -> float | None:
        """Return the time of the next due change; None if there is no change, or all wait for `done`."""
        if self._turns:
            return max(self._now(), self._tokens_at())
        return max(self._delayed[0][0], self._tokens_at()) if self._delayed else None

    def done(self, change: PlannedWrite) -> None:
        """Note that a change was written."""
        place = place_of_change(change)
        self._objects[place] = _Object(self._now() + OBJECT_GAP)
        for scope in _scopes(place):
            self._blocked.pop(scope, None)
        self._free(place)

    def block(self, change: PlannedWrite, scope: Scope, last: float = LAST_BLOCK) -> None:
        """Delay a whole scope, because this attempt shows that its writes fail.

        `last`: maximum of seconds between two attempts.
        """
        now = self._now()
        until, retry = self._blocked.get(scope, (0.0, FIRST_RETRY))
        if until <= now:
            self._blocked[scope] = (now + retry, min(2 * retry, last))
        self._free(place_of_change(change))

    def unblock(self, namespace: str) -> None:
        """End the delay of a namespace."""
        if self._blocked.pop((namespace, ""), None) is None:
            return
        for place in [place for place in self._changes if place.namespace == namespace]:
            self._queued.discard(place)
            self._queue(place)

    def failed(self, change: PlannedWrite, *, soon: bool) -> None:
        """Retry the object of a refused change, after a delay that doubles, or `soon` if a retry can succeed."""
        place = place_of_change(change)
        known = self._objects.setdefault(place, _Object())
        known.refused, known.tried = change.digest, self._now()
        known.not_before = self._now() + (min(known.retry, SOON) if soon else known.retry)
        known.retry = min(2 * known.retry, LAST_RETRY)
        self._free(place)

    def hold(self, change: PlannedWrite) -> None:
        """Do not retry a refused change until the change or the object in the cluster is different."""
        self._objects.setdefault(place_of_change(change), _Object()).held = _identity(change)
        self._free(place_of_change(change))

    def drop(self, change: PlannedWrite) -> None:
        """Drop a change that was not sent or has an unknown outcome; a comparison requests it again if needed."""
        self._free(place_of_change(change))

    def _free(self, place: ObjectKey) -> None:
        self._busy.discard(place)
        if place in self._changes:  # a newer change has arrived meanwhile
            self._queue(place)
        self._forget_old()

    def _queue(self, place: ObjectKey) -> None:
        if place in self._queued or place in self._busy:
            return
        known = self._objects.get(place)
        if known is not None and known.held is not None:
            return
        self._queued.add(place)
        not_before = max(
            0.0 if known is None else known.not_before,
            *(self._blocked[scope][0] for scope in _scopes(place) if scope in self._blocked),
            0.0,
        )
        if not_before > self._now():
            heapq.heappush(self._delayed, (not_before, place))
        else:
            self._turns.setdefault(_source(self._changes[place][1]), deque()).append(place)

    def _end_delays(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            place = heapq.heappop(self._delayed)[1]
            if place in self._changes:
                self._turns.setdefault(_source(self._changes[place][1]), deque()).append(place)
            else:
                self._queued.discard(place)

    def _first(self, turn: deque[ObjectKey]) -> tuple[ObjectKey, PlannedWrite] | None:
        """Remove and return the first object of a source's turn that can be written now, with its change."""
        while turn:
            place = turn.popleft()
            self._queued.discard(place)
            waiting = self._changes.get(place)
            if waiting is None or place in self._busy:
                continue
            if any(self._blocked.get(scope, (0.0,))[0] > self._now() for scope in _scopes(place)):
                self._queue(place)
                continue
            return place, waiting[1]
        return None

    def _remove(self, place: ObjectKey) -> ServiceKey:
        service = self._changes.pop(place)[0]
        places = self._places[service]
        places.discard(place)
        if not places:
            del self._places[service]
        return service

    def _tokens_at(self) -> float:
        """Return when the bucket has a token: `BURST - 1` tokens before `_full_at`, when it is full."""
        return self._full_at - (BURST - 1) / RATE

    def _forget_old(self) -> None:
        """Drop the state of objects that were not written recently."""
        if len(self._objects) > 4 * len(self._changes) + 4096:
            now = self._now()
            self._objects = {
                place: known
                for place, known in self._objects.items()
                if known.not_before > now or known.held or place in self._changes or place in self._busy
            }


def place_of_change(change: PlannedWrite) -> ObjectKey:
    """Return the key of a change: an object, or its status."""
    return status_place(change.key) if change.verb is Verb.STATUS else change.key


def _identity(change: PlannedWrite) -> tuple[str, str, str]:
    return change.digest, change.uid, change.version


def scope_of(key: ObjectKey, *, of_resource: bool) -> Scope:
    """Return the scope of an object: its namespace, or its resource in that namespace."""
    return (key.namespace, key.resource if of_resource else "")


def _scopes(place: ObjectKey) -> tuple[Scope, Scope]:
    return (scope_of(place, of_resource=True), scope_of(place, of_resource=False))


def _source(change: PlannedWrite) -> str:
    """Return the source of a change: the source cluster of an imported slice, or "" for all other objects."""
    labels = ((change.body or {}).get("metadata") or {}).get("labels") or {}
    source = labels.get(SOURCE_CLUSTER)
    return source if isinstance(source, str) else ""
