"""Owns the caches of the process: members, their reflectors and stores, and their saved state.

Aggregates and services are the readers of the caches. Each reader names the clusters that it uses. A cluster is a
member while a reader uses it, and a store is followed while a reader has acquired it. So a resource with several
readers is listed and watched only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate import state_file
from mcproxy.aggregate.cache.persistence import StoreFiles
from mcproxy.aggregate.last_decisions import LastDecisions
from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from mcproxy.aggregate.resource_version.layout import LayoutHistory
from mcproxy.kube.discovery import APIGroupDiscovery
from mcproxy.log_once import LogOnce
from mcproxy.requests.coroutines import InThread

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


log = Logger(__name__)


class MemberCaches:
    """The members and caches of the process, which outlive every reload."""

    def __init__(self, shared: UpstreamContext, in_thread: InThread, wall: Callable[[], float]) -> None:
        """`in_thread` calls a function with arguments in a thread; `wall` returns seconds since 1970."""
        self.clock = shared.reactor
        self.saved = SavedState(self, shared.reactor, in_thread, wall)
        self.reflectors = Reflectors(shared, saved=self.saved)
        self.layouts: Callable[[], Mapping[str, LayoutHistory]] = dict
        """Returns the layouts of each aggregate, by the aggregate's name; they are saved with the caches."""
        self._used: dict[str, tuple[str, ...]] = {}  # names of the used clusters, by reader
        self._max_ages: dict[str, float] = {}  # maximum ages of saved decisions in seconds, by reader

    def use(
        self,
        reader: str,
        names: Iterable[str],
        clusters: Mapping[str, Cluster],
        state_dir: str | None,
        *,
        max_age: float = 0.0,
    ) -> None:
        """Apply a configuration with `clusters` in force: from now on `reader` uses the clusters in `names`.

        Call this before acquiring stores of new members and before releasing stores of former members, which stay until
        they are released. `max_age`: maximum age of saved decisions of members, in seconds.
        """
        self._used[reader] = tuple(dict.fromkeys(names))
        self._max_ages[reader] = max_age
        used = dict.fromkeys(name for each in self._used.values() for name in each if name in clusters)
        self.saved.use(state_dir if used else None, max(self._max_ages.values()))
        self.reflectors.update({name: clusters[name] for name in used})

    @property
    def now(self) -> float:
        """The time by the clock of the caches, seconds."""
        return self.clock.seconds()

    async def save(self) -> None:
        """Save everything that has changed since the last save (at a shutdown)."""
        await self.saved.save()

    def stop(self) -> None:
        """Stop all reflectors and saving immediately. Call it after the readers have stopped."""
        self.saved.stop()
        self.reflectors.stop()

    # -- saved state ------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        """All members, by name."""
        return self.reflectors.members

    @property
    def stores(self) -> Iterable[tuple[Store, StoreOptions]]:
        """All stores, with their options."""
        return self.reflectors.stores

    @property
    def histories(self) -> Mapping[str, LayoutHistory]:
        """The layouts of each aggregate, by its name."""
        return self.layouts()

    @property
    def complete(self) -> bool:
        """Whether every member's resources are known, so that files of other stores can be removed."""
        return all(member.discovery.known for member in self.members.values())


# -- daemon.stateDir ------------------------------------------------------------------------------------------
#
# The files of aggregates and services under `daemon.stateDir`. After a restart, their content is served for unavailable
# members.
#
#     stores/      the caches, one file each (`cache.persistence`)
#     members/     the known resources of each member, and the UID of its cluster
#     layouts/     the layouts of each aggregate's resource versions
#     decisions    the members' last authorization decisions about reads
#
# Layouts are written when a reload changes them, other small files within a minute of a change, and a changed cache
# every five minutes. A shutdown writes all files.


_SAVE_INTERVAL = 60.0  # seconds between two checks for changes
_STORE_INTERVAL = 300.0  # seconds between two saves of one cache
_MEMBER, _LAYOUTS = ("member", 1), ("layouts", 1)  # kind and version of the files


class _SavedMember(msgspec.Struct):
    uid: str
    groups: list[APIGroupDiscovery]


class SavedState:
    """The state files of the process. Without a folder nothing is read or written."""

    def __init__(self, live: MemberCaches, clock: IReactorTime, in_thread: InThread, wall: Callable[[], float]) -> None:
        """`wall` returns seconds since 1970."""
        self.decisions = LastDecisions(wall)
        self._live = live
        self._clock = clock
        self._in_thread = in_thread
        self._folder: Path | None = None
        self._files: StoreFiles | None = None
        self._max_age = 0.0  # seconds; maximum age of decisions
        self._timer: IDelayedCall | None = None
        self._lock = DeferredLock()
        self._saved: dict[Store, tuple[int, float]] = {}  # version, time
        self._written: dict[Path, bytes] = {}  # last contents of the small files
        self._once = LogOnce(inf)

    def use(self, folder: str | None, max_age: float) -> None:
        """Use a folder from now on; the first call reads decisions from it. `max_age`: their maximum age in seconds."""
        self._max_age = max_age
        path = None if folder is None else Path(folder)
        if path == self._folder:
            return
        first, self._folder = self._folder is None, path
        self._written.clear()
        self._saved.clear()
        self._files = None if path is None else StoreFiles(path / "stores", self._in_thread)
        if path is None:
            self.stop()
            return
        if first and not len(self.decisions):
            self.decisions.load(path / "decisions")
        if self._timer is None:
            self._timer = self._clock.callLater(_SAVE_INTERVAL, self._tick)

    def stop(self) -> None:
        """Stop saving."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- reading ------------------------------------------------------------------------------------------------

    def history(self, aggregate: str) -> LayoutHistory | None:
        """Return the layouts that an aggregate had before the process start; None if unknown."""
        if self._folder is None:
            return None
        path = self._folder / "layouts" / aggregate
        payload = state_file.read(path, *_LAYOUTS)
        if payload is None:
            return None
        try:
            return LayoutHistory.from_json(payload)
        except ValueError as error:
            state_file.put_aside(path, f"its contents have another form: {error}")
            return None

    def restore_member(self, member: Member) -> None:
        """Restore the saved UID and resources of a new member."""
        if self._folder is None:
            return
        path = self._folder / "members" / member.name
        payload = state_file.read(path, *_MEMBER)
        if payload is None:
            return
        try:
            saved = msgspec.msgpack.decode(payload, type=_SavedMember)
        except ValueError as error:  # msgspec's errors and UTF-8 errors are ValueErrors
            state_file.put_aside(path, f"its contents have another form: {error}")
            return
        member.restore(saved.uid, tuple(saved.groups))

    async def restore_store(self, store: Store, options: StoreOptions) -> str:
        """Fill a new store from its file; return the UID of the cluster whose objects were saved, or ""."""
        if self._files is None:
            return ""
        return await self._files.load(store, secrets=options.persist) or ""

    # -- writing ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._clock.callLater(_SAVE_INTERVAL, self._tick)
        if not self._lock.locked:
            Deferred.fromCoroutine(self.save(_STORE_INTERVAL)).addErrback(_saving_broke)

    async def save(self, store_interval: float = 0.0) -> None:
        """Save all changed state; skip caches that were saved less than `store_interval` seconds ago."""
        await self._lock.acquire()
        try:
            folder, files = self._folder, self._files
            if folder is not None and files is not None:
                await self._save_small(folder)
                await self._save_stores(files, store_interval)
                self._prune(folder, files)
        finally:
            self._lock.release()

    def save_layouts(self) -> None:
        """Save the layouts now. From now on clients get versions in these layouts, and the proxy must be able to read
        these versions even after the process is killed.
        """
        Deferred.fromCoroutine(self._save_layouts()).addErrback(_saving_broke)

    async def _save_layouts(self) -> None:
        await self._lock.acquire()
        try:
            if self._folder is not None:
                with self._failures_logged(self._folder):
                    await self._write_layouts(self._folder)
        finally:
            self._lock.release()

    async def _save_small(self, folder: Path) -> None:
        with self._failures_logged(folder):
            await self._write_layouts(folder)
            for name, member in list(self._live.members.items()):
                if member.discovery.groups:
                    saved = _SavedMember(member.uid, list(member.discovery.groups))
                    await self._write(folder / "members" / name, _MEMBER, msgspec.msgpack.encode(saved))
            if self.decisions.changed:
                await self._in_thread(self.decisions.writer(folder / "decisions", self._max_age))
            self._once.ends()

    @contextmanager
    def _failures_logged(self, folder: Path) -> Iterator[None]:
        """Log once that files cannot be written. Log it again only after all files could be written in between."""
        try:
            yield
        except OSError as error:
            if self._once.allows():
                log.warn(
                    "the state of aggregates could not be saved",
                    event="state_not_saved",
                    cause=f"{error.filename or folder}: {error.strerror or error}",
                    todo="make daemon.stateDir writable, or free space there",
                )

    async def _write_layouts(self, folder: Path) -> None:
        for name, history in self._live.histories.items():
            await self._write(folder / "layouts" / name, _LAYOUTS, history.to_json())

    async def _write(self, path: Path, kind: tuple[str, int], payload: bytes) -> None:
        if self._written.get(path) != payload:
            await self._in_thread(state_file.write, path, *kind, payload)
            self._written[path] = payload

    async def _save_stores(self, files: StoreFiles, interval: float) -> None:
        stores = [(files.path_of(store), store, options) for store, options in self._live.stores]
        self._saved = {store: self._saved[store] for _, store, _ in stores if store in self._saved}
        persisted = {path for path, _, options in stores if options.persist}
        done: set[Path] = set()
        for path, store, _ in stores:
            version, now = store.version, self._clock.seconds()
            saved = self._saved.get(store)
            if path in done or (saved is not None and (saved[0] == version or now - saved[1] < interval)):
                continue
            done.add(path)
            member = self._live.members.get(store.member)
            uid = "" if member is None else member.uid
            if await files.save(store, uid, secrets=path in persisted):
                self._saved[store] = version, now

    def _prune(self, folder: Path, files: StoreFiles) -> None:
        """Remove the files of stores that are no longer cached."""
        live = self._live
        if not live.complete:
            return
        files.prune([store for store, _ in live.stores])
        for kind, names in (("members", set(live.members)), ("layouts", set(live.histories))):
            for path in [path for path in self._written if path.parent.name == kind and path.name not in names]:
                del self._written[path]
                files.remove(path)


def _saving_broke(failure: Failure) -> None:
    if not isinstance(failure.value, CancelledError):
        log.failure("saving the state of aggregates failed unexpectedly", failure, event="internal_error")
