"""`bench limits`: what flow control adds to a request: a token, or a permit from its beginning to its end.

Counted in the process itself, as a daemon of one process does; in shared memory, as one of several does, alone with it;
and there by four processes that do nothing else, all for one key, which is the worst that can happen to a mutex.
Processor time, and for the last the rate of all four, too: who finds the mutex taken tries again for a moment, and then
sleeps.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from bench.lab import Lab
from bench.processes import Failed, pinned
from bench.report import Section, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import script_argv
from mcproxy.dispatch.tables.shared_memory import SharedMemory

LOCAL, SHARED, CONTENDED = "in the process", "in shared memory", "in shared memory, by 4 processes at once"
WHATS = {"bucket": "a token", "permit": "a permit, taken and given back"}
TAKERS = 4
AT_MOST = {"bucket": 4.0, "permit": 8.0}
"""Microseconds that one process may need alone."""
_PATIENCE = 120.0

Case = tuple[str, str]  # of WHATS, and where


@dataclass(frozen=True, slots=True)
class Taken:
    """What the processes of one case needed: processor seconds for each, and how many a second all of them together."""

    cost: float
    rate: float


def measure(lab: Lab, rounds: int, seconds: float, rng: random.Random) -> Section:
    """Measure every case in each of `rounds` rounds, for `seconds` each."""
    cases = [(what, where) for what in WHATS for where in (LOCAL, SHARED, CONTENDED)]
    cores = [lab.cores.proxy, lab.cores.load]
    taken = [{case: take(*case, seconds, cores) for case in order} for order in shuffled_rounds(cases, rounds, rng)]
    return summarise(cases, taken)


def take(what: str, where: str, seconds: float, cores: Sequence[int]) -> Taken:
    """Let one process, or `TAKERS` that share `cores`, take for `seconds`."""
    memory = SharedMemory.create()
    try:
        arguments = [what, str(seconds), *([] if where == LOCAL else [json.dumps(memory.descriptors)])]
        takers = [
            subprocess.Popen(
                pinned([*script_argv("limit_takers.py"), *arguments], cores[number % len(cores)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=tuple(memory.descriptors.values()),
            )
            for number in range(TAKERS if where == CONTENDED else 1)
        ]
        for taker in takers:
            assert taker.stdout is not None
            if taker.stdout.readline() != "ready\n":
                raise Failed("a process that takes from limits did not start")
        for taker in takers:
            assert taker.stdin is not None
            taker.stdin.write("go\n")
            taker.stdin.flush()
        said = [json.loads(taker.communicate(timeout=_PATIENCE)[0]) for taker in takers]
    finally:
        memory.close()
    number = sum(one["taken"] for one in said)
    return Taken(sum(one["processor"] for one in said) / number, sum(one["taken"] / one["seconds"] for one in said))


def summarise(cases: Sequence[Case], rounds: Sequence[dict[Case, Taken]]) -> Section:
    """Make the table; the targets are those of one process that has the memory for itself."""
    section = Section("Limits", ["what", "counted", "CPU us", "as a multiple of that in the process", "a second"])
    for what, where in cases:
        costs = [{place: taken[what, place].cost for place in (LOCAL, where)} for taken in rounds]
        ratio = "-" if where == LOCAL else spread(paired_ratios(costs, where, LOCAL)).show(1)
        rate = spread([taken[what, where].rate for taken in rounds]).show(0)
        cost = spread([taken[what, where].cost for taken in rounds]).show(2, 1e-6)
        section.rows.append([WHATS[what], where, cost, ratio, rate])
    for what, most in AT_MOST.items():
        costs_alone = [taken[what, SHARED].cost * 1e6 for taken in rounds]
        section.targets.append(limit(f"{WHATS[what]}, {SHARED}", costs_alone, unit="us", at_most=most))
    return section
