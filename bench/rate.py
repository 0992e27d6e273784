"""`bench rate`: GETs of 1.1 KB over kept connections, in short rounds with the subjects shuffled.

Beside the rate it takes the processor time that the proxy used per request: that one hardly moves with the noise of the
machine, and it tells when the load rather than the proxy was the limit (a proxy core that is not busy).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench import configs, wrk
from bench.client import check_subject
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.report import Section, Target, comparison, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import DIRECT, MCPROXY, NGINX, TWISTED, Subject

CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject in one round; no `usage` where no proxy runs."""

    report: wrk.Report
    usage: Usage | None

    @property
    def cost(self) -> float:
        """Processor seconds per request."""
        return self.usage.cpu / max(1, self.report.requests) if self.usage else 0.0


Round = dict[str, Sample]


def measure(lab: Lab, subjects: Sequence[Subject], rounds: int, seconds: float, rng: random.Random) -> Section:
    """Run the rounds and return the section of the report."""
    upstream = lab.start_nginx_upstream()
    running = {subject.name: lab.start_subject(subject, upstream) for subject in subjects}
    for subject in running.values():
        check_subject(lab, subject)
        _sample(lab, subject, 1)  # fills pools and caches
    orders = shuffled_rounds(list(running), rounds, rng)
    taken = [{name: _sample(lab, running[name], seconds) for name in order} for order in orders]
    return summarise(list(running), taken)


def _sample(lab: Lab, subject: Running, seconds: float) -> Sample:
    meter = Meter(subject.process, lab.cores.proxy) if subject.process else None
    report = wrk.run(
        subject.port,
        configs.OBJECT_PATH,
        connections=CONNECTIONS,
        seconds=seconds,
        core=lab.cores.load,
        directory=lab.directory,
    )
    if subject.process:
        subject.process.check()
    return Sample(report, meter.read() if meter else None)


def summarise(names: Sequence[str], rounds: Sequence[Round]) -> Section:
    """Make the tables; a round in which a subject had any error is none of its rounds, and mcproxy may have none."""
    section = Section(
        f"GET of 1.1 KB at {CONNECTIONS} connections",
        ["subject", "requests/s", "p99 ms", "CPU us/request", "core busy %", "others on it %", "failed rounds"],
    )
    good = [{name: sample for name, sample in taken.items() if not sample.report.errors} for taken in rounds]
    section.rows.extend(_row(name, [taken[name] for taken in good if name in taken], len(rounds)) for name in names)
    rates = [{name: sample.report.rate for name, sample in taken.items()} for taken in good]
    tails = [{name: sample.report.p99 for name, sample in taken.items()} for taken in good]
    costs = [{name: sample.cost for name, sample in taken.items() if sample.cost} for taken in good]
    for over, under in pairs(names):
        for what, values in (("rate", rates), ("p99", tails), ("CPU per request", costs)):
            line = comparison(what, values, over, under)
            section.comparisons.extend([line] if line else [])
    for name in names:
        errors = {taken[name].report.errors for taken in rounds} - {""}
        section.comparisons.extend(f"errors of {name}: {text}" for text in sorted(errors))
    if MCPROXY in names:
        section.targets.extend(_targets(rates, tails, len(rounds)))
    return section


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return which subjects are compared: all that are no yardstick with each yardstick, and with each other."""
    yardsticks = [name for name in (NGINX, TWISTED) if name in names]
    others = [name for name in names if name not in (NGINX, TWISTED, DIRECT)]
    found = [(over, under) for over in others for under in yardsticks]
    return found + list(itertools.combinations(others, 2))


def _row(name: str, samples: Sequence[Sample], rounds: int) -> list[str]:
    failed = str(rounds - len(samples))
    if not samples:
        return [name, *["-"] * 5, failed]
    rate, p99 = spread([sample.report.rate for sample in samples]), spread([sample.report.p99 for sample in samples])
    usages = [sample.usage for sample in samples if sample.usage]
    if not usages:
        return [name, rate.show(0), p99.show(2, 1e-3), "-", "-", "-", failed]
    cost = spread([sample.cost for sample in samples]).show(1, 1e-6)
    busy, others = spread([usage.busy for usage in usages]), spread([usage.others for usage in usages])
    return [name, rate.show(0), p99.show(2, 1e-3), cost, busy.show(0, 0.01), others.show(0, 0.01), failed]


def _targets(rates: Sequence[dict[str, float]], tails: Sequence[dict[str, float]], rounds: int) -> list[Target]:
    failed = sum(MCPROXY not in values for values in rates)
    return [
        limit("rate, mcproxy / nginx", paired_ratios(rates, MCPROXY, NGINX), at_least=0.7),
        limit("p99, mcproxy / nginx", paired_ratios(tails, MCPROXY, NGINX), at_most=2.0),
        limit("rate, mcproxy / twisted.web", paired_ratios(rates, MCPROXY, TWISTED), at_least=5.0),
        Target("rounds of mcproxy with an error", "none", f"{failed} of {rounds}", failed == 0),
    ]
