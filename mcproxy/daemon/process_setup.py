"""Sets up a process of the daemon: settings of the interpreter and the kernel, and the state directory.

These are the garbage collector's thresholds, the limit of open files, the number of workers for this machine and, in
process 1 of a container, the reaping of adopted processes: those whose parents have ended before them. Exec plugins
leave such processes, and so do the plugins of a worker that was killed. Each keeps a process id, and a container may
have few.

The folder of `daemon.stateDir` is made if it is missing, and refused if others have access to it. Its files hold
objects that not all users of the clusters may see, so only the daemon's user may read it; and only that user may write
it, since a restart trusts it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import stat
from collections.abc import Callable
from typing import Any

from twisted.internet.task import LoopingCall

from mcproxy.config import model
from mcproxy.daemon.errors import DaemonError

_THRESHOLDS = (20_000, 10, 10)
REAP_INTERVAL = 10.0
"""Seconds between two searches for adopted processes that have ended."""
_MAKE_DIRECTORY = "create it for the daemon's user, or let systemd do so with StateDirectory="


def set_collector_thresholds() -> None:
    """Make the garbage collector search for cycles rarely.

    A finished request leaves no cycles, but with Python's own thresholds some hundred requests in flight make it search
    for cycles all the time: a tenth of their processor time.
    """
    gc.set_threshold(*_THRESHOLDS)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it; a refusal leaves it as it was.

    The soft limit is 1024 nearly everywhere, for the sake of programs that use select(2); those that do not raise it to
    the hard limit by themselves, as Go's programs and nginx (worker_rlimit_nofile) do. A proxy needs two descriptors
    for each request in flight. Children inherit it, except exec plugins, which must raise the limit themselves.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a hard limit above what the kernel now allows (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def worker_count(daemon: model.DaemonConfig) -> int:
    """Return the number of workers; with `Auto` that of the cores that this process may run on (sched_getaffinity(2)).

    That is what taskset(1), systemd's CPUAffinity= and cpusets allow; a quota of processor time (cgroup cpu.max) counts
    as no core less, since processes may use all cores for a part of each period.
    """
    if daemon.workers == model.AUTO:
        return min(len(os.sched_getaffinity(0)), model.MAX_WORKERS)
    return int(daemon.workers)


def reap_regularly(reactor: Any, *, has_plugins: Callable[[], bool]) -> None:
    """Reap adopted processes from now on. `has_plugins` returns whether this process now runs exec plugins itself."""
    reaping = LoopingCall(lambda: reap(has_plugins=has_plugins()))
    reaping.clock = reactor
    reaping.start(REAP_INTERVAL, now=False)


def reap(*, has_plugins: bool) -> list[int]:
    """Reap adopted processes that have ended, and return their ids.

    Own ones are left to their owners: children of a supervisor are in its process group (`processes.children`), exec
    plugins lead a session (`upstream.exec_process`). The kernel reports one ended process at a time, so one of our own
    that is not reaped yet delays the rest to the next search.
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


def prepare_state_directory(path: str) -> None:
    """Make sure that `path` is a folder of this process's user alone. Raises DaemonError.

    It is made with mode 0700, but no folder above it: a missing one is more likely a typing error. The mode of an
    existing folder is not changed: it may be the wrong folder.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        wrong = state_directory_fault(path, os.geteuid())
        if wrong is not None:
            raise DaemonError(f"state directory {path}: {wrong[0]}", todo=wrong[1]) from None
    except OSError as error:
        raise DaemonError(f"state directory {path}: {error.strerror}", todo=_MAKE_DIRECTORY) from error
    else:
        os.chmod(path, 0o700)  # whatever the umask


def state_directory_fault(path: str, owner: int | None) -> tuple[str, str] | None:
    """Return what is wrong with an existing `path`, and the remedy; None: it can be used.

    `owner` is the id of the daemon's user, None where that is not known.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.strerror), _MAKE_DIRECTORY
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder", "name a folder, or remove what is there"
    if owner is not None and found.st_uid != owner:
        return f"it belongs to another user (uid {found.st_uid})", "let the daemon's user own it"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return f"others have access to it (mode {mode:04o})", f"chmod 700 {path}"
    if mode & 0o700 != 0o700:
        return f"its owner may not use it (mode {mode:04o})", f"chmod 700 {path}"
    return None
