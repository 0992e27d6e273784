"""Sends the changes of one view to all its watchers.

Changes of the stores go into one queue. At most every 20 ms, new changes are encoded once for each group of watchers
with the same selection and representation, and the same bytes are written to the whole group. Each watcher above 200
makes this interval 100 µs longer, up to 150 ms; a change after a pause is still sent immediately. A watcher that is not
up to date (it begins, was slow, or comes from a replica that is ahead) first catches up by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.cache.cached_object import Event
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.freshness import Probe
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.view.view import View, ViewState, stores_of
from mcproxy.aggregate.watch.changes import (
    Change,
    ChangeQueue,
    Close,
    Namesakes,
    QueueItem,
    Recompose,
    Remove,
    StoreReset,
    StoreVersions,
    namesakes_of,
)
from mcproxy.aggregate.watch.group import Group
from mcproxy.aggregate.watch.position import WatchedStores
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from mcproxy.aggregate.watch.versions_ahead import UnreachedWatches

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.encoding.encoder import Encoder
    from mcproxy.aggregate.encoding.objects import Representation
    from mcproxy.aggregate.resource_version.formats import VersionFormat
    from mcproxy.aggregate.watch.watcher import Watcher

log = Logger(__name__)

FLUSH_INTERVAL = 0.02
"""Minimum seconds between two flushes: changes within this time are written together."""
FLUSH_A_WATCHER = 100e-6
"""Minimum seconds per watcher between two flushes, up to LONGEST_FLUSH_INTERVAL. Even a short write costs about 10 µs.
So under constant change, small writes take a tenth of a core, and the changes themselves can use the rest.
"""
LONGEST_FLUSH_INTERVAL = 0.15
_TIDY_INTERVAL = 1.0  # seconds between two clean-ups of the queue


class FanOut:
    """Distributes the changes of one view to its watchers. It follows the stores only while there are watchers."""

    def __init__(
        self,
        view: View,
        scheduler: WatchScheduler,
        clock: IReactorTime,
        probe: Probe,
        on_empty: Callable[[FanOut], None],
        budget: MemoryBudget | None = None,
    ) -> None:
        self.view = view
        self.scheduler = scheduler
        self.queue = ChangeQueue(view.state, budget)
        self.watchers: set[Watcher] = set()
        self._clock = clock
        self._on_empty = on_empty
        self._groups: dict[Hashable, Group] = {}
        self._watched_stores: dict[Hashable, WatchedStores] = {}
        self._subscriptions: dict[int, Callable[[], None]] = {}  # subscriptions to stores, by identity
        self._flush_call: IDelayedCall | None = None
        self._flushed_at = -FLUSH_INTERVAL
        self._held: Change | None = None
        self.unreached = UnreachedWatches(clock, probe)
        self._emptied: dict[int, tuple[int, set[Watcher]]] = {}
        """The version of each store when it was cleared, and the watches at that time."""
        self.encoders: dict[Representation, Encoder] = {}
        """The encoder of each representation that a watcher has requested."""
        self._unsubscribe = view.subscribe(self)
        self._follow_stores()

    # -- watchers ---------------------------------------------------------------------------------------------

    def add(self, watcher: Watcher) -> None:
        self.watchers.add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher that has ended. Without watchers, the stores are not followed any more."""
        self.leave(watcher)
        self.unreached.remove(watcher)
        self.watchers.discard(watcher)
        for _, watchers in self._emptied.values():
            watchers.discard(watcher)
        if not self.watchers:
            self.stop()

    def stop(self) -> None:
        """Stop following the stores."""
        if self._flush_call is not None:
            self._flush_call.cancel()
            self._flush_call = None
        self.unreached.stop()
        self.queue.clear()
        for unsubscribe in self._subscriptions.values():
            unsubscribe()
        self._subscriptions.clear()
        self._unsubscribe()
        self._on_empty(self)

    def join(self, watcher: Watcher) -> bool:
        """Add an up-to-date watcher to its group; False if the group is at another position at the moment."""
        position, catch_up = watcher.position, watcher.catch_up
        key = (
            catch_up.selection.key,
            catch_up.encoder.key,
            position.watched.key,
            frozenset(position.pending_resumes.items()),
            position.sent_definitions,
        )
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self.queue, self.leave, key, catch_up)
        elif group.end != position.number:
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

    def watched_stores(
        self, state: ViewState, members: frozenset[str], namespace: str, form: VersionFormat
    ) -> WatchedStores:
        """Return the stores for watches of these members and this namespace in a composition, with a version format.
        Equal arguments return the same object."""
        key = (id(state), members, namespace, type(form), form.layout)
        found = self._watched_stores.get(key)
        if found is None or found.state is not state:
            if len(self._watched_stores) > 2 * len(self.watchers) + 64:
                self._watched_stores.clear()
            found = self._watched_stores[key] = WatchedStores(state, members, namespace, form)
        return found

    # -- the stores -------------------------------------------------------------------------------------------

    def store_event(self, store: Store, event: Event) -> None:
        queue = self.queue
        before = queue.versions.get(id(store))
        if before is None:
            return  # the store is being filled: its objects will be sent as initial events
        self._release_held()
        if event.version > before:
            queue.versions = {**queue.versions, id(store): event.version}
        upto = max(event.version, store.snapshot().version)
        namesakes = self._namesakes(store, event) if queue.state.conflicts.shows_one else ()
        now = self._clock.seconds()
        change = Change(store, event, before, upto, queue.versions, queue.state, now, namesakes)
        if upto > event.version:
            self._held = change  # a change of a relist, held back since it can be the last one
        else:
            self._append(change)

    def _namesakes(self, store: Store, event: Event) -> Namesakes:
        """Return other members' objects of the same name, in the states at the end of the queue."""
        versions = self.queue.versions
        return namesakes_of(
            self.queue.state, store, event.object, lambda other: other if id(other) in versions else None
        )

    def _release_held(self, versions: StoreVersions | None = None) -> None:
        """Append the held-back change; the last change of a relist gets the version of the relist.

        Watches cannot resume from a version within an outage (`EventLog`), so an up-to-date client must not keep such a
        version.
        """
        held, self._held = self._held, None
        if held is not None:
            held.versions = versions or held.versions
            self._append(held)

    def store_progress(self, store: Store) -> None:
        place = id(store)
        if self._held is not None:
            if self._held.store is store and store.synced and store.version > self.queue.versions.get(place, 0):
                self.queue.versions = {**self.queue.versions, place: store.version}
            self._release_held(self.queue.versions)
        if not store.synced:
            if place in self.queue.versions:
                before = self.queue.versions[place]
                if store.older:
                    self._end_all_of(place, f"cluster {store.member} has gone back to before {before}")
                    if not self.watchers:
                        return
                else:
                    self._emptied[place] = before, set(self.watchers)
                self.queue.versions = {other: mark for other, mark in self.queue.versions.items() if other != place}
                self._append(StoreReset(store, before, self.queue.versions, self.queue.state, self._clock.seconds()))
        elif place in self.queue.versions:
            if self.queue.versions[place] != store.version:
                self.queue.versions = {**self.queue.versions, place: store.version}
        else:
            self._begin_filled()
            self.unreached.store_progress(store)
            return
        self._look_again()
        self.unreached.store_progress(store)

    def _follow_stores(self) -> None:
        stores = stores_of(self.queue.state.members)
        for place in [place for place in self._subscriptions if place not in stores]:
            self._subscriptions.pop(place)()
        for place, store in stores.items():
            if place not in self._subscriptions:
                self._subscriptions[place] = store.subscribe(self)
        self._begin_filled()

    def _begin_filled(self) -> None:
        """Let watchers send the objects of members whose stores are all filled now."""
        new = {
            id(store): store.version
            for member in self.queue.state.members
            if member.synced
            for store in member.stores
            if id(store) not in self.queue.versions
        }
        if new:
            for place, version in new.items():
                self._end_beyond(place, version)
            self.queue.versions = {**self.queue.versions, **new}
            for group in list(self._groups.values()):
                group.disband()
            self._look_again()

    def _end_beyond(self, place: int, version: int) -> None:
        """End the watches that have seen a later version of a cleared store than the version of its new state."""
        before, watchers = self._emptied.pop(place, (0, set()))
        if version < before:
            self._end_all_of(place, f"the cluster is at version {version}, before {before}", watchers)

    def _end_all_of(self, place: int, cause: str, watchers: Collection[Watcher] | None = None) -> None:
        """End the watches that read a store with 410; with `watchers`, only these watches."""
        for watcher in list(self.watchers if watchers is None else watchers):
            if place in watcher.position.watched.stores:
                watcher.fail(Expired(cause))

    def _look_again(self) -> None:
        """Let waiting watchers (for a member, or for the end of initial events) check again."""
        for watcher in list(self.watchers):
            if watcher.group is None or watcher.left_out_while_down:
                watcher.proceed()
            if watcher.unreachable and any(
                member.name in watcher.unreachable and member.unavailable_since is None
                for member in self.queue.state.members
            ):
                watcher.recheck_rights()

    # -- the view ---------------------------------------------------------------------------------------------

    def view_updated(self, view: View, before: ViewState) -> None:
        stores = stores_of(view.members)
        for member in before.members:
            self._removed([store for store in member.stores if id(store) not in stores], before)
        self.queue.state = view.state
        self._append(Recompose(self.queue.versions, self.queue.state, self._clock.seconds()))
        self._follow_stores()
        if {member.name for member in view.members} - {member.name for member in before.members}:
            for watcher in list(self.watchers):
                watcher.recheck_rights()

    def view_closed(self, view: View, *, gone: bool) -> None:
        if gone:
            for member in self.queue.state.members:
                self._removed(list(member.stores), self.queue.state)
        self._append(Close(self.queue.versions, self.queue.state, self._clock.seconds()))

    def _removed(self, stores: list[Store], state: ViewState) -> None:
        filled = [store for store in stores if id(store) in self.queue.versions]
        if filled:
            snapshots = tuple(store.snapshot() for store in filled)
            gone = {id(store) for store in filled}
            self.queue.versions = {place: mark for place, mark in self.queue.versions.items() if place not in gone}
            others: dict[int, Snapshot] = {}
            if state.conflicts.shows_one:
                stores_left = stores_of(state.members)
                others = {place: stores_left[place].snapshot() for place in self.queue.versions if place in stores_left}
            self._append(Remove(snapshots, self.queue.versions, state, self._clock.seconds(), others))
        for store in stores:
            self._emptied.pop(id(store), None)
            unsubscribe = self._subscriptions.pop(id(store), None)
            if unsubscribe is not None:
                unsubscribe()

    # -- flushes ----------------------------------------------------------------------------------------------

    def _append(self, item: QueueItem) -> None:
        self.queue.append(item)
        interval = min(LONGEST_FLUSH_INTERVAL, len(self.watchers) * FLUSH_A_WATCHER)
        self._schedule(max(FLUSH_INTERVAL, interval))

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
        self.queue.forget_lines()
        for group in list(self._groups.values()):
            if group.end < self.queue.end:
                self.scheduler.add(group, live=True)
        for watcher in list(self.watchers):
            if watcher.group is None:
                watcher.proceed()
        if len(self.queue) or self.queue.lines_size:
            self._schedule(_TIDY_INTERVAL)

    def _needed(self) -> int:
        """Return the number of the oldest item that a watcher needs."""
        alone = (watcher.position.number for watcher in self.watchers if watcher.group is None)
        return min((*(group.number for group in self._groups.values()), *alone), default=self.queue.end)
