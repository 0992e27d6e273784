"""A listening address and its connections.

A new connection is counted by its client. Then its PROXY header (if required) is read, and its TLS handshake is
completed (`pending_connection`). Then it gets a protocol. At a limit, an idle connection is closed to make room for a
new one.

The settings that a reload can change (certificates, limits) are a frozen `ListenerSettings`. A connection keeps its
settings.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from twisted.internet.interfaces import IProtocol, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Bind, SystemdBind, TCPBind, UnixBind
from mcproxy.log_once import LogOnce
from mcproxy.net.bind import BACKLOG, keep_port, set_permissions
from mcproxy.net.client_table import UNIX, UNKNOWN, ClientTable, client_of
from mcproxy.net.listening_sockets import ListeningSockets, LocalSockets
from mcproxy.net.pending_connection import ListenerSettings, PendingConnection
from mcproxy.net.reactor_interface import ListeningReactor
from mcproxy.net.socket_options import tune
from mcproxy.net.socket_stream import SocketStream

log = Logger(__name__)

_ACCEPTS_PER_TURN = 64  # limit of accept(2) calls per socket in a reactor iteration
_SHARED_ACCEPTS_PER_TURN = 1  # for sockets shared with other processes, so that a burst is spread over them
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESUME_DELAY = 0.25  # seconds without accepting connections after one of these errors


class ProtocolFactory(Protocol):
    """Makes the protocols of a listener's connections."""

    def build(self, transport: Any) -> IProtocol | None:
        """Return the protocol for a connection with a complete handshake; None closes the connection."""


@implementer(IReadDescriptor)
class _Acceptor:
    """A listening socket in the reactor."""

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self.sock = sock
        self._listener = listener

    def fileno(self) -> int:
        return self.sock.fileno()

    def logPrefix(self) -> str:
        return "net"

    def doRead(self) -> None:
        self._listener.accept_from(self.sock)

    def connectionLost(self, reason: Failure) -> None:
        """Handle an exception of accepting, which the reactor has logged."""
        self._listener.stop_accepting()


class Listener:
    """A listening address with one or several sockets. `factory` makes the protocol of each connection."""

    def __init__(
        self,
        reactor: ListeningReactor,
        factory: ProtocolFactory,
        settings: ListenerSettings,
        bind: Bind,
        sockets: ListeningSockets | None = None,
        clients: ClientTable[PendingConnection | SocketStream] | None = None,
    ) -> None:
        """`sockets` opens and closes the sockets; None: this process does. `clients` is an empty connection table, for
        limits over several processes."""
        self.bind = bind
        self.settings = settings
        self._reactor = reactor
        self._factory = factory
        self._origin = LocalSockets() if sockets is None else sockets
        self._sockets: list[socket.socket] = []
        self._acceptors: list[_Acceptor] = []
        self._shared = self._origin.is_shared(bind)
        self._pending: set[PendingConnection] = set()
        self._streams: dict[SocketStream, str] = {}  # the connections with a protocol, and whose they are counted as
        self._clients: ClientTable[PendingConnection | SocketStream] = ClientTable() if clients is None else clients
        self._resume_timer: Any = None
        self._once = LogOnce()
        self.counts: Counter[str] = Counter()
        """Counts since the opening: connections `accepted`; connections refused by a limit (`connections`,
        `connectionsPerClient`) or for their PROXY header (`proxy`); handshakes (`ok`, `failed`, `abandoned`)."""

    # -- lifecycle --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind and start accepting. Raises BindError."""
        self.open()
        self.start_accepting()

    def open(self, *, replacing: Sequence[Listener] = ()) -> None:
        """Bind without accepting, so that connections wait in the kernel's queue. Raises BindError.

        `replacing` are listeners on the same port that will stop soon. The new address can overlap with theirs.
        """
        overlapping = [sock for other in replacing for sock in other.sockets]
        self._sockets = self._origin.open(self.bind, overlapping=overlapping)

    def start_accepting(self) -> None:
        self._acceptors = [_Acceptor(self, sock) for sock in self._sockets]
        self._add_acceptors()

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets, which this listener still owns."""
        return tuple(self._sockets)

    def use(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from these sockets of the same address. Close the former ones: other processes accept their queues."""
        self.release()
        self._sockets = list(sockets)
        self.start_accepting()

    def update(self, settings: ListenerSettings) -> None:
        """Use these settings for new connections. The socket and established connections stay."""
        self.settings = settings

    def set_permissions(self, bind: UnixBind) -> None:
        """Change the mode and group of a unix socket. If it raises BindError, nothing has changed."""
        assert isinstance(self.bind, UnixBind)
        self._origin.set_permissions(self.bind, bind)
        self.bind = bind

    def restore(self) -> None:
        """Restore the socket settings that another process with the same sockets can have changed."""
        if isinstance(self.bind, UnixBind):
            set_permissions(self.bind)
        elif isinstance(self.bind, TCPBind) and len(self._sockets) == 1:
            keep_port(self._sockets[0])

    def accept_queued(self) -> None:
        """Accept the connections in the kernel's queue, which a close would reset. Sockets of systemd stay open."""
        if isinstance(self.bind, SystemdBind):
            return
        for sock in self.sockets:
            for _ in range(BACKLOG // _ACCEPTS_PER_TURN + 1):
                self.accept_from(sock, _ACCEPTS_PER_TURN)

    def stop_accepting(self) -> None:
        """Close the sockets and remove the file of a unix socket. Connections stay."""
        sockets = self._take_sockets()
        if sockets:
            self._origin.close(self.bind, sockets)

    def release(self) -> None:
        """Close this process's descriptors of the sockets, from which other processes continue to accept.

        Connections stay, including those in the kernel's queue, as does the file of a unix socket.
        """
        for sock in self._take_sockets():
            sock.close()

    def _take_sockets(self) -> Sequence[socket.socket]:
        """Stop polling the sockets and return them."""
        sockets, self._sockets = self._sockets, []
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        else:
            self._remove_acceptors()
        self._acceptors = []
        return sockets

    @property
    def name(self) -> str:
        """The listener's name in the log: its configured name, or else its address."""
        return self.settings.name or str(self.bind)

    @property
    def accepting(self) -> bool:
        return bool(self._sockets)

    @property
    def address(self) -> TCPBind | UnixBind:
        """The listening address, with the port that the system chose for 0. Valid only while the listener accepts."""
        if not self._sockets:
            raise ValueError("the listener is not open")
        sock = self._sockets[0]
        name = sock.getsockname()
        return UnixBind(name) if sock.family == socket.AF_UNIX else TCPBind(name[0], name[1])

    # -- connections -----------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """The number of open connections, including connections in their handshake."""
        return len(self._clients)

    @property
    def handshakes(self) -> int:
        """The number of connections whose PROXY header and TLS handshake are not complete."""
        return len(self._pending)

    def __iter__(self) -> Iterator[SocketStream]:
        """Iterate over a copy of the connections with a protocol, because the set can change meanwhile."""
        return iter(tuple(self._streams))

    def drop_pending(self) -> None:
        """Close connections without a protocol, at the end of a drain."""
        for pending in tuple(self._pending):
            pending.close()

    def no_longer_pending(self, pending: PendingConnection) -> None:
        """Remove a pending connection, which is closed."""
        self._pending.remove(pending)
        self._clients.remove(pending.client, pending)

    def identified(self, pending: PendingConnection, client: str) -> bool:
        """After reading the PROXY header, count the connection with its client; False if the limit closed it."""
        admitted = self._admit(client)
        self._clients.move(pending.client, pending, client, pending)
        pending.client = client
        if not admitted:
            pending.close()
        return admitted

    def stream_closed(self, stream: SocketStream) -> None:
        """Remove a stream; each stream calls this once, when its socket is closed."""
        self._clients.remove(self._streams.pop(stream), stream)

    def connect(self, pending: PendingConnection, stream: SocketStream) -> None:
        """Connect the stream of a pending connection with a complete handshake to its protocol."""
        self._pending.remove(pending)
        client = self._streams[stream] = client_of(stream.getPeer())
        self._clients.move(pending.client, pending, client, stream)
        try:
            protocol = self._factory.build(stream)
        except Exception:
            log.failure(
                "creating the protocol of a connection failed; it is closed",
                event="internal_error",
                listener=self.name,
            )
            protocol = None
        if protocol is None:
            stream.abortConnection()
        else:
            stream.attach(protocol)

    def exempt(self, stream: Any) -> None:
        """Count a connection no longer as one of its client: that of a tunnel, since sites can share an address."""
        client = self._streams.get(stream)
        if client is not None:
            self._clients.move(client, stream, UNKNOWN, stream)
            self._streams[stream] = UNKNOWN

    # -- accepting -------------------------------------------------------------------------------------------

    def _add_acceptors(self) -> None:
        for acceptor in self._acceptors:
            if self._shared:
                self._reactor.addExclusiveReader(acceptor)
            else:
                self._reactor.addReader(acceptor)

    def _remove_acceptors(self) -> None:
        for acceptor in self._acceptors:
            self._reactor.removeReader(acceptor)

    def accept_from(self, listening: socket.socket, most: int | None = None) -> None:
        """Accept at most `most` queued connections of a socket (None: the maximum of an iteration)."""
        if most is None:
            most = _SHARED_ACCEPTS_PER_TURN if self._shared else _ACCEPTS_PER_TURN
        for _ in range(most):
            if not self._sockets:
                return
            try:
                sock, name = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    self._pause_accepting(error)
                    return
                continue  # the connection failed before it was accepted: ECONNABORTED and others of accept(2)
            try:
                self._accept(sock, name)
            except Exception:  # an error of one connection must not stop the listener
                log.failure("a new connection failed; it is closed", event="internal_error", listener=self.name)
                self._clients.not_added()
                sock.close()

    def _accept(self, sock: socket.socket, name: Any) -> None:
        limit = self.settings.limits.connections
        self.counts["accepted"] += 1
        if limit and self._clients.is_full(limit) and not self._make_room(limit):
            self.counts["connections"] += 1
            sock.close()
            return
        tune(sock)
        pending = PendingConnection(self._reactor, self, sock, name, self.settings)
        if not self._admit(pending.client):
            self._clients.not_added()
            sock.close()
            return
        self._pending.add(pending)
        self._clients.add(pending.client, pending)
        pending.start()

    def _make_room(self, limit: int) -> bool:
        """At the limit of all connections, close the longest idle connection of the client with most connections."""
        found = self._clients.longest_idle(self._reactor.seconds())
        if found is None:
            self._warn(
                "limit",
                "a listener has reached limits.connections and none is idle: new ones are closed",
                event="listener_limit_reached",
                limit=limit,
                key="limits.connections",
                todo="raise limits.connections (and LimitNOFILE=), or find who has most of them: mcproxy status",
            )
            return False
        client, connection = found
        self._warn(
            "room",
            "a listener has reached limits.connections: idle ones are closed for new ones",
            event="listener_limit_reached",
            limit=limit,
            key="limits.connections",
            clientWithMost=client,
            todo="raise limits.connections (and LimitNOFILE=), or find who has most of them: mcproxy status",
        )
        connection.close()
        return True

    def _admit(self, client: str) -> bool:
        """Return whether to admit another connection of the client; at its limit, close its longest idle connection."""
        limit = self.settings.limits.connections_per_client
        if not limit or client in (UNIX, UNKNOWN) or not self._clients.is_full_for(client, limit):
            return True
        idle = self._clients.longest_idle_of(client)
        self._warn(
            "client",
            "a client has reached limits.connectionsPerClient: "
            + ("a new one is closed" if idle is None else "its longest idle one is closed for a new one"),
            event="client_limit_reached",
            client=client,
            limit=limit,
            key="limits.connectionsPerClient",
            todo="see why it leaves connections open, or raise limits.connectionsPerClient",
        )
        if idle is None:
            self.counts["connectionsPerClient"] += 1
            return False
        idle.close()
        return True

    def _pause_accepting(self, error: OSError) -> None:
        """Without free descriptors or memory, stop polling the sockets for a moment, as they stay readable."""
        if self._resume_timer is not None:
            return
        self._remove_acceptors()
        self._resume_timer = self._reactor.callLater(_RESUME_DELAY, self._resume_accepting)
        self._warn(
            "resources",
            "a listener cannot accept connections now; they wait",
            event="listener_accept_failed",
            cause=(error.strerror or str(error)).lower(),
            todo="raise LimitNOFILE= of the unit, or lower limits.connections or the load"
            if error.errno in (errno.EMFILE, errno.ENFILE)
            else "give the machine more memory, or lower the load",
        )

    def _resume_accepting(self) -> None:
        self._resume_timer = None
        self._add_acceptors()

    def may_log(self, *kind: str | None) -> bool:
        """Return whether to log a line of this kind, at most once a minute."""
        return self._once.allows(kind, self._reactor.seconds())

    def _warn(self, about: str, text: str, *, event: str, **fields: Any) -> None:
        if self.may_log(about, fields.get("client")):
            log.warn(
                text,
                event=event,
                listener=self.name,
                log_subject=("listener", about, str(self.bind), str(fields.get("client", ""))),
                **fields,
            )
