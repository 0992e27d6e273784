"""`bench floods`: what legitimate clients are left with while others flood the proxy before it knows who they are.

Three floods, each beside ten legitimate clients that go on asking; what counts is the share of the legitimate requests
that is answered with 200, and how long they take, without and with the flood:

- strangers: 1,300 connections, from eight addresses, each with a new random token all the time, against a TokenReview
  that takes 0.2 s. The legitimate clients bring a token of their own that is new each time, so each needs a review.
- one user: 900 connections of one user whose bucket gives 20 requests/s, beside another user's requests; each request
  is one that a SubjectAccessReview of 0.2 s has to allow.
- idle connections: as many as `limits.connections` lets in, from one address, opened again whenever they are closed.
  The legitimate clients open a connection for each request.

The clients (`bench.flood_clients`) are in the harness, on the core of the load and the upstream.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.client import client_context
from bench.flood_clients import Clients, FloodClients, Outcome, Requests
from bench.lab import Lab
from bench.report import Section, limit
from bench.stats import percentile
from bench.subjects import MCPROXY, Mcproxy, Subject

BEFORE = "before"
LEGITIMATE = 10
"""Legitimate clients."""
STRANGERS, STRANGERS_ADDRESSES = 1300, 8
LIMITED = 900
LIMITED_QPS, OTHERS_QPS = 20, 1000
LISTENER_CONNECTIONS = 20


@dataclass(frozen=True, slots=True)
class Flood:
    """One flood: how mcproxy is configured, what legitimate clients and what the flood sends.

    `flood` has the source address of each connection and what it sends, as `FloodClients` takes it. `keep` is whether
    legitimate clients keep their connections.
    """

    name: str
    subject: Callable[[str, Path | None, Path], Subject]
    legitimate: Callable[[int], Requests]
    flood: Callable[[], list[tuple[str, Requests | None]]]
    keep: bool = True


def request(token: str, name: str) -> bytes:
    """Return a GET of an object with a bearer token."""
    path = f"/api/v1/namespaces/{name}/configmaps/bench"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def _with_new_tokens(user: str) -> Requests:
    return (request(f"{user}.{number}", "default") for number in itertools.count())


def _of_new_objects(token: str, prefix: str) -> Requests:
    return (request(token, f"{prefix}-{number}") for number in itertools.count())


def _strangers_subject(name: str, tree: Path | None, directory: Path) -> Subject:
    review = {"name": "bench", "tokenReview": {"cluster": "bench"}}
    return Mcproxy(
        name,
        cluster={"identity": "Impersonate"},
        server={"authentication": "bench"},
        sections={"authentication": [review]},
        tree=tree,
    )


def _limited_subject(name: str, tree: Path | None, directory: Path) -> Subject:
    tokens = directory / "tokens.csv"
    tokens.write_text("limited-token,limited,1\nother-token,other,2\n")
    everything = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return Mcproxy(
        name,
        cluster={"identity": "Impersonate"},
        server={
            "authentication": "bench",
            "authorization": "bench",
            "dispatch": [
                {"rules": [{**rule, "users": ["limited"]} for rule in everything], "flowControl": "limited"},
                {"rules": everything, "flowControl": "others"},
            ],
        },
        sections={
            "authentication": [{"name": "bench", "tokenFile": str(tokens)}],
            "authorization": [{"name": "bench", "subjectAccessReview": {"cluster": "bench"}}],
            "flowControls": [
                {"name": name, "type": "TokenBucket", "qps": qps, "burst": qps, "per": "User"}
                for name, qps in (("limited", LIMITED_QPS), ("others", OTHERS_QPS))
            ],
        },
        tree=tree,
    )


def _few_connections_subject(name: str, tree: Path | None, directory: Path) -> Subject:
    return Mcproxy(name, listener={"limits": {"connections": LISTENER_CONNECTIONS}}, tree=tree)


def floods() -> list[Flood]:
    """Return the three floods."""
    return [
        Flood(
            "strangers' tokens",
            _strangers_subject,
            lambda number: _with_new_tokens(f"legitimate-{number}"),
            lambda: [
                (f"127.0.0.{2 + number % STRANGERS_ADDRESSES}", _with_new_tokens(f"stranger-{number}"))
                for number in range(STRANGERS)
            ],
        ),
        Flood(
            "one limited user",
            _limited_subject,
            lambda number: _of_new_objects("other-token", f"other-{number}"),
            lambda: [("127.0.0.2", _of_new_objects("limited-token", f"limited-{number}")) for number in range(LIMITED)],
        ),
        Flood(
            "idle connections",
            _few_connections_subject,
            lambda number: _of_new_objects("none", f"legitimate-{number}"),
            lambda: [("127.0.0.2", None)] * LISTENER_CONNECTIONS,
            keep=False,
        ),
    ]


def measure(lab: Lab, before: Path | None, seconds: float) -> Section:
    """Measure each flood for `seconds` without and as long with it; `before` is another checkout to show beside."""
    section = Section(
        "Floods: what legitimate clients get",
        [
            *("flood", "mcproxy", "share without", "share with", "p50 ms without", "with", "p99 ms without", "with"),
            "the flood got",
        ],
    )
    upstream = lab.start_origin()
    trees = [(BEFORE, before), (MCPROXY, None)] if before is not None else [(MCPROXY, None)]
    for flood in floods():
        for name, tree in trees:
            running = lab.start_subject(flood.subject(name, tree, lab.directory), upstream)
            calm, flooded, got = asyncio.run(_run(flood, running.port, client_context(lab), seconds))
            if running.process is not None:
                running.process.check()
                lab.processes.stop(running.process)
            section.rows.append(_row(flood.name, name, calm, flooded, got))
            if name == MCPROXY:
                what = f"{flood.name}: share of legitimate requests served"
                section.targets.append(limit(what, [flooded.share], digits=4, at_least=1.0))
    return section


def _row(flood: str, name: str, calm: Outcome, flooded: Outcome, got: Outcome) -> list[str]:
    times = [
        f"{percentile(each.seconds, part) * 1e3:.0f}" if each.seconds else "-"
        for part in (0.5, 0.99)
        for each in (calm, flooded)
    ]
    answers = ", ".join(f"{count} x {status or 'no answer'}" for status, count in sorted(got.statuses.items()))
    return [flood, name, f"{calm.share:.4f}", f"{flooded.share:.4f}", *times, answers or "nothing"]


async def _run(flood: Flood, port: int, context: ssl.SSLContext, seconds: float) -> tuple[Outcome, Outcome, Outcome]:
    """Return what legitimate clients got without and with the flood, and what the flood got."""
    clients = Clients(port, context)
    requests = [flood.legitimate(number) for number in range(LEGITIMATE)]
    calm = await clients.legitimate(requests, seconds, keep=flood.keep)
    async with FloodClients(port, context, flood.flood()) as connections:
        flooded = await clients.legitimate(requests, seconds, keep=flood.keep)
    return calm, flooded, connections.outcome
