"""Replacement of a running daemon's program: starts the new program while the old one serves, and passes its sockets.

    this daemon                                          the new one (`Takeover`)
    state of aggregates saved, program started  ──>      loads the file, prepares everything on the same sockets
    control socket freed                        <──      prepared
                                                <──      opens the control socket, accepts: serving
    a moment later: MAINPID for systemd         ──>      READY for systemd
    retires: open requests end as their kind can           serves

Both daemons accept from the same sockets for a moment, so no connection is refused or reset. If the new daemon fails
before it has served for `PROBATION` seconds, this daemon ends it, and continues unchanged.

The new daemon gets one end of a socket pair, whose descriptor is in the environment. Messages have the format of
`channel`. The other end can run another version of the program. So fields may be added, but none may change.

    old > new   sockets    protocol, addresses, systemd (names); with the descriptors of both kinds, in this order
    old < new   started    pid, version
    old < new   prepared   addresses that it will listen on; answered when the control socket is free
    old < new   serving    answered when the old one retires
    old < new   failed     errors, invalid (the file is wrong); instead of any of the above; the new daemon then ends
    old > new   abort      why; the new daemon ends at once

If the new daemon ends before it serves, nothing has changed. If the old daemon ends meanwhile, the new one continues.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy import __version__
from mcproxy.daemon import interpreter
from mcproxy.daemon.channel import HEAD, MAX_DESCRIPTORS, MAX_MESSAGE, Channel, ChannelMessage, Fields, socket_pair
from mcproxy.daemon.errors import DaemonError, ProcessError, ProcessLost
from mcproxy.daemon.interpreter import describe_end
from mcproxy.net.bind import SystemdSockets
from mcproxy.net.listening_sockets import HandedOver

log = Logger(__name__)

VARIABLE = "MCPROXY_HANDOVER"
"""The environment variable with the descriptor of the new daemon's end of the socket pair."""
PROTOCOL = 1
_SOCKETS_TIMEOUT = 10.0
"""Timeout of the first message (seconds), which is sent before the program starts."""
LIMIT = 90.0
"""Seconds after its start within which the program must serve."""
PROBATION = 1.0
"""Seconds that the new daemon must have served before this one retires."""
_GIVES_UP_WITHIN = 2.0
"""Seconds within which the new daemon must end by itself after this one has aborted the upgrade."""
_STATUS_WITHIN = 0.1
"""Seconds to wait for the exit status of a process that has closed its end of the channel."""
_REAPED_WITHIN = 5.0
"""Seconds within which the started process must end after it has forked the new daemon."""
_REINSTALL = "see that the program that was installed is mcproxy"


class UpgradeError(DaemonError):
    """The program was not replaced; this daemon continues. `invalid`: the new program refuses the configuration."""

    def __init__(self, errors: Sequence[str], *, invalid: bool = False, todo: str = "") -> None:
        super().__init__("; ".join(errors), todo=todo)
        self.errors = tuple(errors)
        self.invalid = invalid


@dataclass(frozen=True, slots=True)
class Successor:
    """The daemon that has replaced this one."""

    pid: int
    version: str
    addresses: Collection[str]
    """The addresses on which it listens. It shares this daemon's sockets of addresses that both have."""


class Upgradable(Protocol):
    """The operations on the running daemon that an upgrade calls (`daemon.replacement.Replacement`)."""

    def sockets_to_hand_over(self) -> tuple[list[tuple[str, int]], Mapping[str, int]]:
        """Return address and descriptor of each listening socket, and name and descriptor of each systemd socket."""

    def environment_of_successor(self) -> dict[str, str]:
        """Return the environment for the new program."""

    def free_control_socket(self) -> Awaitable[None]:
        """Free the control socket; return when the new daemon can open it."""

    def name_successor(self, pid: int) -> None:
        """Notify systemd that `pid` is now the main process, and stop sending notifications."""


class Upgrade:
    """One attempt to replace the program. `run` is called once."""

    def __init__(
        self,
        reactor: Any,
        daemon: Upgradable,
        command: Sequence[str],
        *,
        limit: float = LIMIT,
        probation: float = PROBATION,
        pid: int | None = None,
    ) -> None:
        """`command` starts the program. `pid`: this process's id (default: the real one)."""
        self._reactor = reactor
        self._daemon = daemon
        self._command = list(command)
        self._limit = limit
        self._probation = probation
        self._own_pid = os.getpid() if pid is None else pid
        self._outcome: Deferred[Successor] = Deferred()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._timer: Any = None
        self._decided = False
        self._pid: int | None = None  # id of the new daemon, which is not a child of this process
        self._version = ""
        self._addresses: list[str] = []

    @property
    def pid(self) -> int | None:
        """The id of the new process; None while it is unknown."""
        return self._pid

    async def run(self) -> Successor:
        """Replace the program; return when the new daemon serves and this one must retire.

        If it raises UpgradeError, the new process has ended.
        """
        if self._own_pid == 1:
            raise UpgradeError(
                ["mcproxy runs as process 1, with which its container ends"],
                todo="start a new container, then stop this one",
            )
        try:
            self._start()
        except OSError as error:
            self._decided = True
            self._close()
            raise UpgradeError(
                [f"{self._command[0]}: {error.strerror or error}"], todo="install the program where it was started from"
            ) from None
        timer = self._timer = self._reactor.callLater(self._limit, self._took_too_long)
        try:
            return await self._outcome
        except UpgradeError as error:
            await self._end_successor(str(error))
            raise
        finally:
            if timer.active():
                timer.cancel()
            self._close()

    def abort(self, why: str) -> None:
        """Abort, unless the outcome is decided."""
        self._fail(UpgradeError([why]))

    def _start(self) -> None:
        ours, theirs = socket_pair()
        self._channel = channel = Channel(self._reactor, ours)
        for kind, handler in (("started", self._started), ("failed", self._failed), ("prepared", self._prepared)):
            channel.on(kind, handler)
        channel.on("serving", self._serving)
        channel.when_lost().addCallback(self._lost)
        listening, systemd = self._daemon.sockets_to_hand_over()
        channel.tell(
            "sockets",
            [*(descriptor for _, descriptor in listening), *systemd.values()],
            protocol=PROTOCOL,
            addresses=[address for address, _ in listening],
            systemd=list(systemd),
        )
        with theirs:
            theirs.setblocking(True)
            with interpreter.group_signals_blocked():
                self._process = subprocess.Popen(
                    self._command,
                    pass_fds=(theirs.fileno(),),
                    env={**self._daemon.environment_of_successor(), VARIABLE: str(theirs.fileno())},
                )

    # -- messages of the new daemon ---------------------------------------------------------------------------------

    def _started(self, message: ChannelMessage) -> None:
        pid = int(message["pid"])
        if pid <= 1 or pid == os.getpid():  # the id is used to kill the process, and sent to systemd
            self._fail(UpgradeError([f"the new mcproxy says that it is process {pid}"], todo=_REINSTALL))
            return
        self._pid, self._version = pid, str(message["version"])
        log.info("upgrade: the new program was started", event="upgrade_started", pid=self._pid, version=self._version)

    def _failed(self, message: ChannelMessage) -> None:
        self._fail(UpgradeError([str(error) for error in message["errors"]], invalid=bool(message["invalid"])))

    async def _prepared(self, message: ChannelMessage) -> None:
        if self._decided:
            raise DaemonError("the upgrade was aborted")
        self._addresses = [str(address) for address in message["addresses"]]
        await self._daemon.free_control_socket()

    async def _serving(self, message: ChannelMessage) -> Fields:
        self._timer.cancel()
        await deferLater(self._reactor, self._probation)
        if self._decided:
            raise DaemonError("the upgrade was aborted")
        assert self._pid is not None
        self._daemon.name_successor(self._pid)
        self._decided = True
        successor = Successor(self._pid, self._version, frozenset(self._addresses))
        self._reactor.callLater(0, self._outcome.callback, successor)  # after the answer is sent
        return {}

    def _took_too_long(self) -> None:
        self._fail(
            UpgradeError([f"the new mcproxy did not serve within {self._limit:g} s"], todo="see its lines in the log")
        )

    def _lost(self, _: None) -> None:
        if not self._decided:
            self._reactor.callLater(_STATUS_WITHIN, self._ended_silently)

    def _ended_silently(self) -> None:
        status = None if self._process is None else self._process.poll()
        end = describe_end(status) if status else "it ended"
        self._fail(UpgradeError([f"the new mcproxy did not start to serve: {end}"], todo="see its lines in the log"))

    def _fail(self, error: UpgradeError) -> None:
        if not self._decided:
            self._decided = True
            self._outcome.errback(Failure(error))  # type: ignore[no-untyped-call]

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _end_successor(self, why: str) -> None:
        """End the new process: abort, and kill it if it does not end in time."""
        assert self._channel is not None
        assert self._process is not None
        self._channel.tell("abort", why=why)
        for patience in (_GIVES_UP_WITHIN, _REAPED_WITHIN):
            try:
                await self._channel.when_lost().addTimeout(patience, self._reactor)
                return
            except TimeoutError:
                # Killing by id is safe: while the process has the other end open, its id is not reused.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._process.pid if self._pid is None else self._pid, signal.SIGKILL)
        log.error(
            "a process of the new program was not ended: it reported the id of another process",
            event="upgrade_process_left",
            todo=_REINSTALL,
        )

    def _close(self) -> None:
        """Close this end, and reap the started process."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                self._process.wait(0.0 if self._pid is None else _REAPED_WITHIN)
            except subprocess.TimeoutExpired:  # the program never began to take over
                self._process.kill()
                self._process.wait()


def command_line() -> list[str]:
    """Return the command line that started this program: its script (with a `#!` line) or single file.

    If that file was replaced since, the command starts the interpreter of the new version.
    """
    if program := interpreter.single_file():
        return [program, *sys.argv[1:]]
    words = sys.orig_argv
    script = words[1] if len(words) > 1 else ""
    try:
        with open(script, "rb") as file:
            if os.access(script, os.X_OK) and file.read(2) == b"#!":
                return words[1:]
    except OSError:
        pass  # started as `python -m mcproxy`
    return words


class Takeover:
    """The new daemon's side of an upgrade: the sockets that it takes over, and its messages to the old daemon."""

    def __init__(self, connection: socket.socket, sockets: HandedOver, systemd: SystemdSockets) -> None:
        self.sockets = sockets
        """The listening sockets of the old daemon."""
        self.systemd = systemd
        """The sockets that systemd had passed to the old daemon."""
        self._connection = connection
        self._channel: Channel | None = None

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Takeover | None:
        """Receive the sockets of the daemon that this program replaces; return None if it replaces none.

        Call it before starting threads: this process forks and ends, and its child continues. So the new daemon is a
        child of systemd, not of the old daemon. At a stop, systemd does not wait for a main process that is not its
        child (systemd's service.c, main_pid_alien). Raises DaemonError.
        """
        descriptor = environ.pop(VARIABLE, "")
        if not descriptor:
            return None
        try:
            connection = socket.socket(fileno=int(descriptor))
            connection.set_inheritable(False)
            connection.settimeout(_SOCKETS_TIMEOUT)
            if os.fork():
                os._exit(0)
            _send(connection, "started", pid=os.getpid(), version=__version__)
            fields, descriptors = _receive(connection)
        except (OSError, ValueError) as error:
            raise DaemonError(
                f"the sockets of the replaced daemon were not passed: {error}",
                todo=f"unset {VARIABLE}, which only `mcproxy upgrade` sets",
            ) from None
        if fields.get("kind") != "sockets" or fields.get("protocol") != PROTOCOL:
            raise DaemonError(
                "the replaced daemon hands over in a way that this version does not know",
                todo="restart mcproxy instead",
            )
        addresses: dict[str, list[socket.socket]] = {}
        for address in fields["addresses"]:
            addresses.setdefault(address, []).append(socket.socket(fileno=descriptors.pop(0)))
        systemd = dict(zip(fields["systemd"], descriptors, strict=True))
        return cls(connection, HandedOver(addresses), SystemdSockets(systemd))

    def begin(self, reactor: Any, abort: Callable[[str], None]) -> None:
        """Start sending and receiving messages by the reactor. `abort` gets the reason if the old daemon aborts."""

        def aborted(message: ChannelMessage) -> None:
            abort(message["why"])

        self._connection.setblocking(False)
        self._channel = Channel(reactor, self._connection)
        self._channel.on("abort", aborted)

    def failed(self, errors: Sequence[str], *, invalid: bool = False) -> None:
        """Report why this daemon fails to start, before it ends. `invalid`: the configuration is invalid."""
        if self._channel is not None:
            self._channel.tell("failed", errors=list(errors), invalid=invalid)
            return
        try:
            _send(self._connection, "failed", errors=list(errors), invalid=invalid)
        except OSError:  # the old daemon has aborted or ended
            return

    async def prepared(self, addresses: Sequence[str]) -> None:
        """Report that all listeners on `addresses` are ready; return when a common control socket is free."""
        await self._ask("prepared", addresses=list(addresses))

    async def serving(self) -> None:
        """Report that this daemon serves; return when the old one has notified systemd, or raise DaemonError."""
        self.sockets.close_rest()
        await self._ask("serving")
        self.sockets.complete()
        assert self._channel is not None
        self._channel.close()

    async def _ask(self, kind: str, **fields: Any) -> None:
        assert self._channel is not None
        try:
            await self._channel.ask(kind, timeout=None, **fields)
        except ProcessLost:
            log.warn(
                "the previous daemon ended during the upgrade; this one continues", event="predecessor_ended", step=kind
            )
        except ProcessError as error:
            raise DaemonError(f"the daemon that was to be replaced failed: {error}", todo="see its log") from error


def _send(connection: socket.socket, kind: str, **fields: Any) -> None:
    body = json.dumps({"kind": kind, **fields}).encode()
    connection.sendall(HEAD.pack(len(body), 0) + body)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive exactly one message, blocking. Raises OSError, ValueError."""
    descriptors: array.array[int] = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)

    def exactly(count: int, at_a_time: int) -> bytes:
        received = b""
        while len(received) < count:
            most = min(at_a_time, count - len(received))
            data, controls, flags, _ = connection.recvmsg(most, space, socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in controls:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
            if not data or flags & socket.MSG_CTRUNC:
                raise ValueError("the connection was closed" if not data else "too many open files")
            received += data
        return received

    # Each byte of the head can carry descriptors, and one recvmsg(2) never returns descriptors of two sends.
    length, count = HEAD.unpack(exactly(HEAD.size, 1))
    if length > MAX_MESSAGE:
        raise ValueError("it is too long")
    fields = json.loads(exactly(length, MAX_MESSAGE))
    if not isinstance(fields, dict) or len(descriptors) != count:
        raise ValueError("it is not complete")
    return fields, list(descriptors)
