"""Many watches through one daemon: what an idle one costs in memory, and whether each gets all events in order.

By hand: python -m tests.e2e.watch_figures [--watches 10000] [--clients 300] [--events 20] [--http1]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.go_program import goclient
from tests.e2e.http2_site import HTTP2Site


@dataclass(frozen=True)
class Figures:
    """What a run found."""

    watches: int
    complete: int
    """Watches that had all events, in order."""
    failures: list[str]
    client_connections: int
    upstream_connections: int
    bytes_each: float
    """By which the daemon's resident memory grew for each watch but those of the first clients."""
    opened_us: float
    """The daemon's processor time to open a watch, microseconds."""
    event_us: float
    """The same to hand one event to one watch."""
    idle_share: float
    """Of a core that it takes while nothing happens."""
    seconds: float
    """From the first event to the last one's arrival at all watches."""


def measure(
    site: HTTP2Site,
    *,
    watches: int,
    clients: int,
    events: int,
    burst: int = 5,
    http1: bool = False,
    idle: float = 0.0,
    patience: float = 60.0,
) -> Figures:
    """Open the watches in two parts, send the events to all in bursts, and end them.

    Memory is the difference that the second part makes: the first one pays for what all share. `idle` is for how many
    seconds the load of idle watches is looked at.
    """
    each, first = divmod(watches, clients)
    if first:
        parts = [(first, each + 1), (clients - first, each)]
    else:
        parts = [(max(1, clients // 10), each), (clients - max(1, clients // 10), each)]
    measured = parts[1][0] * parts[1][1]
    total = site.cluster.stats()["events"] + events
    listener, cluster = ("http1", "one") if http1 else ("usual", "two")
    more = ["-http1"] if http1 else []
    rss, cpu, failures = [], [], []
    with ExitStack() as stack:
        running = []
        for count, its in parts:
            cpu.append(_cpu(site))
            arguments = ["-clients", count, "-each", its, "-events", total, "-patience", f"{patience}s", "-stay", *more]
            client = stack.enter_context(site.client("watches", *arguments, listener=listener, cluster=cluster))
            running.append(client)
            failures += client.line()["failures"]
            time.sleep(1.0 if idle else 0.1)  # what opening has made is given up by then
            rss.append(site.daemon.memory)
        cpu.append(_cpu(site))
        time.sleep(idle)
        cpu.append(_cpu(site))
        stats = site.cluster.stats()
        upstream_connections = stats["connections"] if http1 else stats["http2"]
        began = time.monotonic()
        for first in range(0, events, burst):
            site.cluster.emit(min(burst, events - first))
            time.sleep(0.02)
        complete = sum(client.line()["complete"] for client in running)
        seconds = time.monotonic() - began
        cpu.append(_cpu(site))
        found = [client.finish() for client in running]
    return Figures(
        watches=watches,
        complete=complete,
        failures=failures + [text for part in found for text in part["failures"]],
        client_connections=sum(part["connections"] for part in found),
        upstream_connections=upstream_connections,
        bytes_each=(rss[1] - rss[0]) / measured,
        opened_us=1e6 * (cpu[2] - cpu[1]) / measured,
        event_us=1e6 * (cpu[4] - cpu[3]) / max(1, events * watches),
        idle_share=(cpu[3] - cpu[2]) / idle if idle else 0.0,
        seconds=seconds,
    )


def _cpu(site: HTTP2Site) -> float:
    """Seconds of processor time that the daemon has taken."""
    fields = Path(f"/proc/{site.daemon.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the figures of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watches", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--http1", action="store_true", help="HTTP/1.1 on both sides")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = HTTP2Site(Path(directory), program=goclient(options=()))  # optimized: it is not to be what is measured
        try:
            site.start()
            found = measure(
                site,
                watches=chosen.watches,
                clients=chosen.clients,
                events=chosen.events,
                http1=chosen.http1,
                idle=10.0,
                patience=300.0,
            )
        finally:
            site.stop()
    print(
        f"{found.watches:,} watches, {found.complete:,} complete, {len(found.failures)} failures {found.failures[:3]}"
    )
    print(f"connections: {found.client_connections} of clients, {found.upstream_connections} to the cluster")
    print(f"memory: {found.bytes_each / 1024:.1f} KiB for each watch")
    print(f"processor time: {found.opened_us:.0f} us to open one, {found.event_us:.1f} us for an event of one watch,")
    print(
        f"    {100 * found.idle_share:.1f} % of a core while all are idle; all events arrived in {found.seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
