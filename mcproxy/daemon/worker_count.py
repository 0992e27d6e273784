"""How many workers a configuration asks for, on this machine; and which other number a reload can bring."""

from __future__ import annotations

import os

from mcproxy.config import model
from mcproxy.daemon.errors import DaemonError


class WorkersChangedError(DaemonError):
    """A reload would have to make one process several, or the reverse."""


def worker_count(daemon: model.Daemon) -> int:
    """Return the number of workers; with `Auto` that of the cores that this process may run on (sched_getaffinity(2)).

    That is what taskset(1), systemd's CPUAffinity= and cpusets allow; a quota of processor time (cgroup cpu.max) counts
    as no core less, since processes may use all cores for a part of each period.
    """
    if daemon.workers == model.AUTO:
        return min(len(os.sched_getaffinity(0)), model.MAX_WORKERS)
    return int(daemon.workers)


def check_reload(before: model.Daemon, after: model.Daemon) -> None:
    """Raise WorkersChangedError if a reload cannot bring the workers of `after`.

    A supervisor starts and ends workers; but the one process of a daemon has connections, which no other can take over.
    """
    old, new = worker_count(before), worker_count(after)
    if (old == 1) != (new == 1):
        raise WorkersChangedError(
            f"a reload cannot change the number of workers from {old} to {new}",
            todo="run `mcproxy upgrade`, which replaces the daemon without refusing a connection, or restart it",
        )
