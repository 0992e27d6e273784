"""Requests that a kube-apiserver answers with GOAWAY: those of others keep their connection."""

from __future__ import annotations

from typing import Any

import pytest
from h2 import events

from mcproxy.config import model
from tests.proxy.harness import Harness, cluster, config
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream, h2_client, http2_listener

GOOD, BAD = b"Bearer good", b"Bearer bad"


def kube_apiserver(stream: PeerStream, event: Any) -> None:
    """UnauthenticatedHTTP2DOSMitigation: `Connection: close`, which Go's server makes GOAWAY of."""
    if not isinstance(event, events.RequestReceived):
        return
    authorization = stream.fields.get(b"authorization")
    known = authorization == GOOD or stream.fields.get(b"x-remote-user") == b"known"
    status = b"200" if known or authorization != BAD else b"401"
    stream.head([(b":status", status), (b"content-type", b"application/json")])
    if b"watch=1" in stream.fields[b":path"]:
        return
    stream.send(b"{}")
    stream.end()
    if not known:
        stream.peer.goaway(stream.number)


async def serve(harness: Harness, **fields: Any) -> H2Upstream:
    upstream = harness.add(H2Upstream(harness.reactor))
    upstream.stream_event = kube_apiserver
    connections = model.Connections(protocol=model.UpstreamProtocol.HTTP2)
    await harness.serve(
        config(
            [cluster(upstream.endpoint("a"), tls=H2_TLS, connections=connections, **fields)],
            listeners=[http2_listener()],
        )
    )
    return upstream


def carrying(upstream: H2Upstream, authorization: bytes | None) -> set[int]:
    """The connections that carried requests with this header, but for health checks."""
    return {
        id(stream.peer)
        for stream in upstream.streams
        if stream.fields.get(b"authorization") == authorization and b"readyz" not in stream.fields[b":path"]
    }


@pytest.mark.parametrize("other", [None, BAD])
async def test_a_token_that_is_good_keeps_its_connection(harness: Harness, other: bytes | None) -> None:
    upstream = await serve(harness, identity=model.UpstreamIdentity.PASSTHROUGH)
    client = await h2_client(harness)
    watch = client.ask(path=b"/api/v1/pods?watch=1", fields=[(b"authorization", GOOD)])
    await harness.until(lambda: watch.status, "the watch")
    if other is not None:  # the first cannot be known to be refused
        first = client.ask(path=b"/api", fields=[(b"authorization", other)])
        await harness.until(lambda: first.ended, "the refusal")
        watch = client.ask(path=b"/api/v1/pods?watch=1", fields=[(b"authorization", GOOD)])
        await harness.until(lambda: watch.status, "the watch")
    before = carrying(upstream, GOOD)
    for _ in range(5):
        asked = [
            client.ask(path=b"/api", fields=[(b"authorization", token)] if token else []) for token in (other, GOOD)
        ]
        await harness.until(lambda asked=asked: all(each.ended for each in asked), "the answers")  # type: ignore[misc]
    assert carrying(upstream, GOOD) == before
    assert len(before & carrying(upstream, other)) <= (0 if other is None else 1)
    runtime = harness.service.runtime
    assert runtime is not None
    [endpoint] = runtime.clusters["east"].endpoints
    assert endpoint.pool.connections >= len(before)
