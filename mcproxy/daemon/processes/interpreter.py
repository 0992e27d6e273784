"""Starts a fresh interpreter for a child, and detects its end by a pidfd (pidfd_open(2)).

The child gets standard output and error and its end of the channel, and no other descriptor.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.daemon import fresh_interpreter
from mcproxy.daemon.errors import DaemonError

MODULE = "mcproxy.daemon.processes"


@implementer(IReadDescriptor)
class Interpreter:
    """The process of one child."""

    def __init__(self, reactor: Any, name: str, end: socket.socket, ended: Callable[[int], None]) -> None:
        """Start it. `end` is its end of the channel, which the caller closes; raises OSError and DaemonError.

        `ended` is called once, with the exit status (negative: the signal that ended it), when the process is reaped.
        """
        self._reactor = reactor
        self._ended = ended
        with fresh_interpreter.group_signals_blocked():
            self._process = subprocess.Popen(
                fresh_interpreter.command(MODULE, name, str(end.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(end.fileno(),),
                env=fresh_interpreter.environment(os.environ),
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
