"""One kube-apiserver: how to connect to it, its pool of connections, and whether it is to be used.

It is kept across a reload for as long as nothing that its connections depend on has changed (`connection_key`), and
with it the pool, the health and the count of requests in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.net.errors import TLSError
from mcproxy.upstream.health_state import Health, HealthState
from mcproxy.upstream.shared import Shared
from mcproxy.upstream.tls import EndpointTLS

if TYPE_CHECKING:
    from mcproxy.http.pool import Pool

log = Logger()

_DEFAULT_PORTS = {"https": 443, "http": 80}


class Endpoint:
    """A live endpoint of one cluster. Only the pipeline changes `in_flight`, one up and one down for each request."""

    def __init__(
        self,
        config: model.Endpoint,
        cluster: model.Cluster,
        *,
        key: Hashable,
        shared: Shared,
        data_tls: EndpointTLS | None,
        control_tls: EndpointTLS | None,
    ) -> None:
        """`data_tls` and `control_tls` are None for an endpoint without TLS; `key` is compared by a reload."""
        self.config = config
        self.connection_key = key
        self.cluster_name = cluster.name
        self.path_prefix = config.path.encode()
        self.authority = authority(config)
        self.in_flight = 0
        self.health = HealthState(
            unhealthy_after=cluster.health_check.unhealthy_after, healthy_after=cluster.health_check.healthy_after
        )
        self.check_soon: Callable[[], None] | None = None  # set by the health checker
        self._connections = cluster.connections
        self._shared = shared
        self._data_tls = data_tls
        self._control_tls = control_tls
        self._since = shared.reactor.seconds()
        self.pool: Pool = shared.pool_factory(self.connect, cluster.connections)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def ready(self) -> bool:
        """True if the endpoint takes requests."""
        return self.health.status is Health.READY

    @property
    def why(self) -> str:
        """A sentence for operators and Status messages: why the endpoint is, or is not, to be used."""
        seconds = int(self._shared.reactor.seconds() - self._since)
        if self.health.status is Health.UNCHECKED:
            return "not checked yet"
        if self.health.status is Health.READY:
            return f"ready for {seconds} s"
        return f"{self.health.cause} (out for {seconds} s)"

    def connect(self, protocol: IProtocol) -> Deferred[None]:
        """Open a connection for requests; fails with `net.errors.ConnectError`."""
        return self._connect(protocol, self._data_tls)

    def connect_control(self, protocol: IProtocol) -> Deferred[None]:
        """Open a connection for control traffic, which shows the proxy's own client certificate."""
        return self._connect(protocol, self._control_tls)

    def record_connect_failure(self, cause: str) -> None:
        """Count a connection that was refused, reset, timed out or not trusted as a failed check, and check soon."""
        self._noted(self.health.connect_failed(cause))
        self.doubt()

    def doubt(self) -> None:
        """Have the endpoint checked soon: something went wrong on it that a request may have caused by itself."""
        if self.check_soon is not None:
            self.check_soon()

    def record_success(self) -> None:
        """Note that a connection of a request opened, or answered."""
        self.health.connect_succeeded()

    def record_check(self, failure: str | None) -> None:
        """Count the result of a health check: None, or why it failed."""
        changed = self.health.check_succeeded() if failure is None else self.health.check_failed(failure)
        self._noted(changed)

    def renew_pool(self) -> None:
        """Let new requests use new connections (the client certificate changed); running requests go on."""
        old, self.pool = self.pool, self._shared.pool_factory(self.connect, self._connections)
        old.close()

    def close(self) -> None:
        """Close idle connections; those with a running request close after it."""
        self.pool.close()

    def _connect(self, protocol: IProtocol, tls: EndpointTLS | None) -> Deferred[None]:
        try:
            settings = None if tls is None else tls.current()
        except ValueError as error:  # certificates of the file were checked at load; an exec plugin's are new
            return fail(TLSError(f"the certificates for {self.name} cannot be used: {error}"))
        return self._shared.connect(
            self.config.host, self.config.port, protocol, tls=settings, timeout=self._connections.connect_timeout
        )

    def _noted(self, changed: bool) -> None:
        if not changed:
            return
        self._since = self._shared.reactor.seconds()
        if self.ready:
            log.info(
                "endpoint {endpoint} of cluster {cluster} takes requests", endpoint=self.name, cluster=self.cluster_name
            )
        else:
            log.warn(
                "endpoint {endpoint} of cluster {cluster} is out: {cause}; it comes back by itself when checks succeed",
                endpoint=self.name,
                cluster=self.cluster_name,
                cause=self.health.cause,
                todo="see that the API server runs and can be reached from here",
            )

    def __repr__(self) -> str:
        return f"<Endpoint {self.cluster_name}/{self.name} {self.health.status.value}>"


def authority(config: model.Endpoint) -> bytes:
    """Return the Host header's value: host, in brackets if IPv6, and the port unless it is the scheme's own."""
    host = config.host if config.host.isascii() else config.host.encode("idna").decode()
    if ":" in host:
        host = f"[{host}]"
    default = config.port == _DEFAULT_PORTS.get(config.scheme)
    return (host if default else f"{host}:{config.port}").encode()
