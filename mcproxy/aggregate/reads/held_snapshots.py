"""The states of lists that are held for further pages.

A list's pages come from one state. It is held for a while after each page; after that, the stores' event logs may still
reach it, and so may those of another replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.reads.hidden import Hidden

HOLD_SECONDS = 120.0
"""How long a state is held after its last use; it keeps the objects that have changed since in memory."""
MAX_HELD = 256
"""States of stores that are held at once, over all lists of an aggregate; the oldest goes first."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of objects that only these keep, at most; the oldest state of the store with most goes first."""
_INTERVAL = 1.0  # seconds between two looks at what they keep
_MAX_HIDDEN = 16  # lists that begin with one state: of users who may read other members


class _Held(NamedTuple):
    snapshot: Snapshot
    until: float
    replaced: int
    """`Store.replaced` when it was the present state, or less."""
    hidden: dict[Hashable, Hidden]
    """What of lists that begin with this state is not shown, by their names and all their states."""


class HeldSnapshots:
    """States of stores by (store, version), for further pages; bounded in number, in time and in bytes."""

    def __init__(
        self, clock: IReactorTime, *, seconds: float = HOLD_SECONDS, number: int = MAX_HELD, size: int = MAX_BYTES
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._number = number
        self._size = size
        self._held: OrderedDict[tuple[int, int, int], _Held] = OrderedDict()
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, snapshots: Sequence[Snapshot], hidden: Hidden | None = None) -> None:
        """Hold states for the next page of their list, with what of them is not shown."""
        until = self._clock.seconds() + self._seconds
        for snapshot in snapshots:
            key = _key(snapshot.store, snapshot.version)
            known = self._held.get(key)
            replaced = _replaced(snapshot) if known is None else known.replaced
            self._held[key] = _Held(snapshot, until, replaced, {} if known is None else known.hidden)
            self._held.move_to_end(key)
        if hidden is not None and (first := self._held.get(_key(snapshots[0].store, snapshots[0].version))) is not None:
            if len(first.hidden) >= _MAX_HIDDEN:
                first.hidden.clear()
            first.hidden[hidden.names, *map(_identity, snapshots)] = hidden
        while len(self._held) > self._number:
            self._held.popitem(last=False)
        self._wait()

    def at(self, store: Store, version: int) -> Snapshot:
        """Return the state of a store at a version. Raises Expired if it is neither held nor in the event log.

        What was held before the store was cleared is not shown again: its name is another cluster's, perhaps.
        """
        held = self._held.get(_key(store, version))
        if held is not None:
            return held.snapshot
        return store.snapshot_at(version)

    def hidden(self, snapshots: Sequence[Snapshot], names: tuple[str, str]) -> Hidden | None:
        """Return what was held of these very states, for a namespace and name as of `Hidden.names`."""
        first = self._held.get(_key(snapshots[0].store, snapshots[0].version)) if snapshots else None
        return None if first is None else first.hidden.get((names, *map(_identity, snapshots)))

    @property
    def size(self) -> int:
        """Bytes of objects that only what is held keeps, at most."""
        return sum(self._sizes().values())

    def _sizes(self) -> dict[Store, int]:
        """Return these bytes by store: all that has been replaced since the oldest state that is held of it."""
        found: dict[Store, int] = {}
        for held in self._held.values():
            store = held.snapshot.store
            found[store] = max(found.get(store, 0), store.replaced - held.replaced)
        return found

    def _bound(self) -> None:
        while len(self._held) and sum((sizes := self._sizes()).values()) > self._size:
            store = max(sizes, key=sizes.__getitem__)
            of_store = [key for key, held in self._held.items() if held.snapshot.store is store]
            del self._held[min(of_store, key=lambda key: self._held[key].replaced)]

    def clear(self) -> None:
        """Hold nothing any more."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if self._timer is None and self._held:
            first = next(iter(self._held.values())).until
            delay = min(max(first - self._clock.seconds(), 0.0), _INTERVAL)
            self._timer = self._clock.callLater(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        while self._held and next(iter(self._held.values())).until <= now:
            self._held.popitem(last=False)
        self._bound()
        self._wait()


def _replaced(snapshot: Snapshot) -> int:
    """Return `_Held.replaced`; a state that is not the present one was made from what the events hold."""
    store = snapshot.store
    present = snapshot.version >= store.snapshot().version
    return store.replaced if present else store.replaced - store.events_size


def _key(store: Store, version: int) -> tuple[int, int, int]:
    return id(store), store.generation, version  # an entry keeps its store, so the id is not used again


def _identity(snapshot: Snapshot) -> Hashable:
    """Return what tells a state from others without keeping it."""
    store = snapshot.store
    return store.member, store.namespace, store.generation, snapshot.version
