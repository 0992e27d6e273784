"""The changes of a view in the one order in which its watchers get them, kept as long as one of them needs them.

A watcher has a position in the queue and copies no events, so a slow one costs only what the queue keeps for it, which
is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.cached_object import Event
from mcproxy.aggregate.cache.event_log import MemoryBudget

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.view.view import ViewState
    from mcproxy.aggregate.watch.outgoing_events import Namesakes

StoreVersions = Mapping[int, int]
"""A version of each store, by the store's identity (`id`); never changed in place, but replaced."""
MAX_CHANGES = 8192
MAX_BYTES = 32 * 1024 * 1024
CHANGES_BUDGET = 128 * 1024 * 1024
"""Bytes that the queues of all views of a process hold at most."""
MAX_LINES = 16 * 1024 * 1024
"""Bytes that are made of changes and kept for other groups of watchers; beyond that each group makes them again."""
BURST = 4
"""Changes younger than GRACE are kept up to this many times the bounds."""
GRACE = 10.0
"""Seconds that even the slowest watcher has for a burst (a relist after an outage)."""


class Item:
    """Something that all watchers of a view get, in its place.

    `versions` are those of all stores after it, `state` is the composition of the view at it, `arrived` its time
    (reactor's clock), `size` the bytes that it keeps in memory.
    """

    __slots__ = ("arrived", "size", "state", "versions")

    def __init__(self, versions: StoreVersions, state: ViewState, arrived: float, size: int = 0) -> None:
        self.versions = versions
        self.state = state
        self.arrived = arrived
        self.size = size


class Change(Item):
    """One change of one store, which was at version `before`. A client at the version `upto` has seen the change: that
    is its own version, or that of the list that showed it.

    `lines` keeps the bytes that were made of it, by what they depend on. `namesakes` are the objects of its name that
    other members had at that time, where one of them is shown alone.
    """

    __slots__ = ("before", "event", "lines", "namesakes", "store", "upto")

    def __init__(
        self,
        store: Store,
        event: Event,
        before: int,
        upto: int,
        versions: StoreVersions,
        state: ViewState,
        arrived: float,
        namesakes: Namesakes = (),
    ) -> None:
        size = event.object.size + sum(each.object.size for each in namesakes)
        super().__init__(versions, state, arrived, size)
        self.namesakes = namesakes
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

    def __init__(self, store: Store, before: int, versions: StoreVersions, state: ViewState, arrived: float) -> None:
        super().__init__(versions, state, arrived)
        self.store = store
        self.before = before


class Remove(Item):
    """Stores of a member are no longer in the view: their objects are DELETED. `state` still has them.

    `others` are the states of the stores that stay, where one object of each name is shown alone.
    """

    __slots__ = ("others", "snapshots")

    def __init__(
        self,
        snapshots: tuple[Snapshot, ...],
        versions: StoreVersions,
        state: ViewState,
        arrived: float,
        others: Mapping[int, Snapshot],
    ) -> None:
        super().__init__(versions, state, arrived)
        self.snapshots = snapshots
        self.others = others


class Recompose(Item):
    """The composition of the view has changed."""

    __slots__ = ()


class Close(Item):
    """The view is closed: its watches end."""

    __slots__ = ()


class ChangeQueue:
    """Items by their number; `start` is that of the oldest that is kept, `end` that of the next one to come.

    `state` is the present composition of the view, `versions` the present version of each store; a store that was not
    filled yet has none.
    """

    __slots__ = ("_budget", "_items", "_lines", "_made", "_made_before", "_size", "end", "start", "state", "versions")

    def __init__(self, state: ViewState, budget: MemoryBudget | None = None) -> None:
        """`budget` is one for the queues of many views."""
        self.state = state
        self.versions: StoreVersions = {}
        self._budget = budget
        self._items: deque[Item] = deque()
        self._size = 0
        self._made: list[Change] = []  # of which lines were made since `forget_lines`
        self._made_before: list[Change] = []  # and before that
        self._lines = 0  # bytes of all of these
        self.start = 0
        self.end = 0

    @property
    def size(self) -> int:
        """Bytes of the objects of the changes that are kept."""
        return self._size

    @property
    def lines_size(self) -> int:
        """Bytes that were made of changes and are kept."""
        return self._lines

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item) -> None:
        self._items.append(item)
        self._size += item.size
        self.end += 1
        self._bound(item.arrived)
        self._account()

    def get(self, number: int) -> Item:
        """Return an item; raises IndexError for one that is not kept any more."""
        if number < self.start:
            raise IndexError(number)
        return self._items[number - self.start]

    def drop_before(self, number: int) -> None:
        """Forget the items that every watcher has."""
        while self.start < number and self._items:
            self._drop_first()
        self.start = max(self.start, min(number, self.end))
        self._account()

    def clear(self) -> None:
        """Forget everything: no watcher is left."""
        self._items.clear()
        self._size, self.start = 0, self.end
        self._made, self._made_before, self._lines = [], [], 0
        self._account()

    def keep_line(self, change: Change, key: Hashable, line: bytes) -> None:
        """Keep the bytes that were made of a change for other groups, as far as there is room."""
        if self._lines + len(line) > MAX_LINES:
            return
        if not change.lines:
            self._made.append(change)
        change.lines[key] = line
        self._lines += len(line)

    def forget_lines(self) -> None:
        """Forget the bytes that were made before the last call; for a slow watcher they are made again."""
        for change in self._made_before:
            self._lines -= sum(map(len, change.lines.values()))
            change.lines = {}
        self._made_before, self._made = self._made, []

    def give_way(self) -> bool:
        """Forget the oldest item, for the budget; False if there is only one, which watches are about to get."""
        if len(self._items) < 2:
            return False
        self._drop_first()
        self._account()
        return True

    def _account(self) -> None:
        if self._budget is not None:
            self._budget.changed(self, self._size)

    def _drop_first(self) -> None:
        self._size -= self._items.popleft().size
        self.start += 1

    def _bound(self, now: float) -> None:
        items = self._items
        while len(items) > MAX_CHANGES or self._size > MAX_BYTES:
            burst = len(items) <= MAX_CHANGES * BURST and self._size <= MAX_BYTES * BURST
            if (burst and now - items[0].arrived < GRACE) or len(items) == 1:
                return
            self._drop_first()
