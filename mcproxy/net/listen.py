"""A listening socket and its connections.

A new connection is counted, its PROXY header is read if one is required, its TLS handshake is made, and only then it
gets a protocol. Each step before that is bounded by the handshake timeout, so a silent peer costs a socket and a timer
for that long.

What a reload changes (certificates, limits) is one frozen `ListenerSettings`; a connection keeps those it began with.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IProtocolFactory, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Bind, IPNetwork, Limits, TCPBind, UnixBind
from mcproxy.net.bind import SystemdSockets, open_socket
from mcproxy.net.certificates import CertificateStore, server_name
from mcproxy.net.errors import tls_reason
from mcproxy.net.plain import PlainStream
from mcproxy.net.proxy_protocol import MAX_2, ProxyHeader, ProxyHeaderError, parse
from mcproxy.net.sockets import Address, address_of, tune
from mcproxy.net.stream import Stream
from mcproxy.net.tls import Handshake, TLSStream
from mcproxy.net.types import Reactor

log = Logger()

_ACCEPTS_PER_TURN = 64  # accept(2) calls in one turn of the reactor
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESUME_DELAY = 0.25  # seconds without accepting after one of these errors
_WARN_INTERVAL = 60.0  # seconds between two warnings of the same kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings of new connections. `certificates` None: no TLS. `proxy_protocol_from` None: no PROXY protocol; else a
    header is required from peers in these networks, and is a protocol error from others."""

    certificates: CertificateStore | None = None
    limits: Limits = field(default_factory=Limits)
    proxy_protocol_from: tuple[IPNetwork, ...] | None = None


@implementer(IReadDescriptor)
class Listener:
    """One listening socket. `factory.buildProtocol(address)` makes the protocol of each connection whose handshake is
    complete; None rejects the connection."""

    def __init__(
        self,
        reactor: Reactor,
        factory: IProtocolFactory,
        settings: ListenerSettings,
        bind: Bind,
        systemd: SystemdSockets | None = None,
    ) -> None:
        self.bind = bind
        self.settings = settings
        self._reactor = reactor
        self._factory = factory
        self._systemd = systemd
        self._socket: socket.socket | None = None
        self._pending: set[_PendingConnection] = set()
        self._streams: set[Stream] = set()
        self._resume_timer: Any = None
        self._warned_at: dict[str, float] = {}

    # -- lifecycle --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind and start accepting. Raises BindError."""
        self._socket = open_socket(self.bind, self._systemd)
        self._factory.doStart()
        self._reactor.addReader(self)

    def update(self, settings: ListenerSettings) -> None:
        """Use these settings for new connections; the socket and established connections stay."""
        self.settings = settings

    def stop_accepting(self) -> None:
        """Close the socket and remove the file of a unix socket; connections stay."""
        sock, self._socket = self._socket, None
        if sock is None:
            return
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        else:
            self._reactor.removeReader(self)
        path = sock.getsockname() if isinstance(self.bind, UnixBind) else None
        sock.close()
        if path:
            try:
                os.unlink(path)
            except OSError:
                pass  # removed or replaced by somebody else
        self._factory.doStop()

    @property
    def accepting(self) -> bool:
        return self._socket is not None

    @property
    def address(self) -> TCPBind | UnixBind:
        """The address it listens on, with the port that the system chose for 0; only while it accepts."""
        if self._socket is None:
            raise ValueError("the listener is not open")
        name = self._socket.getsockname()
        return UnixBind(name) if self._socket.family == socket.AF_UNIX else TCPBind(name[0], name[1])

    # -- connections -----------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Open connections, those in their handshake included."""
        return len(self._streams) + len(self._pending)

    def __iter__(self) -> Iterator[Stream]:
        """The connections that have a protocol (a copy: the set may change meanwhile)."""
        return iter(tuple(self._streams))

    def drop_pending(self) -> None:
        """Close the connections without a protocol (at the end of a drain)."""
        for pending in tuple(self._pending):
            pending.drop()

    def no_longer_pending(self, pending: _PendingConnection) -> None:
        """The pending connection has become a stream, or is closed."""
        self._pending.discard(pending)

    def stream_closed(self, stream: Stream) -> None:
        """Called by a stream of this listener, once, when its socket is closed."""
        self._streams.discard(stream)

    def connect(self, stream: Stream) -> None:
        """Connect a stream whose handshake is complete to its protocol."""
        self._streams.add(stream)
        try:
            protocol = self._factory.buildProtocol(stream.getPeer())
        except Exception:
            log.failure("no protocol could be made for a connection on {bind}; it is closed", bind=str(self.bind))
            protocol = None
        if protocol is None:
            stream.abortConnection()
        else:
            stream.attach(protocol)

    # -- accepting -------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return "net"

    def connectionLost(self, reason: Failure) -> None:
        """Called by the reactor when accepting itself raised, which the reactor has logged."""
        self.stop_accepting()

    def doRead(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._socket is None:
                return
            try:
                sock, name = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    self._pause_accepting(error)
                    return
                continue  # that connection failed before it was accepted: ECONNABORTED and others of accept(2)
            try:
                self._accept(sock, name)
            except Exception:  # one connection must not stop the listener
                log.failure("a new connection on {bind} failed; it is closed", bind=str(self.bind))
                sock.close()

    def _accept(self, sock: socket.socket, name: Any) -> None:
        limit = self.settings.limits.connections
        if limit and self.connections >= limit:
            sock.close()
            self._warn(
                "limit",
                "{bind} has {limit} connections, its limit (limits.connections); more are closed",
                limit=limit,
            )
            return
        tune(sock)
        pending = _PendingConnection(self._reactor, self, sock, name, self.settings)
        self._pending.add(pending)
        pending.start()

    def _pause_accepting(self, error: OSError) -> None:
        """Out of descriptors or memory: the socket stays readable, so do not poll it for a moment."""
        self._reactor.removeReader(self)
        self._resume_timer = self._reactor.callLater(_RESUME_DELAY, self._resume_accepting)
        self._warn(
            "resources",
            "{bind} cannot accept: {cause}; raise LimitNOFILE or lower the load",
            cause=error.strerror,
        )

    def _resume_accepting(self) -> None:
        self._resume_timer = None
        if self._socket is not None:
            self._reactor.addReader(self)

    def _warn(self, about: str, text: str, **fields: Any) -> None:
        now = self._reactor.seconds()
        if now - self._warned_at.get(about, now - _WARN_INTERVAL) >= _WARN_INTERVAL:
            self._warned_at[about] = now
            log.warn(text, bind=str(self.bind), **fields)


@implementer(IReadDescriptor)
class _PendingConnection:
    """An accepted socket before it has a protocol: PROXY header, then TLS handshake."""

    def __init__(
        self, reactor: Reactor, listener: Listener, sock: socket.socket, name: Any, settings: ListenerSettings
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

    def start(self) -> None:
        networks = self._settings.proxy_protocol_from
        if networks is None or not self._peer_is_in(networks):
            self._start_tls()
            return
        timeout = self._settings.limits.handshake_timeout
        if timeout:
            self._timer = self._reactor.callLater(timeout, self._header_timed_out)
        self._reactor.addReader(self)

    def _peer_is_in(self, networks: tuple[IPNetwork, ...]) -> bool:
        if self._socket.family == socket.AF_UNIX:
            return False
        address = ip_address(self._name[0].partition("%")[0])
        return any(address in network for network in networks)

    def drop(self) -> None:
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
        """Peek at the received bytes, then read exactly the header: the rest is for TLS or HTTP."""
        try:
            seen = self._socket.recv(MAX_2 - len(self._header), socket.MSG_PEEK)
            if not seen:
                self._reject("the peer closed the connection")
                return
            header = parse(self._header + seen)
            self._socket.recv(len(seen) if header is None else header.size - len(self._header))
        except (BlockingIOError, InterruptedError):
            return
        except ProxyHeaderError as error:
            self._reject(str(error))
            return
        except OSError as error:
            self._reject(os.strerror(error.errno or 0))
            return
        if header is None:
            self._header += seen
        else:
            self._stop_reading()
            self._header = b""
            self._set_source(header)
            self._start_tls()

    def _set_source(self, header: ProxyHeader) -> None:
        if header.source is not None:
            address, port = header.source
            self._peer = (IPv4Address if address.version == 4 else IPv6Address)("TCP", str(address), port)

    def _header_timed_out(self) -> None:
        self._timer = None
        self._reject("no PROXY header came in time")

    def _stop_reading(self) -> None:
        self._reactor.removeReader(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connectionLost(self, reason: Failure) -> None:
        """Called by the reactor when the socket is dead."""
        self.drop()

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
            if error is None:
                self._tls_ready(connection)
            else:
                self._reject(tls_reason(error) if isinstance(error, SSL.Error) else str(error) or type(error).__name__)

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

    def _ready(self, stream: Stream) -> None:
        self._listener.no_longer_pending(self)
        self._listener.connect(stream)

    def _reject(self, why: str) -> None:
        """Close the connection; at debug level, since a peer can cause this at will."""
        peer = str(address_of(self._socket.family, self._name))
        log.debug(
            "{bind}: a connection of {peer} was refused: {cause}", bind=str(self._listener.bind), peer=peer, cause=why
        )
        self.drop()
