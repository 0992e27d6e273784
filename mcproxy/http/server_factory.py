"""What the client connections of one listener share: limits, deadlines, handler, and the drain."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IAddress, IProtocolFactory
from zope.interface import implementer

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.server import H1ServerConnection
from mcproxy.http.messages import ProtocolError

Refusal = tuple[bytes, bytes]  # fields (as in ResponseHead) and body of the response to an invalid request


@implementer(IProtocolFactory)
class ServerFactory:
    """Makes the server connections of one listener and keeps the set of open ones.

    `handle` is called with each exchange; `refusal` returns the response to an invalid request.
    """

    noisy = False

    def __init__(
        self,
        deadlines: Deadlines,
        limits: Limits,
        handle: Callable[[Exchange], None],
        refusal: Callable[[ServerConnection, ProtocolError], Refusal],
    ) -> None:
        self.deadlines = deadlines
        self.limits = limits
        self.handle = handle
        self.refusal = refusal
        self.draining = False
        self.connections: set[H1ServerConnection] = set()

    def doStart(self) -> None:
        """Nothing to prepare."""

    def doStop(self) -> None:
        """Nothing to undo."""

    def buildProtocol(self, addr: IAddress | None) -> H1ServerConnection:
        return H1ServerConnection(self, self.limits)

    def drain(self, *, unused: bool = False) -> None:
        """Close each connection after its current request; idle ones now (`H1ServerConnection.drain`)."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain(unused=unused)
