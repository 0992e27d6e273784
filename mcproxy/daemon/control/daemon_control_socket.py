"""Opens the daemon's control socket at the start, moves it at a reload, and closes it for another daemon.

While another daemon with the same control socket shuts down, a starting daemon waits until that socket is free. The
other daemon keeps its listeners and its control socket until its tunnels have ended, for at most `drainTimeout`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config.control_socket import RUNTIME_FOLDER
from mcproxy.config.model import Config
from mcproxy.daemon.control.control_socket import Command, ControlSocket, ControlSocketInUse, is_permitted, peer_uid
from mcproxy.daemon.errors import DaemonError

log = Logger(__name__)

_POLL = 0.1  # seconds between two queries
_QUERY_TIMEOUT = 5.0  # seconds
_MAX_ANSWER = 64 * 1024


class DaemonControlSocket:
    """The optional control socket of a daemon."""

    def __init__(self, reactor: Any, commands: Callable[[], Mapping[str, Command]]) -> None:
        self._reactor = reactor
        self._commands = commands
        self._socket: ControlSocket | None = None
        self._freed = False

    async def claim(self, config: Config) -> None:
        """Open the control socket; first wait until a daemon that is shutting down has freed it.

        On an error: raise DaemonError if the configuration sets the path; else run without a control socket.
        """
        try:
            try:
                self._socket = self._of(config)
            except ControlSocketInUse as error:
                await wait_for_predecessor(self._reactor, error.path)
            else:
                return
        except DaemonError as error:
            _warn_missing(config, error)
            return
        self._socket = self._open(config)

    @contextlib.contextmanager
    def moved(self, before: Config, after: Config) -> Iterator[None]:
        """If `after` has another path, keep both sockets open in this context, and only the new one after it.

        If the block raises, only the old socket stays. Raises DaemonError as `claim` does.
        """
        if not self._changes_path(before, after):
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

    def _changes_path(self, before: Config, after: Config) -> bool:
        """Whether `after` needs another control socket. An open socket at the default path stays."""
        if after.daemon.control_socket_is_default and before.daemon.control_socket_is_default:
            return self._socket is None
        return after.daemon.control_socket != before.daemon.control_socket

    def _open(self, config: Config) -> ControlSocket | None:
        try:
            return self._of(config)
        except DaemonError as error:
            _warn_missing(config, error)
            return None

    def _of(self, config: Config) -> ControlSocket | None:
        daemon = config.daemon
        if daemon.control_socket is not None:
            return ControlSocket(self._reactor, daemon.control_socket, self._commands())
        if daemon.control_socket_is_default:
            raise DaemonError("there is no folder for it in which this user may write")
        return None


def _warn_missing(config: Config, error: DaemonError) -> None:
    """Raise the error if the configuration sets the path; else warn that there is no control socket."""
    if not config.daemon.control_socket_is_default:
        raise error
    log.warn(
        "there is no control socket: `mcproxy reload`, `status` and `upgrade` do not reach this daemon",
        event="control_socket_missing",
        cause=error.cause,
        todo=f"let the daemon's user write in {RUNTIME_FOLDER}, or name a daemon.controlSocket; SIGHUP reloads too",
    )


async def wait_for_predecessor(reactor: Any, path: str) -> None:
    """Wait until the daemon that listens on the control socket `path` has freed it, if it is shutting down.

    Raises `ControlSocketInUse` if that daemon is not shutting down, does not answer, or exceeds its announced time.
    """
    deadline: float | None = None
    hung_up = False
    while (status := await status_of(reactor, path)) is not None:
        if not status and not hung_up:  # the daemon closed the socket while this connection was queued: retry once
            hung_up = True
            await deferLater(reactor, _POLL)
            continue
        hung_up = False
        if status.get("state") != "stopping":
            raise ControlSocketInUse(path, status.get("pid"))
        now = reactor.seconds()
        if deadline is None:
            seconds = status.get("stopsWithin")
            deadline = now + (seconds if isinstance(seconds, int | float) else 0.0)
            log.info(
                "waiting for the previous daemon to shut down",
                event="predecessor_awaited",
                pid=status.get("pid"),
                socket=path,
                atMost=seconds,
            )
        if now > deadline:
            raise ControlSocketInUse(path, status.get("pid"))
        await deferLater(reactor, _POLL)


async def status_of(
    reactor: Any, path: str, uid_of: Callable[[socket.socket], int] = peer_uid
) -> dict[str, Any] | None:
    """Return the status of the daemon at `path`; None if no process listens there, {} if it does not answer.

    Only processes of root and of this process's user are queried, because no other user runs this daemon.
    """
    factory = _StatusFactory(uid_of)
    reactor.connectUNIX(path, factory, timeout=_QUERY_TIMEOUT)
    try:
        line = await factory.line.addTimeout(_QUERY_TIMEOUT, reactor)
    except ConnectError:
        return None
    except Exception:  # a timeout, or the daemon closed the connection
        return {}
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class _StatusQuery(Protocol):
    def __init__(self, line: Deferred[bytes], uid_of: Callable[[socket.socket], int]) -> None:
        self._line = line
        self._uid_of = uid_of
        self._received = b""

    def connectionMade(self) -> None:
        assert self.transport is not None
        uid = self._uid_of(self.transport.socket)  # type: ignore[attr-defined]
        if not is_permitted(uid, os.geteuid()):
            log.debug("the control socket belongs to another user", event="control_socket_foreign", uid=uid)
            self.transport.loseConnection()
            return
        self.transport.write(b'{"command": "status", "brief": true}\n')

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        if b"\n" in self._received or len(self._received) > _MAX_ANSWER:
            assert self.transport is not None
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._line.called:
            self._line.callback(self._received)


class _StatusFactory(ClientFactory):
    noisy = False

    def __init__(self, uid_of: Callable[[socket.socket], int]) -> None:
        self.line: Deferred[bytes] = Deferred()
        self._uid_of = uid_of

    def buildProtocol(self, addr: IAddress | None) -> _StatusQuery:
        return _StatusQuery(self.line, self._uid_of)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.line.errback(reason)
