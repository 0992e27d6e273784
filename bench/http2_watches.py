"""`bench http2-watches`: what idle watches and events cost over HTTP/2 and HTTP/1.1, on either side of the proxy.

Idle watches are counted in resident memory, as in `bench watches`: those of ten clients that have a hundred each.
Events are of some 240 bytes, five at a time each 10 ms to each of 100 watches of four clients: 10 to 12 MB/s; what
counts is the share of a core. Upstream and watchers are Go's net/http.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench import goclient
from bench.lab import Lab, Running
from bench.meter import Meter, Usage
from bench.processes import Failed
from bench.report import Section, limit
from bench.subjects import MCPROXY, GoReverseProxy, Mcproxy, Subject

CLIENTS = 10
EVENT_CLIENTS, EVENT_WATCHES = 4, 25  # clients, and watches of each
AT_ONCE, PERIOD = 5, 0.01  # events of each watch, and seconds from one time to the next
_WARM = 2  # clients whose watches are opened before the first look
_SETTLE = 1.5  # seconds


@dataclass(frozen=True, slots=True)
class Pair:
    """A subject and the versions on its two sides."""

    subject: Subject
    client: bool  # HTTP/2; else HTTP/1.1
    cluster: bool

    def show(self) -> str:
        versions = ("HTTP/2" if each else "HTTP/1.1" for each in (self.client, self.cluster))
        return " to ".join(versions)


def pairs() -> list[Pair]:
    """Return what is measured."""
    http1: dict[str, Any] = {"connections": {"protocol": "HTTP1", "maxIdle": 1000}}
    return [
        Pair(Mcproxy(), True, True),
        Pair(Mcproxy(cluster=http1), True, False),
        Pair(Mcproxy(cluster=http1), False, False),
        Pair(GoReverseProxy(http2=True), True, True),
    ]


def measure(lab: Lab, known: Sequence[Pair], watches: int, seconds: float) -> Section:
    """Hold `watches` through each pair, and send events for `seconds` through each."""
    section = Section(
        f"{watches:,} idle watches, and events over 100, by version of HTTP",
        ["subject", "client to cluster", "KiB a watch", "RSS before MiB", "RSS after MiB", "MB/s", "% of a core"],
    )
    for pair in known:
        before, after = _idle(lab, pair, watches)
        each = (after - before) / watches / 1024
        rate, usage = _events(lab, pair, seconds)
        shown = [f"{before / 2**20:.1f}", f"{after / 2**20:.1f}", f"{rate / 1e6:.1f}", f"{usage.busy:.0%}"]
        section.rows.append([pair.subject.name, pair.show(), f"{each:.1f}", *shown])
        if pair.subject.name == MCPROXY and pair.client == pair.cluster:
            most = 6.0 if pair.client else 58.0
            what = f"memory of an idle watch, {pair.show()}"
            section.targets.append(limit(what, [each], unit="KiB", digits=1, at_most=most))
    return section


def _start(lab: Lab, pair: Pair, upstream: goclient.GoClient) -> Running:
    running = lab.start_subject(pair.subject, upstream.said["port"])
    if running.process is None:
        raise Failed(f"{running.name} does not run")
    return running


def _idle(lab: Lab, pair: Pair, watches: int) -> tuple[int, int]:
    """Return RSS (bytes) with a few watches, and with `watches` more."""
    with goclient.cluster(lab, http2=pair.cluster) as upstream:
        running = _start(lab, pair, upstream)
        process = running.process
        assert process is not None
        each = watches // CLIENTS
        with goclient.watchers(lab, running.port, _WARM, each, http2=pair.client):
            time.sleep(_SETTLE)
            before = process.rss()
            with goclient.watchers(lab, running.port, CLIENTS, each, http2=pair.client) as many:
                time.sleep(_SETTLE)
                after = process.rss()
                process.check()
                many.finish()
        lab.processes.stop(process)
    return before, after


def _events(lab: Lab, pair: Pair, seconds: float) -> tuple[float, Usage]:
    """Return the bytes a second that all watches got together, and what the subject used."""
    with goclient.cluster(lab, http2=pair.cluster) as upstream:
        running = _start(lab, pair, upstream)
        assert running.process is not None
        with goclient.watchers(lab, running.port, EVENT_CLIENTS, EVENT_WATCHES, http2=pair.client) as watchers:
            control = goclient.control(upstream)
            goclient.emit(control, AT_ONCE)
            time.sleep(0.5)
            meter, began, times = Meter(running.process, lab.cores.proxy), time.monotonic(), 0
            while (now := time.monotonic()) < began + seconds:
                goclient.emit(control, AT_ONCE)
                times += 1
                time.sleep(max(0.0, began + times * PERIOD - now))
            usage, took = meter.read(), time.monotonic() - began
            time.sleep(0.5)
            seen = watchers.finish()["events"]
            wanted = (times + 1) * AT_ONCE * EVENT_CLIENTS * EVENT_WATCHES
            if seen != wanted:
                raise Failed(f"{seen} of {wanted} events came through {running.name}, {pair.show()}")
        running.process.check()
        lab.processes.stop(running.process)
    return seen * _EVENT_BYTES / took, usage


_EVENT_BYTES = 216  # of a line of goclient's, with a version of some digits
