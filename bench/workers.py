"""`bench workers`: what several processes cost and serve, and what they cost who has only one.

Three things, each in shuffled rounds:

- One process of this checkout against one of the checkout of --before, as in `bench cost`: bare forwarding, and all
  that mcproxy can do (token, impersonation, 50 policies, a bucket). Several must cost nothing where there is one.
- One process against two workers on the same two cores. Load and upstream have to fit in there too where a machine has
  no more cores, so that the rate of two workers cannot be twice that of one: what can be had is the processor time that
  the machine gives, divided by what a request costs proxy, load and upstream together, and is printed beside it.
  The processor time of a request, of all processes of the daemon, is the figure that holds on any machine.
- Whether the worker that the kernel chose serves a connection, and no other one: each connection's process is read from
  /proc before and after, and compared with the process that the access log names for each of its requests.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import configs, identity, kernel_sockets, wrk
from bench.client import check_subject, client_context, connect, parse_answer
from bench.cost import CHAIN, FIELD, warm_up
from bench.lab import Lab, Running
from bench.meter import core_seconds
from bench.processes import Failed, Process
from bench.report import Section, Target, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import MCPROXY, Mcproxy, Subject

BEFORE, TWO = "-before", "-2-workers"
"""The ends of names: of the other checkout, and with two workers."""
CONNECTIONS = (16, 100)
MANY = CONNECTIONS[-1]
"""As many as give two workers about half each, and both enough to do; the target is for these.

Of 16, one worker may get 11; and a worker with one request at a time pays a turn of its reactor for each of them.
"""
SAME = 1.1
"""What a request may cost two workers, as a multiple of what it costs one."""
UNCHANGED = 1.05
"""What it may cost one process, as a multiple of what it cost before there were several; 1 but for the noise."""
WATCHED_CONNECTIONS, WATCHED_REQUESTS = 64, 50


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject in one round: requests and seconds of the window, and the processor time of each of its processes.

    `all_cpu` is that of all programs on its cores, and `errors` what wrk saw.
    """

    requests: int
    seconds: float
    cpu: tuple[float, ...]
    all_cpu: float
    errors: str

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cost(self) -> float:
        """Processor seconds of a request, of all processes of the daemon."""
        return sum(self.cpu) / max(1, self.requests)

    @property
    def others(self) -> float:
        """Processor seconds of a request that load and upstream need."""
        return (self.all_cpu - sum(self.cpu)) / max(1, self.requests)


Case = tuple[str, int]
"""A subject's name and a number of connections."""
Round = dict[Case, Sample]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which process served the connections of `watch_choices`."""

    connections: Counter[str]
    """How many each process accepted."""
    moved: int
    """Connections that another process had afterwards."""
    foreign: int
    """Requests that another process wrote to its access log than the one that has the connection."""
    requests: int
    shared_sockets: int
    """Listening sockets that more than one worker has."""


def _subject(name: str, *, chain: bool = False, workers: int = 1, tree: Path | None = None) -> Mcproxy:
    parts: dict[str, Any] = dict(identity.whole_chain(identity.TOKEN_REVIEW)) if chain else {}
    if workers > 1:
        daemon = {"drainTimeout": "1s", "workers": workers}
        parts["sections"] = {**parts.get("sections", {}), "daemon": daemon}
    return Mcproxy(name, tree=tree, **parts)


def one_process(before: Path | None) -> list[Subject]:
    """Return this checkout's and the other one's single process, bare and with everything."""
    subjects: list[Subject] = [_subject(MCPROXY), _subject(CHAIN, chain=True)]
    if before is not None:
        subjects.append(_subject(MCPROXY + BEFORE, tree=before))
        subjects.append(_subject(CHAIN + BEFORE, chain=True, tree=before))
    return subjects


def two_workers() -> list[Subject]:
    """Return one process and two workers, bare and with everything (the bucket is in shared memory with workers)."""
    return [
        _subject(MCPROXY),
        _subject(MCPROXY + TWO, workers=2),
        _subject(CHAIN, chain=True),
        _subject(CHAIN + TWO, chain=True, workers=2),
    ]


def measure(lab: Lab, before: Path | None, rounds: int, seconds: float, rng: random.Random) -> list[Section]:
    """Run all and return the sections of the report."""
    upstream = lab.start_nginx_upstream()
    apart = _rounds(lab, upstream, one_process(before), (lab.cores.proxy,), rounds, seconds, rng)
    cores = tuple(sorted({lab.cores.proxy, lab.cores.upstream}))
    together = _rounds(lab, upstream, two_workers(), cores, rounds, seconds, rng)
    return [
        *([summarise_before(apart)] if before is not None else []),
        summarise_workers(together, len(cores), watch_choices(lab, upstream)),
    ]


def _rounds(
    lab: Lab,
    upstream: int,
    subjects: Sequence[Subject],
    cores: tuple[int, ...],
    rounds: int,
    seconds: float,
    rng: random.Random,
) -> list[Round]:
    running = {subject.name: lab.start_subject(subject, upstream, cores) for subject in subjects}
    for name, subject in running.items():
        impersonated = configs.REVIEWED_USER if name.startswith(CHAIN) else ""
        check_subject(lab, subject, fields=f"{FIELD}\r\n", impersonated=impersonated)
    orders = shuffled_rounds([(name, count) for name in running for count in CONNECTIONS], rounds, rng)
    taken = [{case: _sample(lab, running[case[0]], cores, case[1], seconds) for case in order} for order in orders]
    for subject in running.values():
        if subject.process is not None:
            lab.processes.stop(subject.process)
    return taken


def _sample(lab: Lab, subject: Running, cores: tuple[int, ...], connections: int, seconds: float) -> Sample:
    process = _process(subject)
    warm = warm_up(connections)
    with wrk.start(
        subject.port,
        configs.OBJECT_PATH,
        connections=connections,
        seconds=warm + seconds + 1,
        core=cores if len(cores) > 1 else lab.cores.load,
        directory=lab.directory,
        fields=[FIELD],
    ) as load:
        time.sleep(warm)
        stat, cpu_before = Path("/proc/stat").read_text(), process.cpu_by_process()
        served_before, began = lab.requests_served(), time.monotonic()
        time.sleep(seconds)
        requests = lab.requests_served() - served_before - 1  # without the look itself
        took = time.monotonic() - began
        cpu = [after - cpu_before.get(pid, 0.0) for pid, after in process.cpu_by_process().items()]
        now = Path("/proc/stat").read_text()
        all_cpu = sum(core_seconds(now, core) - core_seconds(stat, core) for core in cores)
        report = load.report()
    process.check()
    return Sample(requests, took, tuple(cpu), all_cpu, report.errors)


def _process(subject: Running) -> Process:
    if subject.process is None:
        raise Failed(f"{subject.name} does not run")
    return subject.process


def summarise_before(rounds: Sequence[Round]) -> Section:
    """Make the table of one process now and before."""
    section = Section(
        "One process, before and since there can be several",
        ["subject", "connections", "CPU us/request", "it / before", "requests/s", "failed rounds"],
    )
    good = _good(rounds)
    for name in (MCPROXY + BEFORE, MCPROXY, CHAIN + BEFORE, CHAIN):
        for count in CONNECTIONS:
            samples = [taken[name, count] for taken in good if (name, count) in taken]
            failed = str(len(rounds) - len(samples))
            ratios = [] if name.endswith(BEFORE) else _ratios(good, count, name, name + BEFORE)
            shown = spread(ratios).show() if ratios else "-"
            if not samples:
                section.rows.append([name, str(count), "-", shown, "-", failed])
                continue
            cost, rate = spread([one.cost for one in samples]), spread([one.rate for one in samples])
            section.rows.append([name, str(count), cost.show(1, 1e-6), shown, rate.show(0), failed])
            if ratios:
                what = f"CPU per request of one process at {count} connections, {name} / before"
                section.targets.append(limit(what, ratios, at_most=UNCHANGED))
    return section


def summarise_workers(rounds: Sequence[Round], cores: int, choice: Choice) -> Section:
    """Make the table of one process and two workers, and say what the kernel chose."""
    section = Section(
        f"Two workers and one process, with load and upstream on the same {cores} cores",
        [
            *("subject", "connections", "CPU us/request", "it / one process", "load and upstream us/request"),
            *("workers' shares %", "requests/s", "rate / one process", "the machine allows", "failed rounds"),
        ],
    )
    good = _good(rounds)
    for one in (MCPROXY, CHAIN):
        for name in (one, one + TWO):
            for count in CONNECTIONS:
                section.rows.append(_row(good, len(rounds), name, one, count, cores))
        what = f"CPU per request at {MANY} connections, {one} with two workers / one process"
        section.targets.append(limit(what, _ratios(good, MANY, one + TWO, one), at_most=SAME))
    shares = ", ".join(f"{name} {count}" for name, count in sorted(choice.connections.items()))
    section.comparisons.append(f"{sum(choice.connections.values())} connections, accepted by {shares}")
    wrong = choice.moved + choice.foreign + choice.shared_sockets
    what = "requests served by a worker that the kernel did not choose"
    section.targets.append(Target(what, "none", f"{choice.foreign} of {choice.requests}", wrong == 0))
    errors = {sample.errors for taken in rounds for sample in taken.values()} - {""}
    section.comparisons.extend(f"errors: {text}" for text in sorted(errors))
    return section


def _good(rounds: Sequence[Round]) -> list[Round]:
    return [{case: sample for case, sample in taken.items() if not sample.errors} for taken in rounds]


def _ratios(good: Sequence[Round], count: int, over: str, under: str, *, rate: bool = False) -> list[float]:
    named = [
        {name: one.rate if rate else one.cost for (name, number), one in taken.items() if number == count}
        for taken in good
    ]
    return paired_ratios(named, over, under)


def _row(good: Sequence[Round], rounds: int, name: str, one: str, count: int, cores: int) -> list[str]:
    samples = [taken[name, count] for taken in good if (name, count) in taken]
    failed = str(rounds - len(samples))
    if not samples:
        return [name, str(count), *["-"] * 7, failed]
    costs, rates = (spread(_ratios(good, count, name, one, rate=rate) or [0.0]) for rate in (False, True))
    shares = [sorted((cpu / sum(sample.cpu) * 100 for cpu in sample.cpu), reverse=True)[:2] for sample in samples]
    return [
        name,
        str(count),
        spread([sample.cost for sample in samples]).show(1, 1e-6),
        costs.show() if name != one else "-",
        spread([sample.others for sample in samples]).show(1, 1e-6),
        " : ".join(spread([share[place] for share in shares]).show(0) for place in range(len(shares[0]))),
        spread([sample.rate for sample in samples]).show(0),
        rates.show() if name != one else "-",
        f"{spread([allowed(sample, name != one, cores) for sample in samples]).median:.2f}" if name != one else "-",
        failed,
    ]


def allowed(sample: Sample, several: bool, cores: int) -> float:
    """Return how many times the rate of one process the cores can serve at the costs of `sample`.

    One process has at most one core, and load and upstream the other ones. Several have what load and upstream leave.
    """
    one = min(1 / sample.cost, cores / (sample.cost + sample.others))
    return (cores / (sample.cost + sample.others)) / one if several else 1.0


def watch_choices(lab: Lab, upstream: int) -> Choice:
    """Open connections to two workers, ask on each again and again, and compare who serves with who accepted."""
    log = lab.directory / "choices-access.log"
    daemon = {"drainTimeout": "1s", "workers": 2}
    sections = {"daemon": daemon, "logging": {"level": "warn", "access": {"file": str(log), "format": "json"}}}
    cores = (lab.cores.proxy, lab.cores.upstream)
    subject = lab.start_subject(Mcproxy("choices", sections=sections, server={"accessLog": True}), upstream, cores)
    process, context = _process(subject), client_context(lab)
    with ExitStack() as stack:
        connections = {}
        for _ in range(WATCHED_CONNECTIONS):
            connection = stack.enter_context(connect(subject.port, context))
            connections[connection.getsockname()[1]] = connection
        _ask_all(connections)  # every connection is accepted now
        before = kernel_sockets.owners(process.family(), subject.port)
        listening = kernel_sockets.listening(process.family()[1:], subject.port)
        for _ in range(WATCHED_REQUESTS - 1):
            _ask_all(connections)
        after = kernel_sockets.owners(process.family(), subject.port)
        names = _names(process, before)
    lab.processes.stop(process)  # writes its log
    served = [json.loads(line) for line in log.read_text().splitlines()]
    by_port = [(int(line["uri"].split("/")[4].removeprefix("apps-")), line["process"]) for line in served]
    return Choice(
        connections=Counter(names[pid] for pid in before.values()),
        moved=sum(after.get(port) != pid for port, pid in before.items()) + abs(len(before) - WATCHED_CONNECTIONS),
        foreign=sum(names[before[port]] != name for port, name in by_port),
        requests=len(served),
        shared_sockets=sum(count > 1 for count in Counter(i for each in listening.values() for i in each).values()),
    )


def _ask_all(connections: Mapping[int, ssl.SSLSocket]) -> None:
    """Ask for an object on each connection; its path has the port, by which the access log's line is known."""
    for port, connection in connections.items():
        path = f"{configs.OBJECTS_PATH}{port}/configmaps/it"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{FIELD}\r\n\r\n".encode())
    for connection in connections.values():
        received = b""
        while (answer := parse_answer(received)) is None:
            data = connection.recv(65536)
            if not data:
                raise Failed("a connection ended without an answer")
            received += data
        if answer.status != 200:
            raise Failed(f"an answer was {answer.status}")


def _names(process: Process, owners: Mapping[int, int]) -> dict[int, str]:
    """Return the name of each process that has a connection: workers are started in the order of their numbers."""
    workers = [pid for pid in process.family()[1:] if pid in set(owners.values())]
    return {pid: f"worker-{number}" for number, pid in enumerate(workers)}
