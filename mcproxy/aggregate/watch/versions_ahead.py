"""Watches that resume at a version which the cache of a member has not reached: they wait, or end with 410.

If another replica of the proxy has seen that version, the watch waits until the cache reaches it. If the member does
not have the version any more, since it was restored from a backup or is another cluster now, the watch ends with 410.
The member's present version distinguishes the two cases. It is read when such a watch is opened, when the member is
followed again, and every ten seconds while such a watch exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.freshness import Probe
from mcproxy.aggregate.resource_version.reader import Expired

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.watch.watcher import Watcher

log = Logger(__name__)

PROBE_TIMEOUT = 3.0
PROBE_INTERVAL = 10.0


class UnreachedWatches:
    """The watches of one view that resume at versions that its stores may not have reached."""

    def __init__(self, clock: IReactorTime, probe: Probe) -> None:
        self._clock = clock
        self._probe = probe
        self._watchers: dict[Watcher, None] = {}
        self._probing: dict[Store, Deferred[None]] = {}
        self._probe_again: set[Store] = set()
        """Stores that need another probe, since a watch was opened during the running probe of their member."""
        self._timer: IDelayedCall | None = None

    def add(self, watcher: Watcher) -> None:
        """Add a watch that was opened at a version."""
        if watcher.position.unreached:
            self._watchers[watcher] = None
            self._probe_members()

    def remove(self, watcher: Watcher) -> None:
        """Remove a watch that has ended."""
        self._watchers.pop(watcher, None)
        self._set_timer()

    def stop(self) -> None:
        """Stop probing, since the view has no watches any more."""
        self._watchers.clear()
        self._set_timer()
        probing, self._probing = self._probing, {}
        for probe in probing.values():
            probe.cancel()

    def store_progress(self, store: Store) -> None:
        """Handle that a store was filled, is followed again, or has a bookmark."""
        if self._watchers:
            self._probe_members(store)

    def _probe_members(self, only: Store | None = None) -> None:
        """Probe the members of the stores that have not reached a watch's version, or only one of them."""
        stores: dict[Store, None] = {}
        for watcher in list(self._watchers):
            if unreached := watcher.position.unreached:
                stores.update(dict.fromkeys(unreached))
            else:
                del self._watchers[watcher]
        self._set_timer()
        for store in stores if only is None else stores.keys() & {only}:
            if store in self._probing:
                self._probe_again.add(store)
            elif store.synced and store.unavailable_since is None:
                probe = self._probing[store] = Deferred.fromCoroutine(self._end_beyond(store))
                probe.addErrback(self._failed, store)
                if probe.called:
                    self._probing.pop(store, None)
                else:
                    probe.addBoth(self._probed, store)

    async def _end_beyond(self, store: Store) -> None:
        """End the watches whose version is greater than the member's. A watch that is opened during the probe waits for
        the next probe, since its version can be newer than this answer.
        """
        wanted = [(watcher, watcher.position.unreached.get(store, 0)) for watcher in self._watchers]
        version = await self._probe(store, PROBE_TIMEOUT)
        for watcher, resumed in wanted:
            if resumed > version and watcher in self._watchers:
                watcher.fail(Expired(f"cluster {store.member} is at version {version}, before {resumed}"))

    def _probed(self, _: object, store: Store) -> None:
        self._probing.pop(store, None)
        if store in self._probe_again:
            self._probe_again.discard(store)
            self._probe_members(store)

    def _failed(self, failure: Failure, store: Store) -> None:
        if not isinstance(failure.value, CancelledError):
            cause = str(failure.value)
            log.debug("a member does not answer", event="member_not_answering", cluster=store.member, cause=cause)

    def _set_timer(self) -> None:
        if self._watchers and self._timer is None:
            self._timer = self._clock.callLater(PROBE_INTERVAL, self._tick)
        elif not self._watchers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self._probe_members()
