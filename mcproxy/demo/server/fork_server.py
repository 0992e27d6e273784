"""Simulated clusters as forked children of a process that loads their code once.

Loading takes longer than making a cluster, so two clusters are there in two thirds of the time that two processes of
their own (process.py) take. For `mcproxy demo`, where somebody waits.
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

from mcproxy.demo.server import serve

__all__ = ["ForkedCluster", "Lifeline", "NotReady"]

JSONDict = dict[str, Any]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotReady(Exception):
    """The cluster did not get ready; the text says what it wrote."""


class Lifeline:
    """A pipe by which children notice that their parent is gone, however it ended."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def hold(self) -> None:
        """In a child: end as by SIGTERM when the parent does. Nothing is ever written, so reading ends with it."""
        os.close(self._writer)

        def wait() -> None:
            os.read(self._reader, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def close(self) -> None:
        """In the parent, when no child is left."""
        os.close(self._reader)
        os.close(self._writer)


class ForkedCluster:
    """One simulated cluster in a forked child, in a process group of its own: Ctrl-C is for the parent to pass on.

    The parent must have no threads.
    """

    def __init__(self, name: str, directory: Path, options: Sequence[str], lifeline: Lifeline) -> None:
        self.name = name
        self.log = directory / "log"
        self.ready: JSONDict = {}
        self.pid = 0
        self._directory = directory
        self._options = options
        self._lifeline = lifeline
        self._handle = -1  # while the child is there
        self._ready_pipe = -1

    def start(self) -> None:
        """Fork, without waiting until it serves. A signal's exception comes when `stop` can do its work."""
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments = serve.arguments(["--name", self.name, "--dir", str(self._directory), *self._options])
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._ready_pipe, writer = os.pipe()
        sys.stdout.flush()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the parent's handlers are not for the child
        try:
            self.pid = os.fork()
            if not self.pid:
                _be_cluster(arguments, writer, log, self._lifeline)
            self._handle = os.pidfd_open(self.pid)
        finally:
            os.close(writer)
            os.close(log)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def wait_ready(self, timeout: float) -> None:
        """Wait until it serves. Raises NotReady when it ends or `timeout` seconds pass."""
        deadline = time.monotonic() + timeout
        data = b""
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([self._ready_pipe], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._ready_pipe, 65536) if readable else b""
            if not more:
                raise NotReady(f"the simulated cluster {self.name} did not start: {self.log.read_text()[-2000:]}")
            data += more
        self.ready = json.loads(data)

    @property
    def url(self) -> str:
        """Where it serves."""
        return str(self.ready["url"])

    @property
    def port(self) -> int:
        """The port of its first endpoint."""
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)

    def stop(self, timeout: float) -> None:
        """SIGTERM, and SIGKILL if it has not ended `timeout` seconds later."""
        if self._handle < 0:
            return
        self.terminate()
        if not select.select([self._handle], [], [], timeout)[0]:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._handle)
        os.close(self._ready_pipe)
        self._handle = -1


def _be_cluster(arguments: Any, ready: int, log: int, lifeline: Lifeline) -> None:
    """Be the child; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ready, 1)
        os.dup2(log, 2)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        lifeline.hold()
        status = asyncio.run(serve.run(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
