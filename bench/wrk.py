"""Runs wrk on one core and reads its report.

Runs under about 5 s falsify the 99th percentile: the first request of each connection waits for all the handshakes, and
wrk, correcting for "coordinated omission", adds a sample for each request that could have been sent meanwhile. In a run
of 2 s these were more than 1 % of all: 22 ms, where 6 s gave 8 ms.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import configs
from bench.generator import Generator
from bench.processes import Failed, pinned

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class Report:
    """Requests in all and per second, 99th percentile of latency (seconds), and what went wrong ("" for nothing)."""

    requests: int
    rate: float
    p99: float
    errors: str


def start(
    port: int,
    path: str,
    *,
    connections: int,
    seconds: float,
    core: int | Sequence[int],
    directory: Path,
    fields: Sequence[str] = (),
) -> Generator[Report]:
    """Begin to load localhost:`port` for `seconds` (whole ones, at least 1) over kept TLS connections.

    `fields` are header lines of each request, without their CRLF.
    """
    settings = directory / "openssl.cnf"
    settings.write_text(configs.openssl_config())
    duration = max(1, round(seconds))
    options = ["-t1", f"-c{connections}", f"-d{duration}s", "--timeout", "5s", "--latency"]
    for line in fields:
        options += ["-H", line]
    # localhost, not 127.0.0.1: wrk sends the name as SNI and Host
    argv = pinned(["wrk", *options, f"https://localhost:{port}{path}"], core)
    environ = {**os.environ, "OPENSSL_CONF": str(settings)}
    popen = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return Generator("wrk", popen, duration, parse)


def run(port: int, path: str, *, connections: int, seconds: float, core: int, directory: Path) -> Report:
    """Load as `start` does, and wait for the end."""
    with start(port, path, connections=connections, seconds=seconds, core=core, directory=directory) as load:
        return load.report()


def parse(text: str) -> Report:
    """Read what ``wrk --latency`` prints; Failed when it is something else."""
    requests = re.search(r"(\d+) requests in ", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"^\s+99%\s+([\d.]+)(us|ms|s|m) *$", text, re.MULTILINE)
    if not (requests and rate and p99):
        raise Failed(f"not a report of wrk: {text}")
    problems = re.findall(r"^\s*((?:Non-2xx|Socket errors).*)$", text, re.MULTILINE)
    if int(requests[1]) == 0:
        problems.append("no request was answered")
    return Report(int(requests[1]), float(rate[1]), float(p99[1]) * _UNITS[p99[2]], "; ".join(problems))
