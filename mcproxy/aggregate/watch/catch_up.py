"""Catch-up of one watch: sends the missing events as initial events, by a resume, and from the queue of its view.

- Initial events are sorted by the objects' versions, not by names. After the event with version v, all of this member's
  objects up to v were sent, so a watch can resume at v.
- Several stores of one member (namespaces) share one part in the vector, the minimum of their versions. A watch that
  resumes at this version gets some changes of the other stores again. Only the last change of each object is sent, so
  that no object goes back in time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.sequence import key_of
from mcproxy.aggregate.resource_version.formats import LongFormat
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.view.conflicts import DuplicateNames
from mcproxy.aggregate.watch.changes import (
    Change,
    ChangeQueue,
    Close,
    Namesake,
    Namesakes,
    OutgoingEvent,
    QueueItem,
    Remove,
    StoreReset,
    StoreVersions,
    WatchSelection,
    merged_events,
    namesakes_of,
    outgoing_events,
)
from mcproxy.aggregate.watch.position import WatchPosition

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.encoding.encoder import Encoder
    from mcproxy.aggregate.view.view import MemberView

_first = itemgetter(0)
_UNRESUMABLE = 1
"""A version that no event log contains any more, since a kube-apiserver uses the first versions for its own objects."""
StoreStates = dict[int, "Snapshot"]
"""The states of stores, by identity."""
_SKIPPED = 64  # one empty line is yielded per this number of skipped objects or changes, so that steps stay short


class CatchUp:
    """Encodes the lines of one watch while it is not in a group, and advances its position. `closed`: the view is
    closed and everything was sent.
    """

    __slots__ = ("_queue", "closed", "encoder", "position", "selection")

    def __init__(
        self, queue: ChangeQueue, position: WatchPosition, selection: WatchSelection, encoder: Encoder
    ) -> None:
        self._queue = queue
        self.position = position
        self.selection = selection
        self.encoder = encoder
        self.closed = False

    # -- beginning: initial events, or a resume -----------------------------------------------------------------

    def begin(self) -> Iterator[bytes]:
        """Return the lines of the members whose objects can be sent now. The position must be at the end of the queue.

        This call fixes the content of the lines. Raises Expired (410) if a resume is not possible.
        """
        position = self.position
        found = []
        states = self._states() if position.shows_one else {}
        for member in self._in_order(position.startable()):
            stores = [store for store in member.stores_of(position.watched.namespace) if id(store) not in position.sent]
            found.append(self._begin_member(stores, dict(states)))
            if position.shows_one:
                states.update((id(store), store.snapshot()) for store in stores)
        return _chained(found)

    def _states(self) -> StoreStates:
        """Return the states of stores that the client knows before further stores begin: the present states of stores
        that have begun, and the states at which stores are resumed.
        """
        position, stores = self.position, self.position.watched.stores
        found = {key: store.snapshot() for key, (_, store) in stores.items() if key in position.sent}
        for key, version in position.pending_resumes.items():
            found[key] = stores[key][1].snapshot_at(version)
        return found

    def _in_order(self, members: list[MemberView]) -> list[MemberView]:
        """Return members in the order in which they begin.

        For initial objects, a member that `conflicts` chooses is first, so that objects that it hides are never sent.
        For a resume, the chosen member is last: the client may have seen more events of the other members than its
        version shows (`outgoing_events`), and these events are sent again first.
        """
        position = self.position
        if not position.shows_one:
            return members
        chosen = position.watched.state.conflicts.all_shown
        rank = {name: place for place, name in enumerate(chosen)}
        ordered = sorted(members, key=lambda member: rank.get(member.name, len(rank)))
        resumes = position.pending_resumes
        resumed = {id(each) for each in ordered if any(id(store) in resumes for store in each.stores)}
        back = [member for member in reversed(ordered) if id(member) in resumed]
        return back + [member for member in ordered if id(member) not in resumed]

    def _begin_member(self, stores: Sequence[Store], states: StoreStates) -> Iterator[bytes]:
        """Return the lines with which stores of one member begin: the changes after the resumed version, or all
        objects.

        `states` are the states of other members' stores, if only one object of each name is shown.
        """
        position, present = self.position, self._queue.versions
        resumed = max({position.pending_resumes.pop(id(store), 0) for store in stores})
        position.advance(map(id, stores), resumed)
        versions = {id(store): present[id(store)] for store in stores}
        position.stores_behind_client.update(key for key, version in versions.items() if version < resumed)
        if not resumed:
            return self._initial_events(stores, [store.snapshot() for store in stores], versions, states)
        if len(stores) == 1:
            store = stores[0]
            if resumed >= versions[id(store)]:
                return iter(())
            return self._resume(store, store.events_after(resumed), versions[id(store)], states)
        changes = [(store, event) for store in stores for event in store.events_after(resumed)]
        reached = {key: max(version, resumed) for key, version in versions.items()}
        return self._resume_merged(changes, resumed, reached, states)

    def _initial_events(
        self, stores: Sequence[Store], snapshots: Sequence[Snapshot], versions: dict[int, int], states: StoreStates
    ) -> Iterator[bytes]:
        """Yield ADDED for all objects in one member's stores, in the order of versions."""
        position = self.position
        objects: list[tuple[int, Store, CachedObject]] = []
        pause = self.selection.batch_size(_SKIPPED * 8)
        contested: Collection[str] = ()
        if states:
            duplicates = self._duplicates([*snapshots, *states.values()])
            while duplicates.step():
                yield b""
            contested = duplicates.places
        for store, snapshot in zip(stores, snapshots, strict=True):
            for number, obj in enumerate(self._candidates(snapshot), 1):
                if number % pause == 0:
                    yield b""
                if self.selection.selects(obj):
                    objects.append((obj.version, store, obj))
        objects.sort(key=_first)
        yield b""
        least, last, sent = min(versions.values()), len(objects) - 1, 0
        for number, (version, store, obj) in enumerate(objects):
            shown = True
            if contested and key_of(obj) in contested:
                event = Event(EventType.ADDED, version, obj, None)
                namesakes = self._namesakes(store, obj, states)
                events = outgoing_events(self.selection, store, event, 0, namesakes, position.sent)
                shown = bool(events)
                for each in events[:-1]:
                    yield self._encode(each.type, each.store, each.object, each.lead)
            if number == last:
                position.sent = {**position.sent, **versions}
            elif objects[number + 1][0] > version and (reached := min(version, least)) > sent:
                sent = reached
                position.advance(versions, reached)
            yield self._encode(EventType.ADDED, store, obj, version) if shown else b""
        position.sent = {**position.sent, **versions}

    def _resume(self, store: Store, events: Sequence[Event], version: int, states: StoreStates) -> Iterator[bytes]:
        """Yield the changes after the resumed version of a member's only store, which is at `version`."""
        position, key, pause = self.position, id(store), self.selection.batch_size(_SKIPPED)
        for number, event in enumerate(events):
            before = position.sent
            store_sent = before[key]
            if event.version > store_sent:
                position.sent = {**before, key: event.version}
            namesakes = self._namesakes(store, event.object, states)
            if namesakes:
                line = self._lines_with_namesakes(store, event, store_sent, namesakes, before)
            else:
                line = self._line(store, event, store_sent)
            if line or number % pause == 0:
                yield line
        position.sent = {**position.sent, key: max(version, position.sent[key])}

    def _resume_merged(
        self, changes: Sequence[tuple[Store, Event]], resumed: int, versions: dict[int, int], states: StoreStates
    ) -> Iterator[bytes]:
        """Yield the last change after `resumed` of each object in several stores of one member."""
        position = self.position
        histories: dict[tuple[str, str], list[tuple[Store, Event]]] = {}
        for store, event in changes:
            histories.setdefault((event.object.namespace, event.object.name), []).append((store, event))
        least, reached = min(versions.values()), resumed
        for history in sorted(histories.values(), key=lambda history: history[-1][1].version):
            store, event = history[-1]
            events = [event for _, event in history]
            outgoing = [
                OutgoingEvent(kind, store, obj, max(lead, resumed) if kind is EventType.DELETED else lead)
                for kind, obj, lead in self.selection.merged_outcome(events)
            ]
            if namesakes := self._namesakes(store, event.object, states):
                outgoing = merged_events(self.selection, outgoing, events, namesakes, position.sent)
            for number, each in enumerate(outgoing, 1):
                if number == len(outgoing) and (upto := min(event.version, least)) > reached:
                    reached = upto
                    position.advance(versions, reached)
                yield self._encode(each.type, each.store, each.object, each.lead)
            if not outgoing:
                yield b""
        position.sent = {**position.sent, **versions}

    def _duplicates(self, states: Sequence[Snapshot]) -> DuplicateNames:
        selection = self.selection
        return DuplicateNames(states, selection.namespace, selection.name if selection.namespace else "")

    def _candidates(self, snapshot: Snapshot) -> Iterable[CachedObject]:
        selection = self.selection
        if selection.namespace and selection.name:
            found = snapshot.get(selection.namespace, selection.name)
            return () if found is None else (found,)
        return snapshot.range(selection.namespace) if selection.namespace else snapshot

    def _namesakes(self, store: Store, obj: CachedObject, states: StoreStates) -> Namesakes:
        if not states:
            return ()
        return namesakes_of(self.position.watched.state, store, obj, lambda other: states.get(id(other)))

    # -- the queue ----------------------------------------------------------------------------------------------

    def follow(self) -> Iterator[bytes]:
        """Yield the lines of the queue's items after the position. Raises Expired if some were dropped."""
        position, queue, skipped = self.position, self._queue, 0
        pause = self.selection.batch_size(_SKIPPED)
        while position.number < queue.end:
            try:
                item = queue.get(position.number)
            except IndexError:
                raise Expired("the watch was too slow: changes that it has not seen are not kept any more") from None
            position.number += 1
            if isinstance(item, Change):
                line = self._change(item)
                if line:
                    yield line
                elif (skipped := skipped + 1) % pause == 0:
                    yield b""
            else:
                yield from self._view_change(item)
                if self.closed:
                    return

    def _view_change(self, item: QueueItem) -> Iterator[bytes]:
        position = self.position
        if isinstance(item, Remove):
            yield from self._removed(item)
        elif isinstance(item, StoreReset):
            if position.sent.get(id(item.store), 0) > item.before:
                raise Expired(f"another cluster has taken the place of {item.store.member}")
            position.forget({id(item.store)})
        elif isinstance(item, Close):
            self.closed = True
        else:
            position.recompose(item.state, position.members)
            if position.pending_resumes.keys() - position.watched.stores.keys():
                # The client may have objects that this process never had, so it is unknown which objects to delete.
                raise Expired("a cluster was removed before it could be read")
            position.forget(position.sent.keys() - position.watched.stores.keys())

    def _change(self, change: Change) -> bytes:
        """Return the line of a change; b"" if this watch does not send it."""
        position, key = self.position, id(change.store)
        before = position.sent
        store_sent = before.get(key)
        if store_sent is None:
            return b""  # the store is outside the watch, or its objects will be sent as initial events
        if key in position.stores_behind_client:
            if change.upto <= store_sent:
                return b""
            position.store_has_passed(change.store, store_sent)
        event = change.event
        if event.version > store_sent:
            position.sent = {**before, key: event.version}
        if change.namesakes and (namesakes := [each for each in change.namesakes if id(each.store) in before]):
            return self._lines_with_namesakes(change.store, event, store_sent, namesakes, before)
        return self._line(change.store, event, store_sent)

    def _removed(self, item: Remove) -> Iterator[bytes]:
        """Yield DELETED for the objects of stores that are no longer in the view.

        A watch cannot resume from a version between these events, even at a replica that still has the member: in such
        a version, the member's part is older than every event log. After the last event, the vector has no part of the
        removed stores.
        """
        position = self.position
        gone = {id(snapshot.store) for snapshot in item.snapshots}
        if gone & (position.stores_behind_client | position.pending_resumes.keys()):
            raise Expired("a cluster was removed before what the client has seen of it was read")
        before, last = position.sent, None
        position.advance(gone & before.keys(), _UNRESUMABLE)
        for found in self._leaving(item, before):
            if found is None:
                yield b""
                continue
            if last is not None:
                yield self._leave(*last, before)
            last = found
        position.forget(gone)
        if last is not None:
            yield self._leave(*last, before)

    def _leaving(self, item: Remove, before: StoreVersions) -> Iterator[tuple[EventType, Store, CachedObject] | None]:
        """Yield the events for the client's objects in these stores and for objects shown instead; None: no event."""
        sent = self.position.sent
        for snapshot in item.snapshots:
            if not before.get(id(snapshot.store), 0):
                continue
            states = {key: state for key, state in item.others.items() if key in sent}
            contested: Collection[str] = ()
            if states:
                duplicates = self._duplicates([snapshot, *states.values()])
                while duplicates.step():
                    yield None
                contested = duplicates.places
            for number, obj in enumerate(self._candidates(snapshot)):
                if contested and key_of(obj) in contested:
                    event = Event(EventType.DELETED, obj.version, obj, obj)
                    namesakes = self._namesakes(snapshot.store, obj, states)
                    for each in outgoing_events(self.selection, snapshot.store, event, 0, namesakes, sent):
                        yield each.type, each.store, each.object
                elif self.selection.selects(obj):
                    yield EventType.DELETED, snapshot.store, obj
                elif number % _SKIPPED == 0:
                    yield None

    def _leave(self, kind: EventType, store: Store, obj: CachedObject, before: StoreVersions) -> bytes:
        if kind is EventType.ADDED:
            return self._encode(kind, store, obj, obj.version)
        # If one number is both the object's version and the version to resume from, use the version to resume from.
        lead = max(before[id(store)], obj.version)
        if not isinstance(self.position.watched.form, LongFormat):
            lead = self.position.part(store)
        return self._encode(kind, store, obj, lead)

    # -- lines --------------------------------------------------------------------------------------------------

    def _line(self, store: Store, event: Event, store_sent: int) -> bytes:
        outcome = self.selection.outcome(event)
        if outcome is None:
            return b""
        lead = max(event.version, store_sent) if event.type is EventType.DELETED else event.version
        return self._encode(outcome.type, store, outcome.object, lead)

    def _lines_with_namesakes(
        self, store: Store, event: Event, store_sent: int, namesakes: Sequence[Namesake], before: StoreVersions
    ) -> bytes:
        """Return the lines of a change to a name that several members have, if only one object is shown; `before` are
        the versions sent before the change.
        """
        events = outgoing_events(self.selection, store, event, store_sent, namesakes, before)
        return b"".join(
            self._encode(each.type, each.store, each.object, each.lead, before if each.before else None)
            for each in events
        )

    def _encode(
        self, kind: EventType, store: Store, obj: CachedObject, lead: int, sent: StoreVersions | None = None
    ) -> bytes:
        """Return the line of an event; `sent` are the versions for its resource version, None for the present ones."""
        position = self.position
        watched, definitions = position.watched, position.sent_definitions
        position.sent_definitions = self.encoder.definitions(watched.columns, store)
        versions = position.vector_versions if sent is None else {**position.pending_resumes, **sent}
        position.lags = watched.lags(versions, lead)
        version = watched.event_version(versions, store, lead)
        return self.encoder.event(kind, watched.columns, store, obj, version, definitions)

    def bookmark(self, *, initial_end: bool = False) -> bytes:
        """Return a bookmark for the present position."""
        position = self.position
        watched, definitions = position.watched, position.sent_definitions
        store = next((store for _, store in watched.stores.values()), None)
        position.sent_definitions = self.encoder.definitions(watched.columns, store)
        position.lags = False
        version = position.resource_version()
        return self.encoder.bookmark(watched.columns, store, version, definitions, initial_end=initial_end)


def _chained(parts: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    for part in parts:
        yield from part
