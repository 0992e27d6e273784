"""Availability of API services over several processes: the keeper probes, the supervisor relays the results.

    keeper      api_services  -> supervisor -> api_services  all workers
    supervisor  api_services  -> a process that has started, before its first configuration
    worker      api_service_suspected -> supervisor -> api_service_suspected  the keeper, which probes

The supervisor keeps the last message for workers that start, and a new keeper continues from it. While the keeper is
away, workers keep their state. A worker that has lost the supervisor gets no messages: then it refuses nothing, since a
refused API service could be back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.apiservices.availability import Availability, Condition, Registration
from mcproxy.config import model
from mcproxy.daemon.channel import Channel, Message
from mcproxy.daemon.lazy.lazy_prober import ProbedAvailability, use
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.net.wall_time import wall_clock

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext

_KIND = "api_services"
_SUSPECTED = "api_service_suspected"
_GAP = 0.5  # seconds between two such messages of a worker about one registration, whatever clients do


class KeeperAvailability(ProbedAvailability):
    """In the keeper."""

    def __init__(self, shared: UpstreamContext, channel: Channel) -> None:
        super().__init__(shared)
        channel.on(_KIND, lambda message: _take(self.known, message))  # the state of the former keeper
        self.known.subscribe(lambda *change: channel.tell(_KIND, conditions=[_fields(*change)]))
        channel.on(_SUSPECTED, lambda message: self.known.suspect(_registration(message.fields)))


class WorkerAvailability:
    """In a worker."""

    def __init__(self, shared: UpstreamContext, channel: Channel) -> None:
        self.known = Availability(wall_clock(shared.reactor))
        self._seconds = shared.reactor.seconds
        self._channel = channel
        self._suspected: dict[Registration, float] = {}
        self.known.on_suspicion(self._suspect)
        channel.on(_KIND, lambda message: _take(self.known, message))
        channel.when_lost().addCallback(lambda _: self.known.forget())

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""
        use(self.known, config)
        self._suspected.clear()

    def _suspect(self, registration: Registration) -> None:
        now = self._seconds()
        if now - self._suspected.get(registration, float("-inf")) >= _GAP:
            self._suspected[registration] = now
            self._channel.tell(_SUSPECTED, **registration._asdict())

    def stop(self) -> None:
        """Nothing is under way."""


class AvailabilityRelay:
    """The supervisor's part. It evaluates nothing."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._conditions: dict[Registration, dict[str, Any]] = {}
        children.on(_KIND, self._told)
        children.on(_SUSPECTED, self._suspect)
        children.on_started(self._started)

    def configured(self, config: model.Config) -> None:
        """Forget what a configuration that is in force everywhere does not have."""
        known = {Registration.of(each) for server in config.servers for each in server.api_services}
        self._conditions = {key: fields for key, fields in self._conditions.items() if key in known}

    def _told(self, child: Child, message: Message) -> None:
        if child.role is not Role.KEEPER or child.retiring:
            return
        for fields in message["conditions"]:
            self._conditions[_registration(fields)] = fields
        self._children.tell_all(_KIND, but=child, conditions=message["conditions"])

    def _suspect(self, child: Child, message: Message) -> None:
        for each in self._children:
            if each.role is Role.KEEPER and not each.retiring:
                each.channel.tell(_SUSPECTED, **_registration(message.fields)._asdict())

    def _started(self, child: Child) -> None:
        if self._conditions:
            child.channel.tell(_KIND, conditions=list(self._conditions.values()))


Make = Callable[["UpstreamContext"], "KeeperAvailability | WorkerAvailability"]


def _fields(registration: Registration, condition: Condition) -> dict[str, Any]:
    return {**registration._asdict(), **condition.to_fields()}


def _registration(fields: Mapping[str, Any]) -> Registration:
    return Registration(fields["group"], fields["version"], fields["cluster"])


def _take(known: Availability, message: Message) -> None:
    for fields in message["conditions"]:
        known.set(_registration(fields), Condition.from_fields(fields))
