"""Spans of requests to ingresses: by ingress, rule and backend, children of the client's, parents of the pod's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.observe import tracing
from tests.proxy.harness import Upstream
from tests.proxy.otlp_collector import Collector, collecting, values
from tests.services.ingress.config import ingress, path, rule
from tests.services.ingress.whole import HOST, Whole, ingress_config

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield running


async def serve(whole: Whole, collector: Collector) -> Upstream:
    found = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    spans = whole.request_logs.traced = tracing.start(whole.reactor, found, "worker-1")
    assert spans is not None
    whole.closing(spans.close)
    await whole.serve(ingress_config(ingress("web", rule(HOST, path("/a", "web"), path("/none", "none")))))
    pod = whole.pod("web")
    whole.endpoints("web", pod)
    return pod


async def span_of(whole: Whole, collector: Collector) -> Any:
    await whole.until(lambda: collector.spans, "the span")
    return collector.spans[0]


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_span_has_ingress_rule_and_backend(whole: Whole, collector: Collector) -> None:
    pod = await serve(whole, collector)
    await whole.get("/a/b?token=SECRET&x=1", f"traceparent: 00-{TRACE}-{SPAN}-01", "tracestate: a=1", "X-Request-ID: r")
    span = await span_of(whole, collector)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    sent = re.findall(rb"traceparent: 00-(\w{32})-(\w{16})-01\r", pod.received.lower())
    assert sent == [(TRACE.encode(), span.span_id.hex().encode())]
    assert span.name == f"GET {HOST}/a"
    assert values(span.attributes) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "http.route": f"{HOST}/a",
        "url.path": "/a/b",
        "url.query": "token=***&x=1",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "network.peer.address": "127.0.0.1",
        "client.address": "127.0.0.1",
        "server.address": HOST,
        "mcproxy.request_id": "r",
        "mcproxy.ingress": "web",
        "mcproxy.rule": f"{HOST}/a",
        "mcproxy.service": "demo/web",
        "mcproxy.cluster": "east",
        "mcproxy.endpoint": f"127.0.0.1:{pod.port}",
        "mcproxy.reason": "ok",
    }
    assert span.status.code == 0
    assert whole.records[-1].trace_id == TRACE


@pytest.mark.parametrize(
    ("target", "status", "failed", "attributes"),
    [
        ("/none", 503, True, {"mcproxy.service": "demo/none", "mcproxy.reason": "no_endpoint", "error.type": "503"}),
        ("/nowhere", 404, False, {"mcproxy.reason": "no_rule"}),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_refused_request_has_one_too(
    whole: Whole, collector: Collector, target: str, status: int, failed: bool, attributes: dict[str, Any]
) -> None:
    await serve(whole, collector)
    await whole.get(target, "traceparent: malformed")
    span = await span_of(whole, collector)
    found = values(span.attributes)
    assert span.parent_span_id == b""
    assert (found["http.response.status_code"], bool(span.status.code)) == (status, failed)
    assert attributes.items() <= found.items()
