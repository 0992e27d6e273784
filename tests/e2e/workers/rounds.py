"""One thing that happens to a daemon under load, and one of its processes that is killed or stopped meanwhile.

Each function does it once, judges what the clients saw, and leaves a daemon that serves with all its processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.http_client import Client
from tests.e2e.processes import TIMEOUT, wait_until
from tests.e2e.workers.family import living
from tests.e2e.workers.faults import KEEPER, SUPERVISOR, Moment, pids_by_target, strike
from tests.e2e.workers.generation import generation
from tests.e2e.workers.load import (
    ADMIN_HEADERS,
    Aggregated,
    Break,
    Death,
    Executing,
    Following,
    Fresh,
    Kept,
    Load,
    Retirement,
    Watching,
)
from tests.e2e.workers.site import WorkersDaemon

HEARTBEAT = 10.0
"""Seconds after which a process that answers nothing is replaced."""
RESTART = 1.0
"""Seconds within which a successor serves on a quiet machine."""


@dataclass
class Outcome:
    """What a round showed. `wrong` is empty when all is well."""

    what: str
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def expect(self, holds: object, text: str) -> None:
        if not holds:
            self.wrong.append(text)

    def __str__(self) -> str:
        figures = " ".join(f"{name}={value:.2f}" for name, value in self.figures.items())
        return f"{self.what}: {figures} {'; '.join(self.wrong) or 'well'}"


def load_of(daemon: WorkersDaemon, clients: int = 2, *, pause: float = 0.01) -> Load:
    """Return a load with so many clients of each kind for each worker, not yet begun."""
    count = clients * daemon.workers
    load = Load(daemon.family, pause=pause)
    for kind in (Kept, Watching, Executing, Following):
        load.add(kind, daemon.address, count)
    load.add(Fresh, daemon.address, 2)
    if daemon.aggregate:
        load.add(Aggregated, daemon.fleet, count, ADMIN_HEADERS)
    return load


def fault_while(
    daemon: WorkersDaemon,
    load: Load,
    action: Callable[[], Any] | None,
    target: str,
    number: signal.Signals,
    moment: Moment,
    what: str,
    within: float = RESTART,
) -> Outcome:
    """Strike a child (or stop the supervisor for a while) during `action`, which leaves the daemon serving.

    The successor is wanted `within` seconds: more than `RESTART` where the machine has much else to do.
    """
    outcome = Outcome(f"{what} {number.name} {target} after {moment.after:.3f}{moment.line}")
    who = pids_by_target(daemon)
    pid = who[target]
    known = set(load.served_by) | daemon.family.pids()
    first = len(load.breaks)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(_result(action)), daemon=True)
    thread.start()
    moment.wait(daemon)
    death = strike(pid, number)
    if target == SUPERVISOR:
        assert number == signal.SIGSTOP, "a dead supervisor is `supervisor_dies`"
        time.sleep(HEARTBEAT + 2)
        strike(pid, signal.SIGCONT)
    else:
        served = _successor_serves(daemon, load, target, known, death, outcome)
        limit = within + _delay(daemon, pid) + (HEARTBEAT if number == signal.SIGSTOP else 0)
        outcome.figures["successor"] = served
        outcome.expect(served < limit, f"the successor served after {served:.2f} s of {limit:.1f}")
    thread.join(TIMEOUT)
    outcome.expect(not thread.is_alive(), f"the action did not end within {TIMEOUT:.0f} s")
    if result:
        outcome.figures["ok"] = float(bool(result[0]))
    with contextlib.suppress(AssertionError):
        daemon.wait_until_all_serve()
    outcome.expect(daemon.all_serve(), f"not all processes serve: {daemon.processes()}")
    if target == SUPERVISOR:
        outcome.expect(daemon.pid_of(KEEPER if daemon.aggregate else "leader") in who.values(), "a child was replaced")
    else:
        load.wait_until_left(pid)
    _judge(outcome, load.unexplained(*([] if target == SUPERVISOR else [death])), first, load, death)
    return outcome


def _delay(daemon: WorkersDaemon, pid: int) -> float:
    """Return the seconds that the supervisor lets pass before it replaces a process: 0 unless that dies often."""
    found = [
        re.search(r"\breplacedAfterSeconds=([\d.]+)", line) for line in daemon.lines("and is replaced", f"pid={pid} ")
    ]
    return max((float(each[1]) for each in found if each), default=0.0)


def _result(action: Callable[[], Any] | None) -> Any:
    try:
        return True if action is None else action()
    except (OSError, ValueError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"


def _successor_serves(
    daemon: WorkersDaemon, load: Load, target: str, known: set[int], death: Death, outcome: Outcome
) -> float:
    """Return the seconds from the death until a client was served by a successor."""
    if target == KEEPER:
        before = sum(client.served for client in load.clients if isinstance(client, Aggregated))

        def served() -> bool:
            now = sum(client.served for client in load.clients if isinstance(client, Aggregated))
            return now > before + daemon.workers * 4
    else:

        def served() -> bool:
            return bool(set(load.served_by) - known - {0})

    try:
        wait_until("a successor serves", served)
    except AssertionError as error:
        outcome.wrong.append(str(error))
    return time.monotonic() - death.since


def _judge(outcome: Outcome, unexplained: list[Break], first: int, load: Load, *deaths: Death) -> None:
    new = [each for each in unexplained if each in load.breaks[first:]]
    outcome.figures["broke"] = len(load.breaks) - first
    for each in new[:5]:
        outcome.wrong.append(f"unexplained: {each}, deaths {deaths}")
    if len(new) > 5:
        outcome.wrong.append(f"and {len(new) - 5} more unexplained")
    load.breaks[first:] = []
    outcome.figures["slowest"] = load.slowest
    for client in load.clients:
        client.slowest = 0.0


class Reloads:
    """Reloads to the next generation of the file; `check` finds out whether all or none has it."""

    def __init__(self, daemon: WorkersDaemon) -> None:
        self.daemon = daemon

    def next(self) -> bool:
        """Reload to the next generation; return whether the daemon says that it is in force."""
        self.daemon.generation += 1
        self.daemon.write_config()
        return bool(self.daemon.reload_quickly()["ok"])

    def check(self, outcome: Outcome) -> None:
        """All workers have the same generation: the last one, where its reload was said to be in force."""
        workers = {each.pid for each in self.daemon.processes().values() if each.name.startswith("worker")}
        found = generations(self.daemon, workers)
        same = {found[pid] for pid in workers}
        outcome.expect(len(same) == 1, f"the workers have different configurations: {found}")
        if outcome.figures.get("ok"):
            outcome.expect(same == {self.daemon.generation}, f"{self.daemon.generation} should be in force: {found}")


def generations(daemon: WorkersDaemon, workers: set[int]) -> dict[int, int]:
    """Return the generation at each of these processes: connections are opened until each has one."""
    found: dict[int, int] = {}
    for _ in range(200):
        with contextlib.suppress(OSError), Client(daemon.address) as client:
            owner = daemon.family.owner(daemon.port, client.socket.getsockname()[1])
            if owner not in found:
                found[owner] = generation(client)
        if workers <= found.keys():
            return found
    raise AssertionError(f"of {workers} only {set(found)} took any of 200 connections")


def supervisor_dies(
    daemon: WorkersDaemon,
    load: Load,
    action: Callable[[], Any] | None,
    moment: Moment,
    what: str,
) -> Outcome:
    """Kill the supervisor during `action`: the others end, and another daemon serves. Clients are cut meanwhile."""
    outcome = Outcome(f"{what} SIGKILL supervisor after {moment.after:.3f}{moment.line}")
    pid = daemon.pid_of(SUPERVISOR)
    thread = threading.Thread(target=lambda: _result(action), daemon=True)
    thread.start()
    moment.wait(daemon)
    strike(pid)
    begun = time.monotonic()
    thread.join(60)
    with contextlib.suppress(AssertionError):
        wait_until("its processes end", lambda: not daemon.family.pids(), TIMEOUT)
    outcome.expect(not daemon.family.pids(), "its processes did not end")
    outcome.figures["ended"] = time.monotonic() - begun
    daemon.start_next()
    daemon.wait_until_all_serve()
    outcome.figures["served"] = time.monotonic() - begun
    load.breaks.clear()
    return outcome


def upgrade(
    daemon: WorkersDaemon,
    load: Load,
    what: str = "upgrade",
    target: str = "",
    number: signal.Signals = signal.SIGKILL,
    moment: Moment | None = None,
    new: bool = False,
    last: bool = False,
) -> Outcome:
    """Upgrade; kill (or stop until it is killed or goes on) a process of the old daemon, or of the new one (`new`).

    With `last` the load is stopped as soon as tunnels had their time: watches have 5 s, which a suite has not. When the
    supervisor is killed its processes end, and what clients saw of that is not judged.
    """
    outcome = Outcome(f"{what} {number.name + ' ' + target if target else ''}{' of the new' if new else ''} {moment}")
    before, who, first = daemon.family.pids(), pids_by_target(daemon), len(load.breaks)
    begun = time.monotonic()
    command = subprocess.Popen(
        [sys.executable, "-m", "mcproxy", "upgrade", "-c", str(daemon.file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deaths = []
    if target:
        assert moment is not None
        moment.wait(daemon)
        started = sorted(daemon.family.pids() - before)
        pid = (started[int(moment.after * 1000) % len(started)] if started else 0) if new else who[target]
        with contextlib.suppress(ProcessLookupError):
            if pid:
                deaths.append(strike(pid, number))
                if number == signal.SIGSTOP:  # whoever is not killed meanwhile goes on, as a frozen machine does
                    threading.Timer(HEARTBEAT + 2, _continue, (pid,)).start()
    try:
        output, _ = command.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        command.kill()
        output, _ = command.communicate()
        outcome.wrong.append("`mcproxy upgrade` did not end within 120 s")
    outcome.figures["status"] = command.returncode
    outcome.figures["took"] = time.monotonic() - begun
    drain = float(daemon.drain.removesuffix("s"))
    done = command.returncode == 0
    if target == SUPERVISOR and number == signal.SIGKILL and not _answers(daemon):
        daemon.start_next()  # nobody is left
        done = True
    with contextlib.suppress(AssertionError):
        daemon.wait_until_all_serve()
    outcome.expect(daemon.all_serve(), f"not all processes serve; the command said {output}")
    if last:
        time.sleep(drain + 0.5)
        with contextlib.suppress(AssertionError):
            wait_until("the new program serves somebody", lambda: bool(set(load.served_by) - before - {0}))
        outcome.expect(set(load.served_by) - before - {0}, "the new program has served nobody")
        load.stop()
    if done:
        with contextlib.suppress(AssertionError):
            wait_until("the old daemon ends", lambda: not living(before), drain + TIMEOUT)
        outcome.expect(not living(before), "the old daemon did not end")
        outcome.figures["drained"] = time.monotonic() - begun
    elif not target:
        outcome.wrong.append(f"the upgrade failed: {output}")
    children = daemon.children()
    reasons: list[Death | Retirement] = [*deaths]
    ended = before if done else set()
    reasons += [Retirement(pid, begun, drain) for pid in ended]
    time.sleep(0.3)
    outcome.expect(
        daemon.family.pids() == {daemon.pid_of(SUPERVISOR), *children} or done is False,
        f"strange processes: {daemon.family.pids()} of {daemon.processes()}",
    )
    if target == SUPERVISOR and number == signal.SIGKILL and not new:
        load.breaks.clear()
    else:
        _judge(outcome, load.unexplained(*reasons), first, load, *deaths)
    return outcome


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _answers(daemon: WorkersDaemon) -> bool:
    """Whether some daemon answers at the control socket, or does so soon: the new one may be about to open it."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if daemon.status()["state"] == "serving":
                return True
        time.sleep(0.1)
    return False
