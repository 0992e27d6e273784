"""Owns all members of aggregates, with their stores and reflectors.

Aggregates with equal options share a store and its reflector, which are reference-counted. A reload acquires the new
configuration's stores before it releases the old ones, so a store that stays in use is not listed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.cache.cached_object import Event
from mcproxy.aggregate.cache.event_log import EVENTS_BUDGET, MemoryBudget
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.initial_list import MemberLimits
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import CoalescedCall, MemberError, MemberSlow
from mcproxy.aggregate.reflector.reflector import Reflector
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.upstream_context import UpstreamContext

log = Logger(__name__)

MAX_INITIAL_LISTS = 4  # concurrent initial lists of one member
_DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options in which the stores of two aggregates can differ. `persist`: the store may be written to disk."""

    drop_managed_fields: bool = False
    persist: bool = True


_ALL_OPTIONS = tuple(
    StoreOptions(drop_managed_fields=dropped, persist=persist) for dropped in (True, False) for persist in (True, False)
)
_Key = tuple[str, GroupVersionResource, str, bool, str, StoreOptions]


class SavedMembers(Protocol):
    """The state that an earlier process saved (`member_caches.SavedState`)."""

    def restore_member(self, member: Member) -> None:
        """Restore the saved state of a new member, if there is any."""

    async def restore_store(self, store: Store, options: StoreOptions) -> str:
        """Fill a new store from its file; return the UID of the cluster whose objects were saved, "" if unknown."""


class _Entry:
    """One store with its reflector and its reference count."""

    def __init__(self, key: _Key, reflector: Reflector) -> None:
        self.key = key
        self.reflector = reflector
        self.uses = 0
        self.probes = CoalescedCall(self._probe)
        reflector.presumption.ask = self._ask
        self.unsubscribe: Callable[[], None] = lambda: None
        self._restoring: Deferred[str] | None = None

    async def _probe(self) -> int:
        """Request the member's version. If the reflector has changed to another watch meanwhile, request the version
        again, since the answer cannot be related to the new watch.
        """
        reflector, store = self.reflector, self.reflector.store
        while True:
            before, beside = store.version, reflector.stream
            version = await reflector.collection.version(beside=beside)
            if not version:
                raise MemberError(f"a list of {reflector.collection.gvr} has no resource version")
            if store.synced and version < before <= store.version:
                reflector.put_back()
            if reflector.stream is None:
                return version
            if reflector.stream is beside:
                reflector.presumption.probed(version)
                return version

    def _ask(self) -> None:
        self.probes.join().addErrback(lambda _: None)  # each waiter gets the error of its own call

    def start_restored(self, saved: SavedMembers, options: StoreOptions) -> None:
        """Start the reflector when the store's file has been read."""
        self._restoring = Deferred.fromCoroutine(saved.restore_store(self.reflector.store, options))
        self._restoring.addCallbacks(self.reflector.start, self._not_restored)

    def _not_restored(self, failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            log.failure("reading a saved cache failed unexpectedly", failure, event="internal_error")
            self.reflector.start()

    def stop(self) -> None:
        self.unsubscribe()
        self.probes.stop()
        if self._restoring is not None:
            self._restoring.cancel()
        self.reflector.stop()
        self.reflector.store.forget_events()


class Reflectors:
    """Members, stores and reflectors of one process."""

    def __init__(
        self, shared: UpstreamContext, *, saved: SavedMembers | None = None, max_initial_lists: int = MAX_INITIAL_LISTS
    ) -> None:
        """`saved` restores the saved state of new members and stores."""
        self._shared = shared
        self._saved = saved
        self._max_initial_lists = max_initial_lists
        self._event_logs = MemoryBudget(EVENTS_BUDGET)
        self._members: dict[str, Member] = {}
        self._limits: dict[str, MemberLimits] = {}
        self._entries: dict[_Key, _Entry] = {}
        self._by_store: dict[Store, _Entry] = {}

    def update(self, clusters: Mapping[str, Cluster]) -> None:
        """Apply a configuration: `clusters` are the clusters in force that aggregates use, and become the members.

        Call this after the clusters have started. The stores of a former member stay until they are released.
        """
        for name in [name for name in self._members if name not in clusters]:
            self._members.pop(name).stop()
            del self._limits[name]
            for key in [key for key in self._entries if key[0] == name]:
                self._entries.pop(key).reflector.stop()  # `acquire` must not find this store if the member comes back
        for name, cluster in clusters.items():
            member = self._members.get(name)
            if member is None:
                member = self._members[name] = Member(cluster, self._shared)
                self._limits[name] = MemberLimits(self._max_initial_lists)
                if self._saved is not None:
                    self._saved.restore_member(member)
                member.start()
            else:
                member.use(cluster)

    def member(self, name: str) -> Member:
        """Return a member. Raises KeyError."""
        return self._members[name]

    @property
    def members(self) -> Mapping[str, Member]:
        """All members by name."""
        return self._members

    @property
    def stores(self) -> Iterable[tuple[Store, StoreOptions]]:
        """All stores in use, with their options."""
        return [(entry.reflector.store, entry.key[-1]) for entry in self._entries.values()]

    def acquire(self, member: str, resource: APIResource, namespace: str, options: StoreOptions) -> Store:
        """Return the store of one resource of one member, and follow it; `namespace` "" is all namespaces.

        Release the store once for each call. Raises KeyError if there is no such member.
        """
        key = (member, resource.gvr, resource.kind, resource.namespaced, namespace, options)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._make(key, resource)
            self._by_store[entry.reflector.store] = entry
        entry.uses += 1
        return entry.reflector.store

    def acquire_any(self, member: str, resource: APIResource, namespace: str) -> Store:
        """Acquire a store with any options: an already followed store if there is one, else a new one.

        The store can cover all namespaces. A new store has no managed fields. Raises KeyError as `acquire` does.
        """
        for within in dict.fromkeys((namespace, "")):
            for options in _ALL_OPTIONS:
                if (member, resource.gvr, resource.kind, resource.namespaced, within, options) in self._entries:
                    return self.acquire(member, resource, within, options)
        return self.acquire(member, resource, namespace, _ALL_OPTIONS[0])

    def release(self, store: Store) -> None:
        """Undo one `acquire`. The last release stops the reflector, unless an `acquire` follows in the same turn."""
        entry = self._by_store.get(store)
        if entry is None:
            return  # everything has been stopped
        entry.uses -= 1
        if not entry.uses:
            self._shared.reactor.callLater(0, self._end_unused, entry)

    async def probe(self, store: Store, timeout: float) -> int:
        """Return the version of the store's collection in its member, read after this call.

        One request serves all callers that called before it was sent. `Store.when_current` waits until the store is
        presumed to have seen everything up to this version, also if nothing changes. `timeout` is in seconds. Raises
        MemberError.
        """

        def too_late(_: object, seconds: float) -> Failure:
            raise MemberSlow(f"cluster {store.member} did not say within {seconds:g} s how far it is")

        entry = self._by_store.get(store)
        if entry is None:
            raise MemberError(f"cluster {store.member} is not followed any more")
        probe: Deferred[int] = entry.probes.join()
        return await probe.addTimeout(timeout, self._shared.reactor, too_late)

    def stop(self) -> None:
        """Stop all reflectors and members."""
        entries, self._by_store = self._by_store, {}
        self._entries.clear()
        for entry in entries.values():
            entry.stop()
        members, self._members = self._members, {}
        for member in members.values():
            member.stop()

    def _make(self, key: _Key, resource: APIResource) -> _Entry:
        member = self._members[key[0]]
        clock = self._shared.reactor
        options = key[-1]
        store = Store(
            clock,
            member.name,
            resource,
            key[4],
            drop_managed_fields=options.drop_managed_fields,
            budget=self._event_logs,
        )
        reflector = Reflector(member, store, self._limits[member.name], clock, self._shared.random)
        entry = _Entry(key, reflector)
        if (resource.gvr.group, resource.gvr.resource) == _DEFINITIONS:
            entry.unsubscribe = store.subscribe(_DefinitionsListener(member))
        if self._saved is None:
            reflector.start()
        else:
            entry.start_restored(self._saved, options)
        return entry

    def _end_unused(self, entry: _Entry) -> None:
        if not entry.uses and self._by_store.pop(entry.reflector.store, None) is not None:
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            entry.stop()


class _DefinitionsListener:
    """Reads a member's discovery again when its custom resource definitions change."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def store_event(self, store: Store, event: Event) -> None:
        self._member.discovery.poll_soon()

    def store_progress(self, store: Store) -> None:
        pass
