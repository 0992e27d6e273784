"""`bench start`: from the start of the process to the first answer, with many clusters in the file.

Each cluster has an authority, a server certificate and a token file of its own, and its upstream lives, so that nothing
can be shared or skipped; the answer asked for is the last cluster's.
"""

from __future__ import annotations

import ssl
import time

from bench import configs, pki
from bench.client import Answer, client_context, get
from bench.lab import Lab
from bench.processes import Failed, Process, wait_for_port
from bench.report import Section, limit
from bench.stats import spread
from bench.subjects import MCPROXY, mcproxy_argv

_TIMEOUT = 30.0
_SETTLE = 1.0  # seconds before memory is looked at


def measure(lab: Lab, clusters: int, rounds: int) -> Section:
    """Start the daemon `rounds` times, after once to fill the caches of the system."""
    names = [f"c{number:03d}" for number in range(clusters)]
    hosts = [
        configs.VirtualHost(f"{name}.test", pki.make_identity(lab.directory / "tls", name, f"{name}.test"))
        for name in names
    ]
    place = lab.place("start", lab.start_nginx_upstream(hosts))
    file = configs.mcproxy_many(place.directory, place.listen, place.upstream, place.identity, hosts)
    path = f"/clusters/{names[-1]}{configs.OBJECT_PATH}"
    taken = [_start(lab, mcproxy_argv(file, place.python), place.listen, path) for _ in range(rounds + 1)][1:]
    listening, answered, memory = (spread(values) for values in zip(*taken, strict=True))
    section = Section(f"Start with {clusters} clusters", ["subject", "listening s", "first answer s", "RSS MiB"])
    section.rows.append([MCPROXY, listening.show(), answered.show(), memory.show(1, 2**20)])
    section.figures["memory of an idle daemon"] = [one[2] / 1e6 for one in taken]
    section.targets.append(limit(f"start with {clusters} clusters", [t[1] for t in taken], unit="s", at_most=1.5))
    return section


def _start(lab: Lab, argv: list[str], port: int, path: str) -> tuple[float, float, float]:
    """Return seconds to the first accepted connection, to the first answer, and RSS (bytes) a second later."""
    began = time.perf_counter()
    process = lab.processes.start(MCPROXY, argv, lab.cores.proxy)
    try:
        wait_for_port(process, port, _TIMEOUT)
        listening = time.perf_counter() - began
        _wait_for_answer(process, port, client_context(lab), path)
        answered = time.perf_counter() - began
        time.sleep(_SETTLE)
        return listening, answered, float(process.rss())
    finally:
        lab.processes.stop(process)


def _wait_for_answer(process: Process, port: int, context: ssl.SSLContext, path: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while (answer := get(port, context, path)) != Answer(200, configs.object_body()):
        process.check()
        if time.monotonic() > deadline:
            raise Failed(f"{process.name} still answers {answer.status} after {_TIMEOUT:.0f} s: {answer.body[:300]!r}")
        time.sleep(0.005)
