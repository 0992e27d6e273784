"""Simulated clusters as forked children of a process that loads their code once.

Importing the code takes longer than building a cluster, so two forked clusters start in two thirds of the time of two
separate processes. Used by `mcproxy demo`.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from kubesim.server import serve

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StartError(Exception):
    """The cluster did not start; the message has the end of its log."""


class ParentPipe:
    """A pipe by which children notice that their parent has ended, for whatever reason."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def terminate_with_parent(self) -> None:
        """In a child: send SIGTERM to itself when the parent ends. Nothing is ever written to the pipe."""
        os.close(self._writer)

        def wait() -> None:
            os.read(self._reader, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="parent-pipe", daemon=True).start()

    def close(self) -> None:
        """Close the pipe, in the parent, when no child is left."""
        os.close(self._reader)
        os.close(self._writer)


class ForkedCluster:
    """One simulated cluster in a forked child. Its own process group keeps Ctrl-C from it.

    The parent must have no threads.
    """

    def __init__(self, name: str, directory: Path, options: Sequence[str], parent_pipe: ParentPipe) -> None:
        self.name = name
        self.log = directory / "log"
        self.ready: JSONDict = {}
        self.pid = 0
        self._directory = directory
        self._options = options
        self._parent_pipe = parent_pipe
        self._handle = -1  # valid while the child exists
        self._ready_pipe = -1

    def start(self) -> None:
        """Fork, without waiting until the child serves. Signals are blocked until `stop` can clean up."""
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments = serve.arguments(["--name", self.name, "--dir", str(self._directory), *self._options])
        if arguments.http2:
            serve.load_http2()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._ready_pipe, writer = os.pipe()
        sys.stdout.flush()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the child must not run the parent's handlers
        try:
            self.pid = os.fork()
            if not self.pid:
                _run_child(arguments, writer, log, self._parent_pipe)
            self._handle = os.pidfd_open(self.pid)
        finally:
            os.close(writer)
            os.close(log)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def wait_ready(self, timeout: float) -> None:
        """Wait until it serves. Raises StartError when it ends or `timeout` seconds pass."""
        deadline = time.monotonic() + timeout
        data = b""
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([self._ready_pipe], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._ready_pipe, 65536) if readable else b""
            if not more:
                raise StartError(f"the simulated cluster {self.name} did not start: {self.log.read_text()[-2000:]}")
            data += more
        self.ready = json.loads(data)

    @property
    def url(self) -> str:
        """The URL of its first endpoint."""
        return str(self.ready["url"])

    @property
    def port(self) -> int:
        """The port of its first endpoint."""
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)

    def stop(self, timeout: float) -> None:
        """Send SIGTERM, and SIGKILL if it has not ended after `timeout` seconds."""
        if self._handle < 0:
            return
        self.terminate()
        if not select.select([self._handle], [], [], timeout)[0]:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._handle)
        os.close(self._ready_pipe)
        self._handle = -1


def _run_child(arguments: Any, ready: int, log: int, parent_pipe: ParentPipe) -> None:
    """Run the cluster in the child; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ready, 1)
        os.dup2(log, 2)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        parent_pipe.terminate_with_parent()
        status = asyncio.run(serve.run(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
