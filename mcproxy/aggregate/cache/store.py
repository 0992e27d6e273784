"""What one member has of one resource: the objects, their recent history, and who wants to know of changes.

A store is written by its reflector alone. Everything that it serves is immutable, so readers hold snapshots while it
goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.cache import snapshot
from mcproxy.aggregate.cache.decoder import ObjectDecoder
from mcproxy.aggregate.cache.event_log import NEVER, EventLog, EventLogLimits
from mcproxy.aggregate.cache.object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.replacement import Replacement
from mcproxy.aggregate.cache.sequence import ObjectSequence, key_of
from mcproxy.kube.resource import APIResource
from mcproxy.net.wall_time import wall_seconds

_log = Logger()


class OutOfOrder(ValueError):
    """A list or an event that is older than what the store has seen: the reflector must list anew."""


class StoreListener(Protocol):
    """What a view is told, after the store has changed. Calls come in the order of the changes."""

    def store_event(self, store: Store, event: Event) -> None:
        """One change. `store.version` is the event's here, also amid the difference that a relist made."""

    def store_progress(self, store: Store) -> None:
        """The version moved without an event, or the store has become synced, available or unavailable.

        When it becomes synced no events tell what it holds, which may be 100,000 objects: that is in the snapshot.
        """


class Store:
    """The cache of one (member, resource, namespace); `namespace` "" is all.

    `synced`: it has a complete state; `version`: the member's resourceVersion that it has seen. `unavailable_since`
    and `last_sign` are seconds of `clock`; the latter of the last event, bookmark or list. `columns` are the
    columnDefinitions (JSON) that the cells of its objects were printed for, None if the member gives no Tables.
    `warnings` are the texts that the member's lists and watches came with: of a deprecated version, for one.
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
    ) -> None:
        self.member = member
        self.resource = resource
        self.namespace = namespace
        self.decoder = ObjectDecoder(member, resource, namespace=namespace, drop_managed_fields=drop_managed_fields)
        self.columns: bytes | None = None
        self.warnings: tuple[str, ...] = ()
        self.version = 0
        self.synced = False
        self.unavailable_since: float | None = None
        self.unavailable_cause = ""
        self.last_sign = 0.0
        self.lists = 0  # that were complete, the first one included
        self.size = 0  # bytes of the objects of the newest state
        self.generation = 0
        """Grows with every `clear`: snapshots of an earlier one are of what may no longer be shown."""
        self._clock = clock
        self._objects = ObjectSequence()
        self._state_version = 0  # of `_objects`; ahead of `version` while a relist's difference is told
        self._log = EventLog(limits)
        self._log.reset(NEVER)
        self._replacement: Replacement | None = None
        self._listeners: dict[int, StoreListener] = {}
        self._next_number = 0
        self._waiting: dict[int, tuple[int, Deferred[bool]]] = {}
        self._least_waited_for = NEVER

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def type_prefix(self) -> bytes:
        """What stands before an object's `head`: `"kind":"Pod","apiVersion":"v1",`."""
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
        """When the newest change came, seconds of the clock; None if none is known."""
        return self._log.newest

    @property
    def oldest_version(self) -> int:
        """The oldest version from which `events_after` may answer."""
        return self._log.floor

    def get(self, namespace: str, name: str) -> CachedObject | None:
        """Return one object, None if there is none."""
        return self._objects.get(f"{namespace}/{name}")

    def snapshot(self) -> Snapshot:
        """Return the present state; costs nothing."""
        return snapshot.Snapshot(self, self._state_version, self._objects)

    def snapshot_at(self, version: int) -> Snapshot:
        """Return the state at `version`; the present one if that has not been reached yet.

        Raises Expired if the log does not reach back so far.
        """
        if version >= self._state_version and self.synced:
            return self.snapshot()
        return snapshot.Snapshot(self, version, self._log.undone(self._objects, version))

    def events_after(self, version: int) -> Sequence[Event]:
        """Return every change that a watch from `version` has to see, in order.

        Raises Expired if the log does not reach back so far, or if the member was not followed at that version.
        """
        return self._log.after(version)

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` of every change from now on; returns what ends that."""
        number = self._next_number
        self._next_number += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    async def when_version(self, version: int, timeout: float) -> bool:
        """Wait until the store has seen `version`, at most `timeout` seconds; returns whether it has."""
        if self.synced and self.version >= version:
            return True
        return await self._wait(version, timeout)

    async def when_synced(self, timeout: float) -> bool:
        """Wait until the store has a complete state, at most `timeout` seconds; returns whether it has."""
        return self.synced or await self._wait(0, timeout)

    # The writer's side

    def replace(self) -> Replacement:
        """Begin a relist; one that was begun before and not committed is forgotten."""
        self._replacement = Replacement(self._objects, self.columns, self._replaced, self._aborted)
        return self._replacement

    def apply(self, event_type: EventType, item: CachedObject) -> None:
        """Take one event of the member's watch. What it is for clients follows from what the store holds. A relist that
        was begun before can no longer be committed.

        An event that the store has seen already is ignored. Raises OutOfOrder for another one that is older than what
        the store has seen, and for any before the first list.
        """
        if not self.synced:
            raise OutOfOrder("an event before the first list")
        self._replacement = None
        known = self._objects.get(key_of(item))
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
            events = [Event(EventType.DELETED, item.version, item, known)]
        else:
            self._objects = self._objects.put(item)
            self.size += item.size - (0 if known is None else known.size)
            if known is None:
                events = [Event(EventType.ADDED, item.version, item, None)]
            elif known.uid == item.uid:
                events = [Event(EventType.MODIFIED, item.version, item, known)]
            else:  # the deletion of an object of the same name was not seen
                events = [
                    Event(EventType.DELETED, self.version, known.deleted_at(self.version), known),
                    Event(EventType.ADDED, item.version, item, None),
                ]
        self._state_version = item.version
        for event in events:
            self._log.append(event, item.version, self.last_sign)
        self._tell(events)
        self._wake()

    def progress(self, version: int) -> None:
        """Take a bookmark or a probe of the member that the watch has passed; an older version changes nothing."""
        self.last_sign = self._clock.seconds()
        if self.synced and version > self.version:
            self._state_version = version
            self._log.forget_old(self.last_sign)
            self._reached(version)

    def available(self) -> None:
        """Note that the member is followed again."""
        if self.unavailable_since is not None:
            self.unavailable_since, self.unavailable_cause = None, ""
            self._tell_progress()

    def unavailable(self, cause: str) -> None:
        """Note that the member is not followed, since now unless it was so before; `cause` is one short line."""
        if self.unavailable_since is None:
            self.unavailable_since, self.unavailable_cause = wall_seconds(self._clock), cause
            self._tell_progress()

    def clear(self) -> None:
        """Forget everything: the member was removed, or its name is another cluster's now.

        Listeners get DELETED for each object; no version can be resumed from until the next list.
        """
        gone = list(self._objects)
        self.generation += 1
        self._replacement = None
        self._objects = ObjectSequence()
        self.size = 0
        self._log.reset(NEVER)
        self.synced = False
        version = self.version
        self._state_version = 0
        self._tell(Event(EventType.DELETED, version, item.deleted_at(version), item) for item in gone)
        self.version = 0
        self.columns = None
        self.warnings = ()
        self._tell_progress()

    def restore(self, objects: ObjectSequence, version: int, columns: bytes | None) -> bool:
        """Take a state that was saved; returns False, with no change, if there has been a list already."""
        if self.synced:
            return False
        self.size = sum(item.size for item in objects)
        self._first_state(objects, version, columns)
        return True

    def _replaced(self, replacement: Replacement, version: int) -> None:
        if replacement is not self._replacement:
            raise OutOfOrder("the store has changed since the list was begun")
        self._replacement = None
        if version < self.version:
            raise OutOfOrder(f"a list of version {version} after version {self.version}")
        objects = replacement.result()
        if replacement.greatest_version() > version:
            raise OutOfOrder(f"a list of version {version} with an object of version {replacement.greatest_version()}")
        self.last_sign = self._clock.seconds()
        self.lists += 1
        self.size = replacement.size
        if not self.synced:
            self._first_state(objects, version, replacement.columns)
            return
        known = self.version
        events = list(replacement.events(known))
        self._objects, self._state_version, self.columns = objects, version, replacement.columns
        self._log.gap(known, version)
        for event in events:
            self._log.append(event, version, self.last_sign)
        if events and version == known:
            self._log.reset(version + 1)  # two states of one version: who has seen one cannot go on from it
        self._tell(events)
        self._reached(version)

    def _first_state(self, objects: ObjectSequence, version: int, columns: bytes | None) -> None:
        self._objects, self._state_version, self.columns = objects, version, columns
        self.synced = True
        self._log.reset(version)
        self._reached(version)

    def _reached(self, version: int) -> None:
        self.version = version
        self._tell_progress()
        self._wake()

    def _aborted(self, replacement: Replacement) -> None:
        if replacement is self._replacement:
            self._replacement = None

    def _tell(self, events: Iterable[Event]) -> None:
        listeners = tuple(self._listeners.items())  # one that comes meanwhile has the new state already
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

    async def _wait(self, version: int, timeout: float) -> bool:
        number = self._next_number
        self._next_number += 1
        reached: Deferred[bool] = Deferred()
        self._waiting[number] = version, reached
        self._least_waited_for = min(self._least_waited_for, version)
        call = self._clock.callLater(timeout, self._give_up, number)
        try:
            return await reached
        finally:
            self._waiting.pop(number, None)
            if call.active():
                call.cancel()

    def _give_up(self, number: int) -> None:
        _, reached = self._waiting.pop(number)
        reached.callback(False)

    def _wake(self) -> None:
        if not self._waiting or self.version < self._least_waited_for:
            return
        done = [number for number, (version, _) in self._waiting.items() if version <= self.version]
        deferreds = [self._waiting.pop(number)[1] for number in done]
        self._least_waited_for = min((version for version, _ in self._waiting.values()), default=NEVER)
        for reached in deferreds:
            reached.callback(True)


Snapshot = snapshot.Snapshot[Store]
