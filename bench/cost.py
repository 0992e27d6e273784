"""`bench cost`: the processor time of a request, for GETs of 1.1 KB over 16, 100 and 500 kept connections.

A shared or virtual machine gives a program now more and now less of a core, so rates swing by a half; the processor
time that a proxy needs for a request hardly does. Each subject has a core to itself, load and upstream have another,
and the subjects take turns in shuffled rounds, so that each ratio is between two that saw about the same machine.

The time is taken in a window inside the load, after the handshakes, and divided by the requests that the upstream
counted in that window. All subjects get the same requests: kubectl's size of head, with a bearer token of 1,000 bytes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import configs, identity, wrk
from bench.client import check_subject
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.report import Section, Target, comparison, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import DIRECT, MCPROXY, NGINX, PURE_SUFFIX, REFERENCES, TWISTED, Mcproxy, Subject, pairs

CONNECTIONS = (16, 100, 500)
FEW = CONNECTIONS[0]
CHAIN, LOGGED = "mcproxy-chain", "mcproxy-chain-logged"
TARGETS = ((MCPROXY, 0.66), (CHAIN, 0.62), (LOGGED, 0.55))
"""The least share of mcproxy's processor time that nginx may need for a request, at `FEW` connections."""
QUIET = 0.1
"""The share of the subjects' core that others may have before the report warns of it."""
SAME = 1.15
"""What a request may cost at more connections, as a multiple of what it costs at `FEW`."""
FIELD = f"Authorization: Bearer {identity.CLIENT_TOKEN}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject in one round: what wrk saw, and requests and processor time of the window; no `usage` without proxy.

    `seconds` is the length of the window.
    """

    report: wrk.Report
    requests: int
    seconds: float
    usage: Usage | None

    @property
    def rate(self) -> float:
        """Requests per second in the window."""
        return self.requests / self.seconds

    @property
    def cost(self) -> float:
        """Processor seconds per request, 0 where no proxy runs."""
        return self.usage.cpu / max(1, self.requests) if self.usage else 0.0


Case = tuple[str, int]
"""A subject's name and a number of connections."""
Round = dict[Case, Sample]


def chains() -> list[Subject]:
    """Return mcproxy with all that it can do: token, impersonation, 50 policies, a bucket; and with an access log."""
    return [
        Mcproxy(CHAIN, **identity.whole_chain(identity.TOKEN_REVIEW)),
        Mcproxy(LOGGED, **identity.whole_chain(identity.TOKEN_REVIEW, access_log=True)),
    ]


def cases(names: Sequence[str], connections: Sequence[int]) -> list[Case]:
    """Return what a round measures: all at each number of connections, direct and twisted.web only at `FEW`."""
    return [(name, count) for name in names for count in connections if count == FEW or name not in (DIRECT, TWISTED)]


def measure(lab: Lab, subjects: Sequence[Subject], rounds: int, seconds: float, rng: random.Random) -> Section:
    """Run the rounds and return the section of the report."""
    upstream = lab.start_nginx_upstream()
    running = {subject.name: lab.start_subject(subject, upstream) for subject in subjects}
    for name, subject in running.items():
        impersonated = configs.REVIEWED_USER if name.removesuffix(PURE_SUFFIX) in (CHAIN, LOGGED) else ""
        check_subject(lab, subject, fields=f"{FIELD}\r\n", impersonated=impersonated)
    orders = shuffled_rounds(cases(list(running), CONNECTIONS), rounds, rng)
    taken = [{case: _sample(lab, running[case[0]], case[1], seconds) for case in order} for order in orders]
    return summarise(list(running), taken)


def warm_up(connections: int) -> float:
    """Return the seconds until all connections are open and used, handshakes of a slow machine included."""
    return 1.0 + connections * 0.006


def _sample(lab: Lab, subject: Running, connections: int, seconds: float) -> Sample:
    warm = warm_up(connections)
    with wrk.start(
        subject.port,
        configs.OBJECT_PATH,
        connections=connections,
        seconds=warm + seconds + 1,
        core=lab.cores.load,
        directory=lab.directory,
        fields=[FIELD],
    ) as load:
        time.sleep(warm)
        meter = Meter(subject.process, lab.cores.proxy) if subject.process else None
        began, before = time.monotonic(), lab.requests_served()
        time.sleep(seconds)
        requests = lab.requests_served() - before - 1  # without the look itself
        took = time.monotonic() - began
        usage = meter.read() if meter else None
        report = load.report()
    if subject.process:
        subject.process.check()
    return Sample(report, requests, took, usage)


def summarise(names: Sequence[str], rounds: Sequence[Round]) -> Section:
    """Make the tables; a round in which a subject had any error is none of its rounds, and mcproxy may have none."""
    section = Section(
        "Processor time of a GET of 1.1 KB",
        [
            *("subject", "connections", "CPU us/request"),
            *(f"{name} / it" for name in REFERENCES if name in names),
            *("requests/s", "p99 ms", "core busy %", "others on it %", "failed rounds"),
        ],
    )
    good = [{case: sample for case, sample in taken.items() if not sample.report.errors} for taken in rounds]
    costs = [{case: sample.cost for case, sample in taken.items() if sample.cost} for taken in good]
    references = [name for name in REFERENCES if name in names]
    for case in cases(names, CONNECTIONS):
        samples = [taken[case] for taken in good if case in taken]
        ratios = [_ratio(costs, (reference, case[1]), case) for reference in references]
        section.rows.append(_row(case, samples, ratios, len(rounds)))
    for over, under in pairs([name for name in names if name not in REFERENCES]):
        for count in CONNECTIONS:
            by_name = [{name: cost for (name, number), cost in values.items() if number == count} for values in costs]
            line = comparison(f"CPU per request at {count} connections", by_name, over, under)
            section.comparisons.extend([line] if line else [])
    for case in cases(names, CONNECTIONS):
        errors = {taken[case].report.errors for taken in rounds if case in taken} - {""}
        section.comparisons.extend(f"errors of {case[0]} at {case[1]}: {text}" for text in sorted(errors))
    others = [sample.usage.others for taken in good for sample in taken.values() if sample.usage]
    if others and spread(others).median > QUIET:
        section.comparisons.append(
            f"Others had {spread(others).median:.0%} of the subjects' core: the machine is not quiet, and caches and "
            "batches are not what they would be. Measure again."
        )
    section.targets.extend(_targets(names, good, costs, len(rounds)))
    return section


def _ratio(costs: Sequence[dict[Case, float]], over: Case, under: Case) -> str:
    named = [{"over": values[over], "under": values[under]} for values in costs if over in values and under in values]
    ratios = paired_ratios(named, "over", "under")
    return spread(ratios).show() if ratios and over != under else "-"


def _row(case: Case, samples: Sequence[Sample], ratios: Sequence[str], rounds: int) -> list[str]:
    name, count = case
    failed = str(rounds - len(samples))
    if not samples:
        return [name, str(count), *["-"] * (len(ratios) + 5), failed]
    rate, p99 = spread([one.rate for one in samples]).show(0), spread([one.report.p99 for one in samples]).show(2, 1e-3)
    usages = [one.usage for one in samples if one.usage]
    if not usages:
        return [name, str(count), "-", *ratios, rate, p99, "-", "-", failed]
    cost = spread([one.cost for one in samples]).show(1, 1e-6)
    busy, others = spread([usage.busy for usage in usages]), spread([usage.others for usage in usages])
    return [name, str(count), cost, *ratios, rate, p99, busy.show(0, 0.01), others.show(0, 0.01), failed]


def _targets(
    names: Sequence[str], good: Sequence[Round], costs: Sequence[dict[Case, float]], rounds: int
) -> Iterator[Target]:
    at_few = [{name: cost for (name, count), cost in values.items() if count == FEW} for values in costs]
    wanted = [(name, least) for name, least in TARGETS if name in names]
    for name, least in wanted:
        yield limit(f"CPU per request, {NGINX} / {name}", paired_ratios(at_few, NGINX, name), at_least=least)
    for name, _ in wanted:
        for count in CONNECTIONS[1:]:
            named = [{str(number): cost for (one, number), cost in values.items() if one == name} for values in costs]
            ratios = paired_ratios(named, str(count), str(FEW))
            yield limit(f"CPU per request, {name} at {count} / at {FEW} connections", ratios, at_most=SAME)
    if MCPROXY in names:
        tails = [{name: one.report.p99 for (name, count), one in taken.items() if count == FEW} for taken in good]
        yield limit("p99, mcproxy / nginx", paired_ratios(tails, MCPROXY, NGINX), at_most=2.0)
        if TWISTED in names:
            ratios = paired_ratios(at_few, TWISTED, MCPROXY)
            yield limit("CPU per request, twisted.web / mcproxy", ratios, at_least=5.0)
        failed = sum((MCPROXY, count) not in taken for taken in good for count in CONNECTIONS)
        of = rounds * len(CONNECTIONS)
        yield Target("rounds of mcproxy with an error", "none", f"{failed} of {of}", failed == 0)
