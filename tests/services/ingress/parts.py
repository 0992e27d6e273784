"""Endpoints and members for tests, without connections."""

from __future__ import annotations

from typing import Any

from mcproxy.services.endpoint_table import EndpointState, PodEndpoint
from mcproxy.services.ingress.backend_endpoints import BackendMember
from mcproxy.services.ingress.endpoint_health import BackendEndpoint
from tests.support.clock import Clock


class FakeTarget:
    """What an endpoint is reached by."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.in_flight = 0


class FakeMember(BackendMember):
    """The endpoints of a cluster, which a test changes."""

    def __init__(self, *endpoints: BackendEndpoint) -> None:
        self.endpoints = endpoints


def endpoint(name: str, cluster: str = "east", *, clock: Clock | None = None, terminating: bool = False) -> Any:
    """Return an endpoint; `name` is the last part of its address."""
    state = EndpointState.TERMINATING if terminating else EndpointState.READY
    pod = PodEndpoint(f"10.0.0.{name}", 8080, None, state)
    target: Any = FakeTarget(name)
    return BackendEndpoint(cluster, pod, target, clock or Clock())
