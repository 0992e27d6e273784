"""A connected stream socket as a Twisted transport: writing, back-pressure, half-close, orderly and abrupt close.

It replaces twisted.internet.tcp.Connection, which joins and copies written data, always waits for the reactor before
sending, and costs several KB per connection. Here a write goes directly to the socket if the queue is empty (one send
for a small response, no epoll_ctl). Large buffers are queued without a copy (`write_queue`). Every loop has a budget,
so that a fast connection cannot starve the others.

Small writes are coalesced until the end of the turn (`LeanEpollReactor.end_of_turn`). The writes of a turn to one
connection become one record, and the sends of all connections follow each other. This is faster, because a send that
has to wake an idle core costs several times as much as one that does not.

`SocketStream` is the state machine of a connection; its subclasses `PlainStream` and `TLSStream` move the bytes.

States of the writing side:  open -> (loseWriteConnection: flush) -> shut,
or of both:                  open -> (loseConnection: flush) -> shut -> linger -> closed.
States of the reading side:  open <-> paused -> ended (the peer closed its side).
When both sides have ended, the connection is closed; writeConnectionLost is called only while it still reads.
"""

from __future__ import annotations

import socket
import struct
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    IProtocol,
    IPushProducer,
    IReadWriteDescriptor,
    ITransport,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.net.alpn import shared
from mcproxy.net.failures import failure, is_aborted, is_done
from mcproxy.net.reactor_interface import Reactor
from mcproxy.net.socket_options import Address, address_of
from mcproxy.net.write_queue import RECORD, WriteQueue

log = Logger(__name__)

READ_BUDGET: Final = 256 * 1024  # bytes passed to the protocol in one reactor turn
WRITE_BUDGET: Final = 256 * 1024  # bytes sent in one write() or doWrite(); a 40 MB write without it blocks 116 ms
HIGH_WATER: Final = 64 * 1024  # queued bytes above which the producer is paused
FLUSH_STALL = 60.0  # seconds without progress of its queue after which a closing connection is aborted
LINGER = 3.0  # seconds to wait for the peer's end of data after ours


class Flushable(Protocol):
    """Collects output during a turn of the reactor."""

    def flush_coalesced(self) -> None:
        """Write the collected output."""


BLOCKED: Final = 0
BROKEN: Final = -1

_DONE = failure(ConnectionDone())


def _call_both(before: Callable[[SocketStream], None], call: Callable[[], None], stream: SocketStream) -> None:
    before(stream)
    call()


class SocketStream(metaclass=ABCMeta):
    """Base class of the transports for a connected, non-blocking socket. It is active after `attach`."""

    __slots__ = (
        "_at_end_of_turn",
        "_coalesced",
        "_ending",
        "_fd",
        "_name",
        "_on_close",
        "_paused",
        "_peer",
        "_producer",
        "_producer_paused",
        "_push",
        "_queue",
        "_read_ended",
        "_reading",
        "_timer",
        "_turn",
        "_turned",
        "_write_ended",
        "_write_failed",
        "_writing",
        "alpn",
        "connected",
        "disconnecting",
        "protocol",
        "reactor",
        "server_name",
        "socket",
    )

    is_tls = False
    server_name: str | None  # SNI of the client
    alpn: bytes | None  # the protocol negotiated by ALPN (RFC 7301), or that of a turned connection

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        name: Any,
        *,
        peer: Address | None = None,
        on_close: Callable[[SocketStream], None] | None = None,
    ) -> None:
        """`name` is the peer's address from accept(2) or connect(2); `peer` is an address to report instead (PROXY
        protocol). `on_close` is called once, when the socket is closed."""
        self.reactor = reactor
        self.socket = sock
        self._fd = sock.fileno()
        self._name = name
        self._peer = peer
        self._on_close = on_close
        self.server_name = None
        self.alpn = None
        self.protocol: IProtocol | None = None
        self.connected = False
        self.disconnecting = False
        self._queue: WriteQueue | None = None  # None if empty, because an empty queue costs 800 bytes
        self._turn: list[SocketStream] | None = getattr(reactor, "end_of_turn", None)
        self._coalesced = b""  # small writes of this turn of the reactor
        self._at_end_of_turn: Flushable | None = None
        self._producer: Any = None
        self._push = True
        self._producer_paused = False
        self._paused = False
        self._reading = False
        self._writing = False
        self._read_ended = False
        self._ending = False  # loseWriteConnection or loseConnection was called, so writes are ignored
        self._write_ended = False
        self._write_failed = False
        self._timer: Any = None
        self._turned = False

    def attach(self, protocol: IProtocol) -> None:
        """Connect the protocol and start reading. An exception of the protocol is logged and closes the connection."""
        self.protocol = protocol
        self.connected = True
        self._start_reading()
        try:
            protocol.makeConnection(self)
        except Exception:
            log.failure(
                "a protocol failed at the start of a connection; the connection is closed", event="internal_error"
            )
            self.abortConnection()

    def turn_roles(self, alpn: bytes) -> None:
        """Turn the roles of the two ends: `alpn` is the protocol of the next engine, and no name was asked for."""
        self.alpn = shared(alpn)
        self.server_name = None
        self._turned = True

    def call_when_closed(self, call: Callable[[], None]) -> None:
        """Call `call` when the socket is closed, after all earlier ones; at once if it is closed already."""
        before = self._on_close
        if self._fd < 0:
            call()
        elif before is None:
            self._on_close = lambda stream: call()
        else:
            self._on_close = partial(_call_both, before, call)

    # -- for subclasses --------------------------------------------------------------------------------------

    @abstractmethod
    def _send(self, data: bytes | memoryview) -> int:
        """Send a part of the data; return its size, BLOCKED, or BROKEN (after `_note_broken`)."""

    @abstractmethod
    def doRead(self) -> None:
        """Read until the socket is empty, the budget is spent or the protocol pauses."""

    @abstractmethod
    def _shut(self) -> bool:
        """Send the end of our data (FIN, close_notify); return False if the socket must become writable first."""

    def _release(self) -> None:
        """Release the resources of the subclass, before the socket is closed."""
        return

    # -- identity --------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "net"

    def getPeer(self) -> Address:
        """The client's address: from the PROXY header, or else the socket's."""
        return self._peer or self.direct_peer

    @property
    def direct_peer(self) -> Address:
        """The peer's address of the socket, without regard to a PROXY header."""
        return address_of(self.socket.family, self._name)

    def getHost(self) -> Address:
        return address_of(self.socket.family, self.socket.getsockname())

    def peer_certificate(self) -> Any:
        """The peer's certificate (cryptography.x509.Certificate), unverified on the server side, or None."""
        return None

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Number of bytes queued for the socket."""
        return 0 if self._queue is None else self._queue.size

    @property
    def sent_from_queue(self) -> int:
        """Number of bytes sent since the queue was last empty, which shows whether a slow reader makes progress."""
        return 0 if self._queue is None else self._queue.sent

    def write(self, data: bytes) -> None:
        """Send data at once or at the end of the reactor's turn, or queue it. Ignored while the writing side closes."""
        if self._ending or not data:
            return
        turn = self._turn
        if turn is None or self._queue is not None or len(data) > RECORD:
            self._write(data)
        elif not self._coalesced:
            self._coalesced = data
            turn.append(self)
        elif len(self._coalesced) + len(data) <= RECORD:
            self._coalesced += data
        else:
            self.flush_coalesced()
            self._write(data)

    def flush_coalesced(self) -> None:
        """Send the small writes of this turn of the reactor."""
        data, self._coalesced = self._coalesced, b""
        if data and self._fd >= 0:
            self._write(data)

    def flush_later(self, item: Flushable) -> None:
        """Call `item.flush_coalesced` once at the end of this turn of the reactor, before the written data is sent.

        This is for a protocol that collects output. It is not called after the connection is closed. A connection must
        always pass the same item. An exception is logged and closes the connection.
        """
        if self._at_end_of_turn is None and self._fd >= 0:
            self._at_end_of_turn = item
            if self._turn is None:
                self.reactor.callLater(0, self._end_turn_alone)
            else:
                self._turn.append(self)

    def end_turn(self) -> None:
        """Flush the protocol and send the small writes of this turn; the reactor calls this at the end of its turn."""
        item = self._at_end_of_turn
        if item is not None:
            self._at_end_of_turn = None
            item.flush_coalesced()
        data = self._coalesced
        if data:
            self._coalesced = b""
            if self._fd >= 0:
                self._write(data)

    def _end_turn_alone(self) -> None:
        try:
            self.end_turn()
        except Exception:
            log.failure("a protocol failed at the end of a turn; its connection is closed", event="internal_error")
            self.abortConnection()

    def _write(self, data: bytes) -> None:
        if self._coalesced:
            self.flush_coalesced()
        if self._queue is None:
            sent = self._send(data)
            if sent == len(data) or sent == BROKEN:
                return
            self._enqueue(data, sent)
            if sent:
                self._flush(WRITE_BUDGET - sent)
            if self.queued:  # _flush can have sent all
                self._start_writing()
        else:
            self._enqueue(data, 0)
        if self.queued > HIGH_WATER:
            self._pause_producer()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Send the pieces, in one record if their total size is small."""
        pieces = list(iovec)
        if sum(map(len, pieces)) <= RECORD:
            self.write(b"".join(pieces))
        else:
            for piece in pieces:
                self.write(piece)

    def _enqueue(self, data: bytes, sent: int) -> None:
        if self._queue is None:
            self._queue = WriteQueue()
        self._queue.append(data, sent)

    def _flush(self, budget: int) -> None:
        """Send from the queue until it is empty, the socket is full or the budget is spent."""
        while budget > 0 and (queue := self._queue) is not None:
            sent = self._send(queue.head())
            if sent <= 0:
                return
            budget -= sent
            queue.advance(sent)
            if not queue.size:
                self._queue = None

    def doWrite(self) -> None:
        """Send queued data when the socket is writable, or resume a pull producer."""
        if self._fd < 0:
            return
        before = self.queued
        self._flush(WRITE_BUDGET)
        if self._fd < 0 or self._write_failed:
            return
        if self._queue is not None:
            if self._queue.size < before and self.disconnecting and self._timer is not None:
                self._timer.reset(FLUSH_STALL)
            return
        if self._producer is not None and not self._push and not self._ending:
            self._producer.resumeProducing()  # a pull producer is called once per turn, so write interest stays on
            return
        self._stop_writing()
        if self._producer is not None and self._producer_paused:
            self._producer_paused = False
            self._producer.resumeProducing()
        self._drained()

    def _drained(self) -> None:
        """When the queue is empty, continue a requested close."""
        self.flush_coalesced()
        if self._ending and not self._write_ended and self._queue is None and self._fd >= 0:
            if not self._shut():
                self._start_writing()
                return
            self._write_side_ended()

    def _write_side_ended(self) -> None:
        self._write_ended = True
        self._stop_writing()
        if self._read_ended:
            self._close_soon(_DONE)
        elif self.disconnecting:
            self._linger()
        else:
            half = self._half_closeable()
            if half is not None:
                half.writeConnectionLost()

    def _half_closeable(self) -> IHalfCloseableProtocol | None:
        """Return the protocol if it handles the ends of both sides separately, else None."""
        return IHalfCloseableProtocol(self.protocol, None)

    def _note_broken(self, why: str) -> None:
        """Handle a failed send. Reading continues for a moment, because earlier data of the peer can be unread."""
        if self._write_failed:
            return
        log.debug("sending failed", event="connection_send_failed", cause=why)
        self._write_failed = self._ending = True
        self._coalesced = b""
        self._queue = None
        self._stop_writing()
        if self._paused or self._read_ended or self.disconnecting:
            self._close_soon(failure(ConnectionLost(why)))
        else:
            self._set_timer(LINGER, self._close, failure(ConnectionLost(why)))

    # -- producers -------------------------------------------------------------------------------------------

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause a push producer above HIGH_WATER, and resume it when all is sent; call a pull producer each turn."""
        if self._producer is not None:
            raise RuntimeError("a producer is already registered")
        if self._fd < 0 or self._write_failed:
            producer.stopProducing()
            return
        self._producer = producer
        self._push = bool(streaming)
        self._producer_paused = False
        if not streaming:
            self._start_writing()
        elif self.queued > HIGH_WATER:
            self._pause_producer()

    def unregisterProducer(self) -> None:
        self._producer = None
        self._producer_paused = False
        if self.disconnecting and not self._ending:
            self._ending = True
        if self._queue is None and self._fd >= 0:
            self._stop_writing()
            self._drained()

    def _pause_producer(self) -> None:
        if self._producer is not None and self._push and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    # -- reading ---------------------------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        self._paused = True
        if not self.disconnecting:
            self._stop_reading()

    def resumeProducing(self) -> None:
        self._paused = False
        if self.connected and not self._read_ended and not self.disconnecting:
            self._start_reading()

    def stopProducing(self) -> None:
        self.loseConnection()

    def _peer_ended(self, clean: bool) -> None:
        """Handle the end of the peer's data: by close_notify or FIN (`clean`), or in the middle of a TLS stream."""
        self._read_ended = True
        self._stop_reading()
        if not clean or self._write_failed:
            self._close(failure(ConnectionLost("the peer closed the connection without ending the stream")))
        elif self.disconnecting:
            if self._write_ended:
                self._close(_DONE)
        else:
            half = self._half_closeable()
            if half is None:
                if not self._write_ended:
                    self._shut()
                self._close(_DONE)
            else:
                half.readConnectionLost()
                if bool(self._write_ended):  # the protocol can have ended its side in this call; bool() resets mypy
                    self._close_soon(_DONE)

    # -- closing ---------------------------------------------------------------------------------------------

    def loseConnection(self) -> None:
        """Send the queue, then our end of data, wait briefly for the peer's end, and close. No more data is delivered.

        With a registered producer, closing starts when it is unregistered (Twisted's rule).
        """
        if self.disconnecting or not self.connected:
            return
        self.flush_coalesced()
        self.disconnecting = True
        if self._write_failed:
            self._close_soon(failure(ConnectionLost("sending failed")))
            return
        if self._producer is None:
            self._ending = True
        self._stop_reading()
        if self._write_ended:
            self._write_side_ended()
            return
        self._set_timer(FLUSH_STALL, self._close, failure(ConnectionAborted("the peer does not read")))
        if self._ending and self._queue is None:
            self._drained()

    def loseWriteConnection(self) -> None:
        """Half-close: send the queue, then close_notify (TLS) or FIN (plain). Reading continues."""
        if self._ending or not self.connected:
            return
        self.flush_coalesced()
        self._ending = True
        if self._queue is None:
            self._drained()

    def abortConnection(self) -> None:
        """Drop the queue and reset the connection; connectionLost(ConnectionAborted) follows in the next turn."""
        if self._fd < 0:
            return
        self._ending = self.disconnecting = self._paused = True
        self._coalesced = b""
        self._queue = None
        self._close_soon(failure(ConnectionAborted()))

    @property
    def idle_since(self) -> float | None:
        """The time since which the protocol is idle (reactor's clock); None if it is busy or this is unknown.

        It is unknown of a connection whose roles have turned, so that no listener closes it in favour of another one.
        """
        return None if self._turned else getattr(self.protocol, "idle_since", None)

    def close(self) -> None:
        """Close an idle connection at once: send our end of data unless the socket is full, and call connectionLost.

        A protocol can send final data in `before_close`.
        """
        if self._fd >= 0:
            before_close = getattr(self.protocol, "before_close", None)
            if before_close is not None:
                before_close()
            self.flush_coalesced()
            if self.connected and not self._write_ended:
                self._shut()
            self._close(_DONE)

    def _linger(self) -> None:
        """After our end of data is sent, read and discard data for a moment.

        If the peer still sends, the kernel would reset an immediately closed connection, and the peer could lose our
        last bytes.
        """
        self._set_timer(LINGER, self._close, _DONE)
        self._start_reading()

    def connectionLost(self, reason: Failure) -> None:
        """Handle a dead socket, or an exception of doRead or doWrite; the reactor calls this."""
        if is_done(reason) and not (self.disconnecting and self._write_ended):
            reason = failure(ConnectionLost("the connection was reset"))
        self._close(reason)

    def _close_soon(self, reason: Failure) -> None:
        """Close in the next turn, because connectionLost must not be called during a call by the protocol."""
        self._stop_reading()
        self._stop_writing()
        self._set_timer(0, self._close, reason)

    def _close(self, reason: Failure) -> None:
        if self._fd < 0:
            return
        self._stop_reading()
        self._stop_writing()
        self._cancel_timer()
        self._release()
        self._close_socket(abrupt=is_aborted(reason))
        self._fd = -1
        self.connected = False
        self._ending = self.disconnecting = True
        self._coalesced = b""
        self._at_end_of_turn = None
        self._queue = None
        producer, self._producer = self._producer, None
        protocol, self.protocol = self.protocol, None
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self)
        try:
            if producer is not None:
                producer.stopProducing()
        finally:
            if protocol is not None:
                protocol.connectionLost(reason)

    def _close_socket(self, abrupt: bool) -> None:
        try:
            if abrupt:  # linger of 0: the kernel sends RST
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.socket.close()

    # -- timers and the reactor ------------------------------------------------------------------------------

    def _set_timer(self, delay: float, call: Any, reason: Failure) -> None:
        self._cancel_timer()
        self._timer = self.reactor.callLater(delay, self._timed_out, call, reason)

    def _timed_out(self, call: Any, reason: Failure) -> None:
        self._timer = None
        call(reason)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_reading(self) -> None:
        if not self._reading and not self._read_ended and self._fd >= 0:
            self._reading = True
            self.reactor.addReader(self)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.reactor.removeReader(self)

    def _start_writing(self) -> None:
        if not self._writing and self._fd >= 0:
            self._writing = True
            self.reactor.addWriter(self)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self.reactor.removeWriter(self)


classImplements(SocketStream, ITransport, IPushProducer, IConsumer, IReadWriteDescriptor)
