"""By hand: `python -m tests.e2e.workers.chaos`, rounds of faults at moments of chance; the seed is printed.

What a suite of minutes cannot have: hundreds of rounds, the heartbeat's 10 s, 1,000 reloads. Ends with 1 if anything
was wrong.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.e2e.processes import wait_until
from tests.e2e.workers.fake_systemd import FakeSystemd
from tests.e2e.workers.family import living
from tests.e2e.workers.faults import KEEPER, LEADER, SUPERVISOR, TARGETS, WORKER, Moment, pids_by_target, strike
from tests.e2e.workers.load import Executing, Following, Load, Retirement, Watching
from tests.e2e.workers.rounds import RESTART, Outcome, Reloads, fault_while, load_of, supervisor_dies, upgrade
from tests.e2e.workers.site import Events, Site, WorkersDaemon

OPERATIONS = ("idle", "reload", "supervisor", "upgrade", "start", "drain", "reloads", "systemd")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.workers.chaos")
    parser.add_argument("what", nargs="+", choices=OPERATIONS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--drain", type=int, default=3, help="drainTimeout, seconds")
    parser.add_argument("--clients", type=int, default=1, help="of each kind, for each worker")
    parser.add_argument("--no-aggregate", action="store_true")
    parser.add_argument("--stop", action="store_true", help="SIGSTOP in half of the rounds, too (10 s each)")
    parser.add_argument("--only", choices=TARGETS, help="strike this one alone")
    parser.add_argument("--within", type=float, default=RESTART, help="seconds until a successor has to serve")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="mcproxy-chaos-"))
    site = Site(directory).start()
    chance = random.Random(options.seed)
    wrong = 0
    try:
        for what in options.what:
            wrong += _run(site, directory / what, what, options, chance)
    finally:
        site.stop()
    print(f"{wrong} rounds were wrong; logs are in {directory}" if wrong else "all was well", flush=True)
    return 1 if wrong else 0


def _run(site: Site, directory: Path, what: str, options: argparse.Namespace, chance: random.Random) -> int:
    daemon = site.daemon(
        directory,
        workers=options.workers,
        drain=f"{options.drain}s",
        aggregate=not options.no_aggregate,
    )
    if what in ("start", "drain"):
        return _report(_start_or_drain(daemon, what, options, chance) for _ in range(options.rounds))
    if what == "systemd":
        return _report(_systemd(site, directory / str(number), options) for number in range(options.rounds))
    reloads = Reloads(daemon)
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        with Events(site), load_of(daemon, options.clients) as load:
            wait_until("all clients are served", lambda: all(client.served for client in load.clients), 60)
            time.sleep(1)
            before = daemon.footprints()
            if what == "reloads":
                wrong = _report([_reloads(daemon, load, reloads, options.rounds)])
            else:
                wrong = _report(_round(daemon, load, reloads, what, options, chance) for _ in range(options.rounds))
            time.sleep(2)
            after = daemon.footprints()
        for name, one in after.items():
            print(f"  {name}: {before.get(name)} -> {one}")
        print(f"  zombies {daemon.zombies()}; served {load.served}, unknown owners {load.unknown}")
        daemon.end_cleanly()
        return wrong + len(daemon.lines("Traceback"))
    finally:
        daemon.stop()


def _report(outcomes: object) -> int:
    wrong = 0
    for outcome in outcomes:  # type: ignore[attr-defined]
        print(f"{time.strftime('%H:%M:%S')} {outcome}", flush=True)
        wrong += bool(outcome.wrong)
    return wrong


def _round(
    daemon: WorkersDaemon, load: Load, reloads: Reloads, what: str, options: argparse.Namespace, chance: random.Random
) -> Outcome:
    number = signal.SIGSTOP if options.stop and chance.random() < 0.5 else signal.SIGKILL
    children = [LEADER, WORKER] + ([KEEPER] if daemon.aggregate else [])
    if what == "supervisor":
        action: Callable[[], object] | None = chance.choice([None, reloads.next])
        outcome = supervisor_dies(daemon, load, action, Moment.choose(chance, 0.5), "reload" if action else "idle")
        reloads.check(outcome)
        return outcome
    if what == "upgrade":
        target = options.only or chance.choice(["", SUPERVISOR, *children])
        return upgrade(daemon, load, "upgrade", target, number, Moment.choose(chance, 3), new=chance.random() < 0.4)
    if what == "reload":
        targets = [*children, *([SUPERVISOR] if number == signal.SIGSTOP else [])]
        outcome = fault_while(
            daemon,
            load,
            reloads.next,
            chance.choice(targets),
            number,
            Moment.choose(chance, 0.6),
            "reload",
            options.within,
        )
        reloads.check(outcome)
        return outcome
    return fault_while(daemon, load, None, chance.choice(children), number, Moment(0.2), "idle", options.within)


def _reloads(daemon: WorkersDaemon, load: Load, reloads: Reloads, rounds: int) -> Outcome:
    """So many reloads, with a look at all workers each 50."""
    outcome = Outcome(f"{rounds} reloads")
    begun, served = time.monotonic(), load.served
    for number in range(1, rounds + 1):
        outcome.expect(reloads.next(), f"reload {number} was refused")
        if number % 50 == 0 or number == rounds:
            outcome.figures["ok"] = 1
            reloads.check(outcome)
        if number % 200 == 0:
            print(f"  {number}: {daemon.footprints()}", flush=True)
    outcome.figures.update(seconds=time.monotonic() - begun, served=load.served - served, slowest=load.slowest)
    outcome.expect(not load.breaks, f"{len(load.breaks)} breaks: {load.breaks[:5]}")
    return outcome


def _start_or_drain(daemon: WorkersDaemon, what: str, options: argparse.Namespace, chance: random.Random) -> Outcome:
    number = signal.SIGSTOP if options.stop and chance.random() < 0.3 else signal.SIGKILL
    return (_start if what == "start" else _drain)(daemon, number, chance)


def _start(daemon: WorkersDaemon, number: signal.Signals, chance: random.Random) -> Outcome:
    """Strike any of the processes that there are at a moment of the start."""
    moment, count = Moment.choose(chance, 2.5), chance.randint(1, daemon.workers + 1 + daemon.aggregate)
    outcome = Outcome(f"start {number.name} after {moment.after:.3f} with {count} processes")
    try:
        daemon.spawn()
        wait_until(f"{count} processes", lambda: len(daemon.family.pids()) >= count, 60)
        moment.wait(daemon)
        supervisor = daemon.process.pid
        pid = chance.choice(sorted(daemon.family.pids()) or [supervisor])
        outcome.what += " supervisor" if pid == supervisor else " child"
        death = strike(pid, number)
        if pid == supervisor and number == signal.SIGKILL:
            wait_until("all end", daemon.is_gone, 20)
            outcome.figures["ended"] = time.monotonic() - death.since
            daemon.spawn()
            wait_until("the next start serves", lambda: bool(daemon.lines('msg="mcproxy is ready"')), 30)
        elif pid == supervisor:
            time.sleep(HEARTBEAT_AND_MORE)
            strike(pid, signal.SIGCONT)
        wait_until("it serves", lambda: bool(daemon.lines('msg="mcproxy is ready"')), 40)
        daemon.wait_until_all_serve()
        outcome.figures["served"] = time.monotonic() - death.since
        daemon.end_cleanly()
    except AssertionError as error:
        outcome.wrong.append(f"{error}; log: {daemon.log[-3000:]}")
    finally:
        daemon.stop()
    return outcome


HEARTBEAT_AND_MORE = 12.0


def _drain(daemon: WorkersDaemon, number: signal.Signals, chance: random.Random) -> Outcome:
    """Strike a process while the daemon stops: tunnels of the others have their whole time, and all ends.

    A supervisor that is killed takes the others with it, with their tunnels.
    """
    moment, target = Moment.choose(chance, 5), chance.choice([SUPERVISOR, LEADER, WORKER, KEEPER])
    outcome = Outcome(f"drain {number.name} {target} after {moment.after:.3f}")
    drain = float(daemon.drain.removesuffix("s"))
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        load = Load(daemon.family)
        for kind in (Executing, Following, Watching):
            load.add(kind, daemon.address, daemon.workers)
        with Events(daemon.site), load:
            wait_until("all clients are served", lambda: all(client.served for client in load.clients), 60)
            who = pids_by_target(daemon)
            before, begun, load.reconnects = daemon.family.pids(), time.monotonic(), False
            strike(who[SUPERVISOR], signal.SIGTERM)
            moment.wait(daemon)
            deaths = []
            try:
                deaths.append(strike(who.get(target, who[WORKER]), number))
            except ProcessLookupError:
                outcome.what += " (had ended)"
            if number == signal.SIGSTOP and target == SUPERVISOR:
                time.sleep(HEARTBEAT_AND_MORE)
                for death in deaths:
                    strike(death.pid, signal.SIGCONT)
            wait_until("all its processes end", daemon.is_gone, drain + 45)
            outcome.figures["ended"] = time.monotonic() - begun
            reasons = [Retirement(pid, begun, drain) for pid in before]
            if target != SUPERVISOR or number != signal.SIGKILL:
                outcome.wrong += [f"unexplained: {each}" for each in load.unexplained(*deaths, *reasons)]
        left = daemon.left()
        outcome.expect(not left or (target == SUPERVISOR and number == signal.SIGKILL), f"left: {left}")
    except AssertionError as error:
        outcome.wrong.append(f"{error}; log: {daemon.log[-3000:]}")
    finally:
        daemon.stop()
    return outcome


def _systemd(site: Site, directory: Path, options: argparse.Namespace) -> Outcome:
    """Upgrade by the signal, as the unit does it: systemd's sockets, its watchdog and its main process go over."""
    outcome, drain = Outcome("systemd"), float(options.drain)
    directory.mkdir(parents=True)
    with FakeSystemd(directory) as systemd:
        daemon = site.daemon(
            directory / "daemon",
            workers=options.workers,
            drain=f"{options.drain}s",
            bind="systemd:api",
            environ=systemd.environ,
        )
        daemon.port = systemd.port
        try:
            systemd.start(daemon)
            wait_until("it is ready", lambda: bool(systemd.said("READY")), 60)
            old, processes = systemd.main, daemon.family.pids()
            with Events(site), load_of(daemon, options.clients) as load:
                wait_until("all clients are served", lambda: all(client.served for client in load.clients), 60)
                begun = time.monotonic()
                daemon.signal(signal.SIGUSR2)
                wait_until("another main process is ready", lambda: _is_ready(systemd, old), 60)
                outcome.figures["ready"] = time.monotonic() - begun
                wait_until("the old program ends", lambda: not living(processes), 60)
                outcome.figures["ended"] = time.monotonic() - begun
            for each in load.unexplained(*(Retirement(pid, begun, drain) for pid in processes)):
                outcome.wrong.append(f"unexplained: {each}")
            outcome.expect(set(load.served_by) - processes, "the new program has served nobody")
            outcome.expect(daemon.end() == 0, "the old program's exit status is not 0")
            outcome.expect(systemd.main == daemon.pid_of(SUPERVISOR), "systemd has another main process")
            outcome.figures["silence"] = systemd.longest_silence()
            outcome.expect(systemd.longest_silence() < systemd.watchdog, "the watchdog was not fed")
            daemon.end_cleanly()
            outcome.expect(systemd.said("STOPPING")[-1].pid == systemd.main, "another process said STOPPING")
        except AssertionError as error:
            outcome.wrong.append(f"{error}; log: {daemon.log[-3000:]}")
        finally:
            daemon.stop()
    return outcome


def _is_ready(systemd: FakeSystemd, old: int) -> bool:
    return systemd.main != old and any(each.pid == systemd.main for each in systemd.said("READY"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
