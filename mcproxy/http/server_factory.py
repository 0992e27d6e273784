"""Makes the server connections of one listener; has their common limits, deadlines and handler, and drains them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import random as random_number
from typing import Any

from mcproxy.config.model import HTTPProtocol, Limits
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange, Refusal, ServerConnection, ServerContext
from mcproxy.http.h1.h1_exchange import H1Exchange
from mcproxy.http.h1.h1_server import H1ServerConnection
from mcproxy.http.h2.h2_exchange import H2Exchange
from mcproxy.http.h2.h2_server import H2DistantConnection, H2ServerConnection, H2ServerResources
from mcproxy.http.messages import ProtocolError
from mcproxy.http.transport import Transport
from mcproxy.net.alpn import H2


class ServerFactory(ServerContext):
    """Makes the server connections of one listener."""

    def __init__(
        self,
        deadlines: Deadlines,
        limits: Limits,
        handle: Callable[[Exchange], None],
        refusal: Callable[[ServerConnection, ProtocolError], Refusal],
        *,
        name: str = "",
        goaway_chance: float = 0.0,
        random: Callable[[], float] = random_number,
        prior_knowledge: bool = False,
    ) -> None:
        """The arguments are those of `ServerContext`."""
        super().__init__(
            deadlines,
            limits,
            handle,
            refusal,
            name=name,
            goaway_chance=goaway_chance,
            random=random,
            prior_knowledge=prior_knowledge,
        )
        self.http2 = H2ServerResources(deadlines)

    @property
    def protection(self) -> Counter[str]:
        """The number of connections ended because of a flood, by kind of flood."""
        return self.http2.floods.counts

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return open connections and the requests on them, by version; a tunnel counts as a request."""
        http2 = [each for each in self.connections if isinstance(each, H2ServerConnection)]
        http1 = [each for each in self.connections if isinstance(each, H1ServerConnection)]
        return {
            H1Exchange.protocol: (len(http1), sum(each.idle_since is None for each in http1)),
            H2Exchange.protocol: (len(http2), sum(len(each.streams) for each in http2)),
        }

    def build(self, transport: Transport) -> H1ServerConnection | H2ServerConnection:
        """Return the engine for the negotiated protocol."""
        if transport.alpn == H2:
            kind = H2DistantConnection if self.dials else H2ServerConnection
            return kind(self, self.limits, self.http2)
        return H1ServerConnection(self, self.limits)

    def begin_h2(self, transport: Any) -> H2ServerConnection:
        """Hand a connection without TLS over to the HTTP/2 engine, after its client has sent HTTP/2's preface."""
        engine = H2ServerConnection(self, self.limits, self.http2)
        transport.protocol = engine
        engine.makeConnection(transport)
        return engine

    def speak(self, protocols: Collection[HTTPProtocol]) -> None:
        """Serve only these versions from now on; connections of other versions end after their current requests.

        This includes connections whose handshake has begun before.
        """
        self.ends_http1 = HTTPProtocol.HTTP1 not in protocols
        self.ends_http2 = HTTPProtocol.HTTP2 not in protocols
        for connection in list(self.connections):
            if self.ends_http2 if isinstance(connection, H2ServerConnection) else self.ends_http1:
                connection.drain(unused=False)

    def begin_drain(self) -> None:
        """Make each client close its connection after its next response; new connections are served meanwhile."""
        self.ends_http1 = self.ends_http2 = True

    def drain(self, *, unused: bool = False) -> None:
        """Close each connection after its current requests; if idle, in HTTP/1.1 now, in HTTP/2 after two GOAWAYs.

        See `H1ServerConnection.drain` and `H2ServerConnection.drain`.
        """
        self.begin_drain()
        for connection in list(self.connections):
            connection.drain(unused=unused)
