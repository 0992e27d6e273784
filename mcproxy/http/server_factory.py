"""What the client connections of one listener share: limits, deadlines, handler, and the drain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import random as random_number

from mcproxy.config.model import HTTPProtocol, Limits
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.exchange import H1Exchange
from mcproxy.http.h1.server import H1ServerConnection
from mcproxy.http.h2.exchange import H2Exchange
from mcproxy.http.h2.floods import Floods
from mcproxy.http.h2.hpack.decoder import Representations
from mcproxy.http.h2.hpack.encoder import Encoder
from mcproxy.http.h2.server import H2ServerConnection
from mcproxy.http.h2.unread_responses import UnreadResponses
from mcproxy.http.messages import ProtocolError
from mcproxy.http.transport import Transport
from mcproxy.net.alpn import H2
from mcproxy.net.quiet import Quiet

Refusal = tuple[bytes, bytes]  # fields (as in ResponseHead) and body of the response to an invalid request


class ServerFactory:
    """Makes the server connections of one listener and keeps the set of open ones.

    `handle` is called with each exchange; `refusal` returns the response to an invalid request. `name` is the
    listener's, for the log. `goaway_chance` is the probability, 0 to 1, that a request over HTTP/2 makes its client
    connect again; `random` returns numbers of 0 to 1.

    While `ends_http1` or `ends_http2` is set, connections of that version are asked to end by their next response:
    `Connection: close`, or GOAWAY.
    """

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
    ) -> None:
        self.name = name
        self.deadlines = deadlines
        self.limits = limits
        self.handle = handle
        self.refusal = refusal
        self.goaway_chance = goaway_chance
        self.random = random
        self.ends_http1 = False
        self.ends_http2 = False
        self.connections: set[H1ServerConnection | H2ServerConnection] = set()
        self.floods = Floods()
        self.quiet = Quiet()
        self.unread_responses = UnreadResponses(deadlines)
        self.representations = Representations()
        self.encoder = Encoder()

    @property
    def protection(self) -> Counter[str]:
        """The connections that were ended because of a flood, by its kind."""
        return self.floods.counts

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return open connections and the requests on them, by version; a tunnel counts as a request."""
        http2 = [each for each in self.connections if isinstance(each, H2ServerConnection)]
        http1 = [each for each in self.connections if isinstance(each, H1ServerConnection)]
        return {
            H1Exchange.protocol: (len(http1), sum(each.idle_since is None for each in http1)),
            H2Exchange.protocol: (len(http2), sum(len(each.streams) for each in http2)),
        }

    def build(self, transport: Transport) -> H1ServerConnection | H2ServerConnection:
        """Return the engine of the protocol that the handshake has agreed on."""
        if transport.alpn == H2:
            return H2ServerConnection(self, self.limits)
        return H1ServerConnection(self, self.limits)

    def speak(self, protocols: Collection[HTTPProtocol]) -> None:
        """Speak these versions only, from now on: connections of others end after their current requests.

        That includes those whose handshake has begun before.
        """
        self.ends_http1 = HTTPProtocol.HTTP1 not in protocols
        self.ends_http2 = HTTPProtocol.HTTP2 not in protocols
        for connection in list(self.connections):
            if self.ends_http2 if isinstance(connection, H2ServerConnection) else self.ends_http1:
                connection.drain(unused=False)

    def begin_drain(self) -> None:
        """Ask each client to close its connection by the next response; new connections are served meanwhile."""
        self.ends_http1 = self.ends_http2 = True

    def drain(self, *, unused: bool = False) -> None:
        """Close each connection after its current requests; idle ones of HTTP/1.1 now, of HTTP/2 after two GOAWAYs.

        (`H1ServerConnection.drain`, `H2ServerConnection.drain`)
        """
        self.begin_drain()
        for connection in list(self.connections):
            connection.drain(unused=unused)
