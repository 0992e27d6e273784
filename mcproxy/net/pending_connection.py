"""Handles an accepted socket until it gets its protocol: reads the PROXY header, then does the TLS handshake.

The handshake timeout limits each step, so that a silent peer costs a socket and a timer only for that time.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import IPNetwork, Limits
from mcproxy.net import handshake_errors
from mcproxy.net.certificate_store import CertificateStore, server_name
from mcproxy.net.client_table import UNIX, UNKNOWN, client_of
from mcproxy.net.connect_errors import tls_reason
from mcproxy.net.plain_stream import PlainStream
from mcproxy.net.proxy_protocol import MAX_2, ProxyHeader, ProxyHeaderError, parse
from mcproxy.net.reactor_interface import Reactor
from mcproxy.net.socket_options import Address, address_of
from mcproxy.net.socket_stream import SocketStream
from mcproxy.net.tls_stream import Handshake, TLSStream
from mcproxy.net.trusted_proxies import is_trusted

# The settings of a listener that a reload can change: certificates, limits, the PROXY protocol.


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings of new connections.

    `certificates` None: no TLS. `proxy_protocol_from` None: no PROXY protocol. Otherwise peers in these networks must
    send a PROXY header, which is a protocol error from other peers.
    """

    name: str = ""
    certificates: CertificateStore | None = None
    limits: Limits = field(default_factory=Limits)
    proxy_protocol_from: tuple[IPNetwork, ...] | None = None


log = Logger(__name__)

_GONE = frozenset({"the peer closed the connection", "connection reset by peer", "broken pipe"})
"""Error texts of a handshake that mean that the peer has ended the connection silently."""


class PendingOwner(Protocol):
    """The listener of a pending connection (`listen.Listener`)."""

    counts: Counter[str]

    @property
    def name(self) -> str:
        """The name in the log."""
        ...

    def may_log(self, *kind: str | None) -> bool:
        """Return whether to write a line of this kind."""
        ...

    def identified(self, pending: PendingConnection, client: str) -> bool:
        """After reading the PROXY header, count the connection with its client; False if the limit closed it."""
        ...

    def connect(self, pending: PendingConnection, stream: SocketStream) -> None:
        """Connect the stream of a pending connection with a complete handshake to its protocol."""

    def no_longer_pending(self, pending: PendingConnection) -> None:
        """Remove a pending connection, which is closed."""

    def stream_closed(self, stream: SocketStream) -> None:
        """Remove a stream, whose socket is closed."""


@implementer(IReadDescriptor)
class PendingConnection:
    """An accepted socket that has no protocol yet."""

    def __init__(
        self, reactor: Reactor, listener: PendingOwner, sock: socket.socket, name: Any, settings: ListenerSettings
    ) -> None:
        self._reactor = reactor
        self._listener = listener
        self._socket = sock
        self._name = name
        self._settings = settings
        self._header = b""
        self._peer: Address | None = None
        self._timer: Any = None
        self._handshake: Handshake | None = None
        self.idle_since: float | None = reactor.seconds()
        networks = settings.proxy_protocol_from
        self._has_header = networks is not None and sock.family != socket.AF_UNIX and is_trusted(name[0], networks)
        self.client = UNKNOWN if self._has_header else client_of(address_of(sock.family, name))

    def start(self) -> None:
        if not self._has_header:
            self._start_tls()
            return
        timeout = self._settings.limits.handshake_timeout
        if timeout:
            self._timer = self._reactor.callLater(timeout, self._header_timed_out)
        self._reactor.addReader(self)

    def close(self) -> None:
        """Close the socket."""
        self._stop_reading()
        if self._handshake is not None:
            self._handshake.stop()
            self._handshake = None
        self._socket.close()
        self._listener.no_longer_pending(self)

    # -- PROXY header ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "net"

    def doRead(self) -> None:
        """Peek at the received bytes, then read exactly the header. Later bytes are for TLS or HTTP."""
        try:
            seen = self._socket.recv(MAX_2 - len(self._header), socket.MSG_PEEK)
            if not seen:
                self._abandoned("the peer closed the connection")
                return
            header = parse(self._header + seen)
            self._socket.recv(len(seen) if header is None else header.size - len(self._header))
        except (BlockingIOError, InterruptedError):
            return
        except ProxyHeaderError as error:
            self._header_missing(str(error))
            return
        except OSError as error:
            self._abandoned(os.strerror(error.errno or 0).lower())
            return
        if header is None:
            self._header += seen
        else:
            self._stop_reading()
            self._header = b""
            self._set_source(header)
            if self._listener.identified(self, client_of(self._peer or address_of(self._socket.family, self._name))):
                self._start_tls()

    def _set_source(self, header: ProxyHeader) -> None:
        if header.source is not None:
            address, port = header.source
            self._peer = (IPv4Address if address.version == 4 else IPv6Address)("TCP", str(address), port)

    def _header_timed_out(self) -> None:
        self._timer = None
        self._header_missing("none came in time")

    def _stop_reading(self) -> None:
        self._reactor.removeReader(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connectionLost(self, reason: Failure) -> None:
        """Handle a dead socket; called by the reactor."""
        self.close()

    # -- TLS -------------------------------------------------------------------------------------------------

    def _start_tls(self) -> None:
        store = self._settings.certificates
        if store is None:
            self._ready(
                PlainStream(
                    self._reactor, self._socket, self._name, peer=self._peer, on_close=self._listener.stream_closed
                )
            )
            return
        connection = store.connection(self._socket)

        def finished(error: Exception | None) -> None:
            self._handshake = None
            if error is not None:
                self._handshake_failed(error)
            elif store.needs_alpn and not connection.get_alpn_proto_negotiated():
                _end_tls(connection)
                self._refuse_tls(
                    "the client has no ALPN, and the listener speaks HTTP/2 alone",
                    "let the client use HTTP/2, or add HTTP1 to protocols of the listener",
                )
            else:
                self._listener.counts["ok"] += 1
                self._tls_ready(connection)

        self._handshake = Handshake(
            self._reactor, self._socket, connection, self._settings.limits.handshake_timeout, finished
        )
        self._handshake.start()

    def _tls_ready(self, connection: SSL.Connection) -> None:
        self._ready(
            TLSStream(
                self._reactor,
                self._socket,
                self._name,
                connection,
                server_name=server_name(connection),
                peer=self._peer,
                on_close=self._listener.stream_closed,
            )
        )

    def _ready(self, stream: SocketStream) -> None:
        self._listener.connect(self, stream)

    # -- connections without a protocol ------------------------------------------------------------------------

    def _header_missing(self, cause: str) -> None:
        """Close the connection of a load balancer without a valid PROXY header."""
        self._listener.counts["proxy"] += 1
        if self._listener.may_log("header", cause, client_of(address_of(self._socket.family, self._name))):
            log.info(
                "a connection has no valid PROXY header",
                event="proxy_header_missing",
                listener=self._listener.name,
                client=self._peer_host(),
                cause=cause,
                log_subject=("PROXY header", self._listener.name, self._peer_host(), cause),
                todo="let the load balancer send one (send-proxy-v2), or take its address out of proxyProtocol.from",
            )
        self.close()

    def _handshake_failed(self, error: Exception) -> None:
        reason = tls_reason(error) if isinstance(error, SSL.Error) else str(error.args[0] if error.args else error)
        if reason in _GONE:  # a load balancer's check of the port, for example
            self._listener.counts["abandoned"] += 1
            self._abandoned(reason)
        else:
            self._refuse_tls(*handshake_errors.of_client(reason))

    def _refuse_tls(self, cause: str, todo: str) -> None:
        """Close the connection of a client after a failed handshake."""
        self._listener.counts["failed"] += 1
        if self._listener.may_log("TLS", cause, self.client):
            log.info(
                "the TLS handshake of a client failed",
                event="tls_handshake_failed",
                listener=self._listener.name,
                client=self._client_host(),
                cause=cause,
                todo=todo,
                log_subject=("TLS", self._listener.name, self.client, cause),
            )
        self.close()

    def _abandoned(self, cause: str) -> None:
        """Close a connection that the peer ended before its handshake was complete."""
        log.debug(
            "a connection ended before its first request",
            event="connection_abandoned",
            listener=self._listener.name,
            client=self._peer_host(),
            cause=cause,
        )
        self.close()

    def _client_host(self) -> str:
        """Return the known address of the client; "unix:" for a unix socket."""
        return self._peer_host() if self._peer is None else _host(self._peer)

    def _peer_host(self) -> str:
        return _host(address_of(self._socket.family, self._name))


def _host(address: Address) -> str:
    return str(getattr(address, "host", UNIX))


def _end_tls(connection: SSL.Connection) -> None:
    """Send close_notify, unless the socket is full."""
    with contextlib.suppress(SSL.Error):
        connection.shutdown()
