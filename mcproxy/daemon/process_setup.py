"""Sets up a process of the daemon: settings of the interpreter and the kernel, and the state directory.

The settings are the garbage collector's thresholds, the limit of open files and the number of workers. Process 1 of a
container also reaps adopted processes, whose parents have ended before them. Exec plugins leave such processes, and so
does a killed worker that ran plugins. Each unreaped process keeps a process id, and a container can have few of these.

The folder `daemon.stateDir` is created if it is missing, and refused if other users have access. Its files hold
objects that not all users of the clusters may see, and a restart trusts them. So only the daemon's user may read and
write it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import resource
import stat
from collections.abc import Callable
from typing import Any

from twisted.internet.task import LoopingCall

from mcproxy.config import model
from mcproxy.daemon.errors import DaemonError

_THRESHOLDS = (20_000, 10, 10)
_INSTANCE = "MCPROXY_INSTANCE"
REAP_INTERVAL = 10.0
"""Seconds between two searches for adopted processes that have ended."""
_MAKE_DIRECTORY = "create it for the daemon's user, or let systemd do so with StateDirectory="


def set_collector_thresholds() -> None:
    """Make the garbage collector search for cycles rarely.

    A finished request leaves no cycles. But with Python's default thresholds, some hundred requests in flight trigger
    constant searches for cycles, which take a tenth of their processor time.
    """
    gc.set_threshold(*_THRESHOLDS)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it. If that is refused, keep the limit.

    The soft limit is usually 1024, for programs that use select(2). Other programs raise it to the hard limit by
    themselves, such as Go programs and nginx (worker_rlimit_nofile). A proxy needs two descriptors for each request in
    flight. Children inherit the limit, except exec plugins, which must raise it themselves.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the hard limit is above the kernel's current maximum (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def daemon_instance() -> str:
    """Return the name of this daemon for hubs of tunnels, 32 random hexadecimal digits.

    It is in the environment, so that workers and the daemon of an upgrade have the same.
    """
    found = os.environ.get(_INSTANCE, "")
    if re.fullmatch("[0-9a-f]{32}", found) is None:
        found = os.environ[_INSTANCE] = os.urandom(16).hex()
    return found


def worker_count(daemon: model.DaemonConfig) -> int:
    """Return the number of workers; with `Auto` the number of cores for this process (sched_getaffinity(2)).

    taskset(1), systemd's CPUAffinity= and cpusets limit these cores. A quota of processor time (cgroup cpu.max) does
    not reduce the number, since processes can use all cores for a part of each period.
    """
    if daemon.workers == model.AUTO:
        return min(len(os.sched_getaffinity(0)), model.MAX_WORKERS)
    return int(daemon.workers)


def reap_regularly(reactor: Any, *, has_plugins: Callable[[], bool]) -> None:
    """Start reaping adopted processes regularly. `has_plugins` returns whether this process runs exec plugins."""
    reaping = LoopingCall(lambda: reap(has_plugins=has_plugins()))
    reaping.clock = reactor
    reaping.start(REAP_INTERVAL, now=False)


def reap(*, has_plugins: bool) -> list[int]:
    """Reap adopted processes that have ended, and return their ids.

    Other code reaps our own children: a supervisor's children are in its process group (`processes.children`), and exec
    plugins lead a session (`upstream.exec_process`). The kernel reports one ended process at a time. So an own child
    that is not reaped yet delays the adopted ones until the next search.
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
    """Make sure that `path` is a folder to which only this process's user has access. Raises DaemonError.

    A missing folder is created with mode 0700. A missing parent is an error, because the path is likely mistyped. The
    mode of an existing folder is not changed, because it can be the wrong folder.
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
        os.chmod(path, 0o700)  # because the umask can have restricted the mode in mkdir


def state_directory_fault(path: str, owner: int | None) -> tuple[str, str] | None:
    """Return the fault of an existing `path` and its remedy; None if the path is usable.

    `owner` is the id of the daemon's user; None if unknown.
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
