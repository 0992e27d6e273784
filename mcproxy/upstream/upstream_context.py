"""The resources that all clusters of a process share; the daemon creates them once and passes them to each `Cluster`.

They include all sources of side effects, so that tests can pass fakes: the clock, the connector, the pool, random
numbers, the runner of credential plugins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, IReactorFromThreads, IReactorTime

from mcproxy.config import model
from mcproxy.net.alpn import HTTP1_1
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.http_connect import HTTPProxy
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.upstream.credentials import (
    CredentialSource,
    StaticCredentials,
    TokenFile,
    basic,
    bearer,
    configured_certificate,
)
from mcproxy.upstream.exec_plugin import ExecCredentials
from mcproxy.upstream.exec_process import PluginRunner
from mcproxy.upstream.tls import ClientContexts

if TYPE_CHECKING:
    from mcproxy.http.connection_pool import Connect, ConnectionPool
    from mcproxy.upstream.endpoint import Endpoint
    from mcproxy.upstream.health_sharing import HealthExchange


class UpstreamReactor(IReactorTime, IReactorFromThreads):
    """The parts of a reactor that this package uses directly (`Connector` opens connections)."""


class Connector(Protocol):
    """`mcproxy.net.connect.connect` with a bound reactor. Fails with `net.connect_errors.ConnectError`."""

    def __call__(
        self,
        host: str,
        port: int,
        protocol: IProtocol,
        *,
        tls: ClientTLS | None,
        timeout: float,
        alpn: tuple[bytes, ...] = (HTTP1_1,),
        proxy: HTTPProxy | None = None,
    ) -> Deferred[None]: ...


class Tunnels(Protocol):
    """The tunnels of clusters that dial out (`tunnels.hub.TunnelHub`)."""

    def connect(self, name: str, engine: IProtocol, alpn: tuple[bytes, ...], timeout: float) -> Deferred[None]:
        """Connect `engine` through a tunnel, as a `Connector` does with an address."""
        ...

    def follow(self, name: str, notify: Callable[[bool, str], None]) -> Callable[[], None]:
        """Call `notify(is_up, cause)` when a tunnel goes up or down; the result ends that."""
        ...


class PoolFactory(Protocol):
    """Makes the pool of one endpoint; the arguments are those of `ConnectionPool`."""

    def __call__(
        self,
        connect: Connect,
        settings: model.Connections,
        protocol: model.UpstreamProtocol,
        violated: Callable[[str], None],
    ) -> ConnectionPool: ...


class CheckPacing:
    """A rate limiter for the start of health checks; the first check starts at once.

    At the start of a daemon with 200 clusters, the 200 TLS handshakes of the checks are spread over one second instead
    of one iteration of the reactor. With few clusters no check is delayed.
    """

    __slots__ = ("_free_at", "_gap")

    def __init__(self, per_second: float = 200.0) -> None:
        self._gap = 1.0 / per_second
        self._free_at = 0.0

    def reserve(self, now: float) -> float:
        """Reserve the next slot; return the seconds until it."""
        slot = max(now, self._free_at)
        self._free_at = slot + self._gap
        return slot - now


def _ignore(endpoint: Endpoint) -> None:
    """Do nothing: the default of `UpstreamContext.endpoint_out`, without requests to move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamContext:
    """The shared resources. `random` returns a float in [0, 1). `endpoint_out` is called with each endpoint that goes
    out, by checks or failed connections, so that requests without a begun response can be sent to another endpoint.
    """

    reactor: UpstreamReactor
    connect: Connector
    pool_factory: PoolFactory
    contexts: ClientContexts
    plugins: PluginRunner
    check_pacing: CheckPacing
    random: Callable[[], float]
    endpoint_out: Callable[[Endpoint], None] = _ignore
    health: HealthExchange | None = None
    metrics: Metrics = field(default_factory=Metrics)
    tunnels: Tunnels | None = None

    def credential_source(self, cluster: model.ClusterConfig) -> CredentialSource:
        """Return the live credential of a cluster. Raises `CredentialError` for a fixed one that cannot be sent."""
        credentials = cluster.credentials
        certificate = configured_certificate(credentials)
        if credentials.exec is not None:
            return ExecCredentials(credentials.exec, cluster, certificate, clock=self.reactor, runner=self.plugins)
        if credentials.token_file is not None:
            return TokenFile(credentials.token_file, certificate, clock=self.reactor, cluster=cluster.name)
        if credentials.token is not None:
            return StaticCredentials(bearer(credentials.token.reveal(), "the configuration"), certificate)
        if credentials.basic is not None:
            return StaticCredentials(basic(*credentials.basic), certificate)
        return StaticCredentials(None, certificate)

    def close(self) -> None:
        """Stop the threads; called once, at the end of the daemon."""
        self.plugins.close()

    @classmethod
    def of(
        cls,
        reactor: Any,
        pool_factory: PoolFactory,
        endpoint_out: Callable[[Endpoint], None] = _ignore,
        health: HealthExchange | None = None,
        metrics: Metrics | None = None,
        tunnels: Tunnels | None = None,
    ) -> UpstreamContext:
        """Return the resources of a daemon, with real connections by `reactor` and real randomness."""
        return cls(
            reactor=reactor,
            connect=partial(connect, reactor),
            pool_factory=pool_factory,
            contexts=ClientContexts(),
            plugins=PluginRunner(reactor),
            check_pacing=CheckPacing(),
            random=Random().random,
            endpoint_out=endpoint_out,
            health=health,
            metrics=Metrics() if metrics is None else metrics,
            tunnels=tunnels,
        )
