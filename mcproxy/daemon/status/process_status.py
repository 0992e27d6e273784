"""Processes in the status document: resource usage of a process from proc(5), and sums of figures over processes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping

from mcproxy.daemon.status import Figures
from mcproxy.observe.senders import KINDS as SENDERS

KEYS = ("residentBytes", "virtualBytes", "cpuSeconds", "descriptors", "maxDescriptors", "startedAt", "loopLagSeconds")
"""The keys of `of_process`."""
_STARTED = 19
"""Index of field 22 of /proc/PID/stat among the fields after the process name."""


def of_process(loop_lag: float | None = None, proc: str = "/proc/self") -> Figures:
    """Return the resource usage of this process.

    `loop_lag` is the longest recent delay of its event loop; None if unknown."""
    virtual, resident = memory(proc)
    return {
        "residentBytes": resident,
        "virtualBytes": virtual,
        "cpuSeconds": round(time.process_time(), 3),
        "descriptors": open_descriptors(proc),
        "maxDescriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "startedAt": started_at(proc),
        "loopLagSeconds": loop_lag,
    }


def memory(proc: str = "/proc/self") -> tuple[int, int] | tuple[None, None]:
    """Return the virtual and the resident size (bytes), including shared memory; None without proc(5)."""
    try:
        with open(f"{proc}/statm", "rb") as file:
            virtual, resident = file.read().split()[:2]
        page = os.sysconf("SC_PAGE_SIZE")
        return int(virtual) * page, int(resident) * page
    except (OSError, ValueError):
        return None, None


def started_at(proc: str = "/proc/self") -> float | None:
    """Return the start time of the process in seconds since 1970; None without proc(5)."""
    try:
        with open(f"{proc}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[_STARTED])  # the name can have spaces and brackets
        with open("/proc/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def open_descriptors(proc: str = "/proc/self") -> int | None:
    """Return the number of open descriptors; None without proc(5).

    Since Linux 6.2 the directory's size is this number. On older kernels the entries are counted (0.3 µs each).
    """
    directory = f"{proc}/fd"
    try:
        return os.stat(directory).st_size or len(os.listdir(directory))
    except OSError:
        return None


# The sums of the figures of several processes.
#
# Every process reports its figures; a missing figure (the keeper has no listeners, or a process starts) counts as zero.
# Numbers are added, except facts that all processes know (a limit, a time). A fact is taken from the first process that
# knows it. Callers put the leader first, because it checks health and rights for all processes.

_IDENTITY: Mapping[str, tuple[str, ...]] = {
    "listeners": ("name", "bind"),
    "servers": ("name",),
    "clusters": ("name",),
    "endpoints": ("url",),
    "aggregates": ("name",),
    "apiServices": ("name", "cluster"),
    "serviceEndpoints": ("cluster",),
    "ingresses": ("name",),
    "ingressServices": ("service", "port", "cluster", "via"),
    "outEndpoints": ("endpoint",),
    "reflectors": ("cluster", "resource", "version", "namespace"),
    "flowControls": ("name",),
    "reviewers": ("kind", "name"),
    "certificates": ("kind", "name"),
    "tunnels": ("role", "name", "listener"),
    "peers": ("peer", "instance", "since", "rttSeconds"),
    "hubs": ("url",),
    "conditions": ("connected", "since", "cause"),
    **dict.fromkeys(SENDERS, ("name",)),
}
"""Lists whose objects several processes report, with the keys that identify an object."""

_ANY = frozenset({"accepting", "refused"})
"""Booleans that are true if they are true in at least one process."""

_FACTS = frozenset(
    {
        "ready",
        "terminating",
        "limits",
        "latencySeconds",
        "rttSeconds",
        "lagSeconds",
        "lastEventSeconds",
        "tokens",
        "daysLeft",
        "windowSeconds",
    }
)
"""Numbers and objects that are the same in each process, or that only one process knows."""


def summed(processes: Iterable[Figures]) -> Figures:
    """Return the sums of the figures of processes, with each listener, server, cluster … once.

    The arguments are changed and reused, so that 500 clusters of four processes take a few milliseconds. Lists that the
    status document always has are present even if empty.
    """
    total: Figures = {"listeners": [], "clusters": []}
    for process in processes:
        _add(total, process)
    return total


def _add(total: Figures, other: Figures) -> None:
    """Add an object to another, key by key. A key that only one of them has is kept."""
    for key, value in other.items():
        one = total.get(key)
        kind = type(value)  # JSON types have no subclasses
        if one is None:
            total[key] = value
        elif kind is str or value is None or key in _FACTS:
            continue
        elif kind is int or kind is float:
            total[key] = one + value
        elif kind is dict:
            _add(one, value)
        elif kind is list and key in _IDENTITY:
            _add_all(one, value, _IDENTITY[key])
        elif kind is bool and key in _ANY:
            total[key] = one or value


def _add_all(total: list[Figures], others: list[Figures], identity: tuple[str, ...]) -> None:
    """Add a list of objects to another; objects with the same identity are summed."""
    if not total:
        total += others
        return
    known = {tuple(map(entry.get, identity)): entry for entry in total}
    for other in others:
        name = tuple(map(other.get, identity))
        entry = known.get(name)
        if entry is None:
            known[name] = other
            total.append(other)
        else:
            _add(entry, other)
