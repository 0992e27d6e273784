"""The keeper in the daemon: which process has the caches of aggregates, and how the workers reach it.

The supervisor makes a socket pair for each worker and the keeper, whenever one of both has started, and gives each its
end (`keeper_link`). There is no address that anybody else could connect to.

`proxy.keeper` is imported where a configuration has an aggregate: a worker without any starts sooner.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred, TimeoutError

from mcproxy.config import model
from mcproxy.daemon.aggregates import NO_AGGREGATES
from mcproxy.daemon.figures import Figures
from mcproxy.daemon.processes.channel import Channel, Message, socket_pair
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.kube.healthz import Check
from mcproxy.net.plain import PlainStream

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol

    from mcproxy.aggregate.request import AggregateHandler
    from mcproxy.daemon.runtime import PreparedAggregates
    from mcproxy.daemon.service import Service
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.proxy.keeper.worker import KeeperClient
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import VirtualServer
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.shared import Shared

_LINK = "keeper_link"
_CLOSE_TIMEOUT = 2.0  # seconds for workers to read what is queued for them
_BUFFER = 1024 * 1024  # bytes that the kernel takes for the other side, if it may (net.core.wmem_max)


def needs_keeper(config: model.Config) -> bool:
    """Whether a server of the file has an aggregate."""
    return any(isinstance(server.backend, model.AggregateBackend) for server in config.servers)


def keeper_config(config: model.Config) -> model.Config:
    """Return what of the configuration is the keeper's: no listeners, no logs of requests, servers with an aggregate.

    How long sessions last is the workers' concern, who have the credentials.
    """
    servers = tuple(
        replace(server, sessions=model.Sessions())
        for server in config.servers
        if isinstance(server.backend, model.AggregateBackend)
    )
    return replace(
        config, listeners=(), certificates=(), servers=servers, logging=replace(config.logging, access=None, audit=None)
    )


class KeeperLinks:
    """The supervisor's part: connects each worker with the keeper."""

    def __init__(self, children: Children) -> None:
        self._children = children
        children.on_started(self._started)

    def _started(self, child: Child) -> None:
        for other in self._children:
            if other.answered and other.role is not child.role and not (other.retiring and other.role is Role.KEEPER):
                ends = socket_pair()
                for process, end in zip((child, other), ends, strict=True):
                    with end:
                        process.channel.tell(_LINK, [end.fileno()])


class WorkerAggregates:
    """The owner of aggregates in a worker (`runtime.AggregatesOwner`): their state is the keeper's."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._client: KeeperClient | None = None

    @classmethod
    def maker(cls, channel: Channel) -> Callable[[Any, Shared], WorkerAggregates]:
        """Return `ProcessParts.make_aggregates` of a worker; `channel` is that to the supervisor."""

        def make(reactor: Any, shared: Shared) -> WorkerAggregates:
            aggregates = cls(shared.reactor)
            _take_links(reactor, channel, lambda: aggregates.client.link())
            return aggregates

        return make

    @property
    def client(self) -> KeeperClient:
        """The requests that are open at the keeper. It is made when there first is a keeper, or an aggregate."""
        if self._client is None:
            from mcproxy.proxy.keeper.worker import KeeperClient

            self._client = KeeperClient(self._reactor)
        return self._client

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration: nothing is needed here."""
        return _OfKeeper(self.client, config) if needs_keeper(config) else NO_AGGREGATES

    def figures(self) -> list[Figures]:
        """Nothing: the keeper has them."""
        return []

    def checks(self) -> list[Check]:
        """Nothing, likewise."""
        return []

    async def save(self) -> None:
        """The keeper saves its state itself."""

    def stop(self) -> None:
        """End the connection to the keeper."""
        if self._client is not None:
            self._client.close()


class _OfKeeper:
    """The aggregates of one configuration, in a worker."""

    def __init__(self, client: KeeperClient, config: model.Config) -> None:
        from mcproxy.proxy.keeper.relay import RelayHandler

        self._client = client
        backends = [server.backend for server in config.servers]
        names = {backend.aggregate for backend in backends if isinstance(backend, model.AggregateBackend)}
        self.handlers: Mapping[str, AggregateHandler] = {name: RelayHandler(client, name) for name in names}

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers that ask the keeper: it knows which members are away, and what they decided before."""
        from mcproxy.proxy.keeper.worker import KeeperReviewer

        return lambda cluster: KeeperReviewer(self._client, server, cluster)

    def activate(self) -> None:
        """The keeper has put it in force before."""


class Keeper:
    """The keeper's part in its process: takes connections of workers, and answers by the Service's configuration."""

    def __init__(self, reactor: Any, channel: Channel, service: Service) -> None:
        """`service` has no configuration yet: requests wait until `serve`."""
        from mcproxy.proxy.keeper.server import KeeperServer

        self._reactor = reactor
        self._service = service
        self._server = KeeperServer(reactor, cast("set[Request]", service.requests))
        _take_links(reactor, channel, self._server.link)

    def serve(self) -> None:
        """The first configuration is in force: answer requests from now on, by whichever is."""
        self._server.serve(self._servers)

    def _servers(self) -> Mapping[str, VirtualServer]:
        runtime = self._service.runtime
        return {} if runtime is None else runtime.servers

    def unlinked(self) -> Deferred[None]:
        """Return a Deferred that fires once no worker is connected: nobody needs the keeper any more."""
        return self._server.unlinked()

    async def close(self) -> None:
        """End the connections to the workers, once they have what is queued for them."""
        self._server.close()
        with contextlib.suppress(TimeoutError):
            await self._server.unlinked().addTimeout(_CLOSE_TIMEOUT, self._reactor)


def _take_links(reactor: Any, channel: Channel, protocol: Callable[[], IProtocol]) -> None:
    def connect(message: Message) -> None:
        connect_link(reactor, socket.socket(fileno=message.fds[0]), protocol())

    channel.on(_LINK, connect)


def connect_link(reactor: Any, end: socket.socket, protocol: IProtocol) -> None:
    """Connect a protocol to one end of a socket pair, which it owns from now on."""
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    PlainStream(reactor, end, "").attach(protocol)
