"""The daemon's control socket over its life: opened at the start, moved by a reload, freed for another daemon."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from mcproxy.config.control_socket import RUNTIME_FOLDER
from mcproxy.config.model import Config
from mcproxy.daemon.control.control_socket import Command, ControlSocket, ControlSocketInUse
from mcproxy.daemon.control.predecessor import wait_for_predecessor
from mcproxy.daemon.errors import DaemonError

log = Logger(__name__)


class DaemonControlSocket:
    """The control socket of a daemon, which may have none."""

    def __init__(self, reactor: Any, commands: Callable[[], Mapping[str, Command]]) -> None:
        self._reactor = reactor
        self._commands = commands
        self._socket: ControlSocket | None = None
        self._freed = False

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    async def claim(self, config: Config) -> None:
        """Open the control socket, once a daemon that has it and is shutting down is gone.

        Raises DaemonError if the file says where it is; else the daemon does without.
        """
        try:
            try:
                self._socket = self._of(config)
            except ControlSocketInUse as error:
                await wait_for_predecessor(self._reactor, error.path)
            else:
                return
        except DaemonError as error:
            _go_without(config, error)
            return
        self._socket = self._open(config)

    @contextlib.contextmanager
    def moved(self, before: Config, after: Config) -> Iterator[None]:
        """Within this, both are open where `after` has another one; the old one stays if the block raises.

        Raises DaemonError as `claim`.
        """
        if not self._moves(before, after):
            yield
            return
        new = self._open(after)
        try:
            yield
        except BaseException:
            if new is not None:
                new.close()
            raise
        if self._socket is not None:
            self._socket.close()
        self._socket = new

    def free(self) -> Deferred[None]:
        """Close the control socket. The Deferred fires when another daemon can open it."""
        closed, self._socket = self._socket, None
        self._freed = closed is not None
        return succeed(None) if closed is None else closed.close()

    def reopen(self, config: Config) -> None:
        """Open the control socket again after `free`, unless it is open. Raises DaemonError."""
        path = config.daemon.control_socket
        if self._socket is None and self._freed and path is not None:
            self._socket = ControlSocket(self._reactor, path, self._commands())

    def _moves(self, before: Config, after: Config) -> bool:
        """Whether `after` has another control socket; one that is where the daemon put it stays there."""
        if after.daemon.control_socket_is_default and before.daemon.control_socket_is_default:
            return self._socket is None
        return after.daemon.control_socket != before.daemon.control_socket

    def _open(self, config: Config) -> ControlSocket | None:
        try:
            return self._of(config)
        except DaemonError as error:
            _go_without(config, error)
            return None

    def _of(self, config: Config) -> ControlSocket | None:
        daemon = config.daemon
        if daemon.control_socket is not None:
            return ControlSocket(self._reactor, daemon.control_socket, self._commands())
        if daemon.control_socket_is_default:
            raise DaemonError("there is no folder for it in which this user may write")
        return None


def _go_without(config: Config, error: DaemonError) -> None:
    """Warn that there is no control socket; raise the error if the file says where it is."""
    if not config.daemon.control_socket_is_default:
        raise error
    log.warn(
        "there is no control socket: `mcproxy reload`, `status` and `upgrade` do not reach this daemon",
        event="control_socket_missing",
        cause=error.cause,
        todo=f"let the daemon's user write in {RUNTIME_FOLDER}, or name a daemon.controlSocket; SIGHUP reloads too",
    )
