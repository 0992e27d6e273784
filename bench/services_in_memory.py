"""Measures the controller of exported services alone: memory, a change, an hour of nothing, over clusters in memory.

Run it as ``python -m bench.services_in_memory [SERVICES [CLUSTERS [ENDPOINTS]]]`` from the top of the repository; it
takes about a minute. Clusters, caches and the clock are the tests' (`tests.services.controller_bench`): what passes by
the clock is exact, what is measured in processor time is that of caches, controller and writers, without HTTP. With
sockets and clusters in processes of their own: `bench.services`.

ENDPOINTS is of each service. Every cluster has each service, its own or imported, so the caches hold
SERVICES * CLUSTERS * ENDPOINTS of them.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from bench.report import table
from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from tests.services.controller_bench import Bench
from tests.services.objects import endpoint, service_of, slice_of

SERVICES, CLUSTERS, ENDPOINTS = 1000, 20, 5
_CHANGES = 50
_STEP = 0.05  # seconds of the clock; a write that is due is at most so late
_HOUR = 3600.0


def addresses(service: int, generation: int, count: int) -> list[str]:
    """Return the addresses of a service, all others than in another generation."""
    return [f"10.{generation % 200 + 1}.{service // 250}.{service % 250}"] + [
        f"10.{number + 200}.{service // 250}.{service % 250}" for number in range(1, count)
    ]


def sliced(service: int, generation: int, count: int) -> dict[str, object]:
    """Return the EndpointSlice of a service."""
    found = [endpoint(each, ready=True, zone="a") for each in addresses(service, generation, count)]
    return slice_of(f"s{service}", found, name=f"s{service}")


def filled(services: int, clusters: int, endpoints: int) -> Bench:
    """Return clusters that have the services; each is of one of them."""
    bench = Bench(
        *(f"c{number}" for number in range(clusters)),
        kinds=(FollowedKind.SLICES, FollowedKind.SERVICES, FollowedKind.NAMESPACES),
    )
    for number in range(services):
        source = bench.clusters[f"c{number % clusters}"]
        source.put(FollowedKind.SERVICES, service_of(f"s{number}"))
        source.put(FollowedKind.SLICES, sliced(number, 0, endpoints))
    return bench


def exports(services: int, clusters: int) -> tuple[model.ServiceExport, ...]:
    """Return an export of each service to all other clusters."""
    names = [f"c{number}" for number in range(clusters)]
    return tuple(
        model.ServiceExport(
            name=f"s{number}",
            namespace="demo",
            service=f"s{number}",
            from_clusters=(names[number % clusters],),
            to=tuple(name for name in names if name != names[number % clusters]),
        )
        for number in range(services)
    )


@contextmanager
def _spent(into: list[float]) -> Iterator[None]:
    """Add the processor time of what is done meanwhile."""
    begun = time.process_time()
    yield
    into.append(time.process_time() - begun)


def measure(services: int, clusters: int, endpoints: int) -> list[list[str]]:
    """Return the rows of the report."""
    bench = filled(services, clusters, endpoints)
    bench.replica(*exports(services, clusters))
    first: list[float] = []
    started = bench.clock.seconds()
    with _spent(first):
        bench.list()
        while sum(len(each.objects) for each in bench.clusters.values()) < 2 * services * clusters + clusters:
            bench.run(1)
            if bench.clock.seconds() > started + _HOUR:
                raise RuntimeError("the first export does not end")
    until = bench.clock.seconds() - started
    bench.run(30)
    spent: list[float] = []
    delays = []
    for number in range(_CHANGES):
        service = number * services // _CHANGES
        with _spent(spent):
            delays.append(_change(bench, service, number + 1, endpoints))
    bench.run(30)
    writes = bench.writes
    idle: list[float] = []
    with _spent(idle):
        bench.run(_HOUR)
    held = services * clusters * endpoints
    rows = [
        ["the first export of all, by the clock", f"{until:.0f} s", ""],
        ["… processor time", f"{first[0]:.0f} s", ""],
        [f"the second change of a slice within 1 s, in all {clusters - 1} clusters after, by the clock",
         f"{max(delays):.2f} s at most of {_CHANGES}", "2 s"],
        ["… processor time of both changes, median", f"{statistics.median(spent) * 1e3:.0f} ms", ""],
        ["an hour of nothing, writes to services", str(bench.writes - writes), "0"],
        ["… processor time, leases in memory", f"{idle[0] / _HOUR:.2%} of a core", "2 %"],
    ]  # fmt: skip
    rows.append([f"memory of caches and controller after a restart, {held:,} endpoints",
                 f"{_restarted(bench, services, clusters) / 1e6:.0f} MB", "300 MB"])  # fmt: skip
    bench.close()
    return rows


def _change(bench: Bench, service: int, generation: int, endpoints: int) -> float:
    """Change a slice twice within a second; return the seconds until all other clusters have the second change."""
    source = bench.clusters[f"c{service % len(bench.clusters)}"]
    source.put(FollowedKind.SLICES, sliced(service, 2 * generation, endpoints))
    bench.run(0.2)
    source.put(FollowedKind.SLICES, sliced(service, 2 * generation + 1, endpoints))
    wanted = addresses(service, 2 * generation + 1, endpoints)
    begun = bench.clock.seconds()
    others = [each for each in bench.clusters.values() if each is not source]
    place = (FollowedKind.SLICES, "demo", f"imported-{source.name}-s{service}")
    while any(
        sorted(one["addresses"][0] for one in each.objects[place]["endpoints"]) != sorted(wanted) for each in others
    ):
        bench.run(_STEP)
        if bench.clock.seconds() > begun + 60:
            raise RuntimeError(f"{place} is not in all clusters")
    return bench.clock.seconds() - begun


def _restarted(bench: Bench, services: int, clusters: int) -> int:
    """Return the bytes that a replica allocates that finds everything done: stores, index and desired state."""
    for replica in bench.replicas:
        replica.stop()
    bench.members.stores.clear()
    gc.collect()
    tracemalloc.start()
    bench.replica(*exports(services, clusters))
    bench.list()
    writes = bench.writes
    bench.run(30)
    if bench.writes != writes:
        raise RuntimeError("a restart writes")
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return allocated


def main(arguments: list[str]) -> None:
    services, clusters, endpoints = (
        int(arguments[number]) if len(arguments) > number else default
        for number, default in enumerate((SERVICES, CLUSTERS, ENDPOINTS))
    )
    print(f"### {services:,} exported services of {endpoints} endpoints over {clusters} clusters, in one process\n")
    print(table(["what", "measured", "target"], measure(services, clusters, endpoints)))


if __name__ == "__main__":
    main(sys.argv[1:])
