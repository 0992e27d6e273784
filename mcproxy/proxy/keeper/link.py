"""One end of the connection between a worker and the keeper: frames in both directions, with back-pressure.

The frames of one turn of the reactor are sent together at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from twisted.internet.interfaces import IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.net.plain_stream import PlainStream
from mcproxy.proxy.keeper.keeper_frames import FrameError, KeeperFrameReader, encode, encode_shared, header

log = Logger(__name__)

_LARGE = 32 * 1024  # bytes from which a frame is written separately instead of joined with others


@implementer(IProtocol, IPushProducer)
class Link(ABC):
    """One end of the connection. `blocked`: the peer does not read; `lost`: the connection has ended."""

    def __init__(self) -> None:
        self._reader = KeeperFrameReader()
        self._out: list[bytes] = []
        self._shared: bytes | None = None  # the data for the streams below
        self._sharing: list[int] = []
        self.transport: PlainStream
        self.blocked = False
        self.lost = False

    @abstractmethod
    def frame(self, kind: int, stream: int, payload: bytes) -> None:
        """Handle an arrived frame. Raises FrameError if the peer must not send it."""

    @abstractmethod
    def batch_ended(self) -> None:
        """All arrived frames were handled; more can follow later."""

    @abstractmethod
    def unblocked(self) -> None:
        """The peer reads again."""

    @abstractmethod
    def ended(self) -> None:
        """The connection has ended; called once."""

    def close(self) -> None:
        """Send the queued data, and end the connection."""
        if not self.lost:
            self.flush_coalesced()
            self.transport.unregisterProducer()  # a transport with a producer would not close
            self.transport.loseConnection()

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Send a frame at the end of this reactor turn, or queue it. After the end of the connection, do nothing."""
        if len(payload) >= _LARGE:
            self.send_pieces(kind, stream, (payload,), len(payload))
            return
        if self._shared is not None:
            self._end_shared()
        self._put(encode(kind, stream, payload))

    def send_pieces(self, kind: int, stream: int, pieces: Sequence[bytes], size: int) -> None:
        """Send a frame whose payload is the concatenation of `pieces` (`size` bytes); they are copied once."""
        if self._shared is not None:
            self._end_shared()
        frame = b"".join((header(kind, stream, size), *pieces))
        if size < _LARGE:
            self._put(frame)
        elif not self.lost:
            self.flush_coalesced()
            self.transport.write(frame)

    def send_shared(self, stream: int, data: bytes) -> None:
        """Send bytes to a stream; consecutive calls with the same object make one frame."""
        if self._shared is not data:
            self._end_shared()
            self._shared = data
            if not self._out and not self.lost:
                self.transport.flush_later(self)
        self._sharing.append(stream)

    def _end_shared(self) -> None:
        data, self._shared = self._shared, None
        if data is not None:
            streams, self._sharing = self._sharing, []
            self._put(encode_shared(streams, data))

    def _put(self, frame: bytes) -> None:
        if self.lost:
            return
        if not self._out:
            self.transport.flush_later(self)
        self._out.append(frame)

    def flush_coalesced(self) -> None:
        """Write the collected frames (`Transport.flush_later`)."""
        self._end_shared()
        out, self._out = self._out, []
        if out and not self.lost:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    # -- the transport ------------------------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        try:
            for kind, stream, payload in self._reader.feed(data):
                self.frame(kind, stream, payload)
        except FrameError as error:
            log.error(
                "the connection between a worker and the keeper was closed",
                event="keeper_link_broken",
                cause=str(error),
                todo="please report it; if the program was replaced while it ran: mcproxy upgrade",
            )
            self.transport.abortConnection()
        self.batch_ended()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = True
        self._out, self._sharing, self._shared = [], [], None
        self.ended()

    def pauseProducing(self) -> None:
        self.blocked = True

    def resumeProducing(self) -> None:
        self.blocked = False
        self.unblocked()

    def stopProducing(self) -> None:  # noqa: B027
        """The transport is closed; connectionLost does the rest."""
