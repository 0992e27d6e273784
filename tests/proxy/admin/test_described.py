"""The requests in flight as /debug/requests has them: live ones, in each state."""

from __future__ import annotations

from typing import Any

from mcproxy.config import model
from tests.proxy.harness import Harness, cluster, config, get, listener

SECRET = b"s3cr3t"
LIMIT = model.FlowControl(
    name="one", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=1, queue=model.Queue(size=5, timeout=60.0)
)


async def serve(harness: Harness, **fields: Any) -> Any:
    upstream = harness.upstream()
    policy = model.Policy(
        name="all",
        rules=(model.Rule(verbs=("*",), api_groups=("*",), resources=("*",)),),
        **fields,
    )
    server = model.Server(
        name="main", listeners=("tls",), default=True, backend=model.ClusterBackend("east"), dispatch=(policy,)
    )
    await harness.serve(
        config([cluster(upstream.endpoint())], servers=[server], listeners=[listener()], flow_controls=(LIMIT,))
    )
    return upstream


def shown(harness: Harness) -> list[dict[str, Any]]:
    document = harness.service.described_requests("worker-7")
    assert document["total"] == len(document["requests"])
    requests: list[dict[str, Any]] = document["requests"]
    return requests


async def test_a_request_is_sent_then_responding(harness: Harness) -> None:
    upstream = await serve(harness)
    await harness.asks(get(b"/api/v1/namespaces/a/pods?limit=5&token=" + SECRET, b"Authorization: Bearer " + SECRET))
    await harness.until(lambda: upstream.received.endswith(b"\r\n\r\n"))
    [request] = shown(harness)
    assert request.pop("ageSeconds") >= 0
    assert request == {
        "process": "worker-7",
        "state": "sent",
        "client": "127.0.0.1",
        "user": "system:anonymous",
        "server": "main",
        "cluster": "east",
        "endpoint": "a",
        "policy": "all",
        "protocol": "HTTP/1.1",
        "method": "GET",
        "verb": "list",
        "path": "/api/v1/namespaces/a/pods?limit=5&…",
        "bytesOut": 0,
    }
    upstream.last.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n1234567890")
    await harness.until(lambda: shown(harness)[0]["state"] == "responding")
    await harness.until(lambda: shown(harness)[0]["bytesOut"] == 10)
    assert shown(harness)[0]["status"] == 200
    assert SECRET.decode() not in str(shown(harness))


async def test_a_request_waits_in_a_queue_and_the_oldest_is_first(harness: Harness) -> None:
    upstream = await serve(harness, flow_control="one")
    await harness.asks(get(b"/api/v1/namespaces/a/pods/first"))
    await harness.until(lambda: upstream.received.endswith(b"\r\n\r\n"))
    await harness.asks(get(b"/api/v1/namespaces/a/pods/second"))
    await harness.until(lambda: len(shown(harness)) == 2)
    await harness.until(lambda: shown(harness)[1]["state"] == "queued")
    assert [(each["path"].rpartition("/")[2], each["state"]) for each in shown(harness)] == [
        ("first", "sent"),
        ("second", "queued"),
    ]
