"""The transport interface of the engines; `net` has the implementations (TCP, unix, TLS)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cryptography.x509 import Certificate
from twisted.internet.interfaces import IAddress, IProtocol, IPushProducer

from mcproxy.net.socket_stream import Flushable


class Transport(Protocol):
    """A connection with back-pressure in both directions.

    `readConnectionLost` of an IHalfCloseableProtocol is called when the peer has ended its side in an orderly way;
    `connectionLost` has a reason other than ConnectionDone if the connection was reset or truncated.
    """

    is_tls: bool
    server_name: str | None  # SNI of the client, lower case
    alpn: bytes | None  # b"h2", b"http/1.1", ...; None without TLS or without ALPN
    protocol: IProtocol | None  # the engine; None after the connection is closed

    @property
    def sent_from_queue(self) -> int:
        """Bytes sent since the send buffer is in use; the number grows while a slow peer reads any bytes."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; do nothing after loseConnection, loseWriteConnection, abortConnection or connectionLost."""

    def writeSequence(self, iovec: Iterable[bytes]) -> None: ...
    def flush_later(self, item: Flushable) -> None:
        """Call `item.flush_coalesced` once at the end of this reactor turn, unless the connection has ended."""

    def pauseProducing(self) -> None: ...
    def resumeProducing(self) -> None: ...
    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None: ...
    def unregisterProducer(self) -> None: ...
    def loseConnection(self) -> None: ...
    def loseWriteConnection(self) -> None: ...
    def abortConnection(self) -> None: ...
    def getPeer(self) -> IAddress: ...
    def getHost(self) -> IAddress: ...
    def peer_certificate(self) -> Certificate | None: ...
