"""A listening socket and its connections.

A new connection is counted by its client, its PROXY header is read if one is required, its TLS handshake is made (see
`pending_connection`), and only then it gets a protocol. At the limits an idle connection makes room for a new one.

Settings that a reload may change (certificates, limits) are one frozen `ListenerSettings`; a connection keeps its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.internet.interfaces import IProtocol, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Bind, IPNetwork, Limits, SystemdBind, TCPBind, UnixBind
from mcproxy.net.bind import BACKLOG, BindError, SystemdSockets, open_socket, set_permissions
from mcproxy.net.certificates import CertificateStore
from mcproxy.net.client_table import UNIX, UNKNOWN, ClientTable, client_of
from mcproxy.net.pending_connection import PendingConnection
from mcproxy.net.sockets import tune
from mcproxy.net.stream import Stream
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


class ProtocolFactory(Protocol):
    """Makes the protocols of a listener's connections."""

    def build(self, transport: Any) -> IProtocol | None:
        """Return the protocol for a connection whose handshake is complete; None closes the connection."""


@implementer(IReadDescriptor)
class Listener:
    """One listening socket; `factory` makes the protocol of each connection."""

    def __init__(
        self,
        reactor: Reactor,
        factory: ProtocolFactory,
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
        self._pending: set[PendingConnection] = set()
        self._streams: set[Stream] = set()
        self._clients: ClientTable[PendingConnection | Stream] = ClientTable()
        self._resume_timer: Any = None
        self._warned_at: dict[str, float] = {}

    # -- lifecycle --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind and start accepting. Raises BindError."""
        self.open()
        self.start_accepting()

    def open(self, *, replacing: Sequence[Listener] = ()) -> None:
        """Bind: clients that connect wait in the kernel's queue. Raises BindError.

        `replacing` are listeners on the same port that are about to stop; the new address may overlap with theirs.
        """
        overlapping = [other._socket for other in replacing if other._socket is not None]
        self._socket = open_socket(self.bind, self._systemd, overlapping=overlapping)

    def start_accepting(self) -> None:
        self._reactor.addReader(self)

    def update(self, settings: ListenerSettings) -> None:
        """Use these settings for new connections; the socket and established connections stay."""
        self.settings = settings

    def set_permissions(self, bind: UnixBind) -> None:
        """Change the mode and group of a unix socket. Raises BindError; nothing has changed then."""
        before = self.bind
        assert isinstance(before, UnixBind)
        try:
            set_permissions(bind)
        except BindError:
            with contextlib.suppress(BindError):
                set_permissions(before)
            raise
        self.bind = bind

    def accept_queued(self) -> None:
        """Accept the kernel's queued connections, which closing would reset; a socket of systemd stays open."""
        if isinstance(self.bind, SystemdBind):
            return
        for _ in range(BACKLOG // _ACCEPTS_PER_TURN + 1):
            self.doRead()

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
                pass  # removed or replaced by another process

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
        return len(self._clients)

    def __iter__(self) -> Iterator[Stream]:
        """The connections that have a protocol (a copy: the set may change meanwhile)."""
        return iter(tuple(self._streams))

    def drop_pending(self) -> None:
        """Close the connections without a protocol (at the end of a drain)."""
        for pending in tuple(self._pending):
            pending.close()

    def no_longer_pending(self, pending: PendingConnection) -> None:
        """The pending connection has become a stream, or is closed."""
        self._pending.remove(pending)
        self._clients.remove(pending.client, pending)

    def identified(self, pending: PendingConnection, client: str) -> bool:
        """The PROXY header was read: count the connection with its client; False if it was closed at the limit."""
        self._clients.remove(pending.client, pending)
        admitted = self._admit(client)
        pending.client = client
        self._clients.add(client, pending)
        if not admitted:
            pending.close()
        return admitted

    def stream_closed(self, stream: Stream) -> None:
        """Called by a stream of this listener, once, when its socket is closed."""
        self._streams.remove(stream)
        self._clients.remove(client_of(stream.getPeer()), stream)

    def connect(self, stream: Stream) -> None:
        """Connect a stream whose handshake is complete to its protocol."""
        self._streams.add(stream)
        self._clients.add(client_of(stream.getPeer()), stream)
        try:
            protocol = self._factory.build(stream)
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
        if limit and self.connections >= limit and not self._make_room(limit):
            sock.close()
            return
        tune(sock)
        pending = PendingConnection(self._reactor, self, sock, name, self.settings)
        if not self._admit(pending.client):
            sock.close()
            return
        self._pending.add(pending)
        self._clients.add(pending.client, pending)
        pending.start()

    def _make_room(self, limit: int) -> bool:
        """At the limit of all connections: close the longest idle one of the client with the most."""
        found = self._clients.longest_idle(self._reactor.seconds())
        if found is None:
            self._warn(
                "limit",
                "{bind} has {limit} connections, its limit (limits.connections), and none is idle; more are closed",
                limit=limit,
            )
            return False
        client, connection = found
        self._warn(
            "room",
            "{bind} has {limit} connections, its limit (limits.connections); idle ones make room for new ones",
            limit=limit,
            client_with_most=client,
        )
        connection.close()
        return True

    def _admit(self, client: str) -> bool:
        """Whether the client may have one more connection; at its limit, its longest idle one is closed for it."""
        limit = self.settings.limits.connections_per_client
        if not limit or client in (UNIX, UNKNOWN) or self._clients.count(client) < limit:
            return True
        idle = self._clients.longest_idle_of(client)
        self._warn(
            "client",
            "a client of {bind} has {limit} connections, its limit (limits.connectionsPerClient)",
            limit=limit,
            client=client,
        )
        if idle is None:
            return False
        idle.close()
        return True

    def _pause_accepting(self, error: OSError) -> None:
        """Out of descriptors or memory: the socket stays readable, so stop polling it for a moment."""
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
