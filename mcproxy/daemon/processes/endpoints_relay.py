"""The endpoints of ingresses over several processes: the keeper computes them, the supervisor relays them.

    keeper      endpoints  -> supervisor -> endpoints  all workers
    supervisor  endpoints  -> a process that has started, before its first configuration

A message has the backends that have changed, each whole, and is about `_BATCH` bytes long; a backend that changes again
before it is sent is sent once, and the rate is limited to `_RATE`. The supervisor keeps the last state for workers that
start, and a new keeper continues from it until its own caches are filled. While the keeper is away, workers continue
with their last state, and so does one that has lost the supervisor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.daemon.channel import Channel, Message
from mcproxy.daemon.lazy.lazy_member_caches import LazyMemberCaches
from mcproxy.daemon.lazy.lazy_services import LazyServices
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.daemon.status import Figures
from mcproxy.kube.healthz import Check
from mcproxy.services.cache_scopes import backend_keys_of
from mcproxy.services.endpoint_table import (
    UNKNOWN,
    BackendKey,
    EndpointTable,
    Entry,
    entry_name,
    entry_of,
    entry_size,
    read_entry,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext

_KIND = "endpoints"
_BATCH = 64 * 1024
"""Bytes of a message, about: it is read in a few milliseconds."""
_AT_ONCE = 8 * 1024 * 1024
"""Bytes sent to a new process before its first configuration; a channel holds 64 MiB at most."""
_RATE = 20 * 1024 * 1024
"""Bytes in a second."""
_GAP = 0.01
"""Seconds between two messages at least."""


class KeeperServices(LazyServices):
    """In the keeper."""

    def __init__(self, shared: UpstreamContext, caches: LazyMemberCaches, channel: Channel) -> None:
        super().__init__(shared, caches)
        self._clock = shared.reactor
        self._channel = channel
        self._changed: dict[BackendKey, None] = {}
        self._call: IDelayedCall | None = None
        channel.on(_KIND, self._take)
        self.endpoints.subscribe_all(self._note)

    def stop(self) -> None:
        super().stop()
        self._changed.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _take(self, message: Message) -> None:
        """Begin with what the keeper before this one knew, which the workers know too."""
        for key in _take(self.endpoints, message):
            self._changed.pop(key, None)

    def _note(self, key: BackendKey) -> None:
        self._changed[key] = None
        if self._call is None:
            self._call = self._clock.callLater(_GAP, self._tell)

    def _tell(self) -> None:
        self._call = None
        entries: list[Entry] = []
        size = 0
        while self._changed and size < _BATCH:
            key = next(iter(self._changed))
            del self._changed[key]
            value = self.endpoints.get(key)
            if value is not UNKNOWN:  # a reload has removed it, which the workers know
                entries.append(entry_of(key, value))
                size += entry_size(entries[-1])
        if entries:
            self._channel.tell(_KIND, entries=entries)
        if self._changed:
            self._call = self._clock.callLater(max(_GAP, size / _RATE), self._tell)


class WorkerServices:
    """In a worker (`process_parts.ServicesOfProcess`)."""

    def __init__(self, channel: Channel) -> None:
        self.endpoints = EndpointTable()
        channel.on(_KIND, self._take)

    def _take(self, message: Message) -> None:
        _take(self.endpoints, message)

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""
        self.endpoints.keep(backend_keys_of(config))

    def figures(self) -> Figures:
        """Nothing: the keeper has them."""
        return {}

    def checks(self) -> list[Check]:
        """Nothing, likewise."""
        return []

    async def leave(self) -> None:
        """Nothing, likewise."""

    def stop(self) -> None:
        """Nothing is under way."""


class EndpointRelay:
    """The supervisor's part. It reads none of it."""

    def __init__(self, children: Children, clock: IReactorTime) -> None:
        self._children = children
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        children.on(_KIND, self._told)
        children.on_started(self._started)

    def configured(self, config: model.Config) -> None:
        """Forget what a configuration that is in force everywhere does not have."""
        known = {entry_name(entry_of(key, UNKNOWN)) for key in backend_keys_of(config)}
        self._entries = {name: entry for name, entry in self._entries.items() if name in known}

    def _told(self, child: Child, message: Message) -> None:
        if child.role is not Role.KEEPER or child.retiring:
            return
        entries: list[Entry] = message["entries"]
        for entry in entries:
            self._entries[entry_name(entry)] = entry
        self._children.tell_all(_KIND, but=child, entries=entries)

    def _started(self, child: Child) -> None:
        self._tell_all(child, deque(self._entries), _AT_ONCE)

    def _tell_all(self, child: Child, names: deque[str], most: int) -> None:
        """Tell a process the newest values of `names`: about `most` bytes now, the others later."""
        told = 0
        while names and told < most and not child.channel.lost:
            entries: list[Entry] = []
            size = 0
            while names and size < _BATCH:
                entry = self._entries.get(names.popleft())
                if entry is not None:  # a reload has removed it
                    entries.append(entry)
                    size += entry_size(entry)
            child.channel.tell(_KIND, entries=entries)
            told += size
        if names and not child.channel.lost:
            self._clock.callLater(max(_GAP, _BATCH / _RATE), self._tell_all, child, names, _BATCH)


def _take(table: EndpointTable, message: Message) -> list[BackendKey]:
    """Put what a message says into a table; return the backends that it is about."""
    found = [read_entry(entry) for entry in message["entries"]]
    for key, value in found:
        table.set(key, value)
    return [key for key, _ in found]
