"""`bench identity`: what authentication, impersonation, dispatch and limits add to the cost of a request.

Bare forwarding is mcproxy with `authentication: none` and `identity: Proxy`. Against it: a client certificate, and a
bearer token that a TokenReview accepted and the cache has, each passed on to the cluster by impersonation. The token is
compared with bare forwarding of the very same requests: a head that is longer by 1,000 bytes costs something whoever
reads it. The whole chain is the certificate, impersonation, 50 policies of which the last matches and a token bucket
for each user; then the same with the access log, the one hook that is called for each request.

All of them see the same client (`bench.load`). There are two targets for each: the ratio of rates, and that of the
processor time for a request the other way round, which is the same for a proxy whose core is busy, and steadier.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import configs, load, pki, wrk
from bench.client import check_subject, client_context
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.processes import Failed
from bench.report import Section, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import Mcproxy

BARE, SENT, TOKEN = "bare", "token, not reviewed", "token"
CERTIFICATE, CHAIN, LOGGED, LOG = "certificate", "whole chain", "whole chain, logged", "access log alone"
#: what is measured, compared with what, and the least ratio that is wanted
TARGETS = ((TOKEN, SENT, 0.85), (CERTIFICATE, BARE, 0.85), (CHAIN, BARE, 0.8), (LOGGED, BARE, 0.8))
POLICIES = 50
CONNECTIONS = 16

TOKEN_REVIEW = {"name": "bench", "tokenReview": {"cluster": "bench", "cacheSuccess": "1h"}}
"""The set of authenticators of which the upstream's TokenReview is the one."""
CLIENT_TOKEN = "t" * 1000  # about as long as a service account's

_USER, _GROUPS = "alice", ("dev", "team-a")
_IMPERSONATE = {"identity": "Impersonate"}
_WITH_IDENTITY = {"authentication": "bench"}
_ACCESS_LOG = {"logging": {"level": "warn", "access": {"file": "/dev/null", "format": "json"}}}


@dataclass(frozen=True, slots=True)
class Setting(Mcproxy):
    """One way to configure mcproxy, and how its clients authenticate."""

    impersonated: str = ""  # the user that the upstream must see
    shows_certificate: bool = False
    token: str = ""

    @property
    def fields(self) -> str:
        """What its clients add to a request."""
        return f"Authorization: Bearer {self.token}\r\n" if self.token else ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One setting in one round."""

    report: wrk.Report
    usage: Usage

    @property
    def cost(self) -> float:
        """Processor seconds for a request."""
        return self.usage.cpu / max(1, self.report.requests)


Round = dict[str, Sample]


def settings(client_authority: Path) -> list[Setting]:
    """Return what is compared, bare forwarding first."""
    certified = {"name": "bench", "clientCertificates": {"caFile": str(client_authority)}}
    known: dict[str, Any] = {"cluster": _IMPERSONATE, "server": _WITH_IDENTITY}
    certificate: dict[str, Any] = {"impersonated": _USER, "shows_certificate": True}
    token: dict[str, Any] = {"impersonated": configs.REVIEWED_USER, "token": CLIENT_TOKEN}
    return [
        Setting(BARE),
        Setting(SENT, token=CLIENT_TOKEN),
        Setting(TOKEN, sections={"authentication": [TOKEN_REVIEW]}, **token, **known),
        Setting(CERTIFICATE, sections={"authentication": [certified]}, **certificate, **known),
        Setting(CHAIN, **certificate, **whole_chain(certified)),
        Setting(LOGGED, **certificate, **whole_chain(certified, access_log=True)),
        Setting(LOG, server={"accessLog": True}, sections=_ACCESS_LOG),
    ]


def whole_chain(authentication: dict[str, Any], *, access_log: bool = False) -> dict[str, Any]:
    """Return cluster, server and sections of a file that does everything: who, impersonation, policies, a bucket."""
    limits = [{"name": "each", "type": "TokenBucket", "qps": 1_000_000, "burst": 1_000_000, "per": "User"}]
    sections = {"authentication": [authentication], "flowControls": limits, **(_ACCESS_LOG if access_log else {})}
    server = {**_WITH_IDENTITY, "dispatch": policies(POLICIES), "accessLog": access_log}
    return {"cluster": _IMPERSONATE, "server": server, "sections": sections}


def policies(count: int) -> list[dict[str, Any]]:
    """Return so many dispatch policies, of which only the last matches what is asked here."""
    teams = [
        {
            "name": f"team-{number}",
            "rules": [
                {
                    "verbs": ["get", "list", "watch"],
                    "apiGroups": ["", "apps"],
                    "resources": ["configmaps", "pods"],
                    "namespaces": [f"team-{number}"] if number % 2 else ["default"],
                    "users": ["*"] if number % 2 else [f"robot-{number}"],
                }
            ],
        }
        for number in range(count - 1)
    ]
    everything = [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ]
    return [*teams, {"name": "rest", "rules": everything, "flowControl": "each"}]


def measure(lab: Lab, rounds: int, seconds: float, rng: random.Random) -> Section:
    """Run the rounds and return the section of the report."""
    client = pki.make_client(lab.directory / "tls", "client", _USER, _GROUPS)
    upstream = lab.start_nginx_upstream()
    known = {setting.name: setting for setting in settings(client.authority)}
    running = {name: lab.start_subject(setting, upstream) for name, setting in known.items()}
    contexts = {name: _context(lab, setting, client) for name, setting in known.items()}
    for name, setting in known.items():
        check_subject(lab, running[name], contexts[name], setting.fields, impersonated=setting.impersonated)
        _sample(lab, setting, running[name], contexts[name], 0.3)  # fills caches
    taken = [
        {name: _sample(lab, known[name], running[name], contexts[name], seconds) for name in order}
        for order in shuffled_rounds(list(known), rounds, rng)
    ]
    return summarise(taken)


def _context(lab: Lab, setting: Setting, client: pki.Identity) -> ssl.SSLContext:
    context = client_context(lab)
    if setting.shows_certificate:
        context.load_cert_chain(client.certificate, client.key)
    return context


def _sample(lab: Lab, setting: Setting, subject: Running, context: ssl.SSLContext, seconds: float) -> Sample:
    if subject.process is None:
        raise Failed(f"{subject.name} does not run")
    with load.opened(
        subject.port, context, configs.OBJECT_PATH, connections=CONNECTIONS, fields=setting.fields
    ) as connections:
        meter = Meter(subject.process, lab.cores.proxy)
        report = connections.run(seconds)
        usage = meter.read()
    subject.process.check()
    return Sample(report, usage)


def summarise(rounds: Sequence[Round]) -> Section:
    """Make the table, the comparisons and the targets; a sample with an error counts in none of them."""
    section = Section(
        f"Identity and dispatch: GET of 1.1 KB at {CONNECTIONS} connections",
        ["mcproxy with", "requests/s", "p99 ms", "CPU us/request", "core busy %", "rate / bare", "CPU / bare"],
    )
    good = [{name: one for name, one in taken.items() if not one.report.errors} for taken in rounds]
    rates = [{name: one.report.rate for name, one in taken.items()} for taken in good]
    costs = [{name: one.cost for name, one in taken.items()} for taken in good]
    for name in (BARE, SENT, TOKEN, CERTIFICATE, CHAIN, LOGGED, LOG):
        samples = [taken[name] for taken in good if name in taken]
        ratios = [paired_ratios(values, name, BARE) for values in (rates, costs)]
        section.rows.append(row(name, samples, ratios))
        errors = {taken[name].report.errors for taken in rounds if name in taken} - {""}
        section.comparisons.extend(f"errors of {name}: {text}" for text in sorted(errors))
    added = [{name: cost - taken[BARE] for name, cost in taken.items()} for taken in costs if BARE in taken]
    for name in (SENT, TOKEN, CERTIFICATE, CHAIN, LOGGED, LOG):
        extra = [taken[name] * 1e6 for taken in added if name in taken]
        if extra:
            section.comparisons.append(f"{name} adds to a request: {spread(extra).show(1)} us of processor time")
    for name, against, least in TARGETS:
        section.targets += [
            limit(f"rate, {name} / {against}", paired_ratios(rates, name, against), at_least=least),
            limit(f"CPU per request, {against} / {name}", paired_ratios(costs, against, name), at_least=least),
        ]
    return section


def row(name: str, samples: Sequence[Sample], ratios: Sequence[Sequence[float]]) -> list[str]:
    """Return the cells of a subject: rate, p99, processor time, how busy the core was, and its ratios to others."""
    if not samples:
        return [name, *["-"] * 6]
    rate = spread([one.report.rate for one in samples]).show(0)
    p99 = spread([one.report.p99 for one in samples]).show(2, 1e-3)
    cost = spread([one.cost for one in samples]).show(1, 1e-6)
    busy = spread([one.usage.busy for one in samples]).show(0, 0.01)
    return [name, rate, p99, cost, busy, *(spread(values).show() if values else "-" for values in ratios)]
