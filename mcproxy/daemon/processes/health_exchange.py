"""A child's way to the other processes that share the health of endpoints: over its channel, by the supervisor.

When the channel is lost there is no leader any more that could tell anything: then this process checks for itself. It
also does while the supervisor, which asks each second whether this process lives, has said nothing for long: it is
stopped, and an endpoint that is out could not come back otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.daemon.processes.channel import Channel, Message
from mcproxy.daemon.processes.health_memory import HealthMemory
from mcproxy.upstream.health_exchange import CheckResult, EndpointKey

log = Logger()

_T = TypeVar("_T")

_LATELY = 2.0
"""Seconds for which it says something that an endpoint went out elsewhere."""
_LOOK = 5.0
"""Seconds between two looks at whether the supervisor says anything."""
_SILENCE = 15.0
"""Seconds without a word of the supervisor."""


class ChannelHealth:
    """The `HealthExchange` of a child."""

    def __init__(self, channel: Channel, clock: IReactorTime) -> None:
        self.leads = False
        self.checks = False
        self._channel = channel
        self._memory = HealthMemory(clock)
        self._roles: list[Callable[[], None]] = []
        self._results: defaultdict[EndpointKey, list[Callable[[CheckResult], None]]] = defaultdict(list)
        self._outs: defaultdict[EndpointKey, list[Callable[[str, str], None]]] = defaultdict(list)
        self._asks: defaultdict[EndpointKey, list[Callable[[], None]]] = defaultdict(list)
        channel.on("health_result", self._result)
        channel.on("health_out", self._out)
        channel.on("health_soon", self._soon)
        channel.on("health_states", self._states)
        channel.when_lost().addCallback(lambda _: self._orphaned())
        self._clock = clock
        self._looked_at = clock.seconds()
        self._looking = LoopingCall(self._look)
        self._looking.clock = clock
        self._looking.start(_LOOK, now=False)

    def lead(self, leads: bool) -> None:
        """Do what one process does for all from now on, or no longer."""
        self._become(leads=leads, checks=leads)

    def configured(self, config: model.Config) -> None:
        """Forget the endpoints that the configuration in force does not have."""
        self._memory.keep(config)

    def on_role(self, notify: Callable[[], None]) -> Callable[[], None]:
        return _add(self._roles, notify)

    def publish(self, result: CheckResult) -> None:
        self._memory.put(result)
        if self.leads:
            self._channel.tell("health_result", **result.to_fields())

    def last(self, endpoint: EndpointKey, within: float) -> CheckResult | None:
        return self._memory.get(endpoint, within)

    def on_result(self, endpoint: EndpointKey, notify: Callable[[CheckResult], None]) -> Callable[[], None]:
        return _add(self._results[endpoint], notify)

    def tell_out(self, endpoint: EndpointKey, setup: str, cause: str) -> None:
        at = self._clock.seconds()
        self._channel.tell("health_out", cluster=endpoint[0], url=endpoint[1], setup=setup, cause=cause, at=at)

    def on_out(self, endpoint: EndpointKey, notify: Callable[[str, str], None]) -> Callable[[], None]:
        return _add(self._outs[endpoint], notify)

    def ask(self, endpoint: EndpointKey) -> None:
        self._channel.tell("health_soon", cluster=endpoint[0], url=endpoint[1])

    def on_ask(self, endpoint: EndpointKey, notify: Callable[[], None]) -> Callable[[], None]:
        return _add(self._asks[endpoint], notify)

    def _result(self, message: Message) -> None:
        result = CheckResult.from_fields(message.fields)
        self._memory.put(result)
        for notify in tuple(self._results.get(result.endpoint, ())):
            notify(result)

    def _states(self, message: Message) -> None:
        for fields in message["states"]:
            self._memory.put(CheckResult.from_fields(fields), fields["age"])

    def _out(self, message: Message) -> None:
        if abs(self._clock.seconds() - message["at"]) > _LATELY:  # the supervisor stood still meanwhile
            return
        for notify in tuple(self._outs.get((message["cluster"], message["url"]), ())):
            notify(message["setup"], message["cause"])

    def _soon(self, message: Message) -> None:
        if self.checks:  # else it was sent before another one was made the leader
            for notify in tuple(self._asks.get((message["cluster"], message["url"]), ())):
                notify()

    def _look(self) -> None:
        now = self._clock.seconds()
        late, self._looked_at = now - self._looked_at > 2 * _LOOK, now
        silent = now - self._channel.heard_at > _SILENCE
        if self.checks == self.leads:
            if silent and not self.leads and not late:  # else this process stood still, and has not read yet
                log.warn(
                    "the supervisor says nothing, this process checks the endpoints for itself",
                    event="supervisor_silent",
                    todo="see what stops the supervisor, or whether the machine is overloaded",
                )
                self._become(leads=False, checks=True)
        elif not silent:
            self._become(leads=self.leads, checks=self.leads)

    def _orphaned(self) -> None:
        self._looking.stop()
        self._become(leads=self.leads, checks=True)

    def _become(self, *, leads: bool, checks: bool) -> None:
        if (leads, checks) == (self.leads, self.checks):
            return
        self.leads, self.checks = leads, checks
        for notify in tuple(self._roles):
            notify()


def _add(subscribers: list[_T], subscriber: _T) -> Callable[[], None]:
    subscribers.append(subscriber)
    return lambda: subscribers.remove(subscriber)
