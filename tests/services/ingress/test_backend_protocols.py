"""How pods are connected to, by what the file and the Service say."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config.model import BackendProtocol, BackendTLS, PEMFile, UpstreamProtocol
from mcproxy.services.ingress.backend_endpoints import member_keys
from mcproxy.services.ingress.pod_pools import PodConnections, PodTLS, pod_connections
from tests.services.ingress.config import backend


def how(app_protocol: str | None = None, **more: Any) -> PodConnections:
    (key,) = member_keys(backend("web", **more)).values()
    return pod_connections(key, app_protocol)


HTTP1, HTTP2, AUTO = UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2, UpstreamProtocol.AUTO


@pytest.mark.parametrize(
    ("app_protocol", "protocol", "tls"),
    [
        (None, HTTP1, False),
        ("http", HTTP1, False),
        ("kubernetes.io/ws", HTTP1, False),
        ("kubernetes.io/h2c", HTTP2, False),
        ("grpc", HTTP2, False),
        ("HTTPS", AUTO, True),
        ("kubernetes.io/wss", HTTP1, True),
        ("example.com/unknown", HTTP1, False),
    ],
)
def test_the_service_says_it_where_the_file_does_not(
    app_protocol: str | None, protocol: UpstreamProtocol, tls: bool
) -> None:
    found = how(app_protocol)
    assert (found.protocol, found.tls is not None) == (protocol, tls)
    if found.tls is not None:
        assert found.tls == PodTLS(ca=None, server_name="web.demo.svc", verify=True)


def test_the_file_comes_before_the_service() -> None:
    assert how("kubernetes.io/h2c", protocol=BackendProtocol.HTTP1).protocol is HTTP1
    assert how("http", protocol=BackendProtocol.HTTP2).protocol is HTTP2
    assert how("https", protocol=BackendProtocol.HTTP1).tls is None


def test_tls() -> None:
    tls = BackendTLS(ca=PEMFile("ca", b"PEM"), server_name="web.example", insecure_skip_verify=True)
    assert how(tls=tls).tls == PodTLS(ca=b"PEM", server_name="web.example", verify=False)
    assert how(tls=tls).protocol is AUTO
    assert how("grpc", tls=tls).protocol is HTTP2
    assert how(tls=tls, protocol=BackendProtocol.HTTP1).protocol is HTTP1
