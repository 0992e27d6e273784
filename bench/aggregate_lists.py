"""`bench aggregate-lists`: what lists of an aggregate cost, from the caches of two clusters over TLS.

The server (`bench/list_server.py`) has the daemon's HTTP engine, reads and stores, fed directly. nginx serves the same
bytes from a file. Processor time of the server counts, in rounds that are compared within themselves: whatever else
the machine does lengthens the wall-clock time of both.
"""

from __future__ import annotations

import json
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from bench import configs
from bench.client import client_context, connect, get, send_get
from bench.lab import Lab
from bench.list_server import PERCENT
from bench.processes import Failed, Process, free_port, wait_for_port
from bench.report import Section, comparison, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import MCPROXY, NGINX, nginx_argv, script_argv

LIST_PODS, PAGED_PODS, SELECTED_PODS = 10_000, 50_000, 100_000
PATH = "/api/v1/pods"
PAGES = 100
LISTERS = 50
_LISTS = 5  # in one round of a list of 40 MB
_SELECTIONS = 20
_PATIENCE = 300.0
_BUFFER = 1 << 18


def measure(lab: Lab, objects: int, paged: int, selected: int, rounds: int, rng: random.Random) -> Section:
    """Measure a list of `objects` pods, many listers at once, pages of `paged` pods and a selection from `selected`."""
    section = Section(
        f"Lists of an aggregate: {objects:,} pods of 4 KB from 2 clusters", ["what", "processor time ms", "elapsed ms"]
    )
    with server(lab, objects) as (process, port):
        measure_against_nginx(lab, section, process, port, rounds, rng)
        measure_idle(lab, section, process, port)
    with server(lab, paged) as (process, port):
        measure_pages(lab, section, process, port, paged, rounds, rng)
    with server(lab, selected) as (process, port):
        measure_selections(lab, section, process, port, selected, rounds)
    return section


@contextmanager
def server(lab: Lab, count: int) -> Iterator[tuple[Process, int]]:
    """Run a server with so many pods."""
    port = free_port()
    argv = [
        *script_argv("list_server.py", lab.python.program),
        str(port),
        str(lab.identity.certificate),
        str(lab.identity.key),
        str(count),
    ]
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH"))))
    process = lab.processes.start("lists", argv, lab.cores.proxy, {"PYTHONPATH": path})
    wait_for_port(process, port, timeout=_PATIENCE)
    try:
        yield process, port
    finally:
        lab.processes.stop(process)


def measure_against_nginx(
    lab: Lab, section: Section, process: Process, port: int, rounds: int, rng: random.Random
) -> None:
    """Compare a whole list with nginx, which serves the same bytes from a file."""
    context = client_context(lab)
    body = get(port, context, PATH).body
    file = lab.directory / "list.json"
    file.write_bytes(body)
    nginx_port = free_port()
    config = configs.nginx_file(lab.directory, nginx_port, lab.identity, PATH, file)
    nginx = lab.processes.start("nginx-file", nginx_argv(lab.directory, config), lab.cores.proxy)
    wait_for_port(nginx, nginx_port)
    if get(nginx_port, context, PATH).body != body:
        raise Failed("nginx does not serve the list")
    subjects = {MCPROXY: (process, port), NGINX: (nginx, nginx_port)}
    cpu: list[dict[str, float]] = []
    elapsed: list[dict[str, float]] = []
    for order in shuffled_rounds(list(subjects), rounds, rng):
        cpu.append({})
        elapsed.append({})
        for name in order:
            measured, at = subjects[name]
            cpu[-1][name], elapsed[-1][name] = _timed(
                measured, partial(_drain, lab, at, PATH, len(body), _LISTS), _LISTS
            )
    _row(section, f"whole list, {len(body) / 1e6:.0f} MB, mcproxy", cpu, elapsed, MCPROXY)
    _row(section, "the same bytes from a file, nginx", cpu, elapsed, NGINX)
    for what, values in (("processor time of a whole list", cpu), ("elapsed", elapsed)):
        if line := comparison(what, values, MCPROXY, NGINX):
            section.comparisons.append(line)
    ratios = [1 / ratio for ratio in paired_ratios(cpu, MCPROXY, NGINX)]
    section.targets.append(limit("lists a second of processor time, mcproxy / nginx", ratios, at_least=0.7))


def measure_pages(
    lab: Lab, section: Section, process: Process, port: int, objects: int, rounds: int, rng: random.Random
) -> None:
    """Compare PAGES pages with the whole list."""
    size = objects // PAGES
    works: Mapping[str, Callable[[], None]] = {
        "whole": lambda: _drain(lab, port, PATH, 0, 1),
        "pages": lambda: _read_pages(lab, port, size, objects),
    }
    cpu: list[dict[str, float]] = []
    elapsed: list[dict[str, float]] = []
    for order in shuffled_rounds(list(works), rounds, rng):
        cpu.append({})
        elapsed.append({})
        for name in order:
            cpu[-1][name], elapsed[-1][name] = _timed(process, partial(_several, works[name], 3), 3)
    _row(section, f"{PAGES} pages of {size} pods", cpu, elapsed, "pages")
    section.targets.append(
        limit(f"{PAGES} pages / whole list, processor time", paired_ratios(cpu, "pages", "whole"), at_most=1.3)
    )


def measure_idle(lab: Lab, section: Section, process: Process, port: int) -> None:
    """Let many clients begin a list and read nothing of it."""
    before = process.rss()
    connections = [connect(port, client_context(lab)) for _ in range(LISTERS)]
    try:
        for connection in connections:
            send_get(connection, PATH)
        time.sleep(2.0)
        grown = process.rss() - before
    finally:
        for connection in connections:
            connection.close()
    section.rows.append([f"{LISTERS} listers that read nothing: RSS grows by {grown / 1e6:.0f} MB", "-", "-"])
    section.targets.append(
        limit(f"memory of a lister that reads nothing, of {LISTERS}", [grown / LISTERS / 1e6], unit="MB", at_most=2.0)
    )


def measure_selections(lab: Lab, section: Section, process: Process, port: int, objects: int, rounds: int) -> None:
    """Measure lists of few of many pods."""
    context = client_context(lab)
    for what, query, at_most in (
        ("label", f"labelSelector={quote(f'percent={PERCENT}')}", 20.0),
        ("field", f"fieldSelector={quote('spec.nodeName=node-007')}", 0.0),
    ):
        path = f"{PATH}?{query}"
        count = len(json.loads(get(port, context, path).body)["items"])
        cpu: list[dict[str, float]] = []
        elapsed: list[dict[str, float]] = []
        for _ in range(rounds):
            spent, took = _timed(process, partial(_drain, lab, port, path, 0, _SELECTIONS), _SELECTIONS)
            cpu.append({what: spent})
            elapsed.append({what: took})
        _row(section, f"{count:,} of {objects:,} pods by a {what} selector", cpu, elapsed, what)
        if what == "field":
            section.figures["list by a field selector"] = [each[what] * 1e3 for each in cpu]
        if at_most:
            values = [each[what] * 1e3 for each in cpu]
            section.targets.append(
                limit(f"list of {count:,} of {objects:,} pods by label", values, unit="ms", digits=1, at_most=at_most)
            )


def _several(work: Callable[[], None], times: int) -> None:
    for _ in range(times):
        work()


def _timed(process: Process, work: Callable[[], None], times: int) -> tuple[float, float]:
    """Return the processor time of `process` and the elapsed time, in seconds, of one of `times` that `work` does."""
    before, began = process.cpu_seconds(), time.monotonic()
    work()
    return (process.cpu_seconds() - before) / times, (time.monotonic() - began) / times


def _drain(lab: Lab, port: int, path: str, size: int, times: int) -> None:
    """Read an answer so many times on one connection; only its ends are looked at."""
    with connect(port, client_context(lab)) as connection:
        for _ in range(times):
            received, _ = _read_answer(connection, path)
            if received < size:
                raise Failed(f"{received} bytes instead of {size}")


def _read_answer(connection: ssl.SSLSocket, path: str) -> tuple[int, bytes]:
    """Read one answer as fast as it comes; return how many bytes it had, and the first of them."""
    send_get(connection, path)
    buffer = bytearray(_BUFFER)
    received, begin, tail, length = 0, b"", b"", -1
    while True:
        count = connection.recv_into(buffer)
        if not count:
            raise Failed(f"the answer to {path} ended after {received} bytes")
        if not received:
            begin = bytes(buffer[:count])
            head, _, _ = begin.partition(b"\r\n\r\n")
            length = _length(head) + len(head) + 4 if b"content-length" in head.lower() else -1
        received += count
        tail = (tail + buffer[max(0, count - 8) : count])[-8:]
        if received == length if length >= 0 else tail.endswith(b"\r\n0\r\n\r\n"):
            return received, begin


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _read_pages(lab: Lab, port: int, size: int, objects: int) -> None:
    """Read a whole list page by page on one connection."""
    token, pages = "", 0
    with connect(port, client_context(lab)) as connection:
        while True:
            _, begin = _read_answer(connection, f"{PATH}?limit={size}" + (f"&continue={token}" if token else ""))
            place = begin.index(b'"metadata":') + len(b'"metadata":')
            token = json.loads(begin[place : begin.index(b"}", place) + 1]).get("continue", "")
            pages += 1
            if not token:
                break
    if pages != -(-objects // size):
        raise Failed(f"{pages} pages of {size} for {objects} pods")


def _row(
    section: Section,
    what: str,
    cpu: list[dict[str, float]],
    elapsed: list[dict[str, float]],
    name: str,
) -> None:
    shown = [spread([values[name] for values in each]).show(1, 1e-3) for each in (cpu, elapsed)]
    section.rows.append([what, *shown])
