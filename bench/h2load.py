"""Runs h2load (nghttp2) on one core and reads its report: HTTP/2 with many streams on a connection, or HTTP/1.1.

Its encoder never indexes `authorization`, so each request carries the whole token, Huffman coded.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import configs
from bench.generator import Generator
from bench.processes import Failed, pinned

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BEGINNING = 2.0  # seconds that h2load may need beside warm-up and run


@dataclass(frozen=True, slots=True)
class Report:
    """Requests that were answered after the warm-up, mean latency (seconds), and what went wrong ("" for nothing)."""

    requests: int
    mean: float
    errors: str


def start(
    port: int,
    paths: Sequence[str],
    *,
    http2: bool,
    connections: int,
    streams: int,
    warm: float,
    seconds: float,
    core: int,
    directory: Path,
    fields: Sequence[str] = (),
    data: Path | None = None,
    least: int = configs.OBJECT_BYTES,
) -> Generator[Report]:
    """Begin to load localhost:`port` for `warm` and then `seconds` (whole ones, at least 1).

    Each connection asks for `paths` in turn, `streams` of them at a time. `fields` are header lines of each request.
    `data` is a file that each request has as its body, by POST; `least` what an answer's body has at least (bytes).
    """
    urls = directory / "h2load-urls"
    urls.write_text("".join(f"https://localhost:{port}{path}\n" for path in paths))
    duration, warm_up = max(1, round(seconds)), max(1, round(warm))
    argv = ["h2load", "--h1"] if not http2 else ["h2load", "--npn-list=h2"]
    argv += [f"-c{connections}", f"-m{streams}", "-t1", f"-D{duration}", f"--warm-up-time={warm_up}s"]
    argv += [f"--tls13-ciphers={configs.CIPHER}", f"--input-file={urls}"]
    for line in fields:
        argv += ["-H", line]
    if data is not None:
        argv += ["-d", str(data)]
    popen = subprocess.Popen(
        pinned(argv, core), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return Generator("h2load", popen, duration + warm_up + _BEGINNING, partial(parse, least=least))


def parse(text: str, least: int = configs.OBJECT_BYTES) -> Report:
    """Read what h2load prints; Failed when it is something else.

    All answers must be 2xx, and their bodies together have at least `least` bytes for each: those of the warm-up,
    which h2load counts among the bytes alone, come on top.
    """
    counts = re.search(
        r"requests: \d+ total, \d+ started, (\d+) done, \d+ succeeded, (\d+) failed, (\d+) errored", text
    )
    statuses = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
    data = re.search(r"\((\d+)\) data", text)
    mean = re.search(r"time for request: +\S+ +\S+ +([\d.]+)(us|ms|s) ", text)
    if not (counts and statuses and data and mean):
        raise Failed(f"not a report of h2load: {text[-500:]}")
    done = int(counts[1])
    problems = []
    if int(counts[2]) or int(statuses[2]):
        problems.append(f"{counts[2]} of {done} requests failed; {statuses[0]}")
    if done == 0:
        problems.append("no request was answered")
    elif int(data[1]) < done * least:
        problems.append(f"{data[1]} bytes of {done} bodies: less than {least} each")
    return Report(done, float(mean[1]) * _UNITS[mean[2]], "; ".join(problems))
