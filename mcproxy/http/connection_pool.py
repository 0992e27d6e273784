"""The pool of connections to one upstream address with one identity, over HTTP/2 and HTTP/1.1.

Upgrades (exec, attach, port-forward, WebSocket) use HTTP/1.1 connections in addition to those of HTTP/2, as clients
of a kube-apiserver do. With `UpstreamProtocol.AUTO` a connection offers both versions by ALPN and the upstream chooses.
The pool remembers a choice of HTTP/1.1 until the next failure, but not longer than the connections exist or 5 minutes,
because an upstream can begin to support HTTP/2 without a failure, as a load balancer with a new configuration.

The proxy's own requests (`Use`) share HTTP/2 connections with clients' requests if neither can delay the other. Watches
have separate connections, so that resets by clients do not affect them. Lists have separate connections too, so that
they delay no other request. The limits of clients' connections do not apply to the separate connections.

A kube-apiserver ends the connection of an anonymous request, or of one whose credential it refuses, with GOAWAY
(UnauthenticatedHTTP2DOSMitigation). Such requests have separate HTTP/2 connections, so that other requests keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.client_stream import ClientStream
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.h1_client import MAX_HEAD, H1ClientConnection
from mcproxy.http.h1.h1_pool import H1Pool
from mcproxy.http.h2.h2_client import H2ClientConnection, H2ClientResources
from mcproxy.http.h2.h2_pool import FIRST_LIMIT, H2Pool
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.causes import Cause, CauseCode, code_of
from mcproxy.net.connect_errors import ConnectError, ConnectFailed
from mcproxy.net.failures import failure

Connect = Callable[[IProtocol, tuple[bytes, ...]], "Deferred[None]"]
"""`connect(protocol, alpn)` opens a connection that offers these protocols, and fires when `protocol` is connected."""

_ADVICE = "it does not speak HTTP/2 by ALPN: set connections.protocol to Auto or HTTP1"

_MEMORY: Final = 300.0
"""Seconds for which connections do not offer HTTP/2 to an upstream that has chosen HTTP/1.1."""

#: Maximum of idle HTTP/1.1 connections for the proxy's own requests, and the seconds for which they are kept: longer
#: than the time between two polls of discovery, shorter than the idle time that load balancers allow.
_OWN_IDLE: Final = 2
_OWN_IDLE_TIMEOUT: Final = 45.0


class Use(Enum):
    """The kind of a request, which determines the HTTP/2 connections that it can use. All kinds except UNAUTHENTICATED
    are for the proxy's own requests.
    """

    SHORT = "short"
    """A request with a short response, on the connections of clients' requests."""
    LASTING = "lasting"
    """A watch, and short requests on the same connection (`ClientStream.sibling`)."""
    BULK = "bulk"
    """A list, on separate connections, because its long response would delay other requests on its connection."""
    UNAUTHENTICATED = "apart"
    """A client's request without a credential, or with a refused one: a kube-apiserver ends its connection."""


class _ChoseHTTP1(Exception):
    """The upstream chose HTTP/1.1 for a connection that offered both."""


class ConnectionPool:
    """The connections to one upstream.

    At most `max_idle` idle connections of each version are kept, each for `idle_timeout` seconds (0: no limit).
    `max_connections` limits the connections of each version that accept requests (0: no limit); further requests wait
    in order. `violated(cause)` is called when an HTTP/2 connection ends because the upstream has violated the protocol
    or has flooded the connection.

    `prior_knowledge`: connections without TLS, which have no ALPN, use HTTP/2 if `protocol` is HTTP2 (RFC 9113 3.3).
    `sends_trailers`: trailers of requests are sent over HTTP/2 (`H2ClientStream.end_body`). `most_head` limits the head
    of a response (bytes). `first_limit`: maximum of clients' streams on a connection before the upstream has announced
    its limit.
    """

    __slots__ = (
        "_alpn",
        "_chosen_at",
        "_connect",
        "_deadlines",
        "_h1",
        "_h2",
        "_keeps_idle",
        "_most_head",
        "_over_http1",
        "_own_h1",
        "_own_h2",
        "_prior_knowledge",
        "_protocol",
        "_resources",
        "_sends_trailers",
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
        prior_knowledge: bool = False,
        sends_trailers: bool = False,
        most_head: int = MAX_HEAD,
        first_limit: int = FIRST_LIMIT,
    ) -> None:
        self._connect = connect
        self._deadlines = deadlines
        self._protocol = protocol
        self._alpn = (H2, HTTP1_1) if protocol is UpstreamProtocol.AUTO else (H2,)
        self._over_http1 = protocol is UpstreamProtocol.HTTP1  # by configuration, or by the upstream's last choice
        self._chosen_at = 0.0  # time of the upstream's last choice of HTTP/1.1
        self._keeps_idle = max_idle > 0
        self._violated = violated
        self._prior_knowledge = prior_knowledge
        self._sends_trailers = sends_trailers
        self._most_head = most_head
        self._resources: H2ClientResources | None = None
        self._h1 = H1Pool(
            self._connect_http1,
            deadlines,
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
            most_head=most_head,
        )
        self._h2 = H2Pool(
            partial(self._dial, None),
            deadlines.seconds,
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
            first_limit=first_limit,
        )
        # The proxy's own requests use these pools.
        self._own_h1 = H1Pool(
            self._connect_http1,
            deadlines,
            max_idle=min(max_idle, _OWN_IDLE),
            max_connections=0,
            idle_timeout=_OWN_IDLE_TIMEOUT,
            most_head=most_head,
        )
        self._own_h2: dict[Use, H2Pool] = {
            use: H2Pool(
                partial(self._dial, use),
                deadlines.seconds,
                max_idle=max_idle,
                max_connections=max_connections if use is Use.UNAUTHENTICATED else 0,
                idle_timeout=idle_timeout,
            )
            for use in Use
        }

    @property
    def connections(self) -> int:
        """The number of connections: open ones, and HTTP/1.1 connections being opened. Tunnels are not counted."""
        return sum([http1.connections for http1 in self._all_h1]) + len(self._h2_connections)

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return sum([http1.idle for http1 in self._all_h1]) + sum([http2.idle for http2 in self._all_h2])

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the connections and the requests on them, by version ("HTTP/1.1", "HTTP/2.0").

        Tunnels are not counted. HTTP/2 connections that accept no more requests count until their streams have ended.
        """
        http1, http2 = self._all_h1, self._h2_connections
        return {
            "HTTP/1.1": (
                sum([each.connections for each in http1]),
                sum([each.connections - each.idle for each in http1]),
            ),
            "HTTP/2.0": (len(http2), sum([len(connection.streams) for connection in http2])),
        }

    @property
    def _all_h1(self) -> tuple[H1Pool, ...]:
        return self._h1, self._own_h1

    @property
    def _all_h2(self) -> tuple[H2Pool, ...]:
        return self._h2, *self._own_h2.values()

    @property
    def _h2_connections(self) -> list[H2ClientConnection]:
        taking = [connection for http2 in self._all_h2 for connection in http2.connections]
        return taking + [connection for http2 in self._all_h2 for connection in http2.retired if connection.streams]

    def take(self, *, lasting: bool = False, upgrade: bool = False, apart: bool = False) -> ClientStream | None:
        """Return a stream on an open connection, to be used at once; None if no open connection has room.

        `lasting`: the response is expected to last (a watch). `upgrade`: the request must go over HTTP/1.1. `apart`:
        the request can end an HTTP/2 connection (`Use.UNAUTHENTICATED`).
        """
        if upgrade or self._over_http1:
            return self._h1.take()
        if apart:
            return self._own_h2[Use.UNAUTHENTICATED].take(lasting)
        return self._h2.take(lasting)

    def open(self, *, lasting: bool = False, upgrade: bool = False, apart: bool = False) -> Deferred[Any]:
        """Return a stream on a new connection; if `max_connections` are open, on the next one with room.

        Fails with `net.connect_errors.ConnectError`. Cancel it if the request is cancelled.
        """
        if upgrade or (self._over_http1 and not self._asks_again()):
            return self._h1.open()
        waiting: Deferred[Any] = (self._own_h2[Use.UNAUTHENTICATED] if apart else self._h2).open(lasting)
        return waiting.addErrback(self._chose_http1)

    # -- requests of the proxy itself -----------------------------------------------------------------------------

    @property
    def over_http1(self) -> bool:
        """Whether the upstream supports only HTTP/1.1, by configuration or by its last choice."""
        return self._over_http1

    def take_own(self, use: Use, *, http1: bool = False) -> ClientStream | None:
        """Return a stream for the proxy's own request on an open connection, to be used at once; None if there is none.

        `http1`: the request must go over HTTP/1.1.
        """
        if http1 or self._over_http1:
            spare = use is Use.SHORT and not self._h1.is_limited  # under a limit, a client can be waiting for it
            return self._own_h1.take() or (self._h1.take() if spare else None)
        stream = self._h2.take(lasting=False) if use is Use.SHORT else None
        return stream or self._own_h2[use].take(use is Use.LASTING)

    def open_own(self, use: Use, *, http1: bool = False) -> Deferred[Any]:
        """Return a stream for the proxy's own request on a new connection, or on one that is being opened.

        The Deferred never waits for the end of clients' requests. It fails with `net.connect_errors.ConnectError`.
        Cancel it if the stream is not needed any more.
        """
        if http1 or (self._over_http1 and not self._asks_again()):
            return self._own_h1.open()
        shares = use is Use.SHORT and not self._h2.is_full
        h2 = self._h2 if shares else self._own_h2[use]
        opening: Deferred[Any] = h2.open(use is Use.LASTING)
        return opening.addErrback(self._own_chose_http1, use)

    def open_apart(self) -> Deferred[Any]:
        """Return a stream for the proxy's own short request on a new connection, to prove that connecting succeeds.

        A new HTTP/2 connection then joins the pool. In all other respects this method is like `open_own`.
        """
        if self._over_http1 and not self._asks_again():
            return self._own_h1.open()
        use = Use.SHORT if self._h2.is_full else None
        h2 = self._h2 if use is None else self._own_h2[use]
        opening: Deferred[Any] = self._dial(use)
        return opening.addCallback(h2.adopt).addErrback(self._own_chose_http1, Use.SHORT)

    def _own_chose_http1(self, failure: Failure, use: Use) -> Any:
        failure.trap(_ChoseHTTP1)  # type: ignore[no-untyped-call]
        found = self._h1.take() if use is Use.SHORT else None  # the new connection, unless a client has taken it
        return found or self.take_own(use, http1=True) or self._own_h1.open()

    def _asks_again(self) -> bool:
        """Whether the next connection offers HTTP/2 again after the upstream has chosen HTTP/1.1."""
        if self._protocol is UpstreamProtocol.HTTP1:
            return False
        open_ones = sum([http1.connections for http1 in self._all_h1])
        if not open_ones and self._keeps_idle:  # a pool without idle connections has none between any two requests
            self._forget()
            return True
        now = self._deadlines.seconds()
        if now < self._chosen_at + _MEMORY or self._h1.is_full:
            return False
        self._chosen_at = now  # other requests use HTTP/1.1 meanwhile
        return True

    def _chose_http1(self, failure: Failure) -> Any:
        failure.trap(_ChoseHTTP1)  # type: ignore[no-untyped-call]
        return self._h1.take() or self._h1.open()

    def renew(self) -> None:
        """Send no further request on the present connections, because their peer may be gone."""
        self._forget()
        for http1 in self._all_h1:
            http1.renew()
        for http2 in self._all_h2:
            http2.renew()

    def close(self) -> None:
        """Close idle connections at once, and busy ones when their requests are done."""
        for http1 in self._all_h1:
            http1.close()
        for http2 in self._all_h2:
            http2.close()

    # -- opening ------------------------------------------------------------------------------------------------

    def _connect_http1(self, connection: H1ClientConnection) -> Deferred[None]:
        opening = self._connect(connection, (HTTP1_1,))
        return opening.addErrback(self._failed) if self._protocol is UpstreamProtocol.AUTO else opening

    def _failed(self, failure: Failure) -> Failure:
        self._forget()
        return failure

    def _forget(self) -> None:
        """Forget the upstream's choice of HTTP/1.1; the next connection offers both versions again."""
        self._over_http1 = self._protocol is UpstreamProtocol.HTTP1

    def _dial(self, use: Use | None) -> Deferred[H2ClientConnection]:
        """Open a connection that offers HTTP/2, for clients (`use` is None) or for one use."""
        negotiation = Negotiation(self, use)
        return self._connect(negotiation, self._alpn).addCallbacks(
            lambda _: self._negotiated(negotiation), self._not_negotiated
        )

    def _negotiated(self, negotiation: Negotiation) -> H2ClientConnection:
        engine = negotiation.engine
        if isinstance(engine, H2ClientConnection):
            self._forget()
            return engine
        if engine is None:
            raise ConnectFailed(Cause(f"the upstream answered, but {_ADVICE}", CauseCode.NO_HTTP2))
        self._over_http1 = True
        self._chosen_at = self._deadlines.seconds()
        for http2 in self._all_h2:
            http2.renew()
        self._h1_of(negotiation.use).connection_idle(engine)
        for http2 in self._all_h2:
            http2.release_waiting(failure(_ChoseHTTP1()))  # so that no request waits for the other handshakes
        raise _ChoseHTTP1

    def _not_negotiated(self, failure: Failure) -> Failure:
        self._forget()
        problem = failure.value
        # The upstream sent the alert of RFC 7301 3.2. With Auto, HTTP/1.1 was offered too.
        if isinstance(problem, ConnectError) and code_of(problem.cause) is CauseCode.NO_COMMON_PROTOCOL:
            raise ConnectFailed(Cause(f"{problem.cause}; {_ADVICE}", CauseCode.HTTP2_REFUSED))
        return failure

    def engine(self, alpn: bytes | None, use: Use | None) -> H2ClientConnection | H1ClientConnection | None:
        """Return the engine for the negotiated version; None if that version cannot be used."""
        if alpn == H2 or (self._prior_knowledge and not alpn and self._protocol is UpstreamProtocol.HTTP2):
            if self._resources is None:
                self._resources = H2ClientResources(most_head=self._most_head, sends_trailers=self._sends_trailers)
            h2 = self._h2 if use is None else self._own_h2[use]
            return H2ClientConnection(h2, self._deadlines, self._resources, self._violated)
        if self._protocol is UpstreamProtocol.AUTO:
            return self._h1_of(use).adopt()
        return None

    def _h1_of(self, use: Use | None) -> H1Pool:
        return self._h1 if use is None or use is Use.UNAUTHENTICATED else self._own_h1


class Negotiation:
    """The protocol of a connection until the handshake has determined the engine."""

    __slots__ = ("_pool", "engine", "use")

    def __init__(self, pool: ConnectionPool, use: Use | None) -> None:
        self._pool = pool
        self.use = use
        self.engine: H2ClientConnection | H1ClientConnection | None = None

    def makeConnection(self, transport: Any) -> None:
        self.engine = engine = self._pool.engine(transport.alpn, self.use)
        if engine is None:
            transport.abortConnection()
        else:
            transport.protocol = engine
            engine.makeConnection(transport)

    def connectionMade(self) -> None:
        """Do nothing: `makeConnection` has done everything."""

    def dataReceived(self, data: bytes) -> None:
        """Do nothing: the connection is being closed."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Do nothing: the connection had no engine."""


classImplements(Negotiation, IProtocol)
