"""Where a process has its listening sockets from: it opens them itself, or else see `daemon.listening_sockets`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mcproxy.config.model import Bind, UnixBind
from mcproxy.net.bind import BindError, SystemdSockets, open_socket, set_permissions


class ListeningSockets(Protocol):
    """The listening sockets of a process."""

    def open(self, bind: Bind, *, overlapping: Sequence[socket.socket]) -> list[socket.socket]:
        """Return the listening, non-blocking sockets for `bind`, at least one. Raises BindError.

        `overlapping` are listening sockets of this process that are about to be closed, as for `bind.open_socket`.
        """

    def is_shared(self, bind: Bind) -> bool:
        """Whether other processes accept from the same sockets all the time."""

    def set_permissions(self, before: UnixBind, after: UnixBind) -> None:
        """Change mode and group of the file of a unix socket. Raises BindError; nothing has changed then."""

    def close(self, bind: Bind, sockets: Iterable[socket.socket]) -> None:
        """Close the sockets of an address that is no longer listened on."""


class LocalSockets:
    """Sockets that this process opens itself, or has from systemd or from the daemon that it replaces."""

    def __init__(
        self, systemd: SystemdSockets | None = None, handed_over: Mapping[str, Sequence[socket.socket]] | None = None
    ) -> None:
        """`handed_over`: listening sockets by address (`str(bind)`), each for the first `open` of that address."""
        self.systemd = systemd or SystemdSockets({})
        self._handed_over = dict(handed_over or {})

    def open(self, bind: Bind, *, overlapping: Sequence[socket.socket] = ()) -> list[socket.socket]:
        handed_over = self._handed_over.pop(str(bind), None)
        if handed_over is None:
            theirs = [sock for sockets in self._handed_over.values() for sock in sockets if _may_overlap(bind, sock)]
            return [open_socket(bind, self.systemd, overlapping=[*overlapping, *theirs])]
        if isinstance(bind, UnixBind):
            set_permissions(bind)
        return list(handed_over)

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
        if isinstance(bind, UnixBind):
            remove_file(bind)

    def close_unused(self) -> None:
        """Close what was handed over and is not listened on any more; the daemon that had it removes the files."""
        for sockets in self._handed_over.values():
            for sock in sockets:
                sock.close()
        self._handed_over.clear()


def remove_file(bind: UnixBind) -> None:
    """Remove the file of a unix socket that was closed."""
    with contextlib.suppress(OSError):  # removed or replaced by another process
        os.unlink(bind.path)


def _may_overlap(bind: Bind, sock: socket.socket) -> bool:
    port = getattr(bind, "port", 0)
    return port != 0 and sock.family != socket.AF_UNIX and sock.getsockname()[1] == port
