"""What an API server answers, or does not answer, as kube-aggregator passes it on (golden/aggregator: received)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.apiservices.availability import Registration
from mcproxy.config.model import UpstreamIdentity
from mcproxy.proxy import forward
from tests.proxy.harness import OK, Harness, always, cluster, config, get, plain
from tests.proxy.test_api_services import ALICE, METRICS, NODES, Bench, probed

METRICS_V1BETA1 = Registration("metrics.k8s.io", "v1beta1", "metrics")
REDIRECTS = (301, 302, 303, 307, 308)


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


def redirect(status: int, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    return b"HTTP/1.1 %d Moved\r\nLocation: https://169.254.169.254/latest/meta-data\r\n%b" % (status, length)


async def whole(bench: Bench, *request: Any, **how: Any) -> tuple[int, dict[str, str], bytes]:
    client = await bench.harness.asks(get(*request, **how))
    await bench.harness.until(
        lambda: client.over or client.received.endswith((b"{}", b"}\n", b"\r\n\r\n")), "an answer"
    )
    return client.answer()


@pytest.mark.parametrize("body", [b"", b"<a>elsewhere</a>"])
@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirect_is_502_neither_followed_nor_passed_on(bench: Bench, status: int, body: bytes) -> None:
    await bench.serve()
    bench.upstreams["metrics"].reply = probed(always(redirect(status, body)))
    for method in (b"GET", b"POST", b"DELETE"):
        code, fields, answered = await whole(bench, NODES, ALICE, b"Content-Length: 0", method=method)
        assert (code, "location" in fields) == (502, False)
        assert b"169.254" not in answered
        refused = json.loads(answered)
        assert refused["message"] == "the backend attempted to redirect this request, which is not permitted"
    await bench.harness.until(lambda: len(bench.harness.records) == 3, "the records")
    assert {record.reason for record in bench.harness.records} == {"upstream_redirect"}
    assert list(bench.went_to()) == ["metrics"]
    assert (await bench.status(b"/api/v1/pods", ALICE))[0] == 200


async def test_304_and_a_3xx_without_location_are_no_redirects(bench: Bench) -> None:
    await bench.serve()
    for raw, status in (
        (b"HTTP/1.1 304 Not Modified\r\nLocation: /x\r\nETag: a\r\n\r\n", 304),
        (b"HTTP/1.1 300 Multiple Choices\r\nContent-Length: 2\r\n\r\n{}", 300),
    ):
        bench.upstreams["metrics"].reply = probed(always(raw))
        assert (await whole(bench, NODES, ALICE))[0] == status


@pytest.mark.parametrize(
    ("identity", "status"), [(UpstreamIdentity.REQUEST_HEADER, 502), (UpstreamIdentity.IMPERSONATE, 302)]
)
async def test_so_is_that_of_a_cluster_which_is_told_the_user(
    harness: Harness, identity: UpstreamIdentity, status: int
) -> None:
    upstream = harness.upstream()
    upstream.reply = always(redirect(302))
    await harness.serve(config([cluster(upstream.endpoint(), identity=identity)]))
    client = await harness.asks(get(b"/api/v1/namespaces/a/services/b/proxy/"))
    await harness.until(lambda: client.over or b"\r\n\r\n" in client.received, "the answer")
    assert client.answer()[0] == status


async def test_discovery_that_hangs_is_503_after_five_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert forward._DISCOVERY_TIMEOUT == 5
    monkeypatch.setattr(forward, "_DISCOVERY_TIMEOUT", 0.2)
    await bench.serve()
    bench.upstreams["metrics"].reply = probed(lambda end: None)
    for target in (METRICS, METRICS + b"/"):
        code, fields, answered = await whole(bench, target, ALICE)
        refused = json.loads(answered)
        assert (code, refused["reason"], fields["retry-after"]) == (503, "ServiceUnavailable", "1")
    client = await bench.harness.asks(get(NODES, ALICE))
    await bench.harness.until(lambda: NODES in plain(bench.upstreams["metrics"].received), "the request")
    assert not client.received  # it has the time of any request


async def test_what_gets_no_answer_or_half_of_one_has_the_service_probed(bench: Bench) -> None:
    await bench.serve()
    suspected: list[Registration] = []
    bench.harness.service._availability.known.on_suspicion(suspected.append)
    assert await bench.status(NODES, ALICE) == (200, "")
    assert suspected == []
    bench.upstreams["metrics"].reply = probed(always(b"no HTTP at all\r\n\r\n"))
    assert (await bench.status(NODES, ALICE))[0] == 502
    assert suspected == [METRICS_V1BETA1]
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"

    def broken(end: Any) -> None:
        end.send(half)
        end.close()

    bench.upstreams["metrics"].reply = probed(broken)
    client = await bench.harness.asks(get(NODES, ALICE))
    await bench.harness.until(lambda: client.over, "the end")
    assert suspected == [METRICS_V1BETA1] * 2
    bench.upstreams["east"].reply = always(OK)
    await bench.status(b"/api/v1/pods", ALICE)
    assert len(suspected) == 2
