"""What holds at the end of a run, whatever was done: nothing is left of the load, and nobody has logged a bug."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.e2e.workers.load import Disturbance, Reason
from tests.e2e.workers.site import Footprint, WorkersDaemon
from tests.soak.clients import History
from tests.soak.faults import RESTARTS

MEMORY = 24 << 20
"""Bytes that a process may have more after a run: the allocator keeps what a storm needed; more would be a leak."""
DESCRIPTORS = 4
"""Descriptors that a process may have more: a connection of a health check, a file that is just read."""
IDLE = 12.0
"""Seconds within which connections that nobody needs are closed (`connections.idleTimeout` of the suite's file)."""


def quiet_footprints(daemon: WorkersDaemon, wanted: Mapping[str, Footprint] | None = None) -> dict[str, Footprint]:
    """Return what the processes have, once their descriptors stay the same for a second (or are as few as `wanted`)."""
    until = time.monotonic() + IDLE + 10
    before, since = daemon.footprints(), time.monotonic()
    while time.monotonic() < until:
        time.sleep(0.25)
        now = daemon.footprints()
        if {name: one.descriptors for name, one in now.items()} != {
            name: one.descriptors for name, one in before.items()
        }:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > (1.0 if wanted is not None and not _grown(wanted, now) else IDLE / 2):
            break
    return daemon.footprints()


def _descriptors(footprints: Mapping[str, Footprint]) -> dict[str, int]:
    return {name: one.descriptors for name, one in footprints.items()}


def compare(before: Mapping[str, Footprint], after: Mapping[str, Footprint]) -> list[str]:
    """Return what is wrong with the footprints after a run."""
    wrong = _grown(before, after)
    for name, one in after.items():
        if name in before and one.memory > before[name].memory + MEMORY:
            wrong.append(f"{name} has {one.memory >> 20} MiB, {before[name].memory >> 20} before the load")
    return wrong


def _grown(before: Mapping[str, Footprint], after: Mapping[str, Footprint]) -> list[str]:
    return [
        f"{name} has {one.descriptors} descriptors, {before[name].descriptors} before the load"
        for name, one in after.items()
        if name in before and one.descriptors > before[name].descriptors + DESCRIPTORS
    ]


def held(status: Mapping[str, Any]) -> list[str]:
    """Return what the daemon's status says is still in use: requests, permits, places in queues, watchers."""
    found: list[tuple[str, str, Any]] = [("the daemon", "open", status.get("open"))]
    for limit in status.get("flowControls") or ():
        found += [(f"flow control {limit['name']}", key, limit.get(key)) for key in _LIMIT_KEYS]
    for cluster in status.get("clusters") or ():
        for one in cluster.get("endpoints") or ():
            if isinstance(one, dict):
                found.append((f"endpoint {one['name']} of {cluster['name']}", "inFlight", one.get("inFlight")))
    for one in status.get("aggregates") or ():
        found += [(f"aggregate {one['name']}", key, one.get(key)) for key in ("watchers", "queuedBytes")]
    return [f"{what}: {key} is {value}" for what, key, value in found if value]


def wait_released(daemon: WorkersDaemon, within: float = 30.0) -> list[str]:
    """Wait until nothing is in use; return what still is after that time."""
    until, wrong = time.monotonic() + within, ["the status was never answered"]
    while wrong and time.monotonic() < until:
        with contextlib.suppress(OSError):
            wrong = held(daemon.status())
        time.sleep(0.2)
    return wrong


def unexplained_restarts(history: History, reasons: Iterable[Reason]) -> list[str]:
    """Return the watches that had to begin anew though nothing explains it."""
    windows = [one for one in reasons if isinstance(one, Disturbance) and one.what in RESTARTS]
    return [
        f"{client} had to list anew at {at:.3f}"
        for client, at in history.restarts
        if not any(one.since <= at <= one.until and client.rpartition("-")[0] in one.kinds for one in windows)
    ]


_LIMIT_KEYS = ("inUse", "inUseLongRunning", "waiting")
BUGS = ("Traceback", "unhandled error", "please report", "internal_error")


def bugs(log: str) -> list[str]:
    """Return the lines of a log that say that the program has a bug."""
    return [line for line in log.splitlines() if any(text in line for text in BUGS)]
