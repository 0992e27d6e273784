"""`bench stream`: a long followed log, as fast as it goes and with a reader that stalls.

The stall comes first, on a fresh process: memory that an earlier stream had taken would hide what the stall takes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from bench.client import client_context, connect, get, log_path, send_get
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.origin import CHUNK
from bench.processes import Failed, Process
from bench.report import Section, comparison, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from bench.subjects import MCPROXY, NGINX, Subject, pairs

_BUFFER = 1 << 18
_WARM = 1 << 20
_LAST_CHUNK = b"0\r\n\r\n"


def measure(lab: Lab, subjects: Sequence[Subject], size: int, rounds: int, stall: float, rng: random.Random) -> Section:
    """Stream `size` bytes through each subject `rounds` times, after a stall of `stall` seconds through each proxy."""
    section = Section(
        f"Log stream of {size / 2**20:,.0f} MiB",
        ["subject", "MB/s", "core busy %", "others on it %", f"growth in a stall of {stall:.0f} s, MB"],
    )
    upstream = lab.start_origin()
    running = [lab.start_subject(subject, upstream) for subject in subjects]
    growth: dict[str, float] = {}
    for subject in running:
        _check(lab, subject)
        if subject.process is not None:
            growth[subject.name] = _stall(lab, subject, subject.process, size, stall) / 1e6
    by_name = {subject.name: subject for subject in running}
    orders = shuffled_rounds(list(by_name), rounds, rng)
    taken = [{name: _stream(lab, by_name[name], size) for name in order} for order in orders]
    rates = [{name: rate for name, (rate, _) in samples.items()} for samples in taken]
    for name in by_name:
        usages = [usage for _, usage in (samples[name] for samples in taken) if usage]
        busy = spread([usage.busy for usage in usages]).show(0, 0.01) if usages else "-"
        others = spread([usage.others for usage in usages]).show(0, 0.01) if usages else "-"
        shown = f"{growth[name]:.1f}" if name in growth else "-"
        section.rows.append([name, spread([values[name] for values in rates]).show(0, 1e6), busy, others, shown])
    lines = [comparison("rate", rates, over, under) for over, under in pairs(list(by_name))]
    section.comparisons.extend(line for line in lines if line)
    if MCPROXY in by_name:
        section.targets.append(limit("log stream, mcproxy / nginx", paired_ratios(rates, MCPROXY, NGINX), at_least=0.5))
        section.targets.append(
            limit("memory while a reader stalls", [growth[MCPROXY]], unit="MB", digits=1, at_most=20)
        )
    return section


def _check(lab: Lab, subject: Running) -> None:
    answer = get(subject.port, client_context(lab), log_path(_WARM))
    if answer.status != 200 or answer.body != CHUNK * (_WARM // len(CHUNK)):
        raise Failed(f"{subject.name} changed a log: status {answer.status}, {len(answer.body)} bytes of {_WARM}")


def _stream(lab: Lab, subject: Running, size: int) -> tuple[float, Usage | None]:
    """Return bytes a second of one whole stream and what the proxy used; Failed when it ends early."""
    buffer, received, tail = bytearray(_BUFFER), 0, b""
    with connect(subject.port, client_context(lab)) as connection:
        meter, began = Meter(subject.process, lab.cores.proxy) if subject.process else None, time.monotonic()
        send_get(connection, log_path(size))
        while not tail.endswith(_LAST_CHUNK):
            count = connection.recv_into(buffer)
            if not count:
                raise Failed(f"a log through {subject.name} ended after {received} of {size} bytes")
            received += count
            tail = (tail + buffer[max(0, count - 8) : count])[-8:]
        took, usage = time.monotonic() - began, meter.read() if meter else None
    if received < size:
        raise Failed(f"a log through {subject.name} was {received} bytes long instead of {size}")
    return received / took, usage


def _stall(lab: Lab, subject: Running, process: Process, size: int, seconds: float) -> int:
    """Return by how many bytes resident memory grew at most while nobody read; Failed when reading cannot go on."""
    before = peak = process.rss()
    with connect(subject.port, client_context(lab)) as connection:
        send_get(connection, log_path(size))
        _read(connection.recv, _WARM, subject.name)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            peak = max(peak, process.rss())
            time.sleep(0.05)
        _read(connection.recv, 16 * _WARM, subject.name)
    process.check()
    return peak - before


def _read(receive: Callable[[int], bytes], size: int, name: str) -> None:
    while size > 0:
        received = receive(_BUFFER)
        if not received:
            raise Failed(f"a log through {name} ended while its reader was slow")
        size -= len(received)
