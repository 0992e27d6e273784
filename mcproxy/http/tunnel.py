"""A byte tunnel between two connections after 101, with half-close and back-pressure in both directions.

Each connection delegates to a `TunnelSide`; two spliced sides form the tunnel. A side can receive bytes before it is
spliced (in the same read as the 101), so it buffers early data.
"""

from __future__ import annotations

from typing import Protocol

from mcproxy.http.transport import Transport


class TunnelEnd(Protocol):
    """The connection of a tunnel side."""

    transport: Transport

    def tunnel_ended(self) -> None:
        """Called when this side of the tunnel has ended; the connection is closing or closed."""

    def transport_taken(self) -> None:
        """Called when another engine takes the transport (`TunnelSide.take_transport`)."""


class TunnelSide:
    """One connection's half of a tunnel. States: open -> (eof in, eof out, in either order) -> lost."""

    __slots__ = ("_connection", "_early", "_peer", "_taken", "bytes_received", "eof_received", "eof_sent", "lost")

    def __init__(self, end: TunnelEnd) -> None:
        self._connection = end
        self._peer: TunnelSide | None = None
        self._early: list[bytes] = []
        self._taken = False  # another engine has the transport
        self.bytes_received = 0
        self.eof_received = False
        self.eof_sent = False
        self.lost = False

    def splice(self, peer: TunnelSide) -> None:
        """Make one tunnel of two sides and deliver early data."""
        self._peer, peer._peer = peer, self
        for side in (self, peer):
            early, side._early = side._early, []
            if early:  # resume first, because the delivery can pause this side again
                side._connection.transport.resumeProducing()
            for data in early:
                side._forward(data)
        for side in (self, peer):
            if side.lost:
                side._other().close(clean=False)
            elif side.eof_received:
                side._other()._finish_sending()

    def take_transport(self) -> tuple[Transport, bytes] | None:
        """Return the transport for another engine, instead of `splice`, with the bytes that have arrived early.

        The connection forgets the transport. Returns None if the peer has ended the connection already.
        """
        if self.lost or self.eof_received:
            self.close(clean=False)
            return None
        self._taken = True
        early, self._early = b"".join(self._early), []
        transport = self._connection.transport
        self._connection.transport_taken()
        if early:
            transport.resumeProducing()
        return transport, early

    def _other(self) -> TunnelSide:
        assert self._peer is not None
        return self._peer

    @property
    def bytes_sent(self) -> int:
        """Number of bytes sent on this connection, which the other side has received."""
        return self._peer.bytes_received if self._peer is not None else 0

    def received(self, data: bytes) -> None:
        """Pass bytes that the connection has received on to the other side."""
        self.bytes_received += len(data)
        if self._taken:  # the rest of the read in which the request came
            engine = self._connection.transport.protocol
            if engine is not None:
                engine.dataReceived(data)
        elif self._peer is None:
            self._early.append(data)
            self._connection.transport.pauseProducing()
        else:
            self._forward(data)

    def _forward(self, data: bytes) -> None:
        self._other()._connection.transport.write(data)  # the transport ignores it if that side is closing

    def eof(self) -> None:
        """Half-close the other side, because this connection's peer sends no more, but can still read."""
        self.eof_received = True
        if self._peer is not None:
            self._peer._finish_sending()

    def _finish_sending(self) -> None:
        if self.lost or self.eof_sent:
            return
        self.eof_sent = True
        if self.eof_received:
            self.close(clean=True)
        else:
            self._connection.transport.unregisterProducer()  # otherwise the transport would wait for more data
            self._connection.transport.loseWriteConnection()

    def connection_lost(self, clean: bool) -> None:
        """Called when the connection is closed; `clean` is False if it was reset or truncated."""
        if self.lost:
            return
        self.lost = True
        if self._peer is not None and not self._peer.lost:
            self._peer.close(clean)
        self._connection.tunnel_ended()

    def close(self, clean: bool) -> None:
        """Close this side, after all written data is sent (`clean`), or at once."""
        if self.lost:
            return
        if clean:
            self.eof_sent = True
            self._connection.transport.unregisterProducer()
            self._connection.transport.loseConnection()
        else:
            self._connection.transport.abortConnection()

    def pause(self) -> None:
        """Stop reading on the other side, because this connection's send buffer is full."""
        if self._peer is not None and not self._peer.lost:
            self._peer._connection.transport.pauseProducing()

    def resume(self) -> None:
        if self._peer is not None and not self._peer.lost:
            self._peer._connection.transport.resumeProducing()
