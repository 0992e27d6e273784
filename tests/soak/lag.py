"""How long the loops of the daemon's processes stood still, by its own metric, and whether the machine was busy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.http_client import Address, ask
from tests.e2e.workers.faults import SUPERVISOR
from tests.e2e.workers.load import ADMIN_HEADERS

BOUND = 0.05
"""Seconds that no turn of a loop should last."""
_LINE = re.compile(r"mcproxy_loop_lag_seconds_bucket\{(.*)\} (\d+)")
_PROCESS, _LE = re.compile(r'process="([^"]*)"'), re.compile(r'le="([^"]*)"')


@dataclass(frozen=True)
class Reading:
    """Of each process, by name, since its start."""

    slow: Mapping[str, int]
    """Turns of its loop over `BOUND`."""
    waited: Mapping[str, float]
    """Seconds for which its main thread could have run, and had no processor (schedstat of proc(5))."""


def slow_turns(text: str) -> dict[str, int]:
    """Return how many turns each process had over `BOUND` until now, from the text of /metrics."""
    counts: dict[str, dict[str, int]] = {}
    for labels, value in _LINE.findall(text):
        process, le = _PROCESS.search(labels), _LE.search(labels)
        assert process is not None
        assert le is not None
        counts.setdefault(process[1], {})[le[1]] = int(value)
    return {process: found["+Inf"] - found[f"{BOUND}"] for process, found in counts.items()}


def read(daemon: Any) -> Reading:
    """Ask the daemon and the kernel. Raises OSError."""
    answer = ask(Address(daemon.admin_port, daemon.site.context), "/metrics", headers=ADMIN_HEADERS)
    if answer.status != 200:
        raise ConnectionError(f"/metrics: {answer.status}")
    pids = {SUPERVISOR: daemon.pid_of(SUPERVISOR)}
    pids.update({one.name: one.pid for one in daemon.processes().values()})
    slow = slow_turns(answer.body.decode())
    return Reading(slow, {name: _waited(pids.get(name, pids[SUPERVISOR])) for name in slow})  # one process: "mcproxy"


def _waited(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def stood_still(before: Reading, after: Reading) -> tuple[dict[str, int], dict[str, int]]:
    """Return the slow turns between two readings: those that the machine explains, and those that it does not.

    A turn of 50 ms in which its thread waited for a processor most of the time was a turn of a busy machine.
    """
    explained: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for name, count in after.slow.items():
        if (new := count - before.slow.get(name, count)) > 0:
            waited = after.waited.get(name, 0.0) - before.waited.get(name, 0.0)
            (explained if waited > BOUND / 2 else wrong)[name] = new
    return explained, wrong
