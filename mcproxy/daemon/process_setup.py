"""Settings of a process of the daemon towards the interpreter and the kernel.

The garbage collector's thresholds, the limit of open files, the number of workers for this machine; and, in process 1
of a container, reaping of adopted processes: those whose parents have ended before them. Exec plugins leave such
processes, and so do the plugins of a worker that was killed. Each keeps a process id, and a container may have few.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Callable
from typing import Any

from twisted.internet.task import LoopingCall

from mcproxy.config import model

_THRESHOLDS = (20_000, 10, 10)

INTERVAL = 10.0
"""Seconds between two searches for adopted processes that have ended."""


def set_collector_thresholds() -> None:
    """Let the garbage collector look for cycles rarely.

    A finished request leaves no cycles, but with Python's own thresholds some hundred requests in flight make it search
    for cycles all the time: a tenth of their processor time.
    """
    gc.set_threshold(*_THRESHOLDS)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it; a refusal leaves it as it was.

    The soft limit is 1024 nearly everywhere, for the sake of programs that use select(2); those that do not raise it to
    the hard limit by themselves, as Go's programs and nginx (worker_rlimit_nofile) do. A proxy needs two descriptors
    for each request in flight. Children inherit it; more than 1024 files are each exec plugin's own affair.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a hard limit above what the kernel now allows (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def worker_count(daemon: model.Daemon) -> int:
    """Return the number of workers; with `Auto` that of the cores that this process may run on (sched_getaffinity(2)).

    That is what taskset(1), systemd's CPUAffinity= and cpusets allow; a quota of processor time (cgroup cpu.max) counts
    as no core less, since processes may use all cores for a part of each period.
    """
    if daemon.workers == model.AUTO:
        return min(len(os.sched_getaffinity(0)), model.MAX_WORKERS)
    return int(daemon.workers)


def reap_regularly(reactor: Any, *, has_plugins: Callable[[], bool]) -> None:
    """Reap adopted processes from now on. `has_plugins`: whether this process runs exec plugins itself by then."""
    reaping = LoopingCall(lambda: reap(has_plugins=has_plugins()))
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
