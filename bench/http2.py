"""`bench http2`: the processor time of a request over HTTP/2 on both sides, to HTTP/1.1, and over HTTP/1.1 on both.

As `bench cost`, with another load: GETs of 1.1 KB for 5,000 paths, so that caches of what was asked before do not
decide, with kubectl's head and a token of 900 bytes. HTTP/2 comes from 4 connections with 25 streams each and from 16
with one; HTTP/1.1 from 16, 100 and 500. The upstream speaks both versions. nginx speaks HTTP/1.1 to it in any case,
since it has no HTTP/2 for upstreams; Go's ReverseProxy speaks the same version on both sides, a process for each.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench import configs, h2load, identity
from bench.client import check_subject
from bench.cost import CHAIN, QUIET, SAME, warm_up
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.processes import Failed
from bench.report import Section, Target, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import GO, MCPROXY, NGINX, PURE_SUFFIX, GoReverseProxy, Mcproxy, Nginx, Subject

TO_HTTP1 = "-to-http1"
"""The end of the name of a subject that speaks HTTP/1.1 to its cluster."""
GO_HTTP1 = "go-http1"
"""Go's ReverseProxy with HTTP/1.1 on both sides: what HTTP/1.1 is compared with."""
PATHS = 5000
# What a service account's token is made of, so that Huffman coding shortens it as it does theirs.
TOKEN = "".join(random.Random(7).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.", k=900))
FIELDS = (
    "accept: application/json, */*",
    "accept-encoding: gzip",
    "kubectl-command: kubectl get",
    "kubectl-session: 5a1e0b9c-9a3e-4c8e-8a53-3d3d3b1f5a10",
    "user-agent: kubectl/v1.36.0 (linux/amd64) kubernetes/1234567",
    f"authorization: Bearer {TOKEN}",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the load comes."""

    http2: bool
    connections: int
    streams: int = 1

    def show(self) -> str:
        return f"HTTP/2, {self.connections} x {self.streams}" if self.http2 else f"HTTP/1.1, {self.connections}"


STREAMS = Shape(True, 4, 25)
HTTP2 = (STREAMS, Shape(True, 16))
HTTP1 = (Shape(False, 16), Shape(False, 100), Shape(False, 500))


MOST: dict[Shape, dict[str, float]] = {
    HTTP2[0]: {NGINX: 0.7, GO: 0.27},
    HTTP2[1]: {NGINX: 1.0, GO: 0.5},
    **{shape: {NGINX: 1.4, GO: 0.65} for shape in HTTP1},
}
"""What a request may cost with the whole chain of the build that runs by itself, as multiples of references."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject in one round: what h2load saw, and requests and processor time of the window inside the load."""

    report: h2load.Report
    requests: int
    seconds: float
    usage: Usage

    @property
    def rate(self) -> float:
        """Requests per second in the window."""
        return self.requests / self.seconds

    @property
    def cost(self) -> float:
        """Processor seconds per request."""
        return self.usage.cpu / max(1, self.requests)


Case = tuple[str, Shape]
"""A subject's name and how the load comes."""
Round = dict[Case, Sample]


def subjects() -> list[Subject]:
    """Return what is compared: references, and mcproxy bare and with its whole pipeline to either version."""
    http1: dict[str, Any] = {"connections": {"protocol": "HTTP1"}}
    chain = identity.whole_chain(identity.TOKEN_REVIEW)
    return [
        Nginx(),
        GoReverseProxy(http2=True),
        GoReverseProxy(name=GO_HTTP1),
        Mcproxy(),
        Mcproxy(MCPROXY + TO_HTTP1, cluster=http1),
        Mcproxy(CHAIN, **chain),
        Mcproxy(CHAIN + TO_HTTP1, **{**chain, "cluster": {**chain["cluster"], **http1}}),
    ]


def cases(names: Sequence[str]) -> list[Case]:
    """Return what a round measures: HTTP/2 through all; HTTP/1.1 through what speaks it to the upstream too."""
    first = [(name, shape) for shape in HTTP2 for name in names if name != GO_HTTP1]
    return first + [(name, shape) for shape in HTTP1 for name in names if _is_http1(name)]


def _is_http1(name: str) -> bool:
    return name in (NGINX, GO_HTTP1) or name.removesuffix(PURE_SUFFIX).endswith(TO_HTTP1)


def _reference(name: str, shape: Shape) -> Case:
    """Return the case of a reference for a load; Go has a subject of its own for HTTP/1.1."""
    return (GO_HTTP1 if name == GO and not shape.http2 else name, shape)


def measure(lab: Lab, known: Sequence[Subject], rounds: int, seconds: float, rng: random.Random) -> Section:
    """Run the rounds and return the section of the report."""
    upstream = lab.start_nginx_upstream(http2=True)
    running = {subject.name: lab.start_subject(subject, upstream) for subject in known}
    for name, subject in running.items():
        check(lab, subject, impersonates=name.startswith(CHAIN))
    orders = shuffled_rounds(cases(list(running)), rounds, rng)
    return summarise(
        list(running),
        [{(name, shape): _sample(lab, running[name], shape, seconds) for name, shape in order} for order in orders],
    )


def check(lab: Lab, subject: Running, *, impersonates: bool) -> None:
    """Raise Failed unless the object comes over HTTP/2, and over HTTP/1.1 where the subject speaks it."""
    if subject.name != GO:
        fields = "".join(f"{line}\r\n" for line in FIELDS)
        check_subject(lab, subject, fields=fields, impersonated=configs.REVIEWED_USER if impersonates else "")
    for path in (configs.OBJECT_PATH, configs.object_paths(1)[0]) if subject.name != GO_HTTP1 else ():
        body = _nghttp(subject.port, path)
        if body != configs.object_body():
            raise Failed(f"{subject.name} answers over HTTP/2 with {body[:200]!r} instead of the object")


def _nghttp(port: int, path: str) -> bytes:
    argv = ["nghttp", "--timeout=20", *(part for line in FIELDS for part in ("-H", line))]
    done = subprocess.run([*argv, f"https://localhost:{port}{path}"], capture_output=True, check=False)
    return done.stdout or done.stderr


def _sample(lab: Lab, subject: Running, shape: Shape, seconds: float) -> Sample:
    if subject.process is None:
        raise Failed(f"{subject.name} does not run")
    warm = warm_up(shape.connections)
    with h2load.start(
        subject.port,
        configs.object_paths(PATHS),
        http2=shape.http2,
        connections=shape.connections,
        streams=shape.streams,
        warm=warm,
        seconds=seconds + 1,
        core=lab.cores.load,
        directory=lab.directory,
        fields=FIELDS,
    ) as load:
        time.sleep(warm + 0.5)
        meter = Meter(subject.process, lab.cores.proxy)
        began, before = time.monotonic(), lab.requests_served()
        time.sleep(seconds)
        requests = lab.requests_served() - before - 1  # without the look itself
        took = time.monotonic() - began
        usage = meter.read()
        report = load.report()
    subject.process.check()
    return Sample(report, requests, took, usage)


def summarise(names: Sequence[str], rounds: Sequence[Round]) -> Section:
    """Make the table and the targets; a sample with an error counts in none of them."""
    references = [name for name in (NGINX, GO) if name in names]
    section = Section(
        "Processor time of a GET of 1.1 KB, 5,000 paths, HTTP/2 and HTTP/1.1",
        [
            *("subject", "load", "CPU us/request", *(f"it / {name}" for name in references)),
            *("requests/s", "mean ms", "core busy %", "others on it %", "failed rounds"),
        ],
    )
    good = [{case: sample for case, sample in taken.items() if not sample.report.errors} for taken in rounds]
    for case in cases(names):
        section.rows.append(_row(case, good, references))
        errors = {taken[case].report.errors for taken in rounds if case in taken} - {""}
        section.comparisons.extend(f"errors of {case[0]}, {case[1].show()}: {text}" for text in sorted(errors))
    others = [sample.usage.others for taken in good for sample in taken.values()]
    if others and spread(others).median > QUIET:
        section.comparisons.append(f"Others had {spread(others).median:.0%} of the subjects' core: measure again.")
    section.targets.extend(_targets(names, good))
    return section


def _row(case: Case, rounds: Sequence[Round], references: Sequence[str]) -> list[str]:
    name, shape = case
    samples = [taken[case] for taken in rounds if case in taken]
    failed = str(len(rounds) - len(samples))
    if not samples:
        return [name, shape.show(), *["-"] * (len(references) + 5), failed]
    compared = [_reference(reference, shape) for reference in references]
    ratios = [ratios_of(rounds, case, other) if other != case else [] for other in compared]
    return [
        name,
        shape.show(),
        spread([one.cost for one in samples]).show(1, 1e-6),
        *(spread(values).show() if values else "-" for values in ratios),
        spread([one.rate for one in samples]).show(0),
        spread([one.report.mean for one in samples]).show(2, 1e-3),
        spread([one.usage.busy for one in samples]).show(0, 0.01),
        spread([one.usage.others for one in samples]).show(0, 0.01),
        failed,
    ]


def ratios_of(rounds: Sequence[Round], over: Case, under: Case) -> list[float]:
    """Return the ratios of the processor time for a request, of each round that has both."""
    costs = [{"over": taken[over].cost, "under": taken[under].cost} for taken in rounds if {over, under} <= set(taken)]
    return paired_ratios(costs, "over", "under")


def _growth(rounds: Sequence[Round], name: str, few: Shape, many: Shape) -> list[float]:
    """Return by how much more a subject's cost grows with the connections than nginx's, of each round with all four."""
    found = []
    for taken in rounds:
        if {(one, shape) for one in (name, NGINX) for shape in (few, many)} <= set(taken):
            own, nginx = (taken[one, many].cost / taken[one, few].cost for one in (name, NGINX))
            found.append(own / nginx)
    return found


def _targets(names: Sequence[str], rounds: Sequence[Round]) -> Iterator[Target]:
    for name, shapes in ((CHAIN, HTTP2), (CHAIN + TO_HTTP1, HTTP1)):
        for shape in shapes if name in names else ():
            for reference, most in MOST[shape].items():
                ratios = ratios_of(rounds, (name, shape), _reference(reference, shape))
                yield limit(f"CPU per request, {shape.show()}, {name} / {reference}", ratios, at_most=most)
    name, (few, more, most_connections) = CHAIN + TO_HTTP1, HTTP1
    if name not in names:
        return
    ratios = ratios_of(rounds, (name, more), (name, few))
    yield limit(f"CPU per request, {name}, {more.show()} / {few.show()}", ratios, at_most=SAME)
    what = f"CPU per request, {most_connections.show()} / {few.show()}, {name} / {NGINX}"
    yield limit(what, _growth(rounds, name, few, most_connections), at_most=1.0)
    failed = sum(
        (one, shape) not in taken for taken in rounds for one, shape in cases(names) if one not in (GO, GO_HTTP1)
    )
    yield Target("rounds with an error", "none", str(failed), failed == 0)
