"""Turns the roles of the two ends of a connection after the 101 of a tunnel: the server becomes the HTTP client."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IProtocol

from mcproxy.http.tunnel import TunnelSide
from mcproxy.net.socket_stream import SocketStream


class TurnedConnection:
    """A connection whose next engine is not attached yet; attach one at once, or abort it."""

    __slots__ = ("_early", "stream")

    def __init__(self, stream: SocketStream, early: bytes = b"") -> None:
        """`early`: bytes that the peer has sent after its request or response."""
        self.stream = stream
        self._early = early

    @classmethod
    def of(cls, side: TunnelSide) -> TurnedConnection | None:
        """Take the connection of a side of a tunnel; None if the peer has ended it already."""
        taken = side.take_transport()
        if taken is None:
            return None
        transport, early = taken
        assert isinstance(transport, SocketStream)
        return cls(transport, early)

    def attach(self, engine: IProtocol | Any, alpn: bytes) -> None:
        """Let `engine` speak `alpn` from now on."""
        stream = self.stream
        stream.turn_roles(alpn)
        stream.protocol = engine
        engine.makeConnection(stream)
        if self._early and stream.protocol is not None:
            stream.protocol.dataReceived(self._early)

    def abort(self) -> None:
        """Reset the connection."""
        self.stream.abortConnection()
