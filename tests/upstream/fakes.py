"""What the tests of this room give a cluster instead of a network: a clock, a connector and a pool that record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.testing import StringTransport

from mcproxy.config import model
from mcproxy.http.connection_pool import Connect, ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.exec_process import PluginResult
from mcproxy.upstream.tls import ClientContexts
from mcproxy.upstream.upstream_context import CheckPacing, PoolFactory, UpstreamContext
from tests.support.clock import Clock


class _Transport(StringTransport):
    written: Callable[[], None] = staticmethod(lambda: None)
    """Called after each write."""

    def write(self, data: bytes) -> None:
        super().write(data)  # type: ignore[no-untyped-call]
        self.written()


class Attempt:
    """One connection that was asked for."""

    def __init__(self, host: str, port: int, protocol: IProtocol, tls: Any, at: float, proxy: Any = None) -> None:
        self.host = host
        self.port = port
        self.protocol: Any = protocol
        self.tls = tls
        self.at = at
        self.proxy = proxy
        self.transport = _Transport()  # type: ignore[no-untyped-call]
        self.cancelled = False
        self.done: Deferred[None] = Deferred(self._cancel)

    def _cancel(self, _: Any) -> None:
        self.cancelled = True

    def open(self) -> None:
        self.protocol.makeConnection(self.transport)
        self.done.callback(None)

    def answer(self, status: int, body: bytes = b"ok") -> None:
        """Open the connection, and answer its request, at once when that is sent."""
        head = f"HTTP/1.1 {status} Reason\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.transport.written = lambda: self.protocol.dataReceived(head + body)
        self.open()

    @property
    def sent(self) -> bytes:
        return bytes(self.transport.value())  # type: ignore[no-untyped-call]


class FakeConnector:
    """Keeps every attempt; `behaviour`, if set, decides each at once."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.attempts: list[Attempt] = []
        self.behaviour: Callable[[Attempt], None] | None = None

    def __call__(
        self, host: str, port: int, protocol: IProtocol, *, tls: Any, timeout: float, alpn: Any = (), proxy: Any = None
    ) -> Deferred[None]:
        attempt = Attempt(host, port, protocol, tls, self.clock.seconds(), proxy)
        self.attempts.append(attempt)
        if self.behaviour is not None:
            self.behaviour(attempt)
        return attempt.done


class FakePool:
    """Knows whether it was closed, and keeps what was asked for; the test answers. Health checks connect in earnest."""

    def __init__(self, connect: Any, settings: model.Connections, protocol: Any, violated: Any) -> None:
        self.connect = connect
        self.settings = settings
        self.protocol = protocol
        self.violated = violated
        self.closed = False
        self.asked: list[Deferred[Any]] = []
        self.dropped = 0
        self.over_http1 = True
        self.open_own = ConnectionPool(
            connect, Deadlines(Clock()), max_idle=0, max_connections=0, idle_timeout=0
        ).open_own

    def take(self, *, lasting: bool = False, upgrade: bool = False, apart: bool = False) -> Any:
        return None

    def renew(self) -> None:
        self.dropped += 1

    def open(self, *, lasting: bool = False, upgrade: bool = False, apart: bool = False) -> Deferred[Any]:
        self.asked.append(Deferred())
        return self.asked[-1]

    def close(self) -> None:
        self.closed = True


def real_pools(reactor: Any) -> PoolFactory:
    """Return what makes pools as the daemon does."""
    deadlines = Deadlines(reactor)

    def pool(
        connect: Connect, settings: model.Connections, protocol: model.UpstreamProtocol, violated: Callable[[str], None]
    ) -> ConnectionPool:
        return ConnectionPool(
            connect,
            deadlines,
            protocol=protocol,
            max_idle=settings.max_idle,
            max_connections=settings.max_connections,
            idle_timeout=settings.idle_timeout,
            violated=violated,
        )

    return pool


class FakeRunner:
    """Keeps every run of an exec plugin; the test ends them."""

    def __init__(self) -> None:
        self.runs: list[Deferred[PluginResult]] = []
        self.asked: list[tuple[Any, Any]] = []

    def run(self, argv: Any, *, env: Any, cwd: Any, timeout: float) -> Deferred[PluginResult]:
        self.asked.append((argv, env))
        run: Deferred[PluginResult] = Deferred()
        self.runs.append(run)
        return run


def make_upstream_context(clock: Clock | None = None, **parts: Any) -> UpstreamContext:
    """An `UpstreamContext` without a network; `parts` replace its parts."""
    clock = clock or Clock()
    usual: dict[str, Any] = {
        "reactor": clock,
        "connect": FakeConnector(clock),
        "pool_factory": FakePool,
        "contexts": ClientContexts(),
        "plugins": FakeRunner(),
        "check_pacing": CheckPacing(),
        "random": lambda: 0.5,
    }
    return UpstreamContext(**{**usual, **parts})


def endpoint_config(
    name: str = "a", host: str = "10.0.0.1", scheme: str = "http", path: str = "", **fields: Any
) -> model.EndpointConfig:
    return model.EndpointConfig(name=name, scheme=scheme, host=host, port=6443, path=path, **fields)


def cluster_config(*endpoints: model.EndpointConfig, **fields: Any) -> model.ClusterConfig:
    """A cluster "east" with identity Proxy, of the given endpoints or one."""
    return model.ClusterConfig(
        **{
            "name": "east",
            "identity": model.UpstreamIdentity.PROXY,
            "endpoints": endpoints or (endpoint_config(),),
            **fields,
        }
    )


def some_endpoints(count: int, ready: set[int] | None = None, weights: Sequence[int] = ()) -> tuple[Endpoint, ...]:
    """Endpoints e0, e1, …; those in `ready` (default all) passed a check, the others failed one."""
    configs = [endpoint_config(f"e{n}", f"10.0.0.{n + 1}", weight=weights[n] if weights else 1) for n in range(count)]
    made = Cluster(cluster_config(*configs), make_upstream_context()).endpoints
    for index, endpoint in enumerate(made):
        endpoint.record_check(None if ready is None or index in ready else "down")
    return made


def names(picked: Sequence[Endpoint | None]) -> list[str]:
    return ["-" if endpoint is None else endpoint.name for endpoint in picked]
