"""The figures of services: what backends of ingresses have in each cluster."""

from __future__ import annotations

from mcproxy.daemon.status.cache_status import MAX_PROBLEMS, of_endpoints
from mcproxy.services.endpoint_table import BackendKey, EndpointState, EndpointTable, PodEndpoint, PortEndpoints

READY = PodEndpoint("10.0.0.1", 80)
ENDING = PodEndpoint("10.0.0.2", 80, None, EndpointState.TERMINATING)


def test_endpoints_by_cluster() -> None:
    table = EndpointTable()
    table.set(BackendKey("west", "demo", "web", 80), PortEndpoints((READY, ENDING), known=True, stale=True))
    table.set(BackendKey("east", "demo", "web", 80), PortEndpoints((READY,), known=True))
    table.set(BackendKey("east", "demo", "api", "http"), PortEndpoints(problem="not known yet"))
    east, west = of_endpoints(table)
    assert east == {
        "cluster": "east",
        "backends": 2,
        "unknown": 1,
        "stale": 0,
        "ready": 1,
        "terminating": 0,
        "problems": 1,
        "problemBackends": [{"service": "demo/api", "port": "http", "cause": "not known yet"}],
    }
    assert (west["cluster"], west["stale"], west["ready"], west["terminating"]) == ("west", 1, 1, 1)


def test_problems_are_bounded() -> None:
    table = EndpointTable()
    for number in range(MAX_PROBLEMS + 5):
        table.set(BackendKey("east", "demo", f"web-{number}", 80), PortEndpoints(known=True, problem="no port"))
    (east,) = of_endpoints(table)
    assert (east["problems"], len(east["problemBackends"])) == (MAX_PROBLEMS + 5, MAX_PROBLEMS)
