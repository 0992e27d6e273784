"""The pool of connections to one upstream address with one identity, over HTTP/2 and HTTP/1.1.

What upgrades (exec, attach, port-forward, WebSocket) goes over HTTP/1.1 connections beside those of HTTP/2, as clients
of a kube-apiserver do it. With `UpstreamProtocol.AUTO` a connection offers both versions by ALPN and the upstream
chooses. That it chose HTTP/1.1 is remembered until its next failure, but not longer than its connections or 5 minutes:
an upstream may learn HTTP/2 while it goes on without failing, as a load balancer does with a new configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.client_stream import ClientStream
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.client import ClientConnection
from mcproxy.http.h1.pool import H1Pool
from mcproxy.http.h2.client import H2ClientConnection, H2ClientResources
from mcproxy.http.h2.pool import H2Pool
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.errors import ConnectError, ConnectFailed
from mcproxy.net.failures import failure

Connect = Callable[[IProtocol, tuple[bytes, ...]], "Deferred[None]"]
"""`connect(protocol, alpn)` opens a connection that offers these protocols, and fires when `protocol` is connected."""

_ADVICE = "it does not speak HTTP/2 by ALPN: set connections.protocol to Auto or HTTP1"


_MEMORY = 300.0
"""For how many seconds no connection offers HTTP/2 to an upstream that has chosen HTTP/1.1."""


class _ChoseHTTP1(Exception):
    """The upstream chose HTTP/1.1 for a connection that offered both."""


class Pool:
    """The connections to one upstream.

    At most `max_idle` idle connections of each version are kept, whatever the load was, each for `idle_timeout` seconds
    (0: no limit); `max_connections` limits those of each version that take requests (0: no limit), and requests beyond
    them wait in order. `violated(cause)` is called when an HTTP/2 connection ends because the upstream has violated the
    protocol or flooded it.
    """

    __slots__ = (
        "_alpn",
        "_chosen_at",
        "_connect",
        "_deadlines",
        "_h1",
        "_h2",
        "_keeps_idle",
        "_over_http1",
        "_protocol",
        "_resources",
        "_violated",
    )

    def __init__(
        self,
        connect: Connect,
        deadlines: Deadlines,
        *,
        protocol: UpstreamProtocol = UpstreamProtocol.HTTP1,
        max_idle: int,
        max_connections: int,
        idle_timeout: float,
        violated: Callable[[str], None] = lambda cause: None,
    ) -> None:
        self._connect = connect
        self._deadlines = deadlines
        self._protocol = protocol
        self._alpn = (H2, HTTP1_1) if protocol is UpstreamProtocol.AUTO else (H2,)
        self._over_http1 = protocol is UpstreamProtocol.HTTP1  # configured or remembered
        self._chosen_at = 0.0  # when the upstream was last found to choose HTTP/1.1
        self._keeps_idle = max_idle > 0
        self._violated = violated
        self._resources: H2ClientResources | None = None
        self._h1 = H1Pool(
            self._connect_http1,
            deadlines,
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
        )
        self._h2 = H2Pool(
            self._dial,
            deadlines.seconds,
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
        )

    @property
    def connections(self) -> int:
        """Connections that are open, or being opened over HTTP/1.1, without tunnels."""
        return self._h1.connections + len(self._h2.connections)

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return self._h1.idle + self._h2.idle

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the connections and the requests on them, by version ("HTTP/1.1", "HTTP/2.0").

        Without tunnels and without HTTP/2 connections that take no more requests.
        """
        http1, http2 = self._h1, self._h2.connections
        return {
            "HTTP/1.1": (http1.connections, http1.connections - http1.idle),
            "HTTP/2.0": (len(http2), sum(len(connection.streams) for connection in http2)),
        }

    def take(self, *, lasting: bool = False, upgrade: bool = False) -> ClientStream | None:
        """Return a stream on a connection that is open, or None if there is none; to be used at once.

        `lasting`: the response is expected to last (a watch); `upgrade`: the request must go over HTTP/1.1.
        """
        if upgrade or self._over_http1:
            return self._h1.take()
        return self._h2.take(lasting)

    def open(self, *, lasting: bool = False, upgrade: bool = False) -> Deferred[Any]:
        """Return a stream on a new connection; while `max_connections` are open, on the next that has room for it.

        Fails with `net.errors.ConnectError`. Cancel it if the request is cancelled.
        """
        if upgrade or (self._over_http1 and not self._asks_again()):
            return self._h1.open()
        waiting: Deferred[Any] = self._h2.open(lasting)
        return waiting.addErrback(self._chose_http1)

    def _asks_again(self) -> bool:
        """Whether the connection that is to be opened now offers HTTP/2, though HTTP/1.1 was chosen before."""
        if self._protocol is UpstreamProtocol.HTTP1:
            return False
        if not self._h1.connections and self._keeps_idle:  # else there is none between any two requests
            self._forget()
            return True
        now = self._deadlines.seconds()
        if now < self._chosen_at + _MEMORY or self._h1.is_full:
            return False
        self._chosen_at = now  # others go on over HTTP/1.1 meanwhile
        return True

    def _chose_http1(self, failure: Failure) -> Any:
        failure.trap(_ChoseHTTP1)  # type: ignore[no-untyped-call]
        return self._h1.take() or self._h1.open()

    def renew(self) -> None:
        """Give no further request to the connections of now: their peer may be gone."""
        self._forget()
        self._h1.renew()
        self._h2.renew()

    def close(self) -> None:
        """Close the idle connections, and the others when their requests are done."""
        self._h1.close()
        self._h2.close()

    # -- opening ------------------------------------------------------------------------------------------------

    def _connect_http1(self, connection: ClientConnection) -> Deferred[None]:
        opening = self._connect(connection, (HTTP1_1,))
        return opening.addErrback(self._failed) if self._protocol is UpstreamProtocol.AUTO else opening

    def _failed(self, failure: Failure) -> Failure:
        self._forget()
        return failure

    def _forget(self) -> None:
        """Find out anew which version the upstream speaks."""
        self._over_http1 = self._protocol is UpstreamProtocol.HTTP1

    def _dial(self) -> Deferred[H2ClientConnection]:
        """Open a connection that offers HTTP/2."""
        negotiation = Negotiation(self)
        return self._connect(negotiation, self._alpn).addCallbacks(
            lambda _: self._negotiated(negotiation), self._not_negotiated
        )

    def _negotiated(self, negotiation: Negotiation) -> H2ClientConnection:
        engine = negotiation.engine
        if isinstance(engine, H2ClientConnection):
            self._forget()
            return engine
        if engine is None:
            raise ConnectFailed(f"the upstream answered, but {_ADVICE}")
        self._over_http1 = True
        self._chosen_at = self._deadlines.seconds()
        self._h2.renew()
        self._h1.connection_idle(engine)
        self._h2.release_waiting(failure(_ChoseHTTP1()))  # they need not wait for other handshakes
        raise _ChoseHTTP1

    def _not_negotiated(self, failure: Failure) -> Failure:
        self._forget()
        problem = failure.value
        # The alert of RFC 7301 3.2. With Auto, HTTP/1.1 was offered too.
        if isinstance(problem, ConnectError) and "no application protocol" in problem.cause:
            raise ConnectFailed(f"{problem.cause}; {_ADVICE}")
        return failure

    def engine(self, alpn: bytes | None) -> H2ClientConnection | ClientConnection | None:
        """Return the engine for what the handshake has agreed on, None if that cannot be used."""
        if alpn == H2:
            if self._resources is None:
                self._resources = H2ClientResources()
            return H2ClientConnection(self._h2, self._deadlines, self._resources, self._violated)
        if self._protocol is UpstreamProtocol.AUTO:
            return self._h1.adopt()
        return None


@implementer(IProtocol)
class Negotiation:
    """Stands for the engine of a connection until the handshake has shown which one it is."""

    __slots__ = ("_pool", "engine")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.engine: H2ClientConnection | ClientConnection | None = None

    def makeConnection(self, transport: Any) -> None:
        self.engine = engine = self._pool.engine(transport.alpn)
        if engine is None:
            transport.abortConnection()
        else:
            transport.protocol = engine
            engine.makeConnection(transport)

    def connectionMade(self) -> None:
        """Part of the interface; `makeConnection` does everything."""

    def dataReceived(self, data: bytes) -> None:
        """The connection is being closed."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """There was no engine."""
