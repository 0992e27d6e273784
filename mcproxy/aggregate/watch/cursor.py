"""Where one watch stands, and the lines that bring it to the present: initial events, a resume, the queue of its view.

A cursor has a position in the queue of changes, and marks: how far it has got in each store. Every line that it makes
carries the marks behind it as its resource version, so a watch that is resumed there, at any replica, misses nothing.

- Initial events go by the objects' versions, not by their names: after the one with version v everything of that
  member up to v was sent, so v is where to resume.
- Several stores of one member (namespaces) have one part in the vector, the least of their marks. A resume there sees
  some changes of the others again; so that no object goes back in time, only the last one of each object is sent.
- A mark beyond the store's version is one from a replica that is ahead of this one: changes up to it are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from mcproxy.aggregate.cache.object import CachedObject, Event, EventType
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.watch.change_queue import Change, ChangeQueue, Close, Item, Remove, Reset
from mcproxy.aggregate.watch.coverage import Coverage, Marks, advanced
from mcproxy.aggregate.watch.rendering import Rendering
from mcproxy.aggregate.watch.selection import WatchSelection

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.view.view import MemberView, ViewState

_first = itemgetter(0)
_SKIPPED = 64  # objects or changes that are not sent for which one empty line is yielded, so that steps stay short


class Changes(Protocol):
    """What a cursor follows (`fan_out.FanOut`)."""

    queue: ChangeQueue
    state: ViewState
    """The present composition of the view."""
    marks: Marks
    """The present position in each store; a store that was not filled yet has none."""

    def coverage(self, state: ViewState, members: frozenset[str], namespace: str) -> Coverage:
        """Return the coverage of a watch; the same one for the same arguments."""


class Cursor:
    """One watch's place in the changes of its view. `closed`: the view is closed and all was sent."""

    __slots__ = (
        "_ahead",
        "_changes",
        "_resumed",
        "closed",
        "coverage",
        "first",
        "marks",
        "members",
        "position",
        "rendering",
        "selection",
    )

    def __init__(
        self,
        changes: Changes,
        members: frozenset[str],
        selection: WatchSelection,
        rendering: Rendering,
        parts: dict[str, int] | None = None,
    ) -> None:
        """`members` are those whose objects are sent. `parts` are the versions by member to resume from;
        a member without one begins with its present objects.

        Raises Expired (410) if the changes since `parts` are not known any more.
        """
        self._changes = changes
        self.selection = selection
        self.rendering = rendering
        self.members = members
        self.coverage = changes.coverage(changes.state, members, selection.namespace)
        self.position = changes.queue.end
        self.marks: Marks = {}
        self.first = True
        self.closed = False
        self._ahead: set[int] = set()  # stores that have not reached where the client was at another replica
        self._resumed: dict[int, int] = {}  # where to resume in stores that are not filled yet, by identity
        if parts:
            self._check(parts)

    def _check(self, parts: dict[str, int]) -> None:
        covered = {member.name: member for member in self.coverage.members}
        for name, part in parts.items():
            member = covered.get(name)
            if member is None:
                raise Expired(f"the objects of cluster {name} are no longer in what is watched")
            for store in member.stores_of(self.selection.namespace):
                self._resumed[id(store)] = part

    # -- the present ------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether the queue has changes that it has not seen."""
        return self.position < self._changes.queue.end

    @property
    def in_step(self) -> bool:
        """Whether it stands where every watch stands that has seen all changes: in all stores, at the end."""
        marks, present = self.marks, self._changes.marks
        return (
            not self.behind
            and self.coverage.state is self._changes.state
            and all(marks.get(store) == present.get(store) for store in self.coverage.stores)
        )

    def settle(self) -> None:
        """At the end of the queue: take over what stores have confirmed without a change (bookmarks of the members).

        Raises Expired (410) as `follow`.
        """
        present = self._changes.marks
        for place in list(self._ahead):
            if present.get(place, 0) >= self.marks[place]:
                self._passed(self.coverage.stores[place][1], self.marks[place])
        self.marks = {store: max(mark, present.get(store, 0)) for store, mark in self.marks.items()}

    def waits_for(self, member: MemberView) -> bool:
        """Whether objects of a member were not sent yet."""
        return any(id(store) not in self.marks for store in member.stores_of(self.coverage.namespace))

    def startable(self) -> list[MemberView]:
        """Return the members that have been filled and whose objects were not sent yet."""
        present, marks = self._changes.marks, self.marks
        return [
            member
            for member in self.coverage.members
            if any(
                id(store) in present and id(store) not in marks for store in member.stores_of(self.coverage.namespace)
            )
        ]

    @property
    def unfilled(self) -> Marks:
        """Where the client resumes in stores that are not filled yet: part of every version that it gets."""
        return self._resumed

    def version(self) -> bytes:
        """Return the resource version at which a watch is resumed here."""
        return self._whole()

    def admit(self, members: frozenset[str]) -> None:
        """Cover these members from now on."""
        self.members = members
        self.coverage = self._changes.coverage(self._changes.state, members, self.coverage.namespace)

    # -- lines ------------------------------------------------------------------------------------------------

    def start(self) -> Iterator[bytes]:
        """Return the lines of the members that can begin now; the position must be the end of the queue.

        What they send is fixed by this call. Raises Expired (410) where a resume is not possible.
        """
        found = []
        for member in self.startable():
            stores = [store for store in member.stores_of(self.coverage.namespace) if id(store) not in self.marks]
            found.append(self._begin(stores))
        return _chained(found)

    def follow(self) -> Iterator[bytes]:
        """Yield the lines of what the queue has behind the position. Raises Expired if some of it is not kept."""
        queue, skipped, pause = self._changes.queue, 0, self.selection.at_once(_SKIPPED)
        while self.position < queue.end:
            try:
                item = queue.get(self.position)
            except IndexError:
                raise Expired("the watch was too slow: changes that it has not seen are not kept any more") from None
            self.position += 1
            if isinstance(item, Change):
                line = self._change(item)
                if line:
                    yield line
                elif (skipped := skipped + 1) % pause == 0:
                    yield b""
            else:
                yield from self._special(item)
                if self.closed:
                    return

    def _special(self, item: Item) -> Iterator[bytes]:
        if isinstance(item, Remove):
            yield from self._removed(item)
        elif isinstance(item, Reset):
            if self.marks.get(id(item.store), 0) > item.before:
                raise Expired(f"another cluster has taken the place of {item.store.member}")
            self._forget({id(item.store)})
        elif isinstance(item, Close):
            self.closed = True
        else:
            self.coverage = self._changes.coverage(item.state, self.members, self.coverage.namespace)
            self._forget(self.marks.keys() - self.coverage.stores.keys())

    def _change(self, change: Change) -> bytes:
        """Return the line of a change; b"" if it is not for this watch."""
        place = id(change.store)
        mark = self.marks.get(place)
        if mark is None:
            return b""  # not in its scope, or its objects will be sent whole
        if place in self._ahead:
            if change.upto <= mark:
                return b""
            self._passed(change.store, mark)
        event = change.event
        if event.version > mark:
            self.marks = {**self.marks, place: event.version}
        return self._line(change.store, event, mark)

    def _passed(self, store: Store, mark: int) -> None:
        """A store has got beyond where the client was at another replica. Raises Expired if it may have missed
        something: a list after an outage shows what there is, not what came and went."""
        store.events_after(mark)
        self._ahead.discard(id(store))

    def _line(self, store: Store, event: Event, mark: int) -> bytes:
        outcome = self.selection.outcome(event)
        if outcome is None:
            return b""
        lead = max(event.version, mark) if event.type is EventType.DELETED else event.version
        return self._render(outcome.type, store, outcome.object, lead)

    def _render(self, kind: EventType, store: Store, obj: CachedObject, lead: int) -> bytes:
        first, self.first = self.first, False
        return self.rendering.event(kind, store, obj, self._whole(lead), first=first)

    def _whole(self, lead: int = 0) -> bytes:
        # What is resumed later must not be forgotten by a client that resumes elsewhere before that.
        return self.coverage.whole({**self._resumed, **self.marks} if self._resumed else self.marks, lead)

    def bookmark(self, *, initial_end: bool = False) -> bytes:
        """Return a bookmark of here."""
        first, self.first = self.first, False
        store = next((store for _, store in self.coverage.stores.values()), None)
        return self.rendering.bookmark(store, self.version(), initial_end=initial_end, first=first)

    # -- the beginning of stores ------------------------------------------------------------------------------

    def _begin(self, stores: Sequence[Store]) -> Iterator[bytes]:
        """Begin with stores of one member: where it was resumed, or with their objects."""
        present = self._changes.marks
        parts = {self._resumed.pop(id(store), 0) for store in stores}
        part = max(parts)
        self.marks = advanced(self.marks, map(id, stores), part)
        versions = {id(store): present[id(store)] for store in stores}
        self._ahead.update(place for place, version in versions.items() if version < part)
        if not part:
            return self._initial(stores, [store.snapshot() for store in stores], versions)
        if len(stores) == 1:
            store = stores[0]
            if part >= versions[id(store)]:
                self.marks = advanced(self.marks, versions, part)
                return iter(())
            return self._resume(store, store.events_after(part), versions[id(store)])
        changes = [(store, event) for store in stores for event in store.events_after(part)]
        ahead = {place: max(version, part) for place, version in versions.items()}
        return self._resume_merged(changes, part, ahead)

    def _initial(
        self, stores: Sequence[Store], snapshots: Sequence[Snapshot], versions: dict[int, int]
    ) -> Iterator[bytes]:
        """Yield ADDED for all objects of stores of one member, by version."""
        objects: list[tuple[int, Store, CachedObject]] = []
        pause = self.selection.at_once(_SKIPPED * 8)
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
            if number == last:
                self.marks = {**self.marks, **versions}
            elif objects[number + 1][0] > version and (reached := min(version, least)) > sent:
                sent = reached
                self.marks = advanced(self.marks, versions, reached)
            yield self._render(EventType.ADDED, store, obj, version)
        self.marks = {**self.marks, **versions}

    def _candidates(self, snapshot: Snapshot) -> Iterable[CachedObject]:
        selection = self.selection
        if selection.namespace and selection.name:
            found = snapshot.get(selection.namespace, selection.name)
            return () if found is None else (found,)
        return snapshot.range(selection.namespace) if selection.namespace else snapshot

    def _resume(self, store: Store, events: Sequence[Event], version: int) -> Iterator[bytes]:
        """Yield the changes of the only store of a member behind its mark; the store is at `version`."""
        place, pause = id(store), self.selection.at_once(_SKIPPED)
        for number, event in enumerate(events):
            mark = self.marks[place]
            if event.version > mark:
                self.marks = {**self.marks, place: event.version}
            line = self._line(store, event, mark)
            if line or number % pause == 0:
                yield line
        self.marks = {**self.marks, place: max(version, self.marks[place])}

    def _resume_merged(
        self, changes: Sequence[tuple[Store, Event]], part: int, versions: dict[int, int]
    ) -> Iterator[bytes]:
        """Yield the last change of each object, of several stores of one member, after `part`."""
        histories: dict[tuple[str, str], list[tuple[Store, Event]]] = {}
        for store, event in changes:
            histories.setdefault((event.object.namespace, event.object.name), []).append((store, event))
        least, reached = min(versions.values()), part
        for history in sorted(histories.values(), key=lambda history: history[-1][1].version):
            store, event = history[-1]
            lines = self._merged([event for _, event in history])
            for number, (kind, obj, lead) in enumerate(lines, 1):
                if number == len(lines) and (upto := min(event.version, least)) > reached:
                    reached = upto
                    self.marks = advanced(self.marks, versions, reached)
                yield self._render(kind, store, obj, max(lead, part))
            if not lines:
                yield b""
        self.marks = {**self.marks, **versions}

    def _merged(self, events: Sequence[Event]) -> list[tuple[EventType, CachedObject, int]]:
        """Return what brings a client that has seen any of an object's changes to its last state: type, state, lead."""
        first, last = events[0], events[-1]
        before = None if first.type is EventType.ADDED else first.previous or first.object
        states = [] if before is None else [before]
        states += [event.object for event in events[:-1] if event.type is not EventType.DELETED]
        seen = [state for state in states if self.selection.selects(state)]
        obj = last.object
        if last.type is EventType.DELETED:
            return [(EventType.DELETED, obj, last.version)] if seen else []
        if not self.selection.selects(obj):
            return [(EventType.DELETED, seen[-1], last.version)] if seen else []
        if not seen or before is None:
            return [(EventType.ADDED, obj, last.version)]
        if seen[-1].uid != obj.uid:
            return [(EventType.DELETED, seen[-1], last.version - 1), (EventType.ADDED, obj, last.version)]
        return [(EventType.MODIFIED, obj, last.version)]

    def _removed(self, item: Remove) -> Iterator[bytes]:
        """Yield DELETED for the objects of stores that are no longer in the view."""
        for snapshot in item.snapshots:
            store = snapshot.store
            mark = self.marks.get(id(store), 0)
            if not mark:
                continue
            for number, obj in enumerate(self._candidates(snapshot)):
                if self.selection.selects(obj):
                    yield self._render(EventType.DELETED, store, obj, max(mark, obj.version))
                elif number % _SKIPPED == 0:
                    yield b""
        self._forget({id(snapshot.store) for snapshot in item.snapshots})

    def _forget(self, stores: Collection[int]) -> None:
        """These stores are not read any more, or begin anew."""
        self.marks = {store: mark for store, mark in self.marks.items() if store not in stores}
        self._ahead.difference_update(stores)
        for store in stores:
            self._resumed.pop(store, None)


def _chained(parts: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    for part in parts:
        yield from part
