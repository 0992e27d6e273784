"""`bench keeper`: an aggregate whose caches are in the keeper, with TLS, identity and policy in a worker.

The pipeline is the daemon's, in one process and in two (`bench/keeper_server.py`). Of a list of 40 MB counts the
processor time of the busier process, since both work at the same time on cores of their own: that is how many lists a
worker and the keeper can give. Of the fan-out to 1,000 watchers counts the keeper's processor time: it is what all
workers have in common.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.aggregate_lists import PATH, _drain
from bench.aggregate_watches import _PATIENCE, STALLED, _result
from bench.client import client_context, get
from bench.lab import Lab
from bench.processes import Failed, Process, free_port, wait_for_port
from bench.report import Section, limit
from bench.stats import shuffled_rounds, spread
from bench.subjects import script_argv

PODS = 10_000
_LISTS = 5  # in a round
_LEAST = 1e-3  # seconds: processor time is counted in ticks
ONE, KEEPER = "one", "keeper"


def measure(
    lab: Lab, objects: int, rounds: int, watchers: int, rate: int, seconds: float, rng: random.Random
) -> Section:
    """Measure lists of `objects` pods, and `rate` changes a second for `watchers` during `seconds`."""
    section = Section(
        f"Through the keeper: a list of {objects:,} pods of 4 KB, and {watchers:,} watchers of {rate} changes a second",
        ["what", "keeper", "worker", "elapsed ms", "p99 ms"],
    )
    measure_lists(lab, section, objects, rounds, rng)
    for stalled in (0, min(STALLED, watchers // 2)):
        _watches(lab, section, watchers, stalled, rate, seconds)
    return section


@contextmanager
def server(
    lab: Lab, how: str, what: str, count: int, rate: int = 0, seconds: float = 0
) -> Iterator[tuple[Process, int]]:
    """Run the server, in one process or in two."""
    port, files = free_port(), lab.identity
    argv = [*script_argv("keeper_server.py", lab.python.program), how, what, str(port)]
    argv += [str(files.certificate), str(files.key), str(count), str(rate), str(seconds)]
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH"))))
    process = lab.processes.start(f"keeper-{what}-{how}", argv, lab.cores.proxy, {"PYTHONPATH": path})
    try:
        wait_for_port(process, port, timeout=_PATIENCE)
        yield process, port
    finally:
        lab.processes.stop(process)


def measure_lists(lab: Lab, section: Section, objects: int, rounds: int, rng: random.Random) -> None:
    """Compare a list in one process with the same through the keeper. Raises Failed where the bytes differ."""
    with server(lab, ONE, "lists", objects) as one, server(lab, KEEPER, "lists", objects) as two:
        subjects = {ONE: one, KEEPER: two}
        bodies = {name: get(port, client_context(lab), PATH).body for name, (_, port) in subjects.items()}
        if bodies[ONE] != bodies[KEEPER]:
            raise Failed("the list through the keeper is another one")
        size = len(bodies[ONE])
        spent = [
            {name: _timed(lab, *subjects[name], size) for name in order}
            for order in shuffled_rounds(list(subjects), rounds, rng)
        ]
    alone, keeper, worker = (
        [each[name][place] for each in spent] for name, place in ((ONE, 0), (KEEPER, 0), (KEEPER, 1))
    )
    elapsed = {name: spread([each[name][-1] for each in spent]).show(0, 1e-3) for name in subjects}
    section.rows.append(
        [f"list of {size / 1e6:.0f} MB, one process, ms", spread(alone).show(1, 1e-3), "-", elapsed[ONE], "-"]
    )
    section.rows.append(
        [
            "the same through the keeper, ms",
            spread(keeper).show(1, 1e-3),
            spread(worker).show(1, 1e-3),
            elapsed[KEEPER],
            "-",
        ]
    )
    ratios = [single / max(*pair, _LEAST) for single, *pair in zip(alone, keeper, worker, strict=True)]
    section.targets.append(limit("lists a second, two processes / one", ratios, at_least=0.8))


def _timed(lab: Lab, process: Process, port: int, size: int) -> list[float]:
    """Return the processor time of each process for one list, and what it took, in seconds."""
    before, began = process.cpu_by_process(), time.monotonic()
    _drain(lab, port, PATH, size, _LISTS)
    took = time.monotonic() - began
    after = process.cpu_by_process()
    return [*((after[pid] - before[pid]) / _LISTS for pid in before), took / _LISTS]


def _watches(lab: Lab, section: Section, watchers: int, stalled: int, rate: int, seconds: float) -> None:
    with server(lab, KEEPER, "watches", watchers, rate, seconds) as (process, port):
        argv = [*script_argv("watch_clients.py"), str(port), str(lab.identity.authority), str(watchers), str(stalled)]
        changes = int(rate * seconds)
        before = process.cpu_by_process()
        clients = lab.processes.start(
            "keeper-watch-clients", [*argv, str(changes), str(seconds + _PATIENCE)], lab.cores.load
        )
        seen, served = _result(clients, seconds), _result(process, seconds)
        if seen["wrong"] or seen["complete"] != seen["reading"]:
            raise Failed(f"{seen['complete']} of {seen['reading']} watchers got all {changes} changes: {seen}")
        _, worker = (used - before[pid] for pid, used in process.cpu_by_process().items())
        lab.processes.stop(clients)
        clients.log.unlink()
        process.log.unlink()
    what = f", {stalled} of them read nothing" if stalled else ""
    section.rows.append(_row(f"fan-out{what}", served, worker / served["seconds"], seen))
    busy = [served["core"] * 100]
    section.targets.append(limit(f"the keeper's core{what}", busy, unit="%", digits=0, at_most=40))


def _row(what: str, served: dict[str, Any], worker: float, seen: dict[str, Any]) -> list[str]:
    return [what, f"{served['core'] * 100:.0f} %", f"{worker * 100:.0f} %", "-", f"{seen['p99'] * 1e3:.0f}"]
