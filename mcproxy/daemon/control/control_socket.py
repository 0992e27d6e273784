"""The control socket: a unix socket over which the daemon's owner and root send commands (reload, diff, status).

Requests and answers are JSON objects, one per line. Besides the file mode, the daemon checks the peer's user id, which
the kernel provides (SO_PEERCRED). Limits apply to the length and the time of a request line, and to the number of
connections. The socket is never TCP.

    {"command": "reload", "file": "/etc/mcproxy/mcproxy.yaml"}
    {"ok": true, "file": "/etc/mcproxy/mcproxy.yaml", "warnings": [], "seconds": 0.12}
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from twisted.internet import tcp, unix
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config.control_socket import MAX_PATH
from mcproxy.daemon.errors import DaemonError

log = Logger(__name__)

MAX_REQUEST = 64 * 1024
"""Greatest length of a request line (bytes)."""
REQUEST_TIMEOUT = 10.0
"""Seconds within which a request line must arrive. Answers have no limit, since a reload takes long."""
MAX_CONNECTIONS = 16


class ControlSocketInUse(DaemonError):
    """Another process listens on the control socket."""

    def __init__(self, path: str, pid: object = None) -> None:
        self.path = path
        who = f"the mcproxy with pid {pid}" if isinstance(pid, int) else "another process"
        super().__init__(
            f"control socket {path}: {who} listens on it",
            todo="stop the other mcproxy, or give this one another daemon.controlSocket",
        )


Answer = dict[str, Any]
Command = Callable[[Mapping[str, Any]], Awaitable[Answer]]


def is_permitted(uid: int, owner: int) -> bool:
    """Return whether the user `uid` may send commands to a daemon that runs as `owner`: true for `owner` and root."""
    return uid in (0, owner)


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a unix socket (unix(7), SO_PEERCRED)."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


class ControlProtocol(Protocol):
    """One connection. Requests are answered in order, one at a time."""

    def __init__(self, factory: ControlFactory) -> None:
        self._factory = factory
        self._clock = factory.clock
        self._buffer = b""
        self._timer: IDelayedCall | None = None
        self._answering = False
        self._ended = False

    def connectionMade(self) -> None:
        if not self._factory.admits(self):
            self._close()
            return
        self._timer = self._clock.callLater(REQUEST_TIMEOUT, self._refuse, "no request came in time")

    def dataReceived(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_REQUEST:
            self._refuse(f"a request has at most {MAX_REQUEST} bytes")
        else:
            self._next()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._ended = True
        self._stop_timer()
        self._factory.gone(self)

    def _next(self) -> None:
        if self._answering or self._ended or b"\n" not in self._buffer:
            return
        line, self._buffer = self._buffer.split(b"\n", 1)
        self._stop_timer()
        self._answering = True
        Deferred.fromCoroutine(self._answer(line)).addErrback(
            lambda failure: log.failure("a control command failed", event="internal_error", failure=failure)
        )

    async def _answer(self, line: bytes) -> None:
        try:
            self._send(await self._perform(line))
        except Exception:
            self._send(_refusal("the command failed unexpectedly; see the daemon's log"))
            raise
        finally:
            self._answering = False
            if not self._ended:
                self._timer = self._clock.callLater(REQUEST_TIMEOUT, self._close)
                self._clock.callLater(0, self._next)

    async def _perform(self, line: bytes) -> Answer:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _refusal("a request is one JSON object on one line")
        commands = self._factory.commands
        command = commands.get(str(request.get("command"))) if isinstance(request, dict) else None
        if command is None:
            return _refusal("unknown command; known are: " + ", ".join(sorted(commands)))
        return await command(request)

    def _send(self, answer: Answer) -> None:
        if not self._ended and self.transport is not None:
            self.transport.write(json.dumps(answer).encode() + b"\n")

    def _refuse(self, why: str) -> None:
        self._send(_refusal(why))
        self._close()

    def _close(self) -> None:
        self._stop_timer()
        self._ended = True
        if self.transport is not None:
            self.transport.loseConnection()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


def _refusal(why: str) -> Answer:
    return {"ok": False, "invalid": False, "errors": [why], "warnings": []}


class ControlFactory(Factory):
    """Creates the protocol of each connection; admits only permitted users and a limited number of connections."""

    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        commands: Mapping[str, Command],
        owner: int,
        uid_of: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        self.clock = clock
        self.commands = commands
        self._owner = owner
        self._uid_of = uid_of
        self._open: set[ControlProtocol] = set()

    def admits(self, connection: ControlProtocol) -> bool:
        """Return whether to serve a new connection; called before a byte of it is read."""
        uid = self._uid_of(connection.transport.socket)  # type: ignore[union-attr]
        if not is_permitted(uid, self._owner):
            log.warn(
                "the control socket refused a user",
                event="control_user_refused",
                uid=uid,
                todo="run the command with sudo: only root and the daemon's user may",
            )
            return False
        if len(self._open) >= MAX_CONNECTIONS:
            log.warn(
                "the control socket reached its connection limit: a new connection was closed",
                event="control_connections_limit_reached",
                limit=MAX_CONNECTIONS,
            )
            return False
        self._open.add(connection)
        return True

    def gone(self, connection: ControlProtocol) -> None:
        """Remove a connection that was closed."""
        self._open.discard(connection)

    def buildProtocol(self, addr: IAddress | None) -> ControlProtocol:
        return ControlProtocol(self)


class _Port(unix.Port):
    """A listening unix socket that removes its file only if no other socket has replaced the file.

    Twisted's port removes any file at the path. Without a file it raises, which would leave the descriptor open.
    """

    _inode: tuple[int, int] | None = None

    def remember_file(self) -> None:
        status = os.stat(self._bindPath)
        self._inode = (status.st_dev, status.st_ino)

    def connectionLost(self, reason: Failure) -> None:
        try:
            status = os.stat(self._bindPath)
            if (status.st_dev, status.st_ino) == self._inode:
                os.unlink(self._bindPath)
        except OSError as error:
            log.debug(
                "the control socket's file was already removed", event="control_socket_gone", cause=error.strerror
            )
        tcp.Port.connectionLost(self, reason)  # type: ignore[no-untyped-call]


class ControlSocket:
    """The listening control socket."""

    def __init__(self, reactor: Any, path: str, commands: Mapping[str, Command], *, owner: int | None = None) -> None:
        """Bind `path` with mode 0600. If it raises DaemonError, no socket remains.

        `commands` return a JSON object. `owner` is the permitted user besides root (default: this process's user).
        """
        self.path = path
        remove_stale_socket(path)
        factory = ControlFactory(reactor, commands, os.geteuid() if owner is None else owner)
        self._port = _Port(os.fsencode(path), factory, 16, 0o600, reactor)
        try:
            self._port.startListening()  # type: ignore[no-untyped-call]  # binds, chmods, and only then listens, so that no other user can connect in between
        except Exception as error:
            cause = getattr(error, "socketError", error)
            raise DaemonError(f"control socket {path}: {getattr(cause, 'strerror', cause)}") from error
        self._port.remember_file()

    def close(self) -> Deferred[None]:
        """Stop listening and remove the file; a command that is being answered still gets its answer.

        The Deferred fires when the file is removed.
        """
        return maybeDeferred(self._port.stopListening)


def remove_stale_socket(path: str) -> None:
    """Remove a socket on which no process listens. Raises DaemonError for any other file at `path`."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise DaemonError(f"control socket {path}: longer than {MAX_PATH} bytes", todo="choose a shorter path")
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        _make_directory(directory)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise DaemonError(
            f"control socket {path}: a file that is not a socket is in its place", todo="remove that file"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # with a full backlog, connect fails with EAGAIN: a process listens
        if probe.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT):
            raise ControlSocketInUse(path)
    os.unlink(path)


def _make_directory(directory: str) -> None:
    """Create the socket's directory, mode 0755. A missing parent directory is an error: the path is likely mistyped."""
    try:
        os.mkdir(directory, 0o755)
    except OSError as error:
        raise DaemonError(
            f"control socket directory {directory}: {error.strerror}",
            todo="create it, or let systemd do so with RuntimeDirectory=",
        ) from error
