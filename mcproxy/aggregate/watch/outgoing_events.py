"""Which events a watch sends for a change: by namespace, name and selectors, and by the rules of `conflicts`. Pure.

An object that comes into the selection is ADDED, one that leaves it is DELETED with its last matching state. Source:
Kubernetes API concepts ("Efficient detection of changes"); k8s.io/apiserver `storage/cacher` (cacheWatcher).

Where a rule of `conflicts` shows one object of each name (`show: One`), the chosen member's is shown, else that of the
first member which has one. Clients know objects by namespace and name, so where the shown object is added or deleted,
the next one of the name (its namesake) is DELETED or ADDED. A change of another object is not sent. Of two events for
one change the first has the version before the change, so that a watch which resumes between them gets both again.
ADDED of an object that was there all the time has its own version, which repeats at most what came since.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.store import Snapshot, Store

if TYPE_CHECKING:
    from mcproxy.aggregate.view.view import ViewState

_STEP_COST = 16_384
Predicate = Callable[[CachedObject], bool]


class Outcome(NamedTuple):
    """What a watch sends for a change; `object` has another state than the change where it left the selection."""

    type: EventType
    object: CachedObject


@dataclass(frozen=True, slots=True, eq=False)
class WatchSelection:
    """`namespace` "" is all; `name` is the only object that can match ("" for any); `matches` has label and field
    selectors (None: they select everything). Watches whose `key` is equal select the same. `cost` is
    `aggregate.selection.Selection.cost`."""

    key: Hashable = ()
    namespace: str = ""
    name: str = ""
    matches: Predicate | None = None
    cost: int = 1

    def batch_size(self, most: int) -> int:
        """Return how many objects may be matched in one step: at most `most`, and for about two milliseconds."""
        return max(1, min(most, _STEP_COST // self.cost))

    def selects(self, obj: CachedObject) -> bool:
        """Whether the object, in this state, is in the selection."""
        if self.namespace and obj.namespace != self.namespace:
            return False
        if self.name and obj.name != self.name:
            return False
        return self.matches is None or self.matches(obj)

    def outcome(self, event: Event) -> Outcome | None:
        """Return what is sent for a change; None if nothing is."""
        obj = event.object
        if (self.namespace and obj.namespace != self.namespace) or (self.name and obj.name != self.name):
            return None
        kind, matches, previous = event.type, self.matches, event.previous
        if matches is None:
            return Outcome(kind, obj)
        if kind is EventType.DELETED:
            # The client knows the state before, so that decides; it is sent as it was deleted.
            return Outcome(kind, obj) if matches(previous or obj) else None
        was = previous is not None and kind is EventType.MODIFIED and matches(previous)
        if matches(obj):
            return Outcome(EventType.MODIFIED if was else EventType.ADDED, obj)
        if was and previous is not None:
            return Outcome(EventType.DELETED, previous)
        return None

    def merged_outcome(self, events: Sequence[Event]) -> list[tuple[EventType, CachedObject, int]]:
        """Return what brings a client that may have seen any of these changes of one object to its last state: type,
        state, lead."""
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
    """`lead` is the version of the object in it; `before`: it has the resource version from before the change, since
    another event follows."""

    type: EventType
    store: Store
    object: CachedObject
    lead: int
    before: bool = False


# -- show: One --------------------------------------------------------------------------------------------------


class Namesake(NamedTuple):
    """Another member's object of the same namespace and name; `first`: if both are there, it is the one shown."""

    store: Store
    object: CachedObject
    first: bool


Namesakes = tuple[Namesake, ...]
"""Those of one object; the one that would be shown without it comes first."""
StateOf = Callable[["Store"], "Snapshot | Store | None"]


def namesakes_of(state: ViewState, store: Store, obj: CachedObject, state_of: StateOf) -> Namesakes:
    """Return the objects of other members that have the name of `store`'s object, if one of them is to be shown.

    `state_of` returns what another store has at that time, None for one that is not read.
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
    """Return the events of a change of `store`, of which everything up to `store_sent` was sent; `sent` is that of all
    stores, by identity. `namesakes` are those that the watch reads."""
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
    """Return what is sent where several changes of one object are sent as its last state (`merged`); arguments as of
    `outgoing_events`."""
    if namesakes[0].first:
        return []
    other = namesakes[0]
    if not selection.selects(other.object):
        return merged
    if events[-1].type is EventType.DELETED:
        return [*merged, OutgoingEvent(EventType.ADDED, other.store, other.object, other.object.version)]
    if any(event.type is not EventType.MODIFIED for event in events):  # it may not have been there
        return [OutgoingEvent(EventType.DELETED, other.store, other.object, sent[id(other.store)]), *merged]
    return merged
