"""Spans of requests, exported by OTLP: children of the client's, parents of the cluster's; none without being asked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.observe import tracing
from tests.proxy.harness import OK, Harness, Upstream, always, cluster, config, get
from tests.proxy.otlp_collector import Collector, collecting, values

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"traceparent: 00-{TRACE}-{SPAN}-01".encode()
POD = b"/api/v1/namespaces/a/pods/b"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield running


class Traced:
    """A proxy that traces."""

    def __init__(self, harness: Harness, collector: Collector) -> None:
        self.harness = harness
        self.collector = collector
        self.upstream: Upstream = harness.upstream()
        self.upstream.reply = always(OK)

    async def serve(self, **environ: str) -> None:
        found = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.url, **environ}
        spans = self.harness.request_logs.traced = tracing.start(self.harness.reactor, found, "worker-1")
        assert spans is not None
        self.harness.closing(spans.close)
        await self.harness.serve(config([cluster(self.upstream.endpoint())]))

    async def asks(self, raw: bytes, status: bytes = b"200") -> None:
        client = await self.harness.asks(raw)
        await self.harness.until(lambda: client.received.startswith(b"HTTP/1.1 " + status), "the response")
        await self.harness.until(lambda: self.harness.service.running == 0, "its end")

    async def span(self, number: int = 0) -> Any:
        await self.harness.until(lambda: len(self.collector.spans) > number, "the span")
        return self.collector.spans[number]

    def parent_sent(self) -> tuple[str, str, str]:
        """Return trace id, span id and flags that the cluster got."""
        (found,) = re.findall(rb"traceparent: 00-(\w{32})-(\w{16})-(\w\w)\r", self.upstream.received.lower())
        return found[0].decode(), found[1].decode(), found[2].decode()


@pytest.fixture
def traced(harness: Harness, collector: Collector) -> Traced:
    return Traced(harness, collector)


async def test_a_span_is_a_child_of_the_clients_and_the_parent_of_the_clusters(traced: Traced) -> None:
    await traced.serve()
    await traced.asks(
        get(POD + b"?token=SECRET&x=1", PARENT, b"tracestate: a=1", b"User-Agent: kubectl", b"Audit-ID: m")
    )
    span = await traced.span()
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert traced.parent_sent() == (TRACE, span.span_id.hex(), "01")
    assert b"tracestate: a=1\r\n" in traced.upstream.received.lower()
    assert span.name == "GET /api/v1/namespaces/{namespace}/pods/{name}"
    assert span.kind == 2  # server
    found = values(span.attributes)
    assert found == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "http.route": "/api/v1/namespaces/{namespace}/pods/{name}",
        "url.path": POD.decode(),
        "url.query": "token=***&x=1",
        "url.scheme": "https",
        "network.protocol.version": "1.1",
        "network.peer.address": "127.0.0.1",
        "client.address": "127.0.0.1",
        "server.address": "k8s.test",
        "user_agent.original": "kubectl",
        "audit-id": "m",
        "mcproxy.server": "main",
        "mcproxy.cluster": "east",
        "mcproxy.endpoint": "a",
        "mcproxy.reason": "ok",
    }
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    assert span.status.code == 0
    assert traced.collector.resources[0]["service.name"] == "mcproxy"
    assert traced.collector.resources[0]["mcproxy.process"] == "worker-1"


async def test_a_malformed_context_begins_a_new_trace(traced: Traced) -> None:
    await traced.serve()
    await traced.asks(get(POD, b"traceparent: 00-zz-01", b"tracestate: a=1"))
    span = await traced.span()
    assert span.parent_span_id == b""
    trace_id, span_id, flags = traced.parent_sent()
    assert (trace_id, span_id, int(flags, 16) & 1) == (span.trace_id.hex(), span.span_id.hex(), 1)
    assert b"tracestate" not in traced.upstream.received.lower()


async def test_a_trace_that_is_not_sampled_goes_on_but_is_not_exported(traced: Traced) -> None:
    await traced.serve()
    await traced.asks(get(POD, PARENT[:-1] + b"0"))
    await traced.asks(get(POD))
    span = await traced.span()
    assert span.trace_id.hex() != TRACE
    sent = re.findall(rb"traceparent: 00-(\w{32})-(\w{16})-(\w\w)\r", traced.upstream.received.lower())
    assert (sent[0][0].decode(), sent[0][2]) == (TRACE, b"00")
    assert sent[0][1].decode() != SPAN


async def test_a_failure_of_the_proxy_is_an_error_and_one_of_the_client_is_none(traced: Traced) -> None:
    await traced.serve()
    await traced.asks(get(b"/api/v1/../x"), b"400")
    await traced.upstream.stop()
    for connection in traced.upstream.connections:
        connection.abort()
    await traced.harness.turns()
    await traced.asks(get(POD), b"503")
    spans = {values((await traced.span(number)).attributes)["http.response.status_code"]: number for number in range(2)}
    bad, failed = await traced.span(spans[400]), await traced.span(spans[503])
    assert (bad.status.code, bad.name) == (0, "GET")
    assert (failed.status.code, values(failed.attributes)["error.type"]) == (2, "503")


async def test_a_collector_that_stands_still_holds_nothing_up(traced: Traced) -> None:
    await traced.serve()
    traced.collector.answers.clear()
    for _ in range(20):
        await traced.asks(get(POD))
    assert not traced.collector.spans
    traced.collector.answers.set()
    await traced.span(19)


async def test_a_collector_that_is_away_is_one_line(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "warn", lambda text, **fields: said.append(fields))
    complain = tracing._ExportLog(harness.reactor, "http://c")
    for _ in range(3):
        complain("refused")
    await harness.until(lambda: said)
    await harness.turns()
    assert [(each["event"], each["cause"]) for each in said] == [("spans_not_exported", "refused")]


async def test_a_client_cannot_make_a_line_that_says_that_spans_are_lost(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "warn", lambda text, **fields: said.append(fields))
    await traced.serve()
    for state in (b"1a=b", b"a@b@c=x", b"a="):  # the proxy takes them, the SDK does not
        await traced.asks(get(POD, PARENT, b"tracestate: " + state))
    await traced.span(2)
    assert not said


async def test_a_password_of_the_collector_is_not_in_the_log(
    traced: Traced, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "info", lambda text, **fields: said.append(fields))
    await traced.serve(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url.replace("//", "//user:p@ss@"))
    assert [each["endpoint"] for each in said] == [collector.url.replace("//", "//***@")]


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_environment_says_whether_requests_are_traced(environ: dict[str, str], asked: bool) -> None:
    assert tracing.configured(environ) is asked


def test_another_protocol_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "warn", lambda text, **fields: said.append(fields))
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert tracing.start(None, environ) is None
    assert "4318" in said[0]["todo"]


def test_nothing_of_opentelemetry_is_imported_without_being_asked() -> None:
    program = (
        "import sys\n"
        "import mcproxy.daemon.main, mcproxy.daemon.service, mcproxy.proxy.pipeline\n"
        "from mcproxy.observe.request_logs import RequestLogs\n"
        "assert RequestLogs(None, environ={}).spans() is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "warn", lambda text, **fields: said.append(fields))
    monkeypatch.setitem(sys.modules, "mcproxy.observe.spans", None)
    assert tracing.start(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}) is None
    assert said[0]["event"] == "tracing_unavailable"
    assert "requirements/all.lock" in said[0]["todo"]
