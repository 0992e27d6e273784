"""How many workers a configuration asks for, on this machine."""

from __future__ import annotations

import os

from mcproxy.config import model


def worker_count(daemon: model.Daemon) -> int:
    """Return the number of workers; with `Auto` that of the cores that this process may run on (sched_getaffinity(2)).

    That is what taskset(1), systemd's CPUAffinity= and cpusets allow; a quota of processor time (cgroup cpu.max) counts
    as no core less, since processes may use all cores for a part of each period.
    """
    if daemon.workers == model.AUTO:
        return min(len(os.sched_getaffinity(0)), model.MAX_WORKERS)
    return int(daemon.workers)
