"""`bench watches`: what an idle watch costs the proxy, counted in resident memory.

A watch is a client's TLS connection and one to the upstream. A first event goes through each, so that buffers which
only exist after traffic are there; then all stand idle. Kernel buffers of sockets are not resident memory and not
counted.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Sequence

from bench.client import client_context, is_open, open_watch
from bench.lab import Lab
from bench.processes import Failed, Process
from bench.report import Section, limit
from bench.subjects import MCPROXY, Subject

_WARM = 10  # opened before the first look and kept: code and pools are then in memory
_SETTLE = 1.0  # seconds


def measure(lab: Lab, subjects: Sequence[Subject], count: int) -> Section:
    """Hold `count` watches through each subject that has a process, one subject after the other."""
    section = Section(
        f"{count:,} idle watches", ["subject", "KiB a watch", "RSS before MiB", "RSS after MiB", "set up ms each"]
    )
    for subject in subjects:
        running = lab.start_subject(subject, lab.start_origin())
        if running.process is None:
            continue
        before, after, seconds = _hold(running.process, running.port, client_context(lab), count)
        each = (after - before) / count / 1024
        section.rows.append(
            [
                running.name,
                f"{each:.1f}",
                f"{before / 2**20:.1f}",
                f"{after / 2**20:.1f}",
                f"{seconds / count * 1e3:.1f}",
            ]
        )
        if running.name == MCPROXY:
            section.targets.append(limit("memory of an idle watch", [each], unit="KiB", digits=1, at_most=60.0))
        lab.processes.stop(running.process)
    return section


def _hold(process: Process, port: int, context: ssl.SSLContext, count: int) -> tuple[int, int, float]:
    """Return RSS without and with `count` watches (bytes), and the seconds that it took to open them."""
    with contextlib.ExitStack() as stack:
        for _ in range(_WARM):
            stack.enter_context(open_watch(port, context))
        time.sleep(_SETTLE)
        before = process.rss()
        began = time.monotonic()
        watches = [stack.enter_context(open_watch(port, context)) for _ in range(count)]
        seconds = time.monotonic() - began
        time.sleep(_SETTLE)
        after = process.rss()
        process.check()
        ended = sum(not is_open(watch) for watch in watches)
    if ended:
        raise Failed(f"{ended} of {count} idle watches through {process.name} have ended by themselves")
    return before, after, seconds
