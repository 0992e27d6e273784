"""`make soak`: a daemon under load for some time, with faults by chance; says what was wrong, with the seed for it.

make soak ARGS='--time 10m --workers 3 --seed 7 --only worker_killed,reload_storm'
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.processes import wait_until
from tests.e2e.workers.load import Load, Reason
from tests.e2e.workers.site import Events, Site
from tests.soak import lag
from tests.soak.clients import Counter, History, make_load
from tests.soak.faults import FAULTS, OF_PROCESSES, OTHERS, FaultError, Scene
from tests.soak.invariants import bugs, compare, quiet_footprints, unexplained_restarts, wait_released
from tests.soak.jumping_clock import JumpingClock
from tests.soak.lag import BOUND
from tests.support.ports import reserved_port

ADMIN = """\
  - {{name: admin, serves: Admin, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}, authentication: users}}
"""
CLUSTER = """\
    healthCheck: {interval: 1s, timeout: 2s, unhealthyAfter: 2}
    connections: {idleTimeout: 3s, connectTimeout: 2s, responseTimeout: 20s}
    flowControls: [whole]
"""
AGGREGATE = """\
  - {name: fleet, serverNames: [fleet.test], authentication: users, backend: {aggregate: fleet}}
aggregates:
  - name: fleet
    clusters: [east, west]
    primary: east
    cache: {resources: [{group: "", version: v1, resource: "*"}]}
    create: [{apiGroups: [""], resources: [configmaps], to: west}]
flowControls:
  - {name: whole, type: MaxRequestsInflight, max: 400, maxLongRunning: 2000, queue: {size: 400, timeout: 10s}}
"""
_LONG = 150.0
"""Seconds; in a shorter run there is no upgrade, which takes a third of a minute."""
SETTLE = 1.0
"""Seconds after a fault before it is judged: until those that it broke have noted it."""


@dataclass
class Report:
    """What was found; `wrong` is empty if all is well."""

    wrong: list[str] = field(default_factory=list)
    faults: int = 0
    explained: int = 0

    def add(self, *wrong: str) -> None:
        for text in wrong:
            self.wrong.append(text)
            print(f"  WRONG: {text}", flush=True)


def seconds(text: str) -> float:
    """Read a length of time: 90, 90s, 10m, 2h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: say 90s, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--time", type=seconds, default=60.0, help="how long there is load: 90s, 10m, 2h (1m)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="draws the faults; printed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=1, help="of each kind, for each worker")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two requests of a client")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"faults, of {', '.join(FAULTS)}")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs though all was well")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    print(f"seed {options.seed}, {options.workers} workers, {options.time:.0f} s", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="mcproxy-soak-"))
    site = Site(directory, endpoints=2).start()
    try:
        report = _run(site, directory / "daemon", options)
    finally:
        site.stop()
    if report.wrong:
        print(f"{len(report.wrong)} things were wrong with seed {options.seed}; logs are in {directory}")
        return 1
    if not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"all was well: {report.faults} faults, {report.explained} breaks that they explain")
    return 0


def _run(site: Site, directory: Path, options: argparse.Namespace) -> Report:
    clock, admin_port = JumpingClock(directory), reserved_port()
    daemon = site.daemon(
        directory,
        workers=options.workers,
        drain="2s",
        aggregate=AGGREGATE,
        cluster=CLUSTER,
        listeners=ADMIN.format(port=admin_port),
        environ=clock.environ,
    )
    daemon.admin_port = admin_port
    report, history, chance = Report(), History(), random.Random(options.seed)
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        _say("it serves")
        with Events(site), Counter(site) as counter:
            with make_load(daemon, history, clients=options.clients, pause=options.pause) as load:
                _wait_for_all(load)
                time.sleep(2)
            report.add(*(f"before any fault: {one}" for one in load.unexplained()))
            before = quiet_footprints(daemon)
            _say("measured without load; the faults begin")
            with make_load(daemon, history, clients=options.clients, pause=options.pause) as load:
                _wait_for_all(load)
                reasons = _faults(Scene(site, daemon, load, chance, clock), options, report)
            served, slowest = load.served, load.slowest
        _say("the load is over")
        report.add(*history.wrong, *unexplained_restarts(history, reasons))
        report.add(*wait_released(daemon))
        after = quiet_footprints(daemon, before)
        report.add(*compare(before, after))
        report.add(*(f"zombie {pid}" for pid in daemon.zombies()))
        for name, one in after.items():
            was = before.get(name)
            print(
                f"  {name}: {was and was.descriptors} -> {one.descriptors} descriptors, "
                f"{was and was.memory >> 20} -> {one.memory >> 20} MiB"
            )
        print(
            f"  {served} served, the slowest in {slowest:.2f} s; {history.seen} events of {counter.value} changes, "
            f"{len(history.restarts)} watches began anew"
        )
        daemon.end_cleanly()
    except AssertionError as error:
        report.add(f"{error}")
    finally:
        daemon.stop()
    for file in directory.glob("*mcproxy.log"):
        report.add(*bugs(file.read_text(errors="replace")))
    return report


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _wait_for_all(load: Load) -> None:
    wait_until("all clients are served", lambda: all(client.served for client in load.clients), 60)


def _drawn(options: argparse.Namespace, chance: random.Random) -> Iterator[str]:
    """Each fault once, in an order by chance, and again; those that replace processes come first."""
    wanted = [name for name in FAULTS if options.only is None or name in options.only]
    if options.only is None and options.time < _LONG:
        wanted.remove("upgraded")
    if options.workers == 1:
        wanted = [name for name in wanted if name not in OF_PROCESSES or name == "upgraded"]
    while True:
        for group in (OF_PROCESSES, OTHERS):
            names = [name for name in wanted if name in group]
            yield from chance.sample(names, len(names))


def _faults(scene: Scene, options: argparse.Namespace, report: Report) -> list[Reason]:
    """Do one fault after the other until the time is over; return all that they explain."""
    reasons: list[Reason] = []
    until = time.monotonic() + options.time
    for name in _drawn(options, scene.chance):
        if time.monotonic() >= until:
            break
        _fault(name, scene, report, reasons)
    return reasons


def _fault(name: str, scene: Scene, report: Report, reasons: list[Reason]) -> None:
    """Do one fault, and judge what broke, and how long the daemon's loops stood still."""
    load, begun, served = scene.load, time.monotonic(), scene.load.served
    scene.notes = []
    before = lag.read(scene.daemon)
    try:
        reasons += FAULTS[name](scene)
    except (FaultError, AssertionError, OSError, ValueError) as error:
        report.add(f"{name}: {type(error).__name__}: {error}")
    latest = max((getattr(one, "until", 0.0) for one in reasons), default=0.0)
    time.sleep(max(SETTLE, latest - time.monotonic()))
    report.faults += 1
    busy, slow = lag.stood_still(before, lag.read(scene.daemon))
    wrong = load.unexplained(*reasons)
    breaks = len(load.breaks)
    del load.breaks[:breaks]
    report.explained += breaks - len(wrong)
    _say(
        f"{name}: {', '.join(scene.notes) or 'done'}; {time.monotonic() - begun:.1f} s, "
        f"{load.served - served} served, {breaks} breaks"
        + (f"; turns over {1000 * BOUND:.0f} ms for want of a processor: {busy}" if busy else "")
    )
    report.add(*(f"{name}: {one}" for one in wrong[:5]))
    if len(wrong) > 5:
        report.add(f"{name}: {len(wrong) - 5} more")
    if slow and name not in OF_PROCESSES:  # the first turn of a process is its start
        report.add(f"{name}: loops stood still for over {1000 * BOUND:.0f} ms: {slow}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
