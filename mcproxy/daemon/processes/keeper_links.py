"""The links between the workers and the keeper, the process that has the caches of aggregates.

When a worker or the keeper has started, the supervisor creates a socket pair between them, and sends each its end
(`keeper_link`). No other process can connect, because the sockets have no address. `proxy.keeper` is imported only if
a configuration has an aggregate, so that other workers start faster.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred, TimeoutError

from mcproxy.config import model
from mcproxy.daemon.channel import Channel, ChannelMessage, socket_pair
from mcproxy.daemon.lazy_parts import NO_AGGREGATES, needs_services
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.daemon.status import Figures
from mcproxy.kube.healthz import Check
from mcproxy.net.plain_stream import PlainStream

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol

    from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
    from mcproxy.aggregate.request import AggregateHandler
    from mcproxy.apiservices.availability import Availability
    from mcproxy.daemon.lazy_parts import LazyMemberCaches, PreparedAggregates
    from mcproxy.daemon.service import SingleProcessService
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.proxy.keeper.keeper_client import KeeperClient
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import VirtualServer
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext

_LINK = "keeper_link"
_CLOSE_TIMEOUT = 2.0  # seconds for workers to read the data queued for them
_BUFFER = 1024 * 1024  # bytes that the kernel buffers for the other side, at most net.core.wmem_max


def needs_keeper(config: model.Config) -> bool:
    """Whether the configuration has an aggregate, API services, exports, service discovery or an ingress.

    Also true if an earlier configuration had exports."""
    return has_aggregates(config) or needs_services(config)


def has_aggregates(config: model.Config) -> bool:
    """Whether workers relay requests to the keeper: those to servers with an aggregate or API services."""
    return any(server.merges_documents for server in config.servers)


def keeper_config(config: model.Config) -> model.Config:
    """Return the configuration of the keeper: the servers that need it, without listeners and request logs.

    Workers limit the duration of sessions, since they have the credentials.
    """
    servers = tuple(
        replace(server, sessions=model.SessionsConfig()) for server in config.servers if server.merges_documents
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
    """The owner of aggregates in a worker (`process_parts.AggregatesOfProcess`); the keeper has their state."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._client: KeeperClient | None = None

    @classmethod
    def maker(cls, channel: Channel) -> Callable[[Any, UpstreamContext, LazyMemberCaches], WorkerAggregates]:
        """Return the `ProcessParts.make_aggregates` of a worker; `channel` is connected to the supervisor."""

        def make(reactor: Any, shared: UpstreamContext, caches: LazyMemberCaches) -> WorkerAggregates:
            aggregates = cls(shared.reactor)
            _take_links(reactor, channel, lambda: aggregates.client.link())
            return aggregates

        return make

    @property
    def client(self) -> KeeperClient:
        """The client of the keeper, created when first needed."""
        if self._client is None:
            from mcproxy.proxy.keeper.keeper_client import KeeperClient

            self._client = KeeperClient(self._reactor)
        return self._client

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Return the aggregates of a configuration; a worker has nothing to prepare."""
        return _KeeperAggregates(self.client, config) if has_aggregates(config) else NO_AGGREGATES

    def follow_availability(self, availability: Availability) -> None:
        """Do nothing: the keeper marks API services as stale."""

    def figures(self) -> list[Figures]:
        """Return no figures: the keeper has them."""
        return []

    def checks(self) -> list[Check]:
        """Return no checks: the keeper has them."""
        return []

    def stop(self) -> None:
        """End the connection to the keeper."""
        if self._client is not None:
            self._client.close()


class _KeeperAggregates:
    """The aggregates of one configuration, in a worker."""

    def __init__(self, client: KeeperClient, config: model.Config) -> None:
        from mcproxy.proxy.keeper.worker_relay import RelayHandler

        self._client = client
        backends = [server.backend for server in config.servers]
        names = {backend.aggregate for backend in backends if isinstance(backend, model.AggregateBackendConfig)}
        self.handlers: Mapping[str, AggregateHandler] = {name: RelayHandler(client, name) for name in names}

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers that query the keeper, which knows the unavailable members and their last decisions."""
        from mcproxy.proxy.keeper.keeper_client import KeeperReviewer

        return lambda cluster: KeeperReviewer(self._client, server, cluster)

    def documents(self, server: model.Server, backend: str, visibility: ServiceVisibility) -> AggregateHandler:
        """Return the handler that relays requests for a server's documents; the keeper decides who may see them."""
        from mcproxy.proxy.keeper.worker_relay import RelayHandler

        return RelayHandler(self._client, backend)

    def activate(self) -> None:
        """Do nothing: the keeper has put the configuration in force before."""


class Keeper:
    """The keeper's end: accepts links of workers, and answers their requests with the Service's configuration."""

    def __init__(self, reactor: Any, channel: Channel, service: SingleProcessService) -> None:
        """`service` has no configuration yet, so requests wait until `serve`."""
        from mcproxy.proxy.keeper.keeper_server import KeeperServer

        self._reactor = reactor
        self._service = service
        self._server = KeeperServer(reactor, cast("set[Request]", service.requests))
        _take_links(reactor, channel, self._server.link)

    def serve(self) -> None:
        """Start answering requests with the configuration in force. Called when the first one has come into force."""
        self._server.serve(self._servers)

    def _servers(self) -> Mapping[str, VirtualServer]:
        runtime = self._service.runtime
        return {} if runtime is None else runtime.servers

    def unlinked(self) -> Deferred[None]:
        """Return a Deferred that fires when no worker is connected, so that none needs the keeper."""
        return self._server.unlinked()

    async def close(self) -> None:
        """Close the connections to the workers, after these have read the data queued for them."""
        self._server.close()
        with contextlib.suppress(TimeoutError):
            await self._server.unlinked().addTimeout(_CLOSE_TIMEOUT, self._reactor)


def _take_links(reactor: Any, channel: Channel, protocol: Callable[[], IProtocol]) -> None:
    def connect(message: ChannelMessage) -> None:
        connect_link(reactor, socket.socket(fileno=message.fds[0]), protocol())

    channel.on(_LINK, connect)


def connect_link(reactor: Any, end: socket.socket, protocol: IProtocol) -> None:
    """Connect a protocol to one end of a socket pair; the protocol owns it from now on."""
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    PlainStream(reactor, end, "").attach(protocol)
