"""A byte tunnel between two connections after 101: what one side sends the other gets, half-close and pace included.

Each connection hands its half of the work to a `TunnelSide`; two sides that know each other are the tunnel. Either may
get bytes before the other exists (they came in the same read as the 101), so a side holds what is early.
"""

from __future__ import annotations

from typing import Protocol

from mcproxy.http.transport import Transport


class TunnelEnd(Protocol):
    """The connection behind a side."""

    transport: Transport

    def tunnel_over(self) -> None:
        """The tunnel no longer needs this connection; it is closing or gone."""


class TunnelSide:
    """One connection's half of a tunnel. States: open -> (eof in, eof out, in either order) -> lost."""

    __slots__ = ("_early", "_end", "_peer", "bytes_received", "eof_received", "eof_sent", "lost")

    def __init__(self, end: TunnelEnd) -> None:
        self._end = end
        self._peer: TunnelSide | None = None
        self._early: list[bytes] = []
        self.bytes_received = 0
        self.eof_received = False
        self.eof_sent = False
        self.lost = False

    def join(self, peer: TunnelSide) -> None:
        """Make one tunnel of two sides and deliver what came early."""
        self._peer, peer._peer = peer, self
        for side in (self, peer):
            early, side._early = side._early, []
            if early:  # before they are passed on, which may stop this side again
                side._end.transport.resumeProducing()
            for data in early:
                side._forward(data)
        for side in (self, peer):
            if side.lost:
                side._peer_of().close(clean=False)
            elif side.eof_received:
                side._peer_of()._finish_sending()

    def _peer_of(self) -> TunnelSide:
        assert self._peer is not None
        return self._peer

    @property
    def bytes_sent(self) -> int:
        """Bytes that the other side got for this one."""
        return self._peer.bytes_received if self._peer is not None else 0

    def received(self, data: bytes) -> None:
        """The connection got bytes."""
        self.bytes_received += len(data)
        if self._peer is None:
            self._early.append(data)
            self._end.transport.pauseProducing()
        else:
            self._forward(data)

    def _forward(self, data: bytes) -> None:
        peer = self._peer_of()
        if not peer.lost and not peer.eof_sent:
            peer._end.transport.write(data)

    def eof(self) -> None:
        """The connection's peer will send no more, but may read."""
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
            self._end.transport.unregisterProducer()  # a transport that has one waits for more
            self._end.transport.loseWriteConnection()

    def connection_lost(self, clean: bool) -> None:
        """The connection is gone; `clean` tells an orderly end from one that was broken off."""
        if self.lost:
            return
        self.lost = True
        if self._peer is not None and not self._peer.lost:
            self._peer.close(clean)
        self._end.tunnel_over()

    def close(self, clean: bool) -> None:
        """End this side: after what was written has gone out, or at once."""
        if self.lost:
            return
        if clean:
            self.eof_sent = True
            self._end.transport.unregisterProducer()
            self._end.transport.loseConnection()
        else:
            self._end.transport.abortConnection()

    def pause(self) -> None:
        """This connection's send buffer is full: the other side stops reading."""
        if self._peer is not None and not self._peer.lost:
            self._peer._end.transport.pauseProducing()

    def resume(self) -> None:
        if self._peer is not None and not self._peer.lost:
            self._peer._end.transport.resumeProducing()
