"""Processor time: what a proxy used of its core while it was loaded, and what others took of that core.

The second tells a disturbed round from a good one: another program on the proxy's core, or a host that gave the core to
another machine (steal), lowers the rate and lengthens the tail of latencies of whoever runs just then.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Process

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM, _STEAL = 0, 1, 2, 7  # columns of a cpu line, see proc_stat(5)


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu` in seconds; `busy` and `others` as shares of the core's time."""

    cpu: float
    busy: float
    others: float


class Meter:
    """Measures from its making to `read`. `process` runs on `core`, alone as far as we could arrange it.

    A child that ends meanwhile counts for nothing: what it had used before would be taken off.
    """

    def __init__(self, process: Process, core: int) -> None:
        self._process, self._core = process, core
        self._began, self._cpu, self._all = time.monotonic(), process.cpu_by_process(), _core_seconds(core)

    def read(self) -> Usage:
        took = time.monotonic() - self._began
        cpu = sum(used - self._cpu.get(pid, 0.0) for pid, used in self._process.cpu_by_process().items())
        others = max(0.0, _core_seconds(self._core) - self._all - cpu)
        return Usage(cpu, cpu / took, others / took)


def _core_seconds(core: int) -> float:
    return core_seconds(Path("/proc/stat").read_text(), core)


def core_seconds(stat: str, core: int) -> float:
    """Return the seconds for which programs or the host had `core`, from the text of /proc/stat (no interrupts)."""
    for line in stat.splitlines():
        name, *columns = line.split()
        if name == f"cpu{core}":
            return sum(int(columns[place]) for place in (_USER, _NICE, _SYSTEM, _STEAL)) / _TICKS
    raise ValueError(f"no core {core} in /proc/stat")
