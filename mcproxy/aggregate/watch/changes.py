"""The queue of a view's changes, in one order for all watchers, and the events that a watch sends for each change.

A watcher has a position in the queue and copies no events. So a slow watcher costs only the items that the queue keeps,
and these are bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.cache.store import Snapshot, Store

if TYPE_CHECKING:
    from mcproxy.aggregate.view.view import ViewState

StoreVersions = Mapping[int, int]
"""A version of each store, by the store's identity (`id`). This mapping is replaced, never changed in place."""
MAX_CHANGES = 8192
MAX_QUEUE_BYTES = 32 * 1024 * 1024
CHANGES_BUDGET = 128 * 1024 * 1024
"""Maximum bytes in the queues of all views of a process."""
MAX_LINES = 16 * 1024 * 1024
"""Maximum bytes of encoded changes that are kept for other groups of watchers. Above this, each group encodes the
changes itself.
"""
BURST = 4
"""Changes younger than BURST_GRACE are kept up to this multiple of the bounds."""
BURST_GRACE = 10.0
"""Seconds that every watcher has to read a burst (e.g. a relist after an outage)."""


class QueueItem:
    """An item that all watchers of a view get, in the queue's order.

    `versions` are the versions of all stores after the item, `state` is the view's composition at the item, `arrived`
    is the time of the item (reactor's clock), and `size` is the number of bytes that the item keeps in memory.
    """

    __slots__ = ("arrived", "size", "state", "versions")

    def __init__(self, versions: StoreVersions, state: ViewState, arrived: float, size: int = 0) -> None:
        self.versions = versions
        self.state = state
        self.arrived = arrived
        self.size = size


class Change(QueueItem):
    """One change of one store, which was at version `before`. A client at the version `upto` has seen the change: it is
    the change's own version, or the version of the list that showed the change.

    `lines` are its encoded lines by encoding parameters. `namesakes` are other members' objects of the same name at
    that time, if only one of them is shown.
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


class StoreReset(QueueItem):
    """A store was cleared after DELETED events for its objects: another cluster has taken the place of its member.

    `before` is the store's version before it was cleared.
    """

    __slots__ = ("before", "store")

    def __init__(self, store: Store, before: int, versions: StoreVersions, state: ViewState, arrived: float) -> None:
        super().__init__(versions, state, arrived)
        self.store = store
        self.before = before


class Remove(QueueItem):
    """Stores of a member left the view: their objects are DELETED. `state` still contains these stores.

    `others` are the states of the stores that stay, if only one object of each name is shown.
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


class Recompose(QueueItem):
    """The composition of the view has changed."""

    __slots__ = ()


class Close(QueueItem):
    """The view is closed: its watches end."""

    __slots__ = ()


class ChangeQueue:
    """Numbered items; `start` is the number of the oldest kept item, `end` the number of the next new item.

    `state` is the present composition of the view. `versions` has the present version of each store that has been
    filled.
    """

    __slots__ = ("_budget", "_items", "_lines", "_made", "_made_before", "_size", "end", "start", "state", "versions")

    def __init__(self, state: ViewState, budget: MemoryBudget | None = None) -> None:
        """`budget` is shared by the queues of many views."""
        self.state = state
        self.versions: StoreVersions = {}
        self._budget = budget
        self._items: deque[QueueItem] = deque()
        self._size = 0
        self._made: list[Change] = []  # changes whose lines were encoded since the last `forget_lines`
        self._made_before: list[Change] = []  # changes whose lines were encoded before the last `forget_lines`
        self._lines = 0  # bytes of all these lines
        self.start = 0
        self.end = 0

    @property
    def size(self) -> int:
        """Bytes of the objects of the kept changes."""
        return self._size

    @property
    def lines_size(self) -> int:
        """Bytes of the kept lines."""
        return self._lines

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: QueueItem) -> None:
        self._items.append(item)
        self._size += item.size
        self.end += 1
        self._bound(item.arrived)
        self._account()

    def get(self, number: int) -> QueueItem:
        """Return an item; raises IndexError if it was dropped."""
        if number < self.start:
            raise IndexError(number)
        return self._items[number - self.start]

    def drop_before(self, number: int) -> None:
        """Drop the items before this number, which every watcher has received."""
        while self.start < number and self._items:
            self._drop_first()
        self.start = max(self.start, min(number, self.end))
        self._account()

    def clear(self) -> None:
        """Drop everything, since no watcher is left."""
        self._items.clear()
        self._size, self.start = 0, self.end
        self._made, self._made_before, self._lines = [], [], 0
        self._account()

    def keep_line(self, change: Change, key: Hashable, line: bytes) -> None:
        """Keep an encoded line for other groups of watchers, if there is room."""
        if self._lines + len(line) > MAX_LINES:
            return
        if not change.lines:
            self._made.append(change)
        change.lines[key] = line
        self._lines += len(line)

    def forget_lines(self) -> None:
        """Drop the lines that were encoded before the last call; a slow watcher encodes them again."""
        for change in self._made_before:
            self._lines -= sum(map(len, change.lines.values()))
            change.lines = {}
        self._made_before, self._made = self._made, []

    def give_way(self) -> bool:
        """Drop the oldest item to save memory; False if there is only one item, which watches are about to get."""
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
        while len(items) > MAX_CHANGES or self._size > MAX_QUEUE_BYTES:
            burst = len(items) <= MAX_CHANGES * BURST and self._size <= MAX_QUEUE_BYTES * BURST
            if (burst and now - items[0].arrived < BURST_GRACE) or len(items) == 1:
                return
            self._drop_first()


# -- events for a change --------------------------------------------------------------------------------------
#
# The events that a watch sends for a change, by namespace, name and selectors, and by the rules of `conflicts`. Pure.
#
# An object that enters the selection is ADDED; one that leaves it is DELETED with its last matching state. Source:
# Kubernetes API concepts ("Efficient detection of changes"); k8s.io/apiserver `storage/cacher` (cacheWatcher).
#
# If a rule of `conflicts` shows one object of each name (`show: One`), this is the chosen member's object, else that of
# the first member that has one. Clients know objects by namespace and name. So when the shown object is added or
# deleted, the next object of the name (its namesake) is DELETED or ADDED. A change to a hidden object is not sent. If a
# change causes two events, the first has the version from before the change, so that a watch that resumes between them
# gets both again. ADDED of an object that existed before has the object's own version, so a resume repeats only later
# events.


_SELECTION_COST = 16_384
Predicate = Callable[[CachedObject], bool]


class SelectedEvent(NamedTuple):
    """The event that a watch sends for a change; if an object left the selection, `object` is its earlier state."""

    type: EventType
    object: CachedObject


@dataclass(frozen=True, slots=True, eq=False)
class WatchSelection:
    """Selects objects. `namespace` "" is all; `name` is the name of the only object that can match ("" for any);
    `matches` applies label and field selectors (None: there are none). Watches with equal `key` select the same
    objects. `cost` is `aggregate.selection.Selection.cost`."""

    key: Hashable = ()
    namespace: str = ""
    name: str = ""
    matches: Predicate | None = None
    cost: int = 1

    def batch_size(self, most: int) -> int:
        """Return how many objects to match in one step: at most `most`, and for about two milliseconds."""
        return max(1, min(most, _SELECTION_COST // self.cost))

    def selects(self, obj: CachedObject) -> bool:
        """Whether the object, in this state, is in the selection."""
        if self.namespace and obj.namespace != self.namespace:
            return False
        if self.name and obj.name != self.name:
            return False
        return self.matches is None or self.matches(obj)

    def outcome(self, event: Event) -> SelectedEvent | None:
        """Return the event for a change; None if nothing is sent."""
        obj = event.object
        if (self.namespace and obj.namespace != self.namespace) or (self.name and obj.name != self.name):
            return None
        kind, matches, previous = event.type, self.matches, event.previous
        if matches is None:
            return SelectedEvent(kind, obj)
        if kind is EventType.DELETED:
            # The state before the deletion decides, since the client knows it; the deleted state is sent.
            return SelectedEvent(kind, obj) if matches(previous or obj) else None
        was = previous is not None and kind is EventType.MODIFIED and matches(previous)
        if matches(obj):
            return SelectedEvent(EventType.MODIFIED if was else EventType.ADDED, obj)
        if was and previous is not None:
            return SelectedEvent(EventType.DELETED, previous)
        return None

    def merged_outcome(self, events: Sequence[Event]) -> list[tuple[EventType, CachedObject, int]]:
        """Return the events (type, state, lead) that bring a client to an object's last state, whichever of these
        changes of the object the client has seen.
        """
        first, last = events[0], events[-1]
        before = None if first.type is EventType.ADDED else first.previous or first.object
        states = [] if before is None else [before]
        states += [event.object for event in events[:-1] if event.type is not EventType.DELETED]
        seen = [state for state in states if self.selects(state)]
        obj = last.object
        if last.type is EventType.DELETED:
            return [(EventType.DELETED, obj, last.version)] if seen else []
        if not self.selects(obj):
            return [(EventType.DELETED, seen[-1], last.version)] if seen else []
        if not seen or before is None:
            return [(EventType.ADDED, obj, last.version)]
        if seen[-1].uid != obj.uid:
            return [(EventType.DELETED, seen[-1], last.version - 1), (EventType.ADDED, obj, last.version)]
        return [(EventType.MODIFIED, obj, last.version)]


class OutgoingEvent(NamedTuple):
    """An event to send. `lead` is the version of its object. `before`: the event has the resource version from before
    the change, since another event for the same change follows."""

    type: EventType
    store: Store
    object: CachedObject
    lead: int
    before: bool = False


# -- show: One --------------------------------------------------------------------------------------------------


class Namesake(NamedTuple):
    """Another member's object of the same namespace and name; `first`: if both objects exist, this one is shown."""

    store: Store
    object: CachedObject
    first: bool


Namesakes = tuple[Namesake, ...]
"""The namesakes of one object; the first one would be shown without the object."""
StateOf = Callable[["Store"], "Snapshot | Store | None"]


def namesakes_of(state: ViewState, store: Store, obj: CachedObject, state_of: StateOf) -> Namesakes:
    """Return other members' objects with the name of `store`'s object, if only one of them is shown.

    `state_of` returns the state of another store at that time, None for a store that is not read.
    """
    chosen = state.conflicts.shown(obj.namespace)
    if chosen is None:
        return ()
    found: list[tuple[bool, int, Store, CachedObject]] = []
    own = (False, -1)
    for place, member in enumerate(state.members):
        rank = member.name != chosen, place
        if member.name == store.member:
            own = rank
            continue
        for other in member.stores_of(obj.namespace):
            objects = state_of(other)
            held = None if objects is None else objects.get(obj.namespace, obj.name)
            if held is not None:
                found.append((*rank, other, held))
    found.sort(key=lambda each: each[:2])
    return tuple(Namesake(other, held, (differs, place) < own) for differs, place, other, held in found)


def outgoing_events(
    selection: WatchSelection,
    store: Store,
    event: Event,
    store_sent: int,
    namesakes: Sequence[Namesake],
    sent: Mapping[int, int],
) -> list[OutgoingEvent]:
    """Return the events for a change of `store`, whose changes up to `store_sent` were sent; `sent` has this version
    for all stores, by identity. `namesakes` are those in stores that the watch reads.
    """
    if namesakes and namesakes[0].first:
        return []  # another object is shown, before and after
    found: list[OutgoingEvent] = []
    other = namesakes[0] if namesakes and selection.selects(namesakes[0].object) else None
    if other is not None and event.type is EventType.ADDED:
        found.append(OutgoingEvent(EventType.DELETED, other.store, other.object, sent[id(other.store)]))
    outcome = selection.outcome(event)
    if outcome is not None:
        lead = max(event.version, store_sent) if event.type is EventType.DELETED else event.version
        found.append(OutgoingEvent(outcome.type, store, outcome.object, lead))
    if other is not None and event.type is EventType.DELETED:
        found.append(OutgoingEvent(EventType.ADDED, other.store, other.object, other.object.version))
    if len(found) > 1:
        first = found[0]
        found[0] = first._replace(before=True, lead=sent[id(first.store)] if first.store is not store else store_sent)
    return found


def merged_events(
    selection: WatchSelection,
    merged: list[OutgoingEvent],
    events: Sequence[Event],
    namesakes: Sequence[Namesake],
    sent: Mapping[int, int],
) -> list[OutgoingEvent]:
    """Return the events for several changes of one object that are sent as its last state. `merged` are these events
    without regard to namesakes; the other arguments are those of `outgoing_events`.
    """
    if namesakes[0].first:
        return []
    other = namesakes[0]
    if not selection.selects(other.object):
        return merged
    if events[-1].type is EventType.DELETED:
        return [*merged, OutgoingEvent(EventType.ADDED, other.store, other.object, other.object.version)]
    if any(event.type is not EventType.MODIFIED for event in events):  # the object may not have existed all the time
        return [OutgoingEvent(EventType.DELETED, other.store, other.object, sent[id(other.store)]), *merged]
    return merged
