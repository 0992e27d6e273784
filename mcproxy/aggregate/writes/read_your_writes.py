"""Waits until the cache shows a write, so that the client's next read does not return an older state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject, Event
    from mcproxy.aggregate.cache.store import Store

Key = tuple[str, str]
"""Namespace and name."""
Test = Callable[["CachedObject | None"], bool]
"""Returns whether the present state of an object (None if it does not exist) is the awaited state."""
T = TypeVar("T")

TIMEOUT = 3.0
"""Maximum seconds of the wait. After that, the client gets the answer anyway, since the member has done the write."""


class _Pending:
    """Listens to one store until each of several objects has its awaited state."""

    def __init__(
        self,
        store: Store,
        wanted: Mapping[Key, Test],
        clock: IReactorTime,
        timeout: float,
    ) -> None:
        self._store = store
        self._pending = {key: test for key, test in wanted.items() if not test(store.get(*key))}
        self.done: Deferred[bool] = Deferred(lambda _: self._cancelled())
        self._unsubscribe: Callable[[], None] | None = None
        if not self._pending:
            self.done.callback(True)
            return
        self._unsubscribe = store.subscribe(self)
        self._timer = clock.callLater(timeout, self._end, False)

    def store_event(self, store: Store, event: Event) -> None:
        key = event.object.namespace, event.object.name
        test = self._pending.get(key)
        # The store has the new state already.
        if test is not None and test(self._store.get(*key)):
            del self._pending[key]
            if not self._pending:
                self._end(True)

    def store_progress(self, store: Store) -> None:
        if not store.synced or store.unavailable_since is not None:
            self._end(False)

    def _cancelled(self) -> None:
        self._stop()

    def _end(self, seen: bool) -> None:
        if self._stop():
            self.done.callback(seen)

    def _stop(self) -> bool:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is None:
            return False
        unsubscribe()
        if self._timer.active():
            self._timer.cancel()
        return True


async def until_version(stores: Sequence[Store], version: int, timeout: float = TIMEOUT) -> bool:
    """Wait until the stores have seen the version of a written object. Return False if one has not after `timeout`
    seconds, or is unavailable. Reads do not use a presumed version until a store has seen it (`Store.expect_version`).
    """
    for store in stores:
        store.expect_version(version)
    for store in stores:
        if store.unavailable_since is not None or not await store.when_version(version, timeout):
            return False
    return True


async def until_gone(
    stores: Sequence[Store], objects: Mapping[Key, str], clock: IReactorTime, timeout: float = TIMEOUT
) -> bool:
    """Wait until the stores no longer have objects with these uids, or until these objects are marked as deleted.

    `objects` has the uid by key; "" is any object of that name. Returns whether this happened in time.
    """
    return await _until(stores, objects, _gone, clock, timeout)


async def until_changed(
    stores: Sequence[Store], objects: Mapping[Key, int], clock: IReactorTime, timeout: float = TIMEOUT
) -> bool:
    """Wait until the stores have newer states of the objects than these versions; return whether they have."""
    return await _until(stores, objects, lambda _, version: _newer(version), clock, timeout)


def is_deleted(found: CachedObject) -> bool:
    """Whether an object is marked as deleted: a finalizer, or its grace period, holds it."""
    return b'"deletionTimestamp":"' in found.head + found.tail


async def _until(
    stores: Sequence[Store],
    objects: Mapping[Key, T],
    test: Callable[[CachedObject | None, T], Test],
    clock: IReactorTime,
    timeout: float,
) -> bool:
    for store in stores:
        if store.unavailable_since is not None or not store.synced:
            return False
        wanted = {key: test(store.get(*key), value) for key, value in objects.items()}
        if not await _Pending(store, wanted, clock, timeout).done:
            return False
    return True


def _newer(version: int) -> Test:
    return lambda found: found is None or found.version > version


def _gone(known: CachedObject | None, uid: str) -> Test:
    version = known.version if known is not None else 0

    def test(found: CachedObject | None) -> bool:
        if found is None or (uid and found.uid != uid):
            return True
        return found.version > version and is_deleted(found)

    return test
