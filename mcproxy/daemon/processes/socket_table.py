"""The listening sockets of several processes: the supervisor opens and keeps them, and the workers get duplicates.

For a TCP address, each worker has a separate socket (SO_REUSEPORT), on which the kernel queues its share of the
connections. The supervisor keeps it open, so that these connections wait for the successor of a worker that dies. A
socket stays open while its address is in use, since closing it would reset its queued connections. So if the number of
workers is reduced, some workers have several sockets of an address. All workers share each unix socket and each socket
from systemd (EPOLLEXCLUSIVE).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from twisted.logger import Logger

from mcproxy.config.model import Bind, TCPBind, UnixBind
from mcproxy.net.bind import (
    BindError,
    SystemdSockets,
    bind_beside,
    listen,
    open_socket,
    open_spread,
    set_permissions,
    spread_over_first,
)
from mcproxy.net.listen import Listener
from mcproxy.net.listening_sockets import HandedOver, remove_file

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class _Address:
    """An address with its sockets. `bind` is None if the replaced daemon handed it over and it is not used yet."""

    bind: Bind | None
    sockets: tuple[socket.socket, ...]
    steered: bool = False
    """Whether the kernel is configured to pass new connections only to the first sockets of the address."""

    @property
    def is_tcp(self) -> bool:
        return self.sockets[0].family != socket.AF_UNIX and (self.bind is None or isinstance(self.bind, TCPBind))


@dataclass(slots=True)
class PreparedSockets:
    """The additional sockets of a new configuration; `commit` or `discard` must follow."""

    table: SocketTable
    workers: int
    addresses: dict[str, _Address] = field(default_factory=dict)
    opened: list[_Address] = field(default_factory=list)
    added: list[tuple[TCPBind, socket.socket]] = field(default_factory=list)
    """Further sockets of addresses in force, which are bound but do not listen yet."""
    permissions_before: list[UnixBind] = field(default_factory=list)

    def commit(self) -> None:
        """Put the new sockets in use, and close those of removed addresses. Call it before the workers commit: a worker
        must be the last to close a socket, after it has accepted the queued connections."""
        self.table.commit(self)

    def discard(self) -> None:
        """Undo everything."""
        self.table.discard(self)


class SocketTable:
    """All listening sockets of a supervisor, by address (`str(bind)`)."""

    def __init__(self, systemd: SystemdSockets | None = None, handed_over: HandedOver | None = None) -> None:
        """`handed_over`: sockets of the replaced daemon; the first `commit` closes unused ones."""
        self._systemd = systemd or SystemdSockets({})
        self._handed_over = handed_over or HandedOver()
        self._addresses: dict[str, _Address] = {}
        self._workers = 0

    def prepare(self, binds: Sequence[Bind], workers: int) -> PreparedSockets:
        """Open the new sockets for `workers` workers. If it raises BindError, nothing has changed."""
        for address, sockets in self._handed_over.take_all().items():
            self._addresses[address] = _Address(None, tuple(sockets), steered=True)
        prepared = PreparedSockets(self, workers)
        stay = {str(bind) for bind in binds}
        gone = [found for address, found in self._addresses.items() if address not in stay]
        try:
            for bind in binds:
                address = str(bind)
                known = self._addresses.get(address)
                if known is None:
                    prepared.addresses[address] = self._open(bind, workers, gone)
                    prepared.opened.append(prepared.addresses[address])
                else:
                    prepared.addresses[address] = self._adapt(bind, workers, known, prepared)
        except BaseException:
            self.discard(prepared)
            raise
        return prepared

    def _open(self, bind: Bind, workers: int, gone: Iterable[_Address]) -> _Address:
        if not isinstance(bind, TCPBind):
            return _Address(bind, (open_socket(bind, self._systemd),))
        overlapping = [sock for other in gone for sock in other.sockets if other.is_tcp and _has_port(sock, bind.port)]
        return _Address(bind, tuple(open_spread(bind, workers, overlapping=overlapping)))

    def _adapt(self, bind: Bind, workers: int, known: _Address, prepared: PreparedSockets) -> _Address:
        """Return the entry of an address that stays in use, with additional sockets for additional workers."""
        if isinstance(bind, UnixBind) and bind != known.bind:
            if isinstance(known.bind, UnixBind):
                prepared.permissions_before.append(known.bind)
            set_permissions(bind)
        sockets = list(known.sockets)
        if isinstance(bind, TCPBind):
            while len(sockets) < workers:
                sockets.append(bind_beside(bind, sockets[0]))
                prepared.added.append((bind, sockets[-1]))
        return _Address(bind, tuple(sockets), known.steered)

    def commit(self, prepared: PreparedSockets) -> None:
        for address, gone in self._addresses.items():
            if address not in prepared.addresses:
                _close(gone.sockets)
                self._remove_file(gone)
        for bind, sock in prepared.added:
            try:
                listen(bind, sock)
            except BindError as error:  # this process has already bound the address, so the cause is a lack of memory
                log.error(
                    "a worker has no listening socket",
                    event="worker_socket_missing",
                    cause=str(error),
                )
        self._workers = prepared.workers
        self._addresses = {}
        for address, found in prepared.addresses.items():
            sockets = tuple(sock for sock in found.sockets if sock.fileno() >= 0)
            steer = isinstance(found.bind, TCPBind) and (len(sockets) > self._workers or found.steered)
            if steer:
                spread_over_first(sockets[0], self._workers)
            self._addresses[address] = _Address(found.bind, sockets, steer)

    def discard(self, prepared: PreparedSockets) -> None:
        for opened in prepared.opened:
            _close(opened.sockets)
            self._remove_file(opened)
        _close(sock for _, sock in prepared.added)
        for before in prepared.permissions_before:
            try:
                set_permissions(before)
            except BindError as error:
                log.error(
                    "the permissions of a unix socket could not be restored",
                    event="socket_permissions_failed",
                    cause=str(error),
                    todo=error.todo,
                )

    def of_worker(self, index: int, prepared: PreparedSockets | None = None) -> list[tuple[str, int]]:
        """Return the addresses and descriptors of a worker, in force or prepared.

        [] for a worker that will be removed."""
        workers = self._workers if prepared is None else prepared.workers
        addresses = self._addresses if prepared is None else prepared.addresses
        found: list[tuple[str, int]] = []
        if index < workers:
            for address, entry in addresses.items():
                sockets = entry.sockets[index::workers] if entry.is_tcp else entry.sockets
                found += [(address, sock.fileno()) for sock in sockets]
        return found

    def restore(self) -> None:
        """Undo changes of the sockets by another daemon that shared them and has ended."""
        for entry in self._addresses.values():
            if isinstance(entry.bind, UnixBind):
                set_permissions(entry.bind)
            elif entry.is_tcp and len(entry.sockets) > 1:
                spread_over_first(entry.sockets[0], self._workers)

    @property
    def all(self) -> list[tuple[str, int]]:
        """All addresses in force with their descriptors, for the daemon that replaces this one."""
        return [(address, sock.fileno()) for address, entry in self._addresses.items() for sock in entry.sockets]

    def close(self, *, handed_over: Collection[str] = ()) -> None:
        """Close all sockets, and remove the files of unix sockets, except files of addresses that another daemon has.

        Call it before the workers stop accepting, for the reason given at `PreparedSockets.commit`.
        """
        addresses, self._addresses = self._addresses, {}
        for address, entry in addresses.items():
            _close(entry.sockets)
            if address not in handed_over:
                self._remove_file(entry)

    def _remove_file(self, entry: _Address) -> None:
        """Remove the file of a unix socket, unless another daemon uses it."""
        if isinstance(entry.bind, UnixBind) and self._handed_over.may_remove_file(entry.bind):
            remove_file(entry.bind)


class InheritedSockets:
    """The sockets of a worker, which the supervisor sends with each configuration.

    Order of the calls: prepare -> Service.prepare -> Service.commit -> commit. After a failure: discard.
    """

    def __init__(self) -> None:
        self._given: dict[str, list[socket.socket]] = {}

    def prepare(self, given: Iterable[tuple[str, int]]) -> None:
        """Take ownership of the descriptors that came with a configuration."""
        self.discard()
        for address, descriptor in given:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            self._given.setdefault(address, []).append(sock)

    def open(self, bind: Bind, *, overlapping: Sequence[socket.socket] = ()) -> list[socket.socket]:
        sockets = self._given.pop(str(bind), None)
        if sockets is None:
            raise BindError(bind, "the supervisor passed no socket for it", todo="report this bug, with the log")
        return sockets

    def commit(self, listeners: Iterable[Listener]) -> None:
        """Give kept listeners their new sockets, if these have changed."""
        for listener in listeners:
            sockets = self._given.pop(str(listener.bind), [])
            if _identities(sockets) == _identities(listener.sockets):
                _close(sockets)
            elif sockets:
                listener.use(sockets)
        self.discard()

    def discard(self) -> None:
        """Close the unused descriptors."""
        for sockets in self._given.values():
            _close(sockets)
        self._given.clear()

    def is_shared(self, bind: Bind) -> bool:
        return not isinstance(bind, TCPBind)

    def set_permissions(self, before: UnixBind, after: UnixBind) -> None:
        """Do nothing: the supervisor sets permissions."""

    def close(self, bind: Bind, sockets: Iterable[socket.socket]) -> None:
        """Close this process's descriptors; the supervisor removes files of unix sockets."""
        _close(sockets)


def _has_port(sock: socket.socket, port: int) -> bool:
    return port != 0 and sock.getsockname()[1] == port


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _identities(sockets: Iterable[socket.socket]) -> set[int]:
    """Return the inode numbers of sockets, which identify a socket independently of its descriptors."""
    return {os.fstat(sock.fileno()).st_ino for sock in sockets}
