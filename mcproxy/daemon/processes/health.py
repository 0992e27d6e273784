"""Health checks of endpoints with several processes: the leader checks, and the supervisor relays the results.

    leader      health_result   -> supervisor -> health_result  all others
    any other   health_soon     -> supervisor -> health_soon    the leader
    any         health_out      -> supervisor -> health_out     all others
    supervisor  health_states   -> a process that has started, before its first configuration

The supervisor only relays results. It drops results of a former leader (a process that was stopped, and has continued).
A process that has lost the supervisor makes its own checks, because no leader can reach it. So does a process that
receives nothing from the supervisor for `_SILENCE` seconds. The supervisor pings each process every second, so a silent
supervisor is stopped. Without own checks, an ejected endpoint could not come back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.daemon.channel import Channel, ChannelMessage
from mcproxy.daemon.processes.children import Child, Children
from mcproxy.net.causes import code_of, read_cause
from mcproxy.upstream.health_sharing import CheckResult, EndpointKey, endpoint_keys

log = Logger(__name__)

_T = TypeVar("_T")

_STATES_A_MESSAGE = 1000
"""Number of results in a message, of some 500 bytes each."""
_LATELY = 2.0
"""Seconds within which a report that another process has ejected an endpoint is valid."""
_SILENCE_INTERVAL = 5.0
"""Seconds between two checks whether the supervisor is silent."""
_SILENCE = 15.0
"""Seconds without a message after which the supervisor counts as silent."""


class HealthMemory:
    """The newest result of each endpoint's checks, including endpoints that this process does not have."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._results: dict[EndpointKey, tuple[float, CheckResult]] = {}

    def put(self, result: CheckResult, age: float = 0.0) -> None:
        """Keep a result which is `age` seconds old; its times are converted to this process's clock."""
        self._results[result.endpoint] = self._clock.seconds() - age, result.aged(-age) if age else result

    def get(self, endpoint: EndpointKey, within: float) -> CheckResult | None:
        """Return the newest result, with its times brought up to date; None if it is older than `within` seconds."""
        since, result = self._results.get(endpoint, (0.0, None))
        age = max(0.0, self._clock.seconds() - since)
        return None if result is None or age > within else result.aged(age)

    def all(self) -> Iterator[tuple[float, CheckResult]]:
        """Yield for each endpoint the age of its newest result, and the result with its times brought up to date."""
        now = self._clock.seconds()
        for since, result in self._results.values():
            age = max(0.0, now - since)
            yield age, result.aged(age)

    def keep(self, config: model.Config) -> None:
        """Forget endpoints that `config` does not have. Call it when `config` is in force in all processes."""
        known = {key for cluster in config.clusters for key in endpoint_keys(cluster)}
        self._results = {key: entry for key, entry in self._results.items() if key in known}


class HealthRelay:
    """The supervisor's part: relays results between all children, and keeps the newest ones."""

    def __init__(self, children: Children, clock: IReactorTime) -> None:
        self._children = children
        self._memory = HealthMemory(clock)
        children.on("health_result", self._result)
        children.on("health_soon", self._check_request)
        children.on("health_out", self._failure)
        children.on_started(self._started)

    def configured(self, config: model.Config) -> None:
        """Forget the endpoints that the configuration in force does not have."""
        self._memory.keep(config)

    def _result(self, child: Child, message: ChannelMessage) -> None:
        if child is self._children.leader:
            self._memory.put(CheckResult.from_fields(message.fields))
            self._children.tell_all("health_result", but=child, **message.fields)

    def _check_request(self, child: Child, message: ChannelMessage) -> None:
        leader = self._children.leader
        if leader is not None and leader is not child:
            leader.channel.tell("health_soon", **message.fields)

    def _failure(self, child: Child, message: ChannelMessage) -> None:
        self._children.tell_all("health_out", but=child, **message.fields)

    def _started(self, child: Child) -> None:
        states = [{"age": age, **result.to_fields()} for age, result in self._memory.all()]
        for start in range(0, len(states), _STATES_A_MESSAGE):
            child.channel.tell("health_states", states=states[start : start + _STATES_A_MESSAGE])


class ChannelHealth:
    """The child's part: implements `HealthExchange` over the child's channel."""

    def __init__(self, channel: Channel, clock: IReactorTime) -> None:
        self.leads = False
        self.checks = False
        self._channel = channel
        self._memory = HealthMemory(clock)
        self._on_role: list[Callable[[], None]] = []
        self._on_result: defaultdict[EndpointKey, list[Callable[[CheckResult], None]]] = defaultdict(list)
        self._on_failure: defaultdict[EndpointKey, list[Callable[[str, str], None]]] = defaultdict(list)
        self._on_check_request: defaultdict[EndpointKey, list[Callable[[], None]]] = defaultdict(list)
        channel.on("health_result", self._result)
        channel.on("health_out", self._failure)
        channel.on("health_soon", self._check_request)
        channel.on("health_states", self._states)
        self._clock = clock
        self._silence_checked_at = clock.seconds()
        self._silence_check = LoopingCall(self._check_silence)
        self._silence_check.clock = clock
        self._silence_check.start(_SILENCE_INTERVAL, now=False)
        channel.when_lost().addCallback(lambda _: self._silence_check.stop())

    def lead(self, leads: bool) -> None:
        """Become the leader, or stop being the leader."""
        self._become(leads=leads, checks=leads)

    def configured(self, config: model.Config) -> None:
        """Forget the endpoints that the configuration in force does not have."""
        self._memory.keep(config)

    def on_role(self, notify: Callable[[], None]) -> Callable[[], None]:
        return _add(self._on_role, notify)

    def publish(self, result: CheckResult) -> None:
        self._memory.put(result)
        if self.leads:
            self._channel.tell("health_result", **result.to_fields())

    def last(self, endpoint: EndpointKey, within: float) -> CheckResult | None:
        return self._memory.get(endpoint, within)

    def on_result(self, endpoint: EndpointKey, notify: Callable[[CheckResult], None]) -> Callable[[], None]:
        return _add(self._on_result[endpoint], notify)

    def publish_failure(self, endpoint: EndpointKey, setup: str, cause: str) -> None:
        at, code = self._clock.seconds(), code_of(cause).value
        self._channel.tell(
            "health_out", cluster=endpoint[0], url=endpoint[1], setup=setup, cause=cause, code=code, at=at
        )

    def on_failure(self, endpoint: EndpointKey, notify: Callable[[str, str], None]) -> Callable[[], None]:
        return _add(self._on_failure[endpoint], notify)

    def request_check(self, endpoint: EndpointKey) -> None:
        self._channel.tell("health_soon", cluster=endpoint[0], url=endpoint[1])

    def on_check_request(self, endpoint: EndpointKey, notify: Callable[[], None]) -> Callable[[], None]:
        return _add(self._on_check_request[endpoint], notify)

    def _result(self, message: ChannelMessage) -> None:
        result = CheckResult.from_fields(message.fields)
        self._memory.put(result)
        for notify in tuple(self._on_result.get(result.endpoint, ())):
            notify(result)

    def _states(self, message: ChannelMessage) -> None:
        for fields in message["states"]:
            self._memory.put(CheckResult.from_fields(fields), fields["age"])

    def _failure(self, message: ChannelMessage) -> None:
        if abs(self._clock.seconds() - message["at"]) > _LATELY:  # the supervisor was stopped meanwhile
            return
        for notify in tuple(self._on_failure.get((message["cluster"], message["url"]), ())):
            notify(message["setup"], read_cause(message["cause"], message.fields.get("code", "")))

    def _check_request(self, message: ChannelMessage) -> None:
        if self.checks:  # else the request was sent before the leader changed
            for notify in tuple(self._on_check_request.get((message["cluster"], message["url"]), ())):
                notify()

    def _check_silence(self) -> None:
        now = self._clock.seconds()
        late, self._silence_checked_at = now - self._silence_checked_at > 2 * _SILENCE_INTERVAL, now
        silent = now - self._channel.heard_at > _SILENCE
        if self.checks == self.leads:
            if silent and not self.leads and not late:  # late: this process was stopped, and has unread messages
                log.warn(
                    "the supervisor is silent; this process checks the endpoints itself",
                    event="supervisor_silent",
                )
                self._become(leads=False, checks=True)
        elif not silent:
            self._become(leads=self.leads, checks=self.leads)

    def _become(self, *, leads: bool, checks: bool) -> None:
        if (leads, checks) == (self.leads, self.checks):
            return
        self.leads, self.checks = leads, checks
        for notify in tuple(self._on_role):
            notify()


def _add(subscribers: list[_T], subscriber: _T) -> Callable[[], None]:
    subscribers.append(subscriber)
    return lambda: subscribers.remove(subscriber)
