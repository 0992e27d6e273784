"""A short request of a client that neither reads nor sends gives its permit back; a watch may wait."""

from __future__ import annotations

import pytest

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType
from tests.proxy.harness import OK, Harness, UpstreamEnd, always, cluster, config, get, listener

ONE = FlowControl(name="one", type=FlowControlType.MAX_REQUESTS_INFLIGHT, max=1, max_long_running=0)
LIST = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n\r\n"


async def begin(harness: Harness, stall: float) -> UpstreamEnd:
    """Serve a cluster that lets one short request through, and have a client ask for a list that it does not read."""
    upstream = harness.upstream()
    limits = model.Limits(stall_timeout=stall)
    await harness.serve(
        config(
            [cluster(upstream.endpoint(), flow_controls=("one",))],
            listeners=[listener(limits=limits)],
            flow_controls=(ONE,),
            logging=model.Logging(access=model.AccessLogConfig(file="x")),
        )
    )
    client = await harness.asks(get(b"/api/v1/pods"))
    await harness.until(lambda: upstream.connections and b"\r\n\r\n" in upstream.connections[0].received)
    client.transport.pauseProducing()  # type: ignore[union-attr]
    end = upstream.connections[0]
    end.send(LIST + bytes(40_000_000))
    upstream.reply = always(OK)
    return end


@pytest.mark.slow
async def test_client_that_does_not_read_gives_its_permit_back(harness: Harness) -> None:
    end = await begin(harness, 3.0)  # longer than the next handshake takes
    second = await harness.asks(get(b"/api/v1/pods"))
    await harness.until(lambda: b"}" in second.received)
    assert second.answer()[0] == 429
    await harness.until(lambda: end.lost is not None, "the end of the upstream request")
    third = await harness.asks(get(b"/api/v1/pods"))
    await harness.until(lambda: b"{}" in third.received)
    assert third.answer()[0] == 200
    (record,) = [record for record in harness.records if record.reason == "client_stalled"]
    assert record.status == 200


async def test_zero_is_no_limit(harness: Harness) -> None:
    end = await begin(harness, 0.0)
    await harness.turns(300)
    assert end.lost is None
    second = await harness.asks(get(b"/api/v1/pods"))
    await harness.until(lambda: b"}" in second.received)
    assert second.answer()[0] == 429


async def test_body_that_stalls_gives_its_permit_back(harness: Harness) -> None:
    upstream = harness.upstream()
    await harness.serve(
        config(
            [cluster(upstream.endpoint(), flow_controls=("one",))],
            listeners=[listener(limits=model.Limits(stall_timeout=0.3))],
            flow_controls=(ONE,),
        )
    )
    slow = await harness.asks(get(b"/api/v1/namespaces/a/pods", b"Content-Length: 10", method=b"POST") + b"123")
    await harness.until(lambda: b"}\n" in slow.received)
    assert slow.answer()[0] == 408
    upstream.reply = always(OK)
    second = await harness.asks(get(b"/api/v1/pods"))
    await harness.until(lambda: b"{}" in second.received)
    assert second.answer()[0] == 200
