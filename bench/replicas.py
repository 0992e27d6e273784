"""`bench replicas`: what four replicas that share a token bucket admit together under uneven loads, over 30 s.

Each is a process with the table and the lease agent of the daemon, and all have one real Redis. What is offered is
always more than the limit, so that the limit itself is what can be admitted.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.lab import Lab
from bench.processes import Failed, Process
from bench.replica import LEAD, SECONDS
from bench.report import Section, Target
from bench.stats import spread
from bench.subjects import script_argv

QPS, BURST = 200, 20
LEAST, MOST = 0.95, 1.05
"""What must be admitted of the limit."""
_JOINED = 8.0
"""Seconds after which the replicas know each other."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second that are offered to each replica, in equal times one after the other; in limits."""

    name: str
    offered: Sequence[Sequence[float]]
    restarted: bool = False
    """Whether Redis is restarted, empty, in the middle."""


LOADS = (
    Load("one replica has nearly all", [(2,), (0.1,), (0.05,), (0,)]),
    Load("one has none, the others differ", [(0,), (0.2,), (0.5,), (1.5,)]),
    Load("each a third of the time", [(2, 0.1, 0.5), (0.1, 2, 0.5), (0, 0, 0.5), (0, 0, 0.5)]),
    Load("Redis restarted empty in the middle", [(2,), (0.1,), (0.05,), (0,)], restarted=True),
)


def measure(lab: Lab, rounds: int) -> Section:
    """Run each of the loads `rounds` times."""
    section = Section(
        "Limits over four replicas (`bench replicas`)",
        ["load", "admitted in 30 s, of the limit", "in the worst 5 s", "in the best 5 s"],
    )
    for load in LOADS:
        runs = [_run(lab, load, number) for number in range(rounds)]
        parts = [sum(admitted) / (QPS * SECONDS) for admitted in runs]
        fives = [[sum(a[at : at + 5]) / (QPS * 5) for at in range(SECONDS - 4)] for a in runs]
        worst, best = [min(five) for five in fives], [max(five) for five in fives]
        section.rows.append([load.name, *(spread(values).show(3) for values in (parts, worst, best))])
        met = all(LEAST <= part <= MOST for part in parts)
        section.targets.append(
            Target(f"{load.name}: admitted of the limit", f"{LEAST} to {MOST}", spread(parts).show(3), met)
        )
    return section


def _run(lab: Lab, load: Load, number: int) -> list[int]:
    """Return what was admitted in each second."""
    place = lab.directory / f"redis-{LOADS.index(load)}-{number}"
    place.mkdir()
    redis = _start_redis(lab, place.name)
    begin = time.time() + _JOINED + LEAD
    replicas = []
    for index, offered in enumerate(load.offered):
        rates = ",".join(str(rate * QPS) for rate in offered)
        arguments = [f"replica-{index}", str(place / "redis.sock"), str(QPS), str(BURST), str(begin), rates]
        argv = [*script_argv("replica.py", lab.python.program), *arguments]
        cores = (lab.cores.proxy, lab.cores.load)
        replicas.append(lab.processes.start(f"{place.name}-replica-{index}", argv, cores))
    time.sleep(_JOINED / 2)
    for replica in replicas:
        replica.check()
    if load.restarted:
        time.sleep(begin + SECONDS / 2 - time.time())
        lab.processes.stop(redis)
        redis = _start_redis(lab, place.name)
    time.sleep(max(0.0, begin + SECONDS - time.time()))
    admitted = [_admitted(replica) for replica in replicas]
    for process in (*replicas, redis):
        lab.processes.stop(process)
    return [sum(second) for second in zip(*admitted, strict=True)]


def _start_redis(lab: Lab, name: str) -> Process:
    program = shutil.which("redis-server")
    if program is None:
        raise Failed("not found: redis-server. On Debian: apt-get install -y redis-server")
    path = lab.directory / name / "redis.sock"
    path.unlink(missing_ok=True)
    argv = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(path.parent)]
    process = lab.processes.start(name, argv, lab.cores.upstream)
    deadline = time.monotonic() + 10
    while not path.is_socket():
        process.check()
        if time.monotonic() > deadline:
            raise Failed(f"redis-server does not listen:\n{process.last_words()}")
        time.sleep(0.01)
    return process


def _admitted(replica: Process) -> list[int]:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = [line for line in replica.last_words().splitlines() if line.startswith("[")]
        if lines:
            admitted: list[int] = json.loads(lines[-1])
            return admitted
        time.sleep(0.05)
    raise Failed(f"{replica.name} has not ended:\n{replica.last_words()}")
