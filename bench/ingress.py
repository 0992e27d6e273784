"""`bench ingress`: the processor time of requests from outside to pods, mcproxy's ingress and nginx, one worker each.

Clients speak TLS 1.3, pods plain HTTP/1.1, or HTTP/2 for gRPC. Three loads: GETs of 1 KB over 16 kept connections, GETs
of 1 MB over 8, and unary gRPC calls, 4 connections with 25 streams each. The pods are an nginx; for gRPC it answers as
a server with messages of 100 bytes would, with the status in trailers. Both proxies add X-Forwarded-*, and choose the
route by host and path; mcproxy has its endpoints from the EndpointSlices of a cluster.

As in `bench cost`, each proxy has a core to itself, the time is taken in a window inside the load, and the subjects
take turns in shuffled rounds.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import configs, h2load, wrk
from bench.client import client_context, get
from bench.generator import Generator
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.processes import Failed, free_port, wait_for_port
from bench.report import Section, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import MCPROXY, NGINX, Place, mcproxy_argv, nginx_argv, script_argv

KB, MB, GRPC = "1 KB over TLS", "1 MB over TLS", "gRPC unary"
LOADS = (KB, MB, GRPC)
LEAST = {KB: 0.6, MB: 0.8}
"""The share of mcproxy's processor time that nginx may need for a request, at least."""
HTTP_PATH, LARGE_PATH, GRPC_PATH = "/shop/object", "/shop/large", "/bench.Echo/Unary"
CALL = b"\0\0\0\0\x64" + b"x" * 100
WARM = 2.0


@dataclass(frozen=True, slots=True)
class Pods:
    """Where the nginx listens that stands for pods."""

    address: str
    http1: int
    http2: int
    status: int

    @property
    def where(self) -> tuple[str, str]:
        """Address and port for HTTP/1.1, and for HTTP/2."""
        return f"{self.address}:{self.http1}", f"{self.address}:{self.http2}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject in one round under one load."""

    errors: str
    requests: int
    seconds: float
    usage: Usage

    @property
    def cost(self) -> float:
        """Processor seconds per request."""
        return self.usage.cpu / max(1, self.requests)


Case = tuple[str, str]
"""A subject's name and a load."""


@dataclass(frozen=True, slots=True)
class NginxIngress:
    """nginx with one worker, keeping its connections to pods."""

    pods: Pods
    name: str = NGINX

    def argv(self, place: Place) -> list[str]:
        file = configs.nginx_ingress(place.directory, place.listen, self.pods.where, place.identity)
        return nginx_argv(place.directory, file)


@dataclass(frozen=True, slots=True)
class McproxyIngress:
    """The daemon with an Ingress listener."""

    cluster: int
    name: str = MCPROXY

    def argv(self, place: Place) -> list[str]:
        file = configs.mcproxy_ingress(place.directory, place.listen, self.cluster, place.identity)
        return mcproxy_argv(file, place.python)


def measure(lab: Lab, rounds: int, seconds: float, rng: random.Random) -> Section:
    """Run the rounds and return the section of the report."""
    (lab.directory / "call").write_bytes(CALL)
    pods = _start_pods(lab)
    cluster = _start_cluster(lab, pods)
    running = {
        subject.name: lab.start_subject(subject, pods.http1)
        for subject in (NginxIngress(pods), McproxyIngress(cluster))
    }
    context = client_context(lab)
    for subject in running.values():
        _check(subject, context)
    orders = shuffled_rounds([(name, load) for load in LOADS for name in running], rounds, rng)
    return summarise([{case: _sample(lab, running[case[0]], case[1], seconds) for case in order} for order in orders])


def own_address() -> str:
    """Return an address of this machine that is not loopback's, which no pod may have. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1
        except OSError:
            raise Failed("this machine has no address but loopback, where no pod may be") from None
        return str(probe.getsockname()[0])


def _start_pods(lab: Lab) -> Pods:
    pods = Pods(own_address(), free_port(), free_port(), free_port())
    file = configs.nginx_pods(lab.directory, pods.address, pods.http1, pods.http2, pods.status)
    process = lab.processes.start("pods", nginx_argv(lab.directory, file), lab.cores.upstream)
    wait_for_port(process, pods.status)
    lab.count_at(pods.status)
    return pods


def _start_cluster(lab: Lab, pods: Pods) -> int:
    port = free_port()
    argv = [
        *script_argv("fake_service_cluster.py"),
        str(port),
        *map("=".join, zip(("shop", "echo"), pods.where, strict=True)),
    ]
    wait_for_port(lab.processes.start("cluster", argv, lab.cores.load), port)
    return port


def _check(subject: Running, context: ssl.SSLContext) -> None:
    """Wait until the subject knows its pods; raise Failed unless it serves what is measured."""
    end = time.monotonic() + 15
    while (answer := get(subject.port, context, HTTP_PATH)).status != 200 and time.monotonic() < end:
        time.sleep(0.2)
    if answer.body != configs.object_body():
        raise Failed(f"{subject.name} answers with {answer.status} {answer.body[:200]!r} instead of the object")
    large = get(subject.port, context, LARGE_PATH)
    if len(large.body) != configs.LARGE_BYTES:
        raise Failed(f"{subject.name} answers with {large.status} and {len(large.body)} bytes instead of 1 MB")


Loading = Generator[wrk.Report] | Generator[h2load.Report]


def _start_load(lab: Lab, subject: Running, load: str, seconds: float) -> Loading:
    if load == GRPC:
        return h2load.start(
            subject.port,
            [GRPC_PATH],
            http2=True,
            connections=4,
            streams=25,
            warm=1,
            seconds=seconds - 1,
            core=lab.cores.load,
            directory=lab.directory,
            fields=("content-type: application/grpc", "te: trailers", "grpc-timeout: 5S"),
            data=lab.directory / "call",
            least=len(CALL),
        )
    return wrk.start(
        subject.port,
        HTTP_PATH if load == KB else LARGE_PATH,
        connections=16 if load == KB else 8,
        seconds=seconds,
        core=lab.cores.load,
        directory=lab.directory,
    )


def _sample(lab: Lab, subject: Running, load: str, seconds: float) -> Sample:
    if subject.process is None:
        raise Failed(f"{subject.name} does not run")
    with _start_load(lab, subject, load, WARM + seconds + 1) as generator:
        time.sleep(WARM)
        meter = Meter(subject.process, lab.cores.proxy)
        began, before = time.monotonic(), lab.requests_served()
        time.sleep(seconds)
        requests = lab.requests_served() - before - 1  # without the look itself
        took = time.monotonic() - began
        usage = meter.read()
        report = generator.report()
    subject.process.check()
    return Sample(report.errors, requests, took, usage)


def summarise(rounds: Sequence[dict[Case, Sample]]) -> Section:
    """Make the table and the targets; a sample with an error counts in none of them."""
    section = Section(
        "Processor time of a request through an ingress",
        [
            "load",
            "subject",
            "CPU us/request",
            "nginx / it",
            "requests/s",
            "core busy %",
            "others on it %",
            "failed rounds",
        ],
    )
    # nginx fails some calls that a server answers before it has read them, as nginx does: they count, and are shown.
    good = [
        {case: sample for case, sample in taken.items() if not sample.errors or case == (NGINX, GRPC)}
        for taken in rounds
    ]
    for load in LOADS:
        costs = [{name: one.cost for (name, which), one in taken.items() if which == load} for taken in good]
        ratios = paired_ratios([each for each in costs if len(each) == 2], NGINX, MCPROXY)
        for name in (NGINX, MCPROXY):
            samples = [taken[name, load] for taken in good if (name, load) in taken]
            failed = str(len(rounds) - len(samples))
            if not samples:
                section.rows.append([load, name, *["-"] * 5, failed])
                continue
            section.rows.append(
                [
                    load,
                    name,
                    spread([one.cost for one in samples]).show(1, 1e-6),
                    spread(ratios).show() if name == MCPROXY and ratios else "-",
                    spread([one.requests / one.seconds for one in samples]).show(0),
                    spread([one.usage.busy for one in samples]).show(0, 0.01),
                    spread([one.usage.others for one in samples]).show(0, 0.01),
                    failed,
                ]
            )
        errors = {(name, one.errors) for taken in rounds for (name, which), one in taken.items() if which == load}
        section.comparisons.extend(f"errors of {name}, {load}: {text}" for name, text in sorted(errors) if text)
        if load in LEAST:
            section.targets.append(limit(f"{load}, {NGINX} / {MCPROXY}", ratios, at_least=LEAST[load]))
    return section
