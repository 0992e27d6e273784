"""Hands the changes of one view to all its watchers.

Changes of the stores go into one queue. At most every 20 ms the new ones are made into bytes, once for each group of
watchers that see the same in the same representation, and the same bytes are written to all of the group. A watcher
that is not up to date (it begins, it was slow, it comes from a replica that is ahead) is on its own until it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.aggregate.cache.object import Event
from mcproxy.aggregate.view.view import View, ViewState, stores_of
from mcproxy.aggregate.watch.change_queue import Change, ChangeQueue, Close, Item, Recompose, Remove, Reset
from mcproxy.aggregate.watch.coverage import Coverage, Marks
from mcproxy.aggregate.watch.group import Group
from mcproxy.aggregate.watch.turns import Turns

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.watch.rendering import Rendering
    from mcproxy.aggregate.watch.watcher import Watcher

FLUSH_INTERVAL = 0.02
"""Seconds between two flushes: what comes within it is written together."""
_TIDY_INTERVAL = 1.0  # seconds between two looks at what the queue need not keep any more


class FanOut:
    """The watchers of one view. It follows the stores only while there are any."""

    def __init__(self, view: View, turns: Turns, clock: IReactorTime, on_empty: Callable[[FanOut], None]) -> None:
        self.view = view
        self.turns = turns
        self.state: ViewState = view.state
        self.queue = ChangeQueue()
        self.marks: Marks = {}
        self.watchers: set[Watcher] = set()
        self._clock = clock
        self._on_empty = on_empty
        self._groups: dict[Hashable, Group] = {}
        self._coverages: dict[Hashable, Coverage] = {}
        self._subscriptions: dict[int, Callable[[], None]] = {}  # to stores, by identity
        self._flush_call: IDelayedCall | None = None
        self._flushed_at = -FLUSH_INTERVAL
        self._flushed_to = 0
        self._held: Change | None = None
        self.renderings: dict[Hashable, Rendering] = {}
        """The rendering of each representation, for all watchers that ask for it."""
        self._unsubscribe = view.subscribe(self)
        self._follow_stores()

    # -- watchers ---------------------------------------------------------------------------------------------

    def add(self, watcher: Watcher) -> None:
        self.watchers.add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """A watcher has ended. With the last one the stores are no longer followed."""
        self.leave(watcher)
        self.watchers.discard(watcher)
        if not self.watchers:
            self.stop()

    def stop(self) -> None:
        """Follow the stores no longer."""
        if self._flush_call is not None:
            self._flush_call.cancel()
            self._flush_call = None
        for unsubscribe in self._subscriptions.values():
            unsubscribe()
        self._subscriptions.clear()
        self._unsubscribe()
        self._on_empty(self)

    def join(self, watcher: Watcher) -> bool:
        """Take a watcher that is in step into the group that sees what it sees; False if that is elsewhere just now."""
        cursor = watcher.cursor
        seen = cursor.coverage.key, frozenset(cursor.unfilled.items())
        key = (cursor.selection.key, cursor.rendering.key, seen, cursor.first)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self, key, cursor)
        elif group.end != cursor.position:
            return False
        group.add(watcher)
        return True

    def leave(self, watcher: Watcher) -> None:
        """Take a watcher out of its group."""
        group, watcher.group = watcher.group, None
        if group is not None:
            group.watchers.pop(watcher, None)
            if not group.watchers:
                self._groups.pop(group.key, None)

    def coverage(self, state: ViewState, members: frozenset[str], namespace: str) -> Coverage:
        """Return the coverage of watches of these members and this namespace in a composition."""
        key = (id(state), members, namespace)
        found = self._coverages.get(key)
        if found is None or found.state is not state:
            if len(self._coverages) > 2 * len(self.watchers) + 64:
                self._coverages.clear()
            found = self._coverages[key] = Coverage(state, members, namespace)
        return found

    # -- the stores -------------------------------------------------------------------------------------------

    def store_event(self, store: Store, event: Event) -> None:
        before = self.marks.get(id(store))
        if before is None:
            return  # it is being filled: its objects will be sent whole
        self._release_held()
        if event.version > before:
            self.marks = {**self.marks, id(store): event.version}
        upto = max(event.version, store.snapshot().version)
        change = Change(store, event, before, upto, self.marks, self.state, self._clock.seconds())
        if upto > event.version:
            self._held = change  # one of several that a relist has found; maybe the last one
        else:
            self._append(change)

    def _release_held(self, marks: Marks | None = None) -> None:
        """Append the change that was held back: with the version of the relist, if it was the last one of that.

        The versions within an outage cannot be resumed from here (`EventLog`), so a client that has got everything must
        not be left at one of them.
        """
        held, self._held = self._held, None
        if held is not None:
            held.marks = marks or held.marks
            self._append(held)

    def store_progress(self, store: Store) -> None:
        place = id(store)
        if self._held is not None:
            if self._held.store is store and store.synced and store.version > self.marks.get(place, 0):
                self.marks = {**self.marks, place: store.version}
            self._release_held(self.marks)
        if not store.synced:
            if place in self.marks:
                before = self.marks[place]
                self.marks = {other: mark for other, mark in self.marks.items() if other != place}
                self._append(Reset(store, before, self.marks, self.state, self._clock.seconds()))
        elif place in self.marks:
            if self.marks[place] != store.version:
                self.marks = {**self.marks, place: store.version}
        else:
            self._begin_filled()
            return
        self._look_again()

    def _follow_stores(self) -> None:
        stores = stores_of(self.state.members)
        for place in [place for place in self._subscriptions if place not in stores]:
            self._subscriptions.pop(place)()
        for place, store in stores.items():
            if place not in self._subscriptions:
                self._subscriptions[place] = store.subscribe(self)
        self._begin_filled()

    def _begin_filled(self) -> None:
        """Take in the members all of whose stores have been filled."""
        new = {
            id(store): store.version
            for member in self.state.members
            if member.synced
            for store in member.stores
            if id(store) not in self.marks
        }
        if new:
            self.marks = {**self.marks, **new}
            for group in list(self._groups.values()):
                group.disband()
            self._look_again()

    def _look_again(self) -> None:
        """Let the watchers that wait for something (a member, the end of initial events) look whether it is there."""
        for watcher in list(self.watchers):
            if watcher.group is None or watcher.postponed:
                watcher.proceed()

    # -- the view ---------------------------------------------------------------------------------------------

    def view_updated(self, view: View, before: ViewState) -> None:
        stores = stores_of(view.members)
        for member in before.members:
            self._removed([store for store in member.stores if id(store) not in stores], before)
        self.state = view.state
        self._append(Recompose(self.marks, self.state, self._clock.seconds()))
        self._follow_stores()
        if {member.name for member in view.members} - {member.name for member in before.members}:
            for watcher in list(self.watchers):
                watcher.members_added()

    def view_closed(self, view: View, *, gone: bool) -> None:
        if gone:
            for member in self.state.members:
                self._removed(list(member.stores), self.state)
        self._append(Close(self.marks, self.state, self._clock.seconds()))

    def _removed(self, stores: list[Store], state: ViewState) -> None:
        filled = [store for store in stores if id(store) in self.marks]
        if filled:
            snapshots = tuple(store.snapshot() for store in filled)
            gone = {id(store) for store in filled}
            self.marks = {place: mark for place, mark in self.marks.items() if place not in gone}
            self._append(Remove(snapshots, self.marks, state, self._clock.seconds()))
        for store in stores:
            unsubscribe = self._subscriptions.pop(id(store), None)
            if unsubscribe is not None:
                unsubscribe()

    # -- flushes ----------------------------------------------------------------------------------------------

    def _append(self, item: Item) -> None:
        self.queue.append(item)
        self._schedule(FLUSH_INTERVAL)

    def _schedule(self, interval: float) -> None:
        due = max(0.0, self._flushed_at + interval - self._clock.seconds())
        if self._flush_call is None:
            self._flush_call = self._clock.callLater(due, self._flush)
        elif self._flush_call.getTime() > self._clock.seconds() + due:
            self._flush_call.reset(due)

    def _flush(self) -> None:
        self._flush_call = None
        self._flushed_at = self._clock.seconds()
        self.queue.drop_before(self._needed())
        self.queue.forget_lines(self._flushed_to)
        self._flushed_to = self.queue.end
        for group in list(self._groups.values()):
            if group.end < self.queue.end:
                self.turns.add(group, live=True)
        for watcher in list(self.watchers):
            if watcher.group is None:
                watcher.proceed()
        if len(self.queue):
            self._schedule(_TIDY_INTERVAL)

    def _needed(self) -> int:
        """Return the oldest position of any watcher."""
        alone = (watcher.cursor.position for watcher in self.watchers if watcher.group is None)
        return min((*(group.position for group in self._groups.values()), *alone), default=self.queue.end)
