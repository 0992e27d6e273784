"""The cached objects of one resource of one member, their recent events, and the listeners to changes.

Only its reflector writes to a store. All data that a store serves is immutable, so readers can keep snapshots while the
store changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.cache import sequence
from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.decoder import ObjectDecoder
from mcproxy.aggregate.cache.event_log import NEVER, EventLog, EventLogLimits, MemoryBudget
from mcproxy.aggregate.cache.relist import Relist, UnreadableObjects
from mcproxy.aggregate.cache.sequence import ObjectSequence, key_of
from mcproxy.aggregate.cache.version_waiters import VersionWaiters
from mcproxy.kube.resource import APIResource
from mcproxy.net.wall_time import WallSeconds, wall_seconds

_log = Logger(__name__)


class OutOfOrder(ValueError):
    """A list or an event is older than the store's version: the reflector must list again."""


class StoreListener(Protocol):
    """Gets each change after the store has changed, in the order of the changes."""

    def store_event(self, store: Store, event: Event) -> None:
        """Handle one change. During the call `store.version` is the event's version, also for events of a relist."""

    def store_progress(self, store: Store) -> None:
        """Handle a change of state: the version moved without an event, the store became synced, available or
        unavailable, or its reflector follows another watch.

        When a store becomes synced, no events report its objects (up to 100,000): read them from the snapshot.
        """


class Store:
    """The cache of one (member, resource, namespace); `namespace` "" is all namespaces.

    `synced`: it has a complete state. `version`: the member's resourceVersion up to which the store has certainly seen
    everything, from the last event or bookmark of a watch, or from a list. Versions that are only presumed from a probe
    (`presume`) do not count, so clients may get `version`. `last_sign` is the time of the last event, bookmark, list or
    presumption, seconds of `clock`; `unavailable_since` is a date. `refused`: it is unavailable because the member does
    not let the proxy list or watch (401, 403). `columns` are the columnDefinitions (JSON) for which the cells of its
    objects were printed, None if the member sends no Tables. `warnings` are the Warning texts of the member's lists and
    watches, e.g. about a deprecated version.
    """

    def __init__(
        self,
        clock: IReactorTime,
        member: str,
        resource: APIResource,
        namespace: str = "",
        *,
        drop_managed_fields: bool = False,
        limits: EventLogLimits = EventLogLimits(),  # noqa: B008  a frozen value
        budget: MemoryBudget | None = None,
    ) -> None:
        """The event logs of many stores share `budget`."""
        self.member = member
        self.resource = resource
        self.namespace = namespace
        self.decoder = ObjectDecoder(member, resource, namespace=namespace, drop_managed_fields=drop_managed_fields)
        self.columns: bytes | None = None
        self.warnings: tuple[str, ...] = ()
        self.unreadable = UnreadableObjects()
        """The member's objects that cannot be parsed, and are therefore not in the store."""
        self.version = 0
        self.synced = False
        self.unavailable_since: WallSeconds | None = None
        self.unavailable_cause = ""
        self.refused = False
        self.answered = False
        """Whether the member has answered a list or a watch since the store was created. Before that, the objects may
        come from disk.
        """
        self.last_sign = 0.0
        self.lists = 0  # number of complete lists, including the first one
        self.size = 0  # bytes of the objects of the newest state
        self.replaced = 0
        """Bytes of all object states that were replaced since the start. A snapshot keeps in memory at most the growth
        of this number since the snapshot was taken.
        """
        self.generation = 0
        """Grows with each `clear` and `put_back`. Snapshots of an earlier generation must not be served any more."""
        self.first_list_awaited = (-1, 0.0)
        """The last generation whose first list requests waited for, and since when (clock seconds)."""
        self.older = False
        """The member was put back to an older state, which has not been listed yet."""
        self._clock = clock
        self._objects = ObjectSequence()
        # The version of `_objects`; it is ahead of `version` while listeners get the events of a relist.
        self._state_version = 0
        self._log = EventLog(limits, budget)
        self._log.reset(NEVER)
        self._relist: Relist | None = None
        self._listeners: dict[int, StoreListener] = {}
        self._next_number = 0
        self.waiters = VersionWaiters(clock)
        self._presumed = 0
        self._owed = 0
        self._undone = 0
        """If not 0: up to this version, the member may have had another state before it was put back."""

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def type_prefix(self) -> bytes:
        """The text before an object's `head`: `"kind":"Pod","apiVersion":"v1",`."""
        return self.decoder.type_prefix

    @property
    def items_typed(self) -> bool:
        """Whether the items of a list carry kind and apiVersion: custom resources do, built-in ones do not."""
        return self.decoder.items_typed

    @property
    def list_kind(self) -> str:
        """The kind of a list of the resource."""
        return self.decoder.list_kind

    @property
    def last_event(self) -> float | None:
        """When the newest change arrived, seconds of the clock; None if no change is known."""
        return self._log.newest

    @property
    def events_size(self) -> int:
        """Bytes of earlier object states that only the event log holds."""
        return self._log.size

    def get(self, namespace: str, name: str) -> CachedObject | None:
        """Return one object, None if there is none."""
        return self._objects.get(f"{namespace}/{name}")

    def snapshot(self) -> Snapshot:
        """Return the present state without a copy."""
        return sequence.Snapshot(self, self._state_version, self._objects, self.columns)

    def snapshot_at(self, version: int) -> Snapshot:
        """Return the state at `version`; the present state if the store has not reached `version` yet.

        Raises Expired if the log does not reach back so far.
        """
        if version >= self._state_version and self.synced:
            return self.snapshot()
        return sequence.Snapshot(self, version, self._log.undone(self._objects, version), self.columns)

    def events_after(self, version: int) -> Sequence[Event]:
        """Return all changes for a watch from `version`, in order.

        Raises Expired if the log does not reach back so far, or if the member was not followed at that version.
        """
        return self._log.after(version)

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` of every later change; returns a function that unsubscribes."""
        number = self._next_number
        self._next_number += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    async def when_version(self, version: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds until the store has seen `version`; return whether it has."""
        if self.synced and self.version >= version:
            return True
        return await self.waiters.wait(version, timeout)

    @property
    def presumed_version(self) -> int:
        """The version that the store has reached, or is presumed to have reached (`presume`)."""
        return self.version if self.is_awaiting(self._presumed) else max(self.version, self._presumed)

    def expect_version(self, version: int) -> None:
        """Note that the collection changed at `version`, according to the member's answer to a write. Until this change
        arrives, `version` and later versions are not presumed to be seen.
        """
        self._owed = max(self._owed, version)

    def is_awaiting(self, version: int) -> bool:
        """Whether a change up to `version` is known to be still missing (`expect_version`)."""
        return self.version < self._owed <= version

    async def when_current(self, version: int, timeout: float) -> bool:
        """Wait as `when_version` does, but accept a presumed version: for a read of the member's present state."""
        if self.synced and self.presumed_version >= version:
            return True
        return await self.waiters.wait(version, timeout, proven=False)

    async def when_synced(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until the store has a complete state; return whether it has."""
        return self.synced or await self.waiters.wait(0, timeout)

    # Calls of the reflector, which alone writes to the store

    def replace(self) -> Relist:
        """Begin a relist; an earlier relist that was not committed is dropped."""
        self._relist = Relist(self._objects, self.columns, self._replaced, self._aborted)
        return self._relist

    def apply(self, event_type: EventType, item: CachedObject) -> None:
        """Apply one event of the member's watch. The event's type for clients depends on the objects in the store. A
        relist that was begun before can no longer be committed.

        An event that the store has already seen is ignored. Raises OutOfOrder for an unseen event that is older than
        the store's version, and for any event before the first list.
        """
        if not self.synced:
            raise OutOfOrder("an event before the first list")
        self._relist = None
        known = self._objects.get(key_of(item))
        if self.unreadable and item.version >= self.version:
            self.unreadable.discard(key_of(item))
        self.last_sign = self._clock.seconds()
        if item.version <= self.version:
            if event_type is EventType.DELETED:
                seen = known is None or known.version > item.version
            else:
                seen = known is not None and known.version >= item.version
            if seen:
                return
            if item.version < self.version:
                raise OutOfOrder(f"an event of version {item.version} after version {self.version}")
        if event_type is EventType.DELETED:
            if known is None:
                self.progress(item.version)
                return
            self._objects = self._objects.remove(key_of(item))
            self.size -= known.size
            self.replaced += known.size
            events = [Event(EventType.DELETED, item.version, item, known)]
        else:
            self._objects = self._objects.put(item)
            gone = 0 if known is None else known.size
            self.size += item.size - gone
            self.replaced += gone
            if known is None:
                events = [Event(EventType.ADDED, item.version, item, None)]
            elif known.uid == item.uid:
                events = [Event(EventType.MODIFIED, item.version, item, known)]
            else:  # the watch missed the deletion of an earlier object of the same name
                events = [
                    Event(EventType.DELETED, self.version, known.deleted_at(self.version), known),
                    Event(EventType.ADDED, item.version, item, None),
                ]
        self._state_version = item.version
        self._forget_undone(item.version)
        for event in events:
            self._log.append(event, item.version, self.last_sign)
        self._tell(events)
        self._wake()

    def leave_out(self, event_type: EventType, key: str, version: int) -> None:
        """Apply an event of an object that cannot be parsed: its old state is removed from the store, too.

        Watchers get a DELETED event. Raises OutOfOrder as `apply` does.
        """
        known = self._objects.get(key)
        if known is not None:
            if known.version < version:
                self.apply(EventType.DELETED, known.deleted_at(version))
        elif self.synced and version > self.version:
            self._relist = None
            self.progress(version)
        if event_type is EventType.DELETED:
            self.unreadable.discard(key)
        elif known is None or known.version < version:
            self.unreadable.add(key)

    def progress(self, version: int) -> None:
        """Apply a bookmark of the member's watch; an older version changes nothing."""
        self.last_sign = self._clock.seconds()
        if self.synced and version > self.version:
            self._state_version = version
            self._log.forget_old(self.last_sign)
            self._forget_undone(version)
            self._reached(version)

    def presume(self, version: int) -> None:
        """Presume that everything up to `version` was seen, since no event arrived after a probe returned `version`.

        Reads that wait for the present state (`when_current`) then continue. The store's own `version` does not change.
        """
        self.last_sign = self._clock.seconds()
        if self.synced and version > self._presumed:
            self._presumed = version
            self._wake()

    def presume_nothing(self) -> None:
        """Forget the presumed version: the watch on whose silence it was based has ended."""
        self._presumed = 0

    def take_columns(self, columns: bytes) -> bool:
        """Set the columnDefinitions for which the member prints cells from now on.

        Returns False and changes nothing if the store has objects with cells for other columns: the caller lists again.
        """
        if columns != self.columns:
            if len(self._objects):
                return False
            self.columns = columns
        return True

    def followed(self) -> None:
        """Notify listeners that the reflector follows a watch now, and so detects a member that is put back."""
        self._tell_progress()

    def available(self) -> None:
        """Record that the reflector follows the member again."""
        if self.unavailable_since is not None or not self.answered:
            self.unavailable_since, self.unavailable_cause, self.refused = None, "", False
            self.answered = True
            self._tell_progress()

    def unavailable(self, cause: str, *, refused: bool = False) -> None:
        """Record that the reflector cannot follow the member. The first call of an outage sets `unavailable_since`;
        `cause` (one line) is the newest cause.
        """
        self.refused = refused
        if self.unavailable_since is None:
            self.unavailable_since = wall_seconds(self._clock)
        elif self.unavailable_cause == cause:
            return
        self.unavailable_cause = cause
        self._tell_progress()

    def clear(self) -> None:
        """Forget everything: the member was removed, or its name now belongs to another cluster.

        Listeners get a DELETED event for each object. Until the next list, a watch cannot resume from any version.
        """
        self._empty(list(self._objects))

    def put_back(self) -> None:
        """Forget everything: the member's state is older than the one seen before, as after a restore from a backup.

        Listeners get no event: most objects still exist, in a state that has not been listed yet.
        """
        self.older = True
        self._empty(())

    def _empty(self, gone: Sequence[CachedObject]) -> None:
        self.replaced += self.size
        self.generation += 1
        self._undone = max(self._undone, self.version)
        self._relist = None
        self._objects = ObjectSequence()
        self.unreadable = UnreadableObjects()
        self.size = 0
        self._log.reset(NEVER)
        self.synced = False
        version = self.version
        self._state_version = 0
        self._tell(Event(EventType.DELETED, version, item.deleted_at(version), item) for item in gone)
        self.version = self._presumed = self._owed = 0
        self.columns = None
        self.warnings = ()
        self._tell_progress()

    def forget_events(self) -> None:
        """Forget the events, since the reflector no longer follows the store's resource."""
        self._log.reset(NEVER)

    def restore(
        self, objects: ObjectSequence, version: int, columns: bytes | None, unreadable: Iterable[str] = ()
    ) -> bool:
        """Restore a saved state. Return False and change nothing if the store has already had a list."""
        if self.synced:
            return False
        self.unreadable = UnreadableObjects(unreadable)
        self.size = sum(item.size for item in objects)
        self._first_state(objects, version, columns)
        return True

    def _replaced(self, relist: Relist, version: int) -> None:
        if relist is not self._relist:
            raise OutOfOrder("the store has changed since the list was begun")
        self._relist = None
        if version < self.version:
            raise OutOfOrder(f"a list of version {version} after version {self.version}")
        objects = relist.result()
        if relist.greatest_version() > version:
            raise OutOfOrder(f"a list of version {version} with an object of version {relist.greatest_version()}")
        self.last_sign = self._clock.seconds()
        self.unreadable = relist.unreadable
        self.lists += 1
        before, self.size = self.size, relist.size
        if not self.synced:
            self._first_state(objects, version, relist.columns)
            return
        known = self.version
        events = list(relist.events(known))
        if relist.columns != self.columns:
            self.replaced += before  # the list has other columns, so every object was replaced
        else:
            gone = (each.previous or each.object for each in events if each.type is not EventType.ADDED)
            self.replaced += sum(item.size for item in gone)
        self._objects, self._state_version, self.columns = objects, version, relist.columns
        self._forget_undone(version)
        self._log.add_gap(known, version)
        for event in events:
            self._log.append(event, version, self.last_sign)
        if events and version == known:
            self._log.reset(version + 1)  # this version has had two states: a client cannot resume from it
        self._tell(events)
        self._reached(version)

    def _first_state(self, objects: ObjectSequence, version: int, columns: bytes | None) -> None:
        self._objects, self._state_version, self.columns = objects, version, columns
        self.synced = True
        self.older = False
        self._forget_undone(version)
        self._log.reset(version)
        self._reached(version)

    def _forget_undone(self, version: int) -> None:
        """Forget events of ambiguous versions when the member reaches `version`. A member that is put back to an older
        state has some versions twice, with different states. Until the member has passed all versions that it had
        before, no version can be read or resumed from, since a client may have seen the undone state.
        """
        if 0 < self._undone < version:
            self._log.reset(self._undone + 1)
            self._undone = 0

    def _reached(self, version: int) -> None:
        self.version = version
        self._tell_progress()
        self._wake()

    def _aborted(self, relist: Relist) -> None:
        if relist is self._relist:
            self._relist = None

    def _tell(self, events: Iterable[Event]) -> None:
        listeners = tuple(self._listeners.items())  # a new subscriber already has the new state
        for event in events:
            self.version = event.version
            for number, listener in listeners:
                if number in self._listeners:
                    try:
                        listener.store_event(self, event)
                    except Exception:
                        _log.failure("a listener of a store failed", event="internal_error")

    def _tell_progress(self) -> None:
        for number, listener in tuple(self._listeners.items()):
            if number in self._listeners:
                try:
                    listener.store_progress(self)
                except Exception:
                    _log.failure("a listener of a store failed", event="internal_error")

    def _wake(self) -> None:
        self.waiters.reached(self.version, self.presumed_version)


Snapshot = sequence.Snapshot[Store]
