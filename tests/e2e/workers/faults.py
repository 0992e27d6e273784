"""Kills or stops a process of a daemon, at a moment that is chosen by a log line or by chance."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.processes import wait_until
from tests.e2e.workers.family import state
from tests.e2e.workers.load import Death
from tests.e2e.workers.site import WorkersDaemon

SUPERVISOR, LEADER, WORKER, KEEPER = "supervisor", "leader", "worker", "keeper"
TARGETS = (SUPERVISOR, LEADER, WORKER, KEEPER)
"""`worker` is one that is not the leader, where there is one."""


def pids_by_target(daemon: WorkersDaemon) -> dict[str, int]:
    """Return who is who now: a supervisor that is stopped or dead cannot be asked later."""
    found = {SUPERVISOR: daemon.pid_of(SUPERVISOR)}
    for each in daemon.processes().values():
        if each.name == SUPERVISOR:
            continue
        found[KEEPER if each.name == KEEPER else LEADER if each.leader else WORKER] = each.pid
    found.setdefault(LEADER, found[SUPERVISOR])  # one process
    return {WORKER: found[LEADER], **found}


def strike(pid: int, number: signal.Signals = signal.SIGKILL) -> Death:
    """Send the signal; return when that was. Raises ProcessLookupError where the process has ended."""
    death = Death(pid, time.monotonic())
    os.kill(pid, number)
    return death


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stand still, so that what waits for it is at a known moment."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until("it is stopped", lambda: state(pid) in ("T", ""))
        yield
    finally:
        if state(pid):
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Moment:
    """When to strike: so many seconds after an action was begun, or after a line that it logs."""

    after: float
    line: str = ""

    def wait(self, daemon: WorkersDaemon) -> None:
        if self.line:
            wait_until(f"the line {self.line!r}", lambda: bool(daemon.lines(self.line)))
        time.sleep(self.after)

    @classmethod
    def choose(cls, chance: random.Random, longest: float) -> Moment:
        return cls(chance.random() ** 2 * longest)  # more often early, where more happens
