"""Provides listening sockets that the process opens itself; `daemon.processes.socket_table` has those of workers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mcproxy.config.model import Bind, TCPBind, UnixBind
from mcproxy.net.bind import BindError, SystemdSockets, open_socket, set_permissions


class ListeningSockets(Protocol):
    """The listening sockets of a process."""

    def open(self, bind: Bind, *, overlapping: Sequence[socket.socket]) -> list[socket.socket]:
        """Return the listening, non-blocking sockets for `bind`, at least one. Raises BindError.

        `overlapping` are listening sockets of this process that will be closed soon, as in `bind.open_socket`.
        """

    def is_shared(self, bind: Bind) -> bool:
        """Whether other processes accept from the same sockets permanently."""

    def set_permissions(self, before: UnixBind, after: UnixBind) -> None:
        """Change mode and group of the file of a unix socket. If it raises BindError, nothing has changed."""

    def close(self, bind: Bind, sockets: Iterable[socket.socket]) -> None:
        """Close the sockets of an address that no longer has a listener."""


class HandedOver:
    """The listening sockets of the daemon that this one replaces. That daemon can use them until it retires."""

    def __init__(self, addresses: Mapping[str, Sequence[socket.socket]] | None = None) -> None:
        """`addresses`: the sockets by `str(bind)`."""
        self._addresses = {address: list(sockets) for address, sockets in (addresses or {}).items()}
        self._needed_elsewhere = set(self._addresses)

    def take(self, address: str) -> list[socket.socket] | None:
        """Return the sockets of an address, or None; the caller then owns them."""
        return self._addresses.pop(address, None)

    def take_all(self) -> dict[str, list[socket.socket]]:
        """Return all sockets; the caller then owns them."""
        addresses, self._addresses = self._addresses, {}
        return addresses

    def with_port(self, port: int) -> list[socket.socket]:
        """Return the remaining TCP sockets on a port."""
        all_ = (sock for sockets in self._addresses.values() for sock in sockets)
        return [sock for sock in all_ if sock.family != socket.AF_UNIX and sock.getsockname()[1] == port]

    def may_remove_file(self, bind: UnixBind) -> bool:
        """Whether this daemon owns the file of a unix socket."""
        return str(bind) not in self._needed_elsewhere

    def close_rest(self) -> None:
        """Close the remaining sockets. The other daemon closes its descriptors, and removes the files."""
        for sockets in self.take_all().values():
            for sock in sockets:
                sock.close()

    def complete(self) -> None:
        """Note that the other daemon has retired, so that this one owns everything."""
        self._needed_elsewhere.clear()


class LocalSockets:
    """Sockets that this process opens, or that it gets from systemd or from the daemon that it replaces."""

    def __init__(self, systemd: SystemdSockets | None = None, handed_over: HandedOver | None = None) -> None:
        self._systemd = systemd or SystemdSockets({})
        self._handed_over = handed_over or HandedOver()

    def open(self, bind: Bind, *, overlapping: Sequence[socket.socket] = ()) -> list[socket.socket]:
        handed_over = self._handed_over.take(str(bind))
        if handed_over is None:
            theirs = self._handed_over.with_port(bind.port) if isinstance(bind, TCPBind) and bind.port else []
            return [open_socket(bind, self._systemd, overlapping=[*overlapping, *theirs])]
        if isinstance(bind, UnixBind):
            set_permissions(bind)
        return handed_over

    def is_shared(self, bind: Bind) -> bool:
        return False

    def set_permissions(self, before: UnixBind, after: UnixBind) -> None:
        try:
            set_permissions(after)
        except BindError:
            with contextlib.suppress(BindError):
                set_permissions(before)
            raise

    def close(self, bind: Bind, sockets: Iterable[socket.socket]) -> None:
        for sock in sockets:
            sock.close()
        if isinstance(bind, UnixBind) and self._handed_over.may_remove_file(bind):
            remove_file(bind)


def remove_file(bind: UnixBind) -> None:
    """Remove the file of a closed unix socket."""
    with contextlib.suppress(OSError):  # removed or replaced by another process
        os.unlink(bind.path)


# Descriptors of open files.


def duplicates(descriptors: Iterable[int]) -> list[int]:
    """Return a duplicate of each descriptor. If it raises OSError, no duplicate is open."""
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(os.dup(descriptor))  # noqa: PERF401  earlier ones are closed on a failure
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    return made
