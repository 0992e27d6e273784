"""Saves stores to disk and restores them after a restart, so that the proxy serves objects of unavailable members.

A file is a `state_file`. Its payload is a series of msgpack frames, each after its length (four bytes, big-endian):
first a description of the store, then its chunks of objects.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from mcproxy.aggregate import state_file
from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.object_splitter import ClusterMarks
from mcproxy.aggregate.cache.sequence import Chunk, ObjectSequence, key_of
from mcproxy.aggregate.cache.store import Store
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.log_once import LogOnce

_KIND = "store"
_VERSION = 1
_SUFFIX = ".store"
_LENGTH = 4
_UNSAFE = re.compile(r"[^a-z0-9-]+")
_log = Logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_CHUNK = msgspec.msgpack.Decoder(list[CachedObject])


class SavedStore(msgspec.Struct, frozen=True, array_like=True):
    """The description of a saved store; the first five fields identify the store."""

    member: str
    gvr: GroupVersionResource
    namespace: str
    dropped_managed_fields: bool
    cluster_uid: str
    """The UID of the member's cluster; "" if it was not known."""
    version: int
    columns: bytes | None
    list_kind: str
    items_typed: bool
    left_out: list[str] = msgspec.field(default_factory=list)
    """Keys of the member's objects that could not be decoded."""


class StoreFiles:
    """The folder of saved stores; writes and reads one store at a time, in a thread.

    Core secrets are written and read only with `secrets=True`; without it, a file with secrets is removed.
    """

    def __init__(self, folder: Path, in_thread: Callable[..., Deferred[Any]] = deferToThread) -> None:
        """`in_thread` calls a function with arguments in a thread."""
        self._folder = folder
        self._in_thread = in_thread
        self._lock = DeferredLock()
        self._once = LogOnce(inf)

    def path_of(self, store: Store) -> Path:
        """Return the file of a store. The names in it are for people; the digest makes the file name unique."""
        gvr = store.resource.gvr
        dropped = "dropped" if store.decoder.drop_managed_fields else ""
        digest = hashlib.sha256("\n".join((store.member, *gvr, store.namespace, dropped)).encode()).hexdigest()[:20]
        words = (_UNSAFE.sub("-", word)[:40] for word in (store.member, gvr.resource, gvr.group) if word)
        return self._folder / f"{'.'.join(words)}.{digest}{_SUFFIX}"

    async def save(self, store: Store, cluster_uid: str, *, secrets: bool = False) -> bool:
        """Write a store's present state; return whether it was written. A failure is logged once."""
        path = self.path_of(store)
        if not may_be_saved(store.resource.gvr, secrets=secrets):
            self.remove(path)
            return False
        if not store.synced:
            return False
        state, chunks = state_of(store, cluster_uid), store.snapshot().objects.chunks
        await self._lock.acquire()
        try:
            await self._in_thread(write, path, state, chunks)
        except OSError as error:
            if self._once.allows(path):
                _log.warn(
                    "a cache could not be saved",
                    event="cache_not_saved",
                    resource=str(store.resource.gvr),
                    cluster=store.member,
                    file=str(path),
                    cause=error.strerror or str(error),
                    todo="make daemon.stateDir writable, or free space there",
                )
            return False
        finally:
            self._lock.release()
        self._once.ends(path)
        return True

    async def load(self, store: Store, *, secrets: bool = False) -> str | None:
        """Restore a store; return the UID of the objects' cluster ("" if unknown), or None if nothing is restored.

        Nothing is restored if the store has already got a list.
        """
        path = self.path_of(store)
        if not may_be_saved(store.resource.gvr, secrets=secrets):
            self.remove(path)
            return None
        wanted = state_of(store, "")
        await self._lock.acquire()
        try:
            found: tuple[SavedStore, ObjectSequence] | None = await self._in_thread(read, path, wanted)
        finally:
            self._lock.release()
        if found is None:
            return None
        state, objects = found
        if not store.restore(objects, state.version, state.columns, state.left_out):
            return None
        store.decoder.restore(state.list_kind, state.items_typed)
        return state.cluster_uid

    def prune(self, stores: Iterable[Store]) -> None:
        """Remove all files except those of `stores`: their members or resources are no longer cached."""
        kept = {self.path_of(store).name for store in stores}
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            if name.endswith(_SUFFIX) and name not in kept:
                self.remove(self._folder / name)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warn(
                "the file of a removed cache could not be deleted",
                event="cache_file_not_removed",
                file=str(path),
                cause=error.strerror or str(error),
                todo="remove it, and make daemon.stateDir writable",
            )


def may_be_saved(gvr: GroupVersionResource, *, secrets: bool) -> bool:
    """Return whether a resource may be written to disk; core secrets only with `secrets` (`persistSecrets`)."""
    return secrets or gvr.group != "" or gvr.resource != "secrets"


def state_of(store: Store, cluster_uid: str) -> SavedStore:
    """Return the description of a store's state."""
    decoder = store.decoder
    return SavedStore(
        store.member,
        store.resource.gvr,
        store.namespace,
        decoder.drop_managed_fields,
        cluster_uid,
        store.snapshot().version,
        store.columns,
        decoder.list_kind,
        decoder.items_typed,
        list(store.unreadable),
    )


def write(path: Path, state: SavedStore, chunks: tuple[Chunk, ...]) -> None:
    """Write a state, chunk by chunk. All arguments are immutable, so it may run in a thread. Raises OSError."""
    state_file.write_pieces(path, _KIND, _VERSION, _frames(state, chunks))


def read(path: Path, wanted: SavedStore) -> tuple[SavedStore, ObjectSequence] | None:
    """Read a state; can run in a thread. Returns None if the file is not for `wanted`; a broken file is put aside."""
    file = state_file.open_checked(path, _KIND, _VERSION)
    if file is None:
        return None
    with file:
        try:
            state = msgspec.msgpack.decode(_frame(file) or b"", type=SavedStore)
            if _identity(state) != _identity(wanted):
                return None  # saved with another setting: the reflector lists again
            return state, ObjectSequence.from_sorted(list(_objects(file, ClusterMarks(state.member))))
        except (ValueError, OSError) as error:
            state_file.put_aside(path, f"its contents have another form: {error}")
            return None


def _identity(state: SavedStore) -> tuple[str, GroupVersionResource, str, bool]:
    return state.member, state.gvr, state.namespace, state.dropped_managed_fields


def _frames(state: SavedStore, chunks: tuple[Chunk, ...]) -> Iterator[bytes]:
    for record in (state, *chunks):
        data = _encode(record)
        yield len(data).to_bytes(_LENGTH, "big")
        yield data


def _frame(file: BinaryIO) -> bytes | None:
    """Return the next frame, None at the end of the file. Raises ValueError for a truncated frame."""
    head = file.read(_LENGTH)
    if not head:
        return None
    length = int.from_bytes(head, "big")
    left = os.fstat(file.fileno()).st_size - file.tell()
    if len(head) < _LENGTH or length > left:
        raise ValueError("a frame is cut")
    return file.read(length)


def _objects(file: BinaryIO, marks: ClusterMarks) -> Iterator[CachedObject]:
    last = ""
    while (data := _frame(file)) is not None:
        for item in _CHUNK.decode(data):
            key = key_of(item)
            if key <= last:
                raise ValueError("its objects are not in order")
            last = key
            yield msgspec.structs.replace(
                item, namespace=marks.shared(item.namespace), labels=marks.restored(item.labels)
            )
