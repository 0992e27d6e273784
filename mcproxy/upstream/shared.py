"""What all clusters of a process use together; made once by the daemon and handed to each `Cluster`.

Everything that touches the world is here, so that a test can give a fake: the clock, the connector, the pool, chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, IReactorFromThreads, IReactorTime

from mcproxy.config import model
from mcproxy.net.client import ClientTLS, connect
from mcproxy.upstream.exec_process import PluginRunner
from mcproxy.upstream.tls import ClientContexts

if TYPE_CHECKING:
    from mcproxy.http.pool import Pool
    from mcproxy.upstream.endpoint import Endpoint


class UpstreamReactor(IReactorTime, IReactorFromThreads):
    """The parts of a reactor that this room uses itself (connections are opened by `Connector`)."""


class Connector(Protocol):
    """`mcproxy.net.client.connect` with its reactor bound; fails with `net.errors.ConnectError`."""

    def __call__(
        self, host: str, port: int, protocol: IProtocol, *, tls: ClientTLS | None, timeout: float
    ) -> Deferred[None]: ...


Connect = Callable[[IProtocol], "Deferred[None]"]
"""Opens one connection to one endpoint."""


class PoolFactory(Protocol):
    """Makes the pool of one endpoint."""

    def __call__(self, connect: Connect, settings: model.Connections) -> Pool: ...


class Pacer:
    """Spreads health checks: each gets a slot of its own, the first one free at once.

    At the start of a daemon with 200 clusters the checks begin over one second instead of 200 TLS handshakes in one
    turn of the reactor; with few clusters nothing waits.
    """

    __slots__ = ("_free_at", "_gap")

    def __init__(self, per_second: float = 200.0) -> None:
        self._gap = 1.0 / per_second
        self._free_at = 0.0

    def delay(self, now: float) -> float:
        """Take the next free slot; return the seconds until then."""
        slot = max(now, self._free_at)
        self._free_at = slot + self._gap
        return slot - now


def _nobody(endpoint: Endpoint) -> None:
    """The default for whoever has no requests under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """`random` returns a float in [0, 1). `endpoint_out` is told of each endpoint that goes out, by its checks or by
    connections that failed, so that requests which it has not begun to answer can be sent elsewhere.
    """

    reactor: UpstreamReactor
    connect: Connector
    pool_factory: PoolFactory
    contexts: ClientContexts
    plugins: PluginRunner
    pacer: Pacer
    random: Callable[[], float]
    endpoint_out: Callable[[Endpoint], None] = _nobody

    def close(self) -> None:
        """End what runs beside the reactor; to be called once, when the daemon ends."""
        self.plugins.close()

    @classmethod
    def of(cls, reactor: Any, pool_factory: PoolFactory, endpoint_out: Callable[[Endpoint], None] = _nobody) -> Shared:
        """Return what a daemon uses: real connections by `reactor`, real chance."""
        return cls(
            reactor=reactor,
            connect=partial(connect, reactor),
            pool_factory=pool_factory,
            contexts=ClientContexts(),
            plugins=PluginRunner(reactor),
            pacer=Pacer(),
            random=Random().random,
            endpoint_out=endpoint_out,
        )
