"""Several processes of a daemon in one: channels without sockets, a supervisor's children, clusters on one clock."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.daemon.channel import ChannelMessage
from mcproxy.daemon.errors import ProcessLost
from mcproxy.daemon.processes.health import ChannelHealth, HealthRelay
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from tests.support.clock import Clock
from tests.upstream.fakes import FakeConnector, cluster_config, make_upstream_context


class FakeChannel:
    """One end of a channel, whose notices arrive at once; `held` keeps them, as a stopped process does."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[ChannelMessage], Any]] = {}
        self.peer: FakeChannel
        self.lost = False
        self.held: list[Callable[[], None]] | None = None
        self.told: list[str] = []
        self.heard_at = float("inf")
        self._when_lost: list[Deferred[None]] = []

    def on(self, kind: str, handler: Callable[[ChannelMessage], Any]) -> None:
        assert kind not in self.handlers
        self.handlers[kind] = handler

    def tell(self, kind: str, **fields: Any) -> None:
        if self.lost:
            return
        self.told.append(kind)
        message = ChannelMessage(kind, json.loads(json.dumps(fields)))
        peer = self.peer
        if peer.held is None:
            peer.handlers[kind](message)
        else:
            peer.held.append(lambda: peer.handlers[kind](message))

    async def ask(self, kind: str, fds: Sequence[int] = (), *, timeout: float | None, **fields: Any) -> dict[str, Any]:
        """Return the other end's answer; the descriptors are duplicates, as those of a real message."""
        if self.lost:
            raise ProcessLost
        message = ChannelMessage(kind, json.loads(json.dumps(fields)), [os.dup(each) for each in fds])
        result = self.peer.handlers[kind](message)
        return (await result if isinstance(result, Awaitable) else result) or {}

    def release(self) -> None:
        """Take what was held."""
        held, self.held = self.held or [], None
        for deliver in held:
            deliver()

    def when_lost(self) -> Deferred[None]:
        self._when_lost.append(Deferred())
        return self._when_lost[-1]

    def lose(self) -> None:
        self.lost = True
        for each in self._when_lost:
            each.callback(None)


def channel_pair() -> tuple[FakeChannel, FakeChannel]:
    first, second = FakeChannel(), FakeChannel()
    first.peer, second.peer = second, first
    return first, second


class FakeChild(SimpleNamespace):
    """A child, hashed by identity as a `Child`."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class FakeChildren:
    """`Children` of processes that the test makes."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.leader: Any = None
        self._handlers: dict[str, Callable[[Any, ChannelMessage], Any]] = {}
        self._started: list[Callable[[Any], None]] = []
        self._lost: list[Callable[[Any], None]] = []

    def on(self, kind: str, handler: Callable[[Any, ChannelMessage], Any]) -> None:
        self._handlers[kind] = handler

    def on_started(self, callback: Callable[[Any], None]) -> None:
        self._started.append(callback)

    def on_lost(self, callback: Callable[[Any], None]) -> None:
        self._lost.append(callback)

    def lost(self, child: Any) -> None:
        """A process has ended."""
        self.all.remove(child)
        for callback in self._lost:
            callback(child)

    def tell_all(self, kind: str, *, but: Any = None, **fields: Any) -> None:
        for child in self.all:
            if child is not but:
                child.channel.tell(kind, **fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all)

    def add(self, name: str) -> tuple[Any, FakeChannel]:
        """Return a new child, and its own end of the channel; `started` tells everybody."""
        here, there = channel_pair()
        child = FakeChild(name=name, channel=here)
        for kind, handler in self._handlers.items():
            here.on(kind, partial(handler, child))
        return child, there

    def started(self, child: Any) -> None:
        self.all.append(child)
        for callback in self._started:
            callback(child)


class Family:
    """A supervisor with its relay, and processes with a cluster each."""

    def __init__(self, *endpoints: model.EndpointConfig, **fields: Any) -> None:
        self.config = cluster_config(*endpoints, **fields)
        self.clock = Clock()
        self.children = FakeChildren()
        self.relay = HealthRelay(cast(Any, self.children), cast(Any, self.clock))

    def start(self, *, leads: bool = False, config: model.ClusterConfig | None = None) -> Process:
        """Start one more process, with its cluster in force."""
        process = Process(self, f"worker-{len(self.children.all)}")
        process.apply(config or self.config)
        if leads:
            self.lead(process)
        return process

    def lead(self, process: Process) -> None:
        former, self.children.leader = self.children.leader, process.child
        if former is not None and former in self.children.all:
            former.process.health.lead(False)
        process.health.lead(True)
        self.clock.advance(0)

    def die(self, process: Process) -> None:
        """End a process at once."""
        self.children.all.remove(process.child)
        process.channel.lost = True
        process.cluster.stop()

    def configured(self, config: model.ClusterConfig) -> None:
        """All processes have a configuration in force."""
        self.relay.configured(of(config))


class Process:
    """One process: its end of the channel, its connections, its cluster."""

    def __init__(self, family: Family, name: str) -> None:
        self.child, self.channel = family.children.add(name)
        self.child.process = self
        self.health = ChannelHealth(cast(Any, self.channel), cast(Any, family.clock))
        self.net = FakeConnector(family.clock)
        self.shared = make_upstream_context(family.clock, connect=self.net, health=self.health)
        self.cluster: Cluster
        family.children.started(self.child)

    def apply(self, config: model.ClusterConfig) -> None:
        """As the commit of a reload does it."""
        before: Cluster | None = getattr(self, "cluster", None)
        self.cluster = Cluster.build(config, self.shared, before)
        self.cluster.start()
        self.health.configured(of(config))
        if before is not None:
            before.stop(successor=self.cluster)

    @property
    def endpoint(self) -> Endpoint:
        return self.cluster.endpoints[0]


def of(cluster: model.ClusterConfig) -> model.Config:
    return model.Config(clusters=(cluster,), servers=())
