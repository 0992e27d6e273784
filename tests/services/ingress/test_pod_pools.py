"""How pods are connected to, and which connections are shared."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config.model import BackendProtocol, BackendTLS, IngressBackend, PEMFile, UpstreamProtocol
from mcproxy.http.connection_pool import ConnectionPool
from mcproxy.services.ingress import pod_pools
from mcproxy.services.ingress.backend_endpoints import member_keys
from mcproxy.services.ingress.pod_pools import PodTLS, pod_connections
from tests.services.ingress.stand import HTTP1, Stand
from tests.support.logged import captured_logs

HTTP_1, HTTP_2, AUTO = UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2, UpstreamProtocol.AUTO
NAMED = PodTLS(None, "cart.shop.svc")
GIVEN = BackendTLS(ca=PEMFile("ca.pem", b"PEM"), server_name="cart", insecure_skip_verify=True)


def backend(protocol: BackendProtocol = BackendProtocol.AUTO, tls: BackendTLS | None = None) -> IngressBackend:
    return IngressBackend(namespace="shop", service="cart", port=80, clusters=("west",), protocol=protocol, tls=tls)


@pytest.mark.parametrize(
    ("given", "app_protocol", "protocol", "tls"),
    [
        (backend(), None, HTTP_1, None),
        (backend(), "kubernetes.io/ws", HTTP_1, None),
        (backend(), "example.com/other", HTTP_1, None),
        (backend(), "kubernetes.io/h2c", HTTP_2, None),
        (backend(), "GRPC", HTTP_2, None),
        (backend(), "https", AUTO, NAMED),
        (backend(), "kubernetes.io/wss", HTTP_1, NAMED),
        (backend(tls=BackendTLS()), None, AUTO, NAMED),
        (backend(tls=BackendTLS()), "grpc", HTTP_2, NAMED),
        (backend(BackendProtocol.HTTP2), None, HTTP_2, None),
        (backend(BackendProtocol.HTTP1), "grpc", HTTP_1, None),
        (backend(BackendProtocol.HTTP1, GIVEN), None, HTTP_1, PodTLS(b"PEM", "cart", verify=False)),
    ],
)
def test_the_protocol_is_that_of_the_backend_else_of_the_port(
    given: IngressBackend, app_protocol: str | None, protocol: UpstreamProtocol, tls: PodTLS | None
) -> None:
    found = pod_connections(member_keys(given)["west"], app_protocol)
    assert (found.protocol, found.tls, found.connect_timeout) == (protocol, tls, 5.0)


async def test_a_pod_is_kept_until_its_last_user_releases_it(stand: Stand) -> None:
    front = stand.front()
    first, second = front.to(80), front.to(80)
    assert first is second
    front.registry.release(first)
    assert front.to(80) is first
    front.registry.release(first)
    front.registry.release(first)
    assert not first.takes_requests
    assert not len(front.registry)
    assert front.registry.acquire(first.key) is not first
    assert first.key.connections == HTTP1


async def test_a_pod_without_requests_has_no_pool(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of addresses that a cluster names, and replaces at once, would take seconds."""
    made = 0

    def counted(*arguments: Any, **more: Any) -> ConnectionPool:
        nonlocal made
        made += 1
        return ConnectionPool(*arguments, **more)

    monkeypatch.setattr(pod_pools, "ConnectionPool", counted)
    front = stand.front()
    server = stand.raw_pod()
    server.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"] * 2
    used, unused = front.to(server.port), front.to(80)
    assert unused.take(upgrade=False) is None
    assert unused.counts() == {}
    for _ in range(2):
        assert (await front.client().ask()).status == 200
    assert made == 1
    assert used.counts()["HTTP/1.1"] == (1, 0)
    front.registry.release(unused)
    assert made == 1


async def test_a_pod_that_violates_http2_is_one_line(stand: Stand) -> None:
    front = stand.front()
    first, second = front.to(80), front.to(81)
    with captured_logs() as logged:
        for pod in (first, first, second, first):
            front.registry._violated(pod, "a frame of length 0")
    assert [(line["event"], line["endpoint"]) for line in logged] == [
        ("pod_http2_ended", first.name),
        ("pod_http2_ended", second.name),
    ]
