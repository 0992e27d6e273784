"""`bench observability`: what metrics, access log and audit log cost a request, alone and together; and a scrape.

Everything is compared with the same daemon that counts and writes nothing (`observed.py off`), which no configuration
can ask for: requests are always counted. All of them do what a real one does: a client certificate, impersonation,
50 policies of which the last matches, a bucket for each user. The logs are files, emptied after each sample.

Then a daemon with 10,000 series is scraped while it is loaded: how long a scrape takes, and what it does to the
requests meanwhile, of which each waits at most for one slice of it.
"""

from __future__ import annotations

import http.client
import os
import random
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import configs, identity, load, pki, wrk
from bench.client import check_subject, client_context
from bench.identity import CONNECTIONS, Sample, Setting, row
from bench.lab import Lab, Running
from bench.meter import Meter
from bench.observed import SERIES
from bench.processes import Failed, free_port
from bench.report import Section, Target, limit
from bench.stats import paired_ratios, percentile, shuffled_rounds, spread
from bench.subjects import Place, script_argv

OFF, METRICS, ACCESS, AUDIT, ALL = "nothing", "metrics", "access log", "audit log", "all three"
MOST = 1.1
"""The most that all of them together may cost, as a ratio to nothing."""
SCRAPE = 0.2
"""The longest that a scrape of 10,000 series may take (seconds)."""
_SCRAPES = 10
_ACCESS_FILE, _AUDIT_FILE = "access.log", "audit.log"

Round = dict[str, Sample]


@dataclass(frozen=True, slots=True)
class Observed(Setting):
    """mcproxy with some of its three observers."""

    counted: bool = True
    access: bool = False
    audit: bool = False

    def argv(self, place: Place) -> list[str]:
        logging: dict[str, Any] = {"level": "warn"}
        if self.access:
            logging["access"] = {"file": str(place.directory / _ACCESS_FILE), "format": "json"}
        if self.audit:
            logging["audit"] = {"file": str(place.directory / _AUDIT_FILE)}
        file = configs.mcproxy(
            place.directory,
            place.listen,
            place.upstream,
            place.identity,
            cluster=self.cluster,
            server={**self.server, "accessLog": self.access},
            sections={**self.sections, "logging": logging},
        )
        uncounted = [*script_argv("observed.py", place.python), "off"]
        program = [str(place.python), "-m", "mcproxy"] if self.counted else uncounted
        return [*program, "run", "-c", str(file)]


def settings(client_authority: Path) -> list[Observed]:
    """Return what is compared, first what observes nothing."""
    certified = {"name": "bench", "clientCertificates": {"caFile": str(client_authority)}}
    chain: dict[str, Any] = {"impersonated": "alice", "shows_certificate": True, **identity.whole_chain(certified)}
    return [
        Observed(OFF, counted=False, **chain),
        Observed(METRICS, **chain),
        Observed(ACCESS, counted=False, access=True, **chain),
        Observed(AUDIT, counted=False, audit=True, **chain),
        Observed(ALL, access=True, audit=True, **chain),
    ]


def measure(lab: Lab, rounds: int, seconds: float, rng: random.Random) -> list[Section]:
    """Run the rounds and the scrapes, and return the sections of the report."""
    client = pki.make_client(lab.directory / "tls", "client", "alice", ("dev", "team-a"))
    upstream = lab.start_nginx_upstream()
    known = {setting.name: setting for setting in settings(client.authority)}
    running = {name: lab.start_subject(setting, upstream) for name, setting in known.items()}
    context = _context(lab, client)
    for name, setting in known.items():
        check_subject(lab, running[name], context, setting.fields, impersonated=setting.impersonated)
        _sample(lab, running[name], context, 0.3)  # fills caches
    taken = [
        {name: _sample(lab, running[name], context, seconds) for name in order}
        for order in shuffled_rounds(list(known), rounds, rng)
    ]
    _check_logs(lab, running)
    return [summarise(taken), scrapes(lab, upstream, max(2.0, seconds))]


def _context(lab: Lab, client: pki.Identity) -> ssl.SSLContext:
    context = client_context(lab)
    context.load_cert_chain(client.certificate, client.key)
    return context


def _files(lab: Lab, name: str) -> list[Path]:
    folder = lab.directory / f"{name}-files"
    return [file for file in (folder / _ACCESS_FILE, folder / _AUDIT_FILE) if file.exists()]


def _sample(lab: Lab, subject: Running, context: ssl.SSLContext, seconds: float) -> Sample:
    if subject.process is None:
        raise Failed(f"{subject.name} does not run")
    for file in _files(lab, subject.name):
        os.truncate(file, 0)
    with load.opened(subject.port, context, configs.OBJECT_PATH, connections=CONNECTIONS, fields="") as connections:
        meter = Meter(subject.process, lab.cores.proxy)
        report = connections.run(seconds)
        usage = meter.read()
    subject.process.check()
    return Sample(report, usage)


def _check_logs(lab: Lab, running: dict[str, Running]) -> None:
    """The logs must have what was measured."""
    for name, expected in ((ACCESS, 1), (AUDIT, 1), (ALL, 2)):
        files = _files(lab, name)
        if len(files) != expected or not all(file.stat().st_size > 10_000 for file in files):
            raise Failed(f"{running[name].name}: the logs are not written")


def summarise(rounds: Sequence[Round]) -> Section:
    """Make the table and the targets; a sample with an error counts in none of them."""
    section = Section(
        f"Observability: GET of 1.1 KB at {CONNECTIONS} connections, through the whole chain",
        ["observed by", "requests/s", "p99 ms", "CPU us/request", "core busy %", "rate / nothing", "CPU / nothing"],
    )
    good = [{name: one for name, one in taken.items() if not one.report.errors} for taken in rounds]
    rates = [{name: one.report.rate for name, one in taken.items()} for taken in good]
    costs = [{name: one.cost for name, one in taken.items()} for taken in good]
    for name in (OFF, METRICS, ACCESS, AUDIT, ALL):
        samples = [taken[name] for taken in good if name in taken]
        ratios = [paired_ratios(values, name, OFF) for values in (rates, costs)]
        section.rows.append(row(name, samples, ratios))
        errors = {taken[name].report.errors for taken in rounds if name in taken} - {""}
        section.comparisons.extend(f"errors of {name}: {text}" for text in sorted(errors))
    added = [{name: cost - taken[OFF] for name, cost in taken.items()} for taken in costs if OFF in taken]
    for name in (METRICS, ACCESS, AUDIT, ALL):
        extra = [taken[name] * 1e6 for taken in added if name in taken]
        if extra:
            section.comparisons.append(f"{name}: {spread(extra).show(1)} us of processor time a request")
    section.targets += [
        limit(f"rate, {ALL} / {OFF}", paired_ratios(rates, ALL, OFF), at_least=1 / MOST),
        limit(f"CPU per request, {ALL} / {OFF}", paired_ratios(costs, ALL, OFF), at_most=MOST),
    ]
    return section


@dataclass(frozen=True, slots=True)
class Scraped(Setting):
    """mcproxy with many series, and an Admin listener on `admin`."""

    admin: int = 0

    def argv(self, place: Place) -> list[str]:
        listeners = [
            {
                "name": "bench",
                "serves": "API",
                "bind": f"127.0.0.1:{place.listen}",
                "tls": {"certificates": ["bench"], "minVersion": "1.3"},
            },
            {"name": "admin", "serves": "Admin", "bind": f"127.0.0.1:{self.admin}", "paths": ["/metrics"]},
        ]
        file = configs.mcproxy(
            place.directory, place.listen, place.upstream, place.identity, sections={"listeners": listeners}
        )
        return [*script_argv("observed.py", place.python), "series", "run", "-c", str(file)]


def scrapes(lab: Lab, upstream: int, seconds: float) -> Section:
    """Scrape a loaded daemon that has 10,000 series."""
    admin = free_port()
    subject = lab.start_subject(Scraped("scraped", admin=admin), upstream)
    context = client_context(lab)
    check_subject(lab, subject, context, "", impersonated="")
    quiet = _loaded(subject, context, seconds)
    times: list[float] = []
    sizes: list[int] = []
    lines: list[int] = []

    def scrape() -> None:
        for _ in range(_SCRAPES):
            time.sleep(seconds / (2 * _SCRAPES))
            began = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", admin, timeout=30)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read()
            connection.close()
            times.append(time.perf_counter() - began)
            sizes.append(len(text))
            lines.append(text.count(b"\nmcproxy_requests_total{"))

    thread = threading.Thread(target=scrape)
    thread.start()
    scraped = _loaded(subject, context, seconds)
    thread.join()
    if len(times) < _SCRAPES or min(lines) < SERIES:
        raise Failed(f"a scrape had {min(lines, default=0)} series instead of {SERIES}")
    section = Section(
        f"A scrape of {SERIES:,} series of mcproxy_requests_total, {_SCRAPES} times under load",
        ["scrape ms, median", "longest", "MB", "p99 ms of requests without", "with", "requests/s without", "with"],
    )
    section.rows.append(
        [
            f"{percentile(times, 0.5) * 1e3:.0f}",
            f"{max(times) * 1e3:.0f}",
            f"{max(sizes) / 1e6:.1f}",
            f"{quiet.p99 * 1e3:.2f}",
            f"{scraped.p99 * 1e3:.2f}",
            f"{quiet.rate:,.0f}",
            f"{scraped.rate:,.0f}",
        ]
    )
    section.targets += [
        limit("a scrape of 10,000 series under load", times, unit=" s", digits=3, at_most=SCRAPE),
        Target(
            "p99 of requests while scraped",
            "at most 20 ms more",
            f"{(scraped.p99 - quiet.p99) * 1e3:.1f} ms",
            scraped.p99 - quiet.p99 <= 0.02,
        ),
    ]
    return section


def _loaded(subject: Running, context: ssl.SSLContext, seconds: float) -> wrk.Report:
    with load.opened(subject.port, context, configs.OBJECT_PATH, connections=CONNECTIONS, fields="") as connections:
        report = connections.run(seconds)
    if report.errors:
        raise Failed(f"{subject.name}: {report.errors}")
    return report
