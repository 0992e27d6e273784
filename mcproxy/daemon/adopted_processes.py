"""What process 1 of a container has to do: reap processes that are not its own, whose parents have ended before them.

Such are what exec plugins leave behind, and the plugins of a worker that was killed. Nobody else would ever reap them,
and each keeps a process id, of which a container may have few.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet.task import LoopingCall

INTERVAL = 10.0
"""Seconds between two looks."""


def reap_regularly(reactor: Any, *, has_plugins: bool) -> None:
    """Reap adopted processes from now on. `has_plugins`: this process runs exec plugins itself (it has no workers)."""
    reaping = LoopingCall(reap, has_plugins=has_plugins)
    reaping.clock = reactor
    reaping.start(INTERVAL, now=False)


def reap(*, has_plugins: bool) -> list[int]:
    """Reap adopted processes that have ended, and return their ids.

    Own ones are left to their owners: children of a supervisor are in its process group (`processes.interpreter`), exec
    plugins lead a session (`upstream.exec_process`). The kernel shows one that has ended at a time, so an own one that
    is not reaped yet leaves the rest to the next look.
    """
    reaped: list[int] = []
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or _is_own(ended.si_pid, has_plugins):
                return reaped
            os.waitpid(ended.si_pid, os.WNOHANG)
        except (ChildProcessError, ProcessLookupError):  # no children, or another thread has reaped it
            return reaped
        reaped.append(ended.si_pid)


def _is_own(pid: int, has_plugins: bool) -> bool:
    return os.getpgid(pid) == os.getpgrp() or (has_plugins and os.getsid(pid) == pid)
