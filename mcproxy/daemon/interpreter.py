"""Fresh interpreters: the processes that the daemon starts, and words for how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

import mcproxy
from mcproxy.daemon.errors import DaemonError

#: Signals that a terminal sends to the whole process group, or `systemctl kill` to the unit; only the daemon handles
#: them.
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
MODULE = "mcproxy.daemon.processes"


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `module`, which is run as ``python -m`` does."""
    return [sys.executable, *_flags(), "-m", module, *arguments]


def single_file() -> str | None:
    """Return the single-file program of which this interpreter was unpacked (packaging/launcher.c), if it was.

    Children of such a process run its interpreter directly, so they do not know.
    """
    return str(sys._xoptions["mcproxy_program"]) if "mcproxy_program" in sys._xoptions else None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ`; with the folder of this package in PYTHONPATH if it is not installed (run from its source)."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(mcproxy.__file__)))
    paths = environ.get("PYTHONPATH", "").split(os.pathsep) if environ.get("PYTHONPATH") else []
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *paths}
    if folder in installed:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join([folder, *paths])}


def _flags() -> list[str]:
    """Return the options of this interpreter that choose what it imports; the working directory is never searched."""
    if sys.flags.isolated:
        return ["-I"]
    ignoring = [("-E", sys.flags.ignore_environment), ("-s", sys.flags.no_user_site)]
    return [option for option, on in ignoring if on] + ["-P"]


@contextlib.contextmanager
def group_signals_blocked() -> Iterator[None]:
    """Start a process within this: it inherits the mask, so none of these signals ends it before it can act on them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def describe_end(status: int) -> str:
    """Return the words for an exit status as `subprocess` has it: negative for a signal."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        return f"{signal.Signals(-status).name} ended it"
    except ValueError:
        return f"signal {-status} ended it"


def remedy_of_end(status: int) -> str:
    """Return what an operator can do about a process that ended by itself with this status."""
    if status == -signal.SIGKILL:
        return "if nobody killed it, see whether the kernel did for want of memory: journalctl -k"
    return "report this bug, with its last lines in the log"


@implementer(IReadDescriptor)
class Interpreter:
    """The process of one child."""

    def __init__(self, reactor: Any, name: str, end: socket.socket, ended: Callable[[int], None]) -> None:
        """Start it. `end` is its end of the channel, which the caller closes; raises OSError and DaemonError.

        `ended` is called once, with the exit status (negative: the signal that ended it), when the process is reaped.
        """
        self._reactor = reactor
        self._ended = ended
        with group_signals_blocked():
            self._process = subprocess.Popen(
                command(MODULE, name, str(end.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(end.fileno(),),
                env=environment(os.environ),
            )
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            self._process.kill()
            self._process.wait()
            raise DaemonError(
                f"the end of a process cannot be watched: pidfd_open: {error.strerror}",
                todo="raise the limit of open files, or let Linux (from 5.3 on) and the container runtime permit this "
                "system call, or set daemon.workers to 1",
            ) from error
        reactor.addReader(self)

    @property
    def running(self) -> bool:
        """Whether it is not reaped yet."""
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if it has ended."""
        if self.running:
            self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds, blocking, for the end; return whether it has ended. For the daemon's end."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def fileno(self) -> int:
        return self._pidfd

    def logPrefix(self) -> str:
        return "child"

    def doRead(self) -> Any:
        """Reap: the pidfd has become readable."""
        status = self._process.poll()
        if status is not None:
            self.forget()
            self._ended(status)
        return None

    def connectionLost(self, reason: Failure) -> None:
        self.forget()

    def forget(self) -> None:
        """Watch it no longer. A second call does nothing."""
        if self._pidfd >= 0:
            self._reactor.removeReader(self)
            os.close(self._pidfd)
            self._pidfd = -1
