"""A listening socket and the connections that came in by it.

Accepting a connection: count it, read its PROXY header where one is required, make its TLS handshake, and only then
build a protocol for it. Each step before that is under the handshake timeout, so a peer that says nothing costs a
socket and a timer for that long.

What changes in a reload (certificates, limits) is one frozen `ListenerSettings`; a connection keeps what it began with.
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

_ACCEPTS = 64  # connections taken in one turn
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RECOVERY = 0.25  # seconds without accepting after one of those
_QUIET = 60.0  # seconds between two log lines about the same trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """What applies to the next connections. `certificates` None: plain. `proxy_protocol_from` None: no PROXY protocol;
    else a header is required from peers in these networks and refused (as garbage) from others."""

    certificates: CertificateStore | None = None
    limits: Limits = field(default_factory=Limits)
    proxy_protocol_from: tuple[IPNetwork, ...] | None = None


@implementer(IReadDescriptor)
class Listener:
    """One bound socket. `factory.buildProtocol(address)` is asked for a protocol for each connection that is ready;
    None refuses the connection."""

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
        self._arrivals: set[_Arrival] = set()
        self._streams: set[Stream] = set()
        self._recovery: Any = None
        self._complained: dict[str, float] = {}

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind and begin to accept; raise BindError."""
        self._socket = open_socket(self.bind, self._systemd)
        self._factory.doStart()
        self._reactor.addReader(self)

    def update(self, settings: ListenerSettings) -> None:
        """Use these settings for the next connections; the socket and the connections that are up stay."""
        self.settings = settings

    def stop_accepting(self) -> None:
        """Close the socket; connections go on. A unix socket's file is removed."""
        sock, self._socket = self._socket, None
        if sock is None:
            return
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        else:
            self._reactor.removeReader(self)
        path = sock.getsockname() if isinstance(self.bind, UnixBind) else None
        sock.close()
        if path:
            try:
                os.unlink(path)
            except OSError:
                pass  # somebody removed or replaced it
        self._factory.doStop()

    @property
    def accepting(self) -> bool:
        return self._socket is not None

    @property
    def address(self) -> TCPBind | UnixBind:
        """Where it listens: with the port that the system chose for 0. Only while it accepts."""
        if self._socket is None:
            raise ValueError("the listener is not open")
        name = self._socket.getsockname()
        return UnixBind(name) if self._socket.family == socket.AF_UNIX else TCPBind(name[0], name[1])

    # -- connections -----------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Open connections, those in their handshake included."""
        return len(self._streams) + len(self._arrivals)

    def __iter__(self) -> Iterator[Stream]:
        """The connections that have a protocol (a copy: it may be changed meanwhile)."""
        return iter(tuple(self._streams))

    def drop_arrivals(self) -> None:
        """Close the connections that have no protocol yet (at the end of a drain)."""
        for arrival in tuple(self._arrivals):
            arrival.drop()

    def arrived(self, arrival: _Arrival) -> None:
        """An arrival is over: it is a stream, or closed."""
        self._arrivals.discard(arrival)

    def closed(self, stream: Stream) -> None:
        """See `types.Owner`."""
        self._streams.discard(stream)

    def connect(self, stream: Stream) -> None:
        """Give a stream that is ready its protocol."""
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
        """Called by the reactor: accepting itself raised. The reactor has logged it."""
        self.stop_accepting()

    def doRead(self) -> None:
        for _ in range(_ACCEPTS):
            if self._socket is None:
                return
            try:
                sock, name = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    self._wait_for_resources(error)
                    return
                continue  # that one went before it was taken: ECONNABORTED and others of accept(2)
            try:
                self._take(sock, name)
            except Exception:  # one connection must not cost the listener
                log.failure("a new connection on {bind} failed; it is closed", bind=str(self.bind))
                sock.close()

    def _take(self, sock: socket.socket, name: Any) -> None:
        limit = self.settings.limits.connections
        if limit and self.connections >= limit:
            sock.close()
            self._complain(
                "limit",
                "{bind} has {limit} connections, its limit (limits.connections); more are closed",
                limit=limit,
            )
            return
        tune(sock)
        arrival = _Arrival(self._reactor, self, sock, name, self.settings)
        self._arrivals.add(arrival)
        arrival.start()

    def _wait_for_resources(self, error: OSError) -> None:
        """Out of descriptors or memory: the socket stays readable, so look away for a moment instead of spinning."""
        self._reactor.removeReader(self)
        self._recovery = self._reactor.callLater(_RECOVERY, self._recover)
        self._complain(
            "resources",
            "{bind} cannot accept: {cause}; raise LimitNOFILE or lower the load",
            cause=error.strerror,
        )

    def _recover(self) -> None:
        self._recovery = None
        if self._socket is not None:
            self._reactor.addReader(self)

    def _complain(self, about: str, text: str, **fields: Any) -> None:
        now = self._reactor.seconds()
        if now - self._complained.get(about, now - _QUIET) >= _QUIET:
            self._complained[about] = now
            log.warn(text, bind=str(self.bind), **fields)


@implementer(IReadDescriptor)
class _Arrival:
    """An accepted socket on its way to a protocol: PROXY header, then handshake."""

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
        if networks is None or not self._is_within(networks):
            self._secure()
            return
        timeout = self._settings.limits.handshake_timeout
        if timeout:
            self._timer = self._reactor.callLater(timeout, self._header_timed_out)
        self._reactor.addReader(self)

    def _is_within(self, networks: tuple[IPNetwork, ...]) -> bool:
        if self._socket.family == socket.AF_UNIX:
            return False
        address = ip_address(self._name[0].partition("%")[0])
        return any(address in network for network in networks)

    def drop(self) -> None:
        """Close the socket and forget the arrival."""
        self._stop_reading()
        if self._handshake is not None:
            self._handshake.stop()
            self._handshake = None
        self._socket.close()
        self._listener.arrived(self)

    # -- PROXY header ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "net"

    def doRead(self) -> None:
        """Look at what is there without taking it, then take exactly the header: the rest is for TLS or HTTP."""
        try:
            seen = self._socket.recv(MAX_2 - len(self._header), socket.MSG_PEEK)
            if not seen:
                self._refuse("the peer closed the connection")
                return
            header = parse(self._header + seen)
            self._socket.recv(len(seen) if header is None else header.size - len(self._header))
        except (BlockingIOError, InterruptedError):
            return
        except ProxyHeaderError as error:
            self._refuse(str(error))
            return
        except OSError as error:
            self._refuse(os.strerror(error.errno or 0))
            return
        if header is None:
            self._header += seen
        else:
            self._stop_reading()
            self._header = b""
            self._take_source(header)
            self._secure()

    def _take_source(self, header: ProxyHeader) -> None:
        if header.source is not None:
            address, port = header.source
            self._peer = (IPv4Address if address.version == 4 else IPv6Address)("TCP", str(address), port)

    def _header_timed_out(self) -> None:
        self._timer = None
        self._refuse("no PROXY header came in time")

    def _stop_reading(self) -> None:
        self._reactor.removeReader(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connectionLost(self, reason: Failure) -> None:
        """Called by the reactor when the socket is dead."""
        self.drop()

    # -- TLS -------------------------------------------------------------------------------------------------

    def _secure(self) -> None:
        store = self._settings.certificates
        if store is None:
            self._ready(PlainStream(self._reactor, self._socket, self._name, peer=self._peer, owner=self._listener))
            return
        connection = store.connection(self._socket)

        def finished(error: Exception | None) -> None:
            self._handshake = None
            if error is None:
                self._secured(connection)
            else:
                self._refuse(tls_reason(error) if isinstance(error, SSL.Error) else str(error) or type(error).__name__)

        self._handshake = Handshake(
            self._reactor, self._socket, connection, self._settings.limits.handshake_timeout, finished
        )
        self._handshake.start()

    def _secured(self, connection: SSL.Connection) -> None:
        self._ready(
            TLSStream(
                self._reactor,
                self._socket,
                self._name,
                connection,
                server_name=server_name(connection),
                peer=self._peer,
                owner=self._listener,
            )
        )

    def _ready(self, stream: Stream) -> None:
        self._listener.arrived(self)
        self._listener.connect(stream)

    def _refuse(self, why: str) -> None:
        """A peer can cause this at will, so it is a debug line."""
        peer = str(address_of(self._socket.family, self._name))
        log.debug(
            "{bind}: a connection of {peer} was refused: {cause}", bind=str(self._listener.bind), peer=peer, cause=why
        )
        self.drop()
