"""Copies a data connection to the process that waits for it, through a socket pair: that process has no TLS state."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import error
from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.http.transport import Transport
from mcproxy.http.tunnel import TunnelSide
from mcproxy.net.plain_stream import PlainStream
from mcproxy.net.socket_stream import SocketStream
from mcproxy.tunnels.turned import TurnedConnection


@implementer(IProtocol, IHalfCloseableProtocol, IPushProducer)
class RelayEnd:
    """One end of a relay (`http.tunnel.TunnelEnd`)."""

    transport: Transport

    def __init__(self) -> None:
        self.side = TunnelSide(self)

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        transport.registerProducer(self, True)

    def connectionMade(self) -> None:
        """Do nothing: `makeConnection` has done everything."""

    def dataReceived(self, data: bytes) -> None:
        self.side.received(data)

    def readConnectionLost(self) -> None:
        self.side.eof()

    def writeConnectionLost(self) -> None:
        """Do nothing: this end's data is sent."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.side.connection_lost(isinstance(reason.value, error.ConnectionDone))

    def tunnel_ended(self) -> None:
        """Do nothing: both ends close each other."""

    def transport_taken(self) -> None:
        """Do nothing: nobody takes this transport."""

    def pauseProducing(self) -> None:
        self.side.pause()

    def resumeProducing(self) -> None:
        self.side.resume()

    def stopProducing(self) -> None:
        """Do nothing: connectionLost follows."""

    def retire(self) -> None:
        """Close this end, and so the other one."""
        self.side.close(clean=True)


def relay(connection: TurnedConnection, end: socket.socket, alpn: bytes) -> None:
    """Copy both directions between a connection and this process's end of a socket pair."""
    inner, outer = RelayEnd(), RelayEnd()
    stream = PlainStream(connection.stream.reactor, end, "")
    stream.attach(inner)
    connection.attach(outer, alpn)
    outer.side.splice(inner.side)


@implementer(IProtocol)
class _Waiting:
    """The protocol of a passed-on connection until its engine is attached, in the same call."""

    def makeConnection(self, transport: Any) -> None:
        """Do nothing."""

    def connectionMade(self) -> None:
        """Do nothing."""

    def dataReceived(self, data: bytes) -> None:
        """Never called."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Do nothing."""


def passed_on(reactor: Any, end: socket.socket) -> TurnedConnection:
    """Return the connection at the other end of the socket pair, in the process that waits for it."""
    stream: SocketStream = PlainStream(reactor, end, "")
    stream.attach(_Waiting())
    return TurnedConnection(stream)
