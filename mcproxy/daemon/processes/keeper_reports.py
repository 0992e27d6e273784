"""Reports of the keeper to workers via the supervisor: endpoints of ingresses, and availability of API services.

    keeper      endpoints, api_services  -> supervisor -> the same  all workers
    supervisor  endpoints, api_services  -> a process that has started, before its first configuration
    worker      api_service_suspected    -> supervisor -> the same  the keeper, which probes

The supervisor keeps the last state for workers that start. A new keeper also continues from that state (for endpoints,
until its own caches are filled). While no keeper runs, workers continue with their last state. A worker that has lost
the supervisor keeps the endpoints, but refuses no API service, because an unavailable one can be back.

A message about endpoints has the complete changed backends, in about `_BATCH` bytes. A backend that changes several
times before it is sent is sent once. The rate is limited to `_RATE`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.apiservices.availability import Availability, Condition, Registration
from mcproxy.config import model
from mcproxy.daemon.channel import Channel, ChannelMessage
from mcproxy.daemon.lazy_parts import LazyMemberCaches, LazyServices, ProbedAvailability, use_registrations
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.daemon.status import Figures
from mcproxy.kube.healthz import Check
from mcproxy.net.wall_time import wall_clock
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


_ENDPOINTS = "endpoints"
_BATCH = 64 * 1024
"""Approximate size of a message (bytes), which a process reads in a few milliseconds."""
_AT_ONCE = 8 * 1024 * 1024
"""Limit of bytes sent to a new process before its first configuration; a channel queues at most 64 MiB."""
_RATE = 20 * 1024 * 1024
"""Greatest rate of endpoint messages (bytes per second)."""
_GAP = 0.01
"""Shortest time between two messages (seconds)."""
_API_SERVICES = "api_services"
_SUSPECTED = "api_service_suspected"
_SUSPICION_GAP = 0.5  # shortest time between two reports by a worker that one API service is suspected (seconds)
Make = Callable[["UpstreamContext"], "KeeperAvailability | WorkerAvailability"]


class KeeperServices(LazyServices):
    """The services of the keeper, which reports their endpoints."""

    def __init__(self, shared: UpstreamContext, caches: LazyMemberCaches, channel: Channel) -> None:
        super().__init__(shared, caches)
        self._clock = shared.reactor
        self._channel = channel
        self._changed: dict[BackendKey, None] = {}
        self._send_call: IDelayedCall | None = None
        channel.on(_ENDPOINTS, self._receive)
        self.endpoints.subscribe_all(self._endpoints_changed)

    def stop(self) -> None:
        super().stop()
        self._changed.clear()
        if self._send_call is not None:
            self._send_call.cancel()
            self._send_call = None

    def _receive(self, message: ChannelMessage) -> None:
        """Take over the state of the former keeper, which the workers also have."""
        for key in _read_endpoints(self.endpoints, message):
            self._changed.pop(key, None)

    def _endpoints_changed(self, key: BackendKey) -> None:
        self._changed[key] = None
        if self._send_call is None:
            self._send_call = self._clock.callLater(_GAP, self._send)

    def _send(self) -> None:
        self._send_call = None
        entries: list[Entry] = []
        size = 0
        while self._changed and size < _BATCH:
            key = next(iter(self._changed))
            del self._changed[key]
            value = self.endpoints.get(key)
            if value is not UNKNOWN:  # else a reload has removed the backend, also in the workers
                entries.append(entry_of(key, value))
                size += entry_size(entries[-1])
        if entries:
            self._channel.tell(_ENDPOINTS, entries=entries)
        if self._changed:
            self._send_call = self._clock.callLater(max(_GAP, size / _RATE), self._send)


class WorkerServices:
    """The services of a worker (`process_parts.ServicesOfProcess`): the endpoints that the keeper reports."""

    def __init__(self, channel: Channel) -> None:
        self.endpoints = EndpointTable()
        channel.on(_ENDPOINTS, self._receive)

    def _receive(self, message: ChannelMessage) -> None:
        _read_endpoints(self.endpoints, message)

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""
        self.endpoints.keep(backend_keys_of(config))

    def figures(self) -> Figures:
        """Return no figures: the keeper has them."""
        return {}

    def checks(self) -> list[Check]:
        """Return no checks: the keeper has them."""
        return []

    async def leave(self) -> None:
        """Do nothing: only the keeper writes to clusters."""

    def stop(self) -> None:
        """Do nothing."""


class EndpointRelay:
    """Relays endpoints in the supervisor, without decoding them."""

    def __init__(self, children: Children, clock: IReactorTime) -> None:
        self._children = children
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        children.on(_ENDPOINTS, self._relay)
        children.on_started(self._started)

    def configured(self, config: model.Config) -> None:
        """Forget entries that the configuration in force everywhere does not have."""
        known = {entry_name(entry_of(key, UNKNOWN)) for key in backend_keys_of(config)}
        self._entries = {name: entry for name, entry in self._entries.items() if name in known}

    def _relay(self, child: Child, message: ChannelMessage) -> None:
        if child.role is not Role.KEEPER or child.retiring:
            return
        entries: list[Entry] = message["entries"]
        for entry in entries:
            self._entries[entry_name(entry)] = entry
        self._children.tell_all(_ENDPOINTS, but=child, entries=entries)

    def _started(self, child: Child) -> None:
        self._send_endpoints(child, deque(self._entries), _AT_ONCE)

    def _send_endpoints(self, child: Child, names: deque[str], most: int) -> None:
        """Send a process the newest entries of `names`: about `most` bytes now, the others later."""
        sent_bytes = 0
        while names and sent_bytes < most and not child.channel.lost:
            entries: list[Entry] = []
            size = 0
            while names and size < _BATCH:
                entry = self._entries.get(names.popleft())
                if entry is not None:  # else a reload has removed the entry
                    entries.append(entry)
                    size += entry_size(entry)
            child.channel.tell(_ENDPOINTS, entries=entries)
            sent_bytes += size
        if names and not child.channel.lost:
            self._clock.callLater(max(_GAP, _BATCH / _RATE), self._send_endpoints, child, names, _BATCH)


def _read_endpoints(table: EndpointTable, message: ChannelMessage) -> list[BackendKey]:
    """Put the endpoints of a message into a table; return its backends."""
    found = [read_entry(entry) for entry in message["entries"]]
    for key, value in found:
        table.set(key, value)
    return [key for key, _ in found]


class KeeperAvailability(ProbedAvailability):
    """The availability of API services in the keeper, which reports changes."""

    def __init__(self, shared: UpstreamContext, channel: Channel) -> None:
        super().__init__(shared)
        channel.on(
            _API_SERVICES, lambda message: _read_conditions(self.known, message)
        )  # the supervisor sends the state of the former keeper
        self.known.subscribe(lambda *change: channel.tell(_API_SERVICES, conditions=[_fields(*change)]))
        channel.on(_SUSPECTED, lambda message: self.known.suspect(_registration(message.fields)))


class WorkerAvailability:
    """The availability of API services in a worker, as the keeper reports it."""

    def __init__(self, shared: UpstreamContext, channel: Channel) -> None:
        self.known = Availability(wall_clock(shared.reactor))
        self._seconds = shared.reactor.seconds
        self._channel = channel
        self._suspected: dict[Registration, float] = {}
        self.known.on_suspicion(self._suspect)
        channel.on(_API_SERVICES, lambda message: _read_conditions(self.known, message))
        channel.when_lost().addCallback(lambda _: self.known.forget())

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""
        use_registrations(self.known, config)
        self._suspected.clear()

    def _suspect(self, registration: Registration) -> None:
        now = self._seconds()
        if now - self._suspected.get(registration, float("-inf")) >= _SUSPICION_GAP:
            self._suspected[registration] = now
            self._channel.tell(_SUSPECTED, **registration._asdict())

    def stop(self) -> None:
        """Do nothing: no work is under way."""


class AvailabilityRelay:
    """Relays the availability of API services in the supervisor, without evaluating it."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._conditions: dict[Registration, dict[str, Any]] = {}
        children.on(_API_SERVICES, self._relay)
        children.on(_SUSPECTED, self._suspect)
        children.on_started(self._started)

    def configured(self, config: model.Config) -> None:
        """Forget entries that the configuration in force everywhere does not have."""
        known = {Registration.of(each) for server in config.servers for each in server.api_services}
        self._conditions = {key: fields for key, fields in self._conditions.items() if key in known}

    def _relay(self, child: Child, message: ChannelMessage) -> None:
        if child.role is not Role.KEEPER or child.retiring:
            return
        for fields in message["conditions"]:
            self._conditions[_registration(fields)] = fields
        self._children.tell_all(_API_SERVICES, but=child, conditions=message["conditions"])

    def _suspect(self, child: Child, message: ChannelMessage) -> None:
        for each in self._children:
            if each.role is Role.KEEPER and not each.retiring:
                each.channel.tell(_SUSPECTED, **_registration(message.fields)._asdict())

    def _started(self, child: Child) -> None:
        if self._conditions:
            child.channel.tell(_API_SERVICES, conditions=list(self._conditions.values()))


def _fields(registration: Registration, condition: Condition) -> dict[str, Any]:
    return {**registration._asdict(), **condition.to_fields()}


def _registration(fields: Mapping[str, Any]) -> Registration:
    return Registration(fields["group"], fields["version"], fields["cluster"])


def _read_conditions(known: Availability, message: ChannelMessage) -> None:
    for fields in message["conditions"]:
        known.set(_registration(fields), Condition.from_fields(fields))
