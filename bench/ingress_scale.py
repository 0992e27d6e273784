"""`python -m bench.ingress_scale`: what a decision costs with 10 rules and with 10,000, and what endpoints take.

Runs in this process and needs neither clusters nor load. The rules are of one host: 4 of 10 are Exact, 4 Prefix, 2
Regex. Each request has a target of its own, so that nothing is remembered. Processor time, so that neighbours count
less.
The memory is by how much the resident set grows while a process takes 20,000 endpoints of one service over four
clusters into the balancer, as a worker does: with a target for each, which has no connection yet.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

from bench.stats import spread
from mcproxy.config.model import Ingress, IngressBackend, IngressPath, IngressRule, PathType
from mcproxy.http.deadlines import Deadlines
from mcproxy.kube.linear_regex import LinearRegex
from mcproxy.net.reactor import install
from mcproxy.services.endpoint_table import EndpointTable, PodEndpoint, PortEndpoints
from mcproxy.services.ingress.backend import Backend
from mcproxy.services.ingress.backend_endpoints import BackendMember, member_keys
from mcproxy.services.ingress.pod_pools import LiveTargets, PodPools
from mcproxy.services.ingress.port_forward import PortForwarder
from mcproxy.services.ingress.router import Router, routes_of
from mcproxy.upstream.tls import ClientContexts

FEW, MANY = 10, 10_000
CLUSTERS, ENDPOINTS = 4, 20_000
REQUESTS = 5_000
HOST = b"web.example.com"
BACKEND = IngressBackend(
    namespace="demo", service="web", port=80, clusters=tuple(f"c{number}" for number in range(CLUSTERS))
)


def rules(count: int) -> Ingress:
    """Return an ingress with so many rules of one host."""
    kinds = [(PathType.EXACT, "/exact/{}")] * 4 + [(PathType.PREFIX, "/prefix/{}")] * 4
    kinds += [(PathType.REGEX, "/app-{}(/|$)(.*)"), (PathType.REGEX, "/v{}/items/[0-9]+")]
    found = [(kinds[number % 10], f"{number:05}") for number in range(count)]
    paths = tuple(IngressPath(path=form.format(name), path_type=kind, backend=BACKEND) for (kind, form), name in found)
    return Ingress(name="web", listeners=("web",), rules=(IngressRule(host=HOST.decode(), paths=paths),))


def targets(count: int) -> list[bytes]:
    """Return targets of requests for rules of every kind among so many, and for none."""
    found = []
    for number in range(REQUESTS):
        name = b"%05d" % (number * 7 % count // 10 * 10 + (1, 5, 8, 9, 0)[number % 5])
        forms = (b"/exact/%b?%d", b"/prefix/%b/x?%d", b"/app-%b/x?%d", b"/v%b/items/7?%d", b"/none/%b?%d")
        found.append(forms[number % 5] % (name, number))
    return found


def decision(router: Router[str], asked: Sequence[bytes]) -> float:
    """Return microseconds for a decision."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for target in asked:
            router.find(HOST, target)
        return (time.process_time() - began) / len(asked) * 1e6
    finally:
        gc.enable()


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def with_endpoints() -> tuple[int, Any]:
    """Return by how many bytes the process grows with all endpoints, and what holds them."""
    clock: Any = install()
    pods = PodPools(lambda *_, **__: None, PortForwarder(clock, lambda _: None), ClientContexts(), Deadlines(clock))  # type: ignore[arg-type]
    table = EndpointTable()
    live = LiveTargets(pods, lambda _: None)
    gc.collect()
    before = resident()
    members = {}
    for number, (cluster, key) in enumerate(member_keys(BACKEND).items()):
        found = [PodEndpoint(f"10.{number}.{n >> 8}.{n & 255}", 8080, "a", pod=f"web-7d9c5b6f4-{n:05}")
                 for n in range(ENDPOINTS // CLUSTERS)]  # fmt: skip
        table.set(key.key, PortEndpoints(tuple(found), known=True))
        members[cluster] = BackendMember(key, table, live, clock, lambda: 0.0)
    backend = Backend(BACKEND, members, lambda: 0.0, (b"k" * 32,))
    assert backend.balancer.pick() is not None
    assert len(pods) == ENDPOINTS
    return resident() - before, (backend, table)


def main() -> None:
    """Print the figures."""
    grown, held = with_endpoints()
    print(f"{ENDPOINTS:,} endpoints: {grown / 1e6:.1f} MB, {grown / ENDPOINTS:.0f} bytes each (target: 100 MB)")
    del held
    made = {}
    for count in (FEW, MANY):
        ingress = rules(count)
        began = time.process_time()
        for path in ingress.rules[0].paths:
            if path.path_type is PathType.REGEX:
                LinearRegex(path.path)
        made[count] = Router((route, route.label) for route in routes_of([ingress]))
        print(f"{count:,} rules: compiled twice in {time.process_time() - began:.2f} s of processor time")
    rounds: dict[int, list[float]] = {count: [] for count in made}
    for _ in range(7):
        for count, router in made.items():
            rounds[count].append(decision(router, targets(count)))
    for count, figures in rounds.items():
        print(f"{count:,} rules: {spread(figures).show(2)} us for a decision")
    ratios = [many / few for few, many in zip(rounds[FEW], rounds[MANY], strict=True)]
    print(f"{MANY:,} rules / {FEW}: {spread(ratios).show(2)}")


if __name__ == "__main__":
    main()
