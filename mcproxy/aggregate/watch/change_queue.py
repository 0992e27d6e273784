"""The changes of a view in the one order in which its watchers get them, as long as one of them still needs them.

A watcher holds a position in the queue, never events of its own, so one that reads slowly costs nothing beside what the
queue keeps for it, which is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.object import Event
from mcproxy.aggregate.watch.coverage import Marks

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.view.view import ViewState

MAX_CHANGES = 8192
MAX_BYTES = 32 * 1024 * 1024
BURST = 4
"""How much more a burst may have: what is younger than GRACE is kept up to so many times the bounds."""
GRACE = 10.0
"""Seconds within which even the slowest watcher may take what has come at once (a relist after an outage)."""


class Item:
    """Something that all watchers of a view get, in its place.

    `marks` are the positions in all stores after it, `state` the composition of the view at it, `arrived` its time
    (reactor's clock), `size` the bytes that it keeps in memory.
    """

    __slots__ = ("arrived", "marks", "size", "state")

    def __init__(self, marks: Marks, state: ViewState, arrived: float, size: int = 0) -> None:
        self.marks = marks
        self.state = state
        self.arrived = arrived
        self.size = size


class Change(Item):
    """One change of one store, which was at version `before`. Who has seen the version `upto` has seen the change: its
    own, or that of the list that showed it.

    `lines` keeps the bytes that were made of it, by rendering.
    """

    __slots__ = ("before", "event", "lines", "store", "upto")

    def __init__(
        self, store: Store, event: Event, before: int, upto: int, marks: Marks, state: ViewState, arrived: float
    ) -> None:
        super().__init__(marks, state, arrived, event.object.size)
        self.store = store
        self.event = event
        self.before = before
        self.upto = upto
        self.lines: dict[Hashable, bytes] = {}


class Reset(Item):
    """A store was emptied, after its objects were DELETED: another cluster has taken the place of its member.

    `before` is the version that it was at.
    """

    __slots__ = ("before", "store")

    def __init__(self, store: Store, before: int, marks: Marks, state: ViewState, arrived: float) -> None:
        super().__init__(marks, state, arrived)
        self.store = store
        self.before = before


class Remove(Item):
    """Stores of a member are no longer in the view: their objects are DELETED. `state` still has them."""

    __slots__ = ("snapshots",)

    def __init__(self, snapshots: tuple[Snapshot, ...], marks: Marks, state: ViewState, arrived: float) -> None:
        super().__init__(marks, state, arrived)
        self.snapshots = snapshots


class Recompose(Item):
    """The composition of the view has changed: later versions are written for the new one."""

    __slots__ = ()


class Close(Item):
    """The view is closed: its watches end."""

    __slots__ = ()


class ChangeQueue:
    """Items by their number; `start` is that of the oldest that is kept, `end` that of the next one to come."""

    __slots__ = ("_items", "_size", "end", "start")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._size = 0
        self.start = 0
        self.end = 0

    @property
    def size(self) -> int:
        """Bytes of the objects of the changes that are kept."""
        return self._size

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        self._items.append(item)
        self._size += item.size
        self.end += 1
        self._bound(item.arrived)

    def get(self, number: int) -> Item:
        """Return an item; raises IndexError for one that is not kept any more."""
        if number < self.start:
            raise IndexError(number)
        return self._items[number - self.start]

    def drop_before(self, number: int) -> None:
        """Forget the items that every watcher has got."""
        while self.start < number and self._items:
            self._size -= self._items.popleft().size
            self.start += 1
        self.start = max(self.start, min(number, self.end))

    def forget_lines(self, number: int) -> None:
        """Forget the bytes that were made of the items before `number`; a slow watcher has them made anew."""
        for place in range(min(number, self.end) - self.start):
            item = self._items[place]
            if isinstance(item, Change) and item.lines:
                item.lines = {}

    def _bound(self, now: float) -> None:
        items = self._items
        while len(items) > MAX_CHANGES or self._size > MAX_BYTES:
            burst = len(items) <= MAX_CHANGES * BURST and self._size <= MAX_BYTES * BURST
            if (burst and now - items[0].arrived < GRACE) or len(items) == 1:
                return
            self._size -= items.popleft().size
            self.start += 1
