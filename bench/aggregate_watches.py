"""`bench aggregate-watches`: changes of one resource of an aggregate, handed to many watchers over TLS.

1,000 watchers and 100 changes a second of objects of 4 KB: 100,000 deliveries a second from one core
(`bench/watch_server.py`), which the load (`bench/watch_clients.py`, on the other core) checks: every watcher gets every
event, in order. The same with watchers that read nothing shows what they cost the process, and whether the others
notice. Columns `core` and `load` are the processor time of both, `no core` is how long each was ready to run and had to
wait for other work on its core: much of that, and delays are those of the machine. `turn CPU ms` is the most processor
time of one turn of the reactor, `turn ms` how long the longest one lasted by the clock. Both have a target: the first
is what the code is responsible for, the second what clients see.
"""

from __future__ import annotations

import json
import time
from typing import Any

from bench.lab import Lab
from bench.processes import Failed, Process, free_port, wait_for_port
from bench.report import Section, limit
from bench.subjects import script_argv

STALLED = 50
_PATIENCE = 120.0


def measure(lab: Lab, watchers: int, rate: int, seconds: float) -> Section:
    """Hand `rate` changes a second to `watchers` for `seconds`, and again with some that read nothing."""
    section = Section(
        f"{watchers:,} watchers of one resource of an aggregate, {rate} changes a second of 4 KB",
        [
            "what",
            "deliveries/s",
            "us each",
            "core",
            "no core",
            "load",
            "no core",
            "median ms",
            "p99 ms",
            "turn CPU ms",
            "turn ms",
            "RSS MB",
        ],
    )
    plain = _measured(lab, watchers, 0, rate, seconds)
    section.rows.append(_row("all read", plain))
    section.figures["deliveries a second of a core"] = [plain["events"] / (plain["core"] * plain["seconds"])]
    stalled = min(STALLED, watchers // 2)
    slow = _measured(lab, watchers, stalled, rate, seconds)
    section.rows.append(_row(f"{stalled} of them read nothing", slow))
    each = max(0.0, slow["rss"] - plain["rss"]) / stalled
    section.comparisons.append(f"a watcher that reads nothing costs {each / 1024:.0f} KiB more than one that does")
    for found, what in ((plain, ""), (slow, ", some stalled")):
        busy = found["core"] * 100
        section.targets.append(limit(f"processor time{what}", [busy], unit="% of a core", digits=0, at_most=90))
        section.targets.append(limit(f"delay, p99{what}", [found["p99"] * 1e3], unit="ms", digits=0, at_most=250))
        longest = found["longest_turn"] * 1e3
        section.targets.append(limit(f"longest turn, processor time{what}", [longest], unit="ms", digits=0, at_most=50))
        elapsed = found["longest_elapsed"] * 1e3
        section.targets.append(limit(f"longest turn by the clock{what}", [elapsed], unit="ms", digits=0, at_most=50))
    section.targets.append(limit("a stalled watcher", [each / 1024], unit="KiB", digits=0, at_most=1024))
    return section


def _row(what: str, found: dict[str, Any]) -> list[str]:
    return [
        what,
        f"{found['events'] / found['seconds']:,.0f}",
        f"{found['core'] * found['seconds'] / found['events'] * 1e6:.1f}",
        f"{found['core'] * 100:.0f} %",
        f"{found['waited'] * 100:.0f} %",
        f"{found['load'] / found['seconds'] * 100:.0f} %",
        f"{found['load_waited'] / found['seconds'] * 100:.0f} %",
        f"{found['median'] * 1e3:.0f}",
        f"{found['p99'] * 1e3:.0f}",
        f"{found['longest_turn'] * 1e3:.0f}",
        f"{found['longest_elapsed'] * 1e3:.0f}",
        f"{found['rss'] / 1e6:.0f}",
    ]


def _measured(lab: Lab, watchers: int, stalled: int, rate: int, seconds: float) -> dict[str, Any]:
    """Return the figures of both processes in one; raises Failed where an event was lost or out of order."""
    port, files = free_port(), lab.identity
    argv = [*script_argv("watch_server.py", lab.python.program), str(port), str(files.certificate), str(files.key)]
    server = lab.processes.start("watch-server", [*argv, str(watchers), str(rate), str(seconds)], lab.cores.proxy)
    wait_for_port(server, port)
    argv = [*script_argv("watch_clients.py"), str(port), str(files.authority), str(watchers), str(stalled)]
    changes, patience = int(rate * seconds), str(seconds + _PATIENCE)
    clients = lab.processes.start("watch-clients", [*argv, str(changes), patience], lab.cores.load)
    seen, served = _result(clients, seconds), _result(server, seconds)
    if seen["wrong"] or seen["complete"] != seen["reading"]:
        raise Failed(f"{seen['complete']} of {seen['reading']} watchers got all {changes} changes: {seen}")
    found = {**seen, **served, "rss": server.rss()}
    for process in (clients, server):
        lab.processes.stop(process)
        process.log.unlink()
    return found


def _result(process: Process, seconds: float) -> dict[str, Any]:
    """Wait for the line of JSON that a process prints."""
    until = time.monotonic() + seconds + 2 * _PATIENCE
    while time.monotonic() < until:
        process.check()
        for line in process.log.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        time.sleep(0.2)
    raise Failed(f"{process.name} has no result:\n{process.last_words()}")
