"""Ingresses in the status document: rules with their counts, and services with their endpoints in each cluster.

All processes have the same endpoints, but each process ejects failing endpoints by itself. `outEndpoints` lists
endpoints that are out in at least one process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.daemon.status import Figures
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.families import INGRESS_REQUESTS
from mcproxy.proxy.admin.request_list import MAX_SHOWN
from mcproxy.services.ingress.router import Route, routes_of

if TYPE_CHECKING:
    from mcproxy.services.ingress.ingress_request import IngressRequest
    from mcproxy.services.ingress.live_ingresses import Ingresses

MAX_OUT = 20
"""Limit of the ready endpoints, and of those that are out, shown for a service in a cluster; all are counted."""

RuleCounts = Mapping[tuple[str, str, str], tuple[int, int]]
"""Requests and errors (5xx) by ingress, rule and service."""


def of_ingresses(ingresses: Ingresses | None, requests: Collection[IngressRequest]) -> Figures:
    """Return the live figures of one process; empty without ingresses."""
    if ingresses is None:
        return {}
    in_flight = Counter(request.route.ingress for request in requests if request.route is not None)
    services = []
    for member in ingresses.members.values():
        key = member.key.key
        out = [each for each in member.endpoints if not each.usable]
        ready = sum(each.ready for each in member.endpoints)
        services.append(
            {
                "service": member.service,
                "port": str(key.port),
                "cluster": member.cluster,
                "via": str(member.key.via),
                "known": member.known.known,
                "stale": member.known.stale,
                "cause": member.known.problem,
                "ready": ready,
                "terminating": len(member.endpoints) - ready,
                "inFlight": sum(each.in_flight for each in member.endpoints),
                "readyEndpoints": [each.name for each in member.endpoints if each.ready and each.usable][:MAX_OUT],
                "outEndpoints": [{"endpoint": each.name, "cause": each.problem} for each in out[:MAX_OUT]],
            }
        )
    return {
        "ingresses": [{"name": name, "inFlight": number} for name, number in sorted(in_flight.items())],
        "ingressServices": services,
    }


def described(requests: Iterable[IngressRequest], now: float, process: str) -> list[Figures]:
    """Return a JSON object for each request in flight, the oldest first, at most MAX_SHOWN (/debug/requests).

    Only the part of the path that the rule matches is shown. The whole path belongs to another server, and can have a
    secret.
    """
    oldest = nsmallest(MAX_SHOWN, requests, key=lambda request: request.exchange.started_at)
    return [_described(request, now, process) for request in oldest]


def _described(request: IngressRequest, now: float, process: str) -> Figures:
    exchange, route, endpoint = request.exchange, request.route, request.endpoint
    state = "tunnel" if exchange.upgraded else "responding" if exchange.responded else "sent" if endpoint else "waiting"
    found: Figures = {
        "process": process,
        "ageSeconds": round(max(0.0, now - exchange.started_at), 3),
        "state": state,
        "client": (request.noted.address if request.noted is not None else "") or request.client.log_address,
        "ingress": route.ingress if route is not None else "",
        "rule": route.label if route is not None else "",
        "service": request.service,
        "cluster": endpoint.cluster if endpoint is not None else "",
        "endpoint": endpoint.name if endpoint is not None else "",
        "protocol": exchange.protocol,
        "method": exchange.head.method.decode("latin-1"),
        "status": exchange.status,
        "bytesIn": exchange.bytes_in,
        "bytesOut": exchange.bytes_out,
    }
    return {key: value for key, value in found.items() if value not in ("", 0) or key in ("ageSeconds", "bytesOut")}


def counted_of_rules(counts: MetricCounts) -> RuleCounts:
    """Return the counts of each rule since the start."""
    found: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for (ingress, rule, service, _, code), numbers in counts.of(INGRESS_REQUESTS).items():
        sums = found[ingress, rule, service]
        sums[0] += int(numbers[0])
        sums[1] += int(numbers[0]) if code.startswith("5") else 0
    return {key: (requests, errors) for key, (requests, errors) in found.items()}


def with_rules(
    config: Iterable[model.Ingress], live: Iterable[Mapping[str, Any]], counted: RuleCounts
) -> list[Figures]:
    """Return an entry for each ingress of the configuration, from the sums over all processes."""
    by_name = {entry["name"]: entry for entry in live}
    found = []
    for ingress in config:
        rules = [each for route in routes_of([ingress]) for each in _rules(route, counted)]
        found.append(
            {
                "name": ingress.name,
                "listeners": list(ingress.listeners),
                "inFlight": by_name.get(ingress.name, {}).get("inFlight", 0),
                "requestsTotal": sum(each["requestsTotal"] for each in rules),
                "errorsTotal": sum(each["errorsTotal"] for each in rules),
                "rules": rules,
            }
        )
    return found


def _rules(route: Route, counted: RuleCounts) -> Iterator[Figures]:
    """Yield an entry for each backend of a rule, and one for a redirect."""
    rule = {"rule": route.label, "host": route.host, "path": route.path, "pathType": str(route.path_type)}
    if not route.shares:
        requests, errors = counted.get((route.ingress.name, route.label, ""), (0, 0))
        yield {**rule, "requestsTotal": requests, "errorsTotal": errors}
    for backend, weight in route.shares:
        service = f"{backend.namespace}/{backend.service}"
        requests, errors = counted.get((route.ingress.name, route.label, service), (0, 0))
        share = {"share": weight} if len(route.shares) > 1 else {}
        yield {
            **rule,
            "service": service,
            "port": str(backend.port),
            "via": str(backend.via),
            **share,
            "weights": {cluster: backend.weight(cluster) for cluster in backend.clusters},
            "requestsTotal": requests,
            "errorsTotal": errors,
        }
