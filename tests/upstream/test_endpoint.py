"""One endpoint: what it is called on the wire, what it tells of itself, and its pool."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.protocol import Protocol
from twisted.logger import capturedLogs

from mcproxy.config import model
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint, authority
from tests.upstream.fakes import FakeConnector, FakeReactor, cluster_config, endpoint_config, make_shared


def made(clock: FakeReactor | None = None, **shared: Any) -> Endpoint:
    return Cluster(cluster_config(endpoint_config(path="/p")), make_shared(clock, **shared)).endpoints[0]


@pytest.mark.parametrize(
    ("scheme", "host", "port", "value"),
    [
        ("https", "10.0.0.1", 6443, b"10.0.0.1:6443"),
        ("https", "api.example", 443, b"api.example"),
        ("http", "api.example", 80, b"api.example"),
        ("http", "api.example", 443, b"api.example:443"),
        ("https", "fd00::1", 443, b"[fd00::1]"),
        ("https", "fd00::1", 6443, b"[fd00::1]:6443"),
        ("https", "bücher.example", 443, b"xn--bcher-kva.example"),
    ],
)
def test_the_host_header_names_the_endpoint(scheme: str, host: str, port: int, value: bytes) -> None:
    assert authority(model.Endpoint(name="x", scheme=scheme, host=host, port=port)) == value


def test_it_begins_unchecked_and_idle() -> None:
    endpoint = made()
    assert (endpoint.ready, endpoint.in_flight, endpoint.path_prefix) == (False, 0, b"/p")
    assert endpoint.why == "not checked yet"


def test_it_says_why_and_since_when() -> None:
    clock = FakeReactor()
    endpoint = made(clock)
    endpoint.record_check(None)
    clock.advance(12.7)
    assert endpoint.why == "ready for 12 s"
    for _ in range(3):
        endpoint.record_connect_failure("10.0.0.1:6443 refused the connection")
    clock.advance(3)
    assert endpoint.why == "10.0.0.1:6443 refused the connection (out for 3 s)"


def test_only_changes_are_logged() -> None:
    endpoint = made()
    with capturedLogs() as events:
        for _ in range(3):
            endpoint.record_check(None)
        for _ in range(5):
            endpoint.record_check("bad")
    assert [(event["log_level"].name, event["cluster"], event["endpoint"]) for event in events] == [
        ("info", "east", "a"),
        ("warn", "east", "a"),
    ]


def test_connections_go_to_its_address_with_the_configured_time() -> None:
    clock = FakeReactor()
    net = FakeConnector(clock)
    endpoint = made(clock, connect=net)
    endpoint.connect(Protocol())
    endpoint.connect_control(Protocol())
    assert [(attempt.host, attempt.port, attempt.tls) for attempt in net.attempts] == [("10.0.0.1", 6443, None)] * 2


def test_a_renewed_pool_leaves_the_old_one_to_its_requests() -> None:
    endpoint = made()
    old: Any = endpoint.pool
    endpoint.renew_pool()
    new: Any = endpoint.pool
    assert new is not old
    assert (old.closed, new.closed) == (True, False)
    endpoint.close()
    assert new.closed
