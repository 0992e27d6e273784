"""TLS directly on the non-blocking socket, without Twisted's memory BIOs.

It is fast because `doRead` lets OpenSSL read the socket itself, and `write` (in SocketStream) sends at once. OpenSSL
handles one record (at most 16 KiB) at a time. So a read of that size leaves no decrypted data in OpenSSL, and unread
data stays in the socket, where the level-triggered reactor sees it. (OpenSSL's read-ahead, which reads several records
by one system call, cannot be enabled through pyOpenSSL, and the reactor would not know of the buffered data.)

On HTTP/2 connections all records of the socket are read in one call and passed on together, because many peers (Go)
send each frame as a separate record.

The handshake has its own selectable, `Handshake`, so that an established connection does not keep its state. On either
side, a protocol gets a connection only after the handshake.

An option of every context refuses renegotiation (`tls_contexts`). A FIN without close_notify is a truncated stream and
ends in ConnectionLost.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from cryptography import x509
from OpenSSL import SSL
from OpenSSL._util import ffi, lib
from twisted.internet.error import ConnectionAborted, ConnectionLost
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.net.alpn import H2, shared
from mcproxy.net.connect_errors import tls_reason
from mcproxy.net.failures import failure
from mcproxy.net.reactor_interface import Reactor
from mcproxy.net.socket_options import Address
from mcproxy.net.socket_stream import BLOCKED, BROKEN, READ_BUDGET, SocketStream
from mcproxy.net.write_queue import RECORD

log = Logger(__name__)

# pyOpenSSL's `recv` and `send` cost more than OpenSSL's work on a small record: a buffer of 16 KiB for each read, and
# SSL_get_error and three look-ups of callbacks after each success. So the two calls of the hot path use the binding
# itself. pyOpenSSL classifies failures (`_raise_ssl_error`). These names are private: tests/net/test_tls_stream.py
# fails if one of them is removed.
_ssl_read: Any = lib.SSL_read
_ssl_write: Any = lib.SSL_write
_ssl_error: Any = lib.SSL_get_error
_WANT_READ: int = lib.SSL_ERROR_WANT_READ
_clear_errors: Any = lib.ERR_clear_error  # SSL_get_error(3): the queue must be empty before each operation
_from_buffer: Any = ffi.from_buffer
#: Bytes that each record counts in READ_BUDGET when several are passed on together, because even a record of a single
#: byte costs system calls.
RECORD_COST: Final = 1024
# Data is copied out before any other call, so one buffer serves all connections of the reactor.
# It has space for a full record after a smaller one.
_read_buffer: Any = ffi.new("char[]", 2 * RECORD)
_read_view: Any = ffi.buffer(_read_buffer)


class TLSStream(SocketStream):
    """A stream over a `Connection` with a complete handshake.

    `first_read` is called once, after the first read, when a TLS 1.3 server has sent its session tickets.
    """

    __slots__ = ("_first_read", "_read_wants_write", "_ssl", "_tls", "_write_wants_read")

    is_tls = True

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        name: Any,
        tls: SSL.Connection,
        *,
        server_name: str | None,
        peer: Address | None = None,
        on_close: Callable[[SocketStream], None] | None = None,
        first_read: Callable[[SSL.Connection], None] | None = None,
    ) -> None:
        super().__init__(reactor, sock, name, peer=peer, on_close=on_close)
        self._tls: SSL.Connection | None = tls
        self._ssl: Any = tls._ssl  # argument of the binding's functions; lives as long as `_tls`
        self.server_name = server_name
        self.alpn = shared(tls.get_alpn_proto_negotiated())
        self._first_read = first_read
        self._read_wants_write = False
        self._write_wants_read = False

    def peer_certificate(self) -> x509.Certificate | None:
        return None if self._tls is None else self._tls.get_peer_certificate(as_cryptography=True)

    def peer_chain(self) -> list[x509.Certificate]:
        """The other certificates that the peer sent, unverified, for finding paths to an authority."""
        chain = None if self._tls is None else self._tls.get_peer_cert_chain(as_cryptography=True)
        leaf = self.peer_certificate()
        return [certificate for certificate in chain or () if certificate != leaf]

    # -- moving bytes ----------------------------------------------------------------------------------------

    def _send(self, data: bytes | memoryview) -> int:
        _clear_errors()
        sent: int = _ssl_write(self._ssl, data if type(data) is bytes else _from_buffer(data), len(data))
        if sent > 0:
            return sent
        tls: Any = self._tls
        try:
            tls._raise_ssl_error(tls._ssl, sent)
            return BLOCKED
        except SSL.WantWriteError:
            return BLOCKED
        except SSL.WantReadError:
            self._write_wants_read = True
            return BLOCKED
        except SSL.Error as error:
            self._note_broken(tls_reason(error))
            return BROKEN

    def doRead(self) -> None:
        budget = READ_BUDGET
        collects = self.alpn is H2
        held = 0  # bytes in the buffer that are not yet passed on
        try:
            while budget > 0 and self._reading and (ssl := self._ssl) is not None:
                _clear_errors()
                size: int = _ssl_read(ssl, _read_buffer + held if held else _read_buffer, RECORD)
                if size <= 0:
                    if _ssl_error(ssl, size) != _WANT_READ:
                        tls: Any = self._tls
                        tls._raise_ssl_error(ssl, size)
                    break
                held += size
                if collects and held < RECORD:
                    budget -= RECORD_COST
                    continue
                size, held = held, 0
                self._hand_on(size)
                if size < RECORD:
                    # A record that is not full is usually the last of a message, so that another read would be a
                    # useless system call. If there is more data, the reactor calls again.
                    break
                budget -= size
            if held:
                self._hand_on(held)
        except SSL.Error as error:
            if held:
                self._hand_on(held)
            if self._tls is not None:
                self._read_ended_by(error)
        if self._first_read is not None and self._tls is not None:
            first_read, self._first_read = self._first_read, None
            first_read(self._tls)
        if self._write_wants_read and self._fd >= 0:
            self._write_wants_read = False
            self._start_writing()

    def _hand_on(self, size: int) -> None:
        if not self.disconnecting and self.protocol is not None:
            self.protocol.dataReceived(_read_view[:size])

    def _read_ended_by(self, error: SSL.Error) -> None:
        """Handle a failed read (other than for an empty socket)."""
        if isinstance(error, SSL.WantWriteError):
            self._read_wants_write = True
            self._start_writing()
        elif isinstance(error, SSL.ZeroReturnError):
            self._peer_ended(clean=True)
        else:
            self._read_failed(error)

    def _read_failed(self, error: SSL.Error) -> None:
        if isinstance(error, SSL.SysCallError) and error.args[0] == -1:
            self._peer_ended(clean=False)
            return
        why = tls_reason(error)
        log.debug("a TLS connection ended in an error", event="connection_tls_failed", cause=why)
        self._write_ended = True  # after a fatal error, neither data nor close_notify may be sent
        self._close(failure(ConnectionLost(why)))

    def doWrite(self) -> None:
        if self._read_wants_write:
            self._read_wants_write = False
            if self._reading:
                self.doRead()
        super().doWrite()
        if self._write_wants_read:
            self._stop_writing()  # otherwise the reactor would call again at once, because the socket is writable

    def _shut(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.shutdown()
        except SSL.WantWriteError:
            return False
        except SSL.Error as error:
            log.debug("close_notify was not sent", event="connection_tls_failed", cause=tls_reason(error))
        return True

    def _release(self) -> None:
        self._tls = self._ssl = None
        self._first_read = None


class Handshake:
    """A TLS handshake in progress on a connected socket; calls `done(None)` or `done(error)` once.

    The error is an SSL.Error. It is ConnectionAborted after `timeout` seconds (None: no separate limit), or if the
    reactor finds the socket dead. The caller closes the socket.
    """

    __slots__ = ("_done", "_fd", "_reactor", "_reading", "_timer", "_tls", "_writing")

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        tls: SSL.Connection,
        timeout: float | None,
        done: Callable[[Exception | None], None],
    ) -> None:
        self._reactor = reactor
        self._fd = sock.fileno()
        self._tls = tls
        self._done = done
        self._writing = False
        self._timer = None
        if timeout:
            self._timer = reactor.callLater(timeout, self._timed_out)

    def start(self) -> None:
        """Start the handshake; a client sends the ClientHello."""
        self._reactor.addReader(self)
        self._step()

    def stop(self) -> None:
        """Stop the handshake without a call of `done`."""
        self._finish()

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "net"

    def doRead(self) -> None:
        self._step()

    def doWrite(self) -> None:
        self._step()

    def _step(self) -> None:
        if self._fd < 0:
            return
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            self._want_write(False)
        except SSL.WantWriteError:
            self._want_write(True)
        except Exception as error:
            self._finish()(error)
        else:
            self._finish()(None)

    def _want_write(self, want: bool) -> None:
        if want is not self._writing:
            self._writing = want
            if want:
                self._reactor.addWriter(self)
            else:
                self._reactor.removeWriter(self)

    def _timed_out(self) -> None:
        self._timer = None
        self._finish()(ConnectionAborted("the TLS handshake took too long"))

    def connectionLost(self, reason: Failure) -> None:
        """Handle a dead socket; called by the reactor."""
        if self._fd >= 0:
            self._finish()(ConnectionAborted("the peer closed the connection"))

    def _finish(self) -> Callable[[Exception | None], None]:
        if self._fd >= 0:
            self._reactor.removeReader(self)
            self._want_write(False)
            self._fd = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._done


classImplements(Handshake, IReadWriteDescriptor)
