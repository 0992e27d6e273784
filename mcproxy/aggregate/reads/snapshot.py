"""The state of a view that a list is made from, and the states that are held for further pages.

A list's pages come from one state. It is held for a while after each page; after that, the stores' event logs may still
reach it, and so may those of another replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.view.view import MemberView

HOLD_SECONDS = 120.0
"""How long a state is held after its last use; it keeps the objects that have changed since in memory."""
MAX_HELD = 256
"""States of stores that are held at once, over all lists of an aggregate; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class Part:
    """The state of one store."""

    member: MemberView
    snapshot: Snapshot

    @property
    def store(self) -> Store:
        return self.snapshot.store


class HeldSnapshots:
    """States of stores by (store, version), for further pages; bounded in number and in time."""

    def __init__(self, clock: IReactorTime, *, seconds: float = HOLD_SECONDS, number: int = MAX_HELD) -> None:
        self._clock = clock
        self._seconds = seconds
        self._number = number
        self._held: OrderedDict[tuple[int, int, int], tuple[Snapshot, float]] = OrderedDict()
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, snapshots: Sequence[Snapshot]) -> None:
        """Hold states for the next page of their list."""
        until = self._clock.seconds() + self._seconds
        for snapshot in snapshots:
            key = _key(snapshot.store, snapshot.version)
            self._held[key] = snapshot, until
            self._held.move_to_end(key)
        while len(self._held) > self._number:
            self._held.popitem(last=False)
        self._wait()

    def at(self, store: Store, version: int) -> Snapshot:
        """Return the state of a store at a version. Raises Expired if it is neither held nor in the event log.

        What was held before the store was cleared is not shown again: its name is another cluster's, perhaps.
        """
        held = self._held.get(_key(store, version))
        if held is not None:
            return held[0]
        return store.snapshot_at(version)

    def clear(self) -> None:
        """Hold nothing any more."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if self._timer is None and self._held:
            first = next(iter(self._held.values()))[1]
            delay = max(first - self._clock.seconds(), 0.0)
            self._timer = self._clock.callLater(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        while self._held and next(iter(self._held.values()))[1] <= now:
            self._held.popitem(last=False)
        self._wait()


def _key(store: Store, version: int) -> tuple[int, int, int]:
    return id(store), store.generation, version  # an entry keeps its store, so the id is not used again
