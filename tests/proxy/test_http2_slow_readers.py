"""Streams that nobody reads hold no other: not on the client's connection, not on the one to the cluster."""

from __future__ import annotations

from typing import Any

import pytest
from h2 import events

from mcproxy.config import model
from tests.proxy.harness import Harness, cluster, config
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream, h2_client, http2_listener

BIG = 2_000_000
ON_THE_WAY = 700_000
"""Bytes of one body that may be between the cluster and a client that does not read it: windows, and what is queued."""


def pattern(number: int) -> bytes:
    return bytes([number]) * BIG


@pytest.fixture
def upstream(harness: Harness) -> H2Upstream:
    """It gives a big body for each path that ends with its number, {} for others."""
    upstream = harness.add(H2Upstream(harness.reactor))

    def answer(stream: PeerStream, event: Any) -> None:
        if isinstance(event, events.StreamEnded):
            number = stream.fields[b":path"].rpartition(b"-")[2]
            stream.head([(b":status", b"200"), (b"content-type", b"application/json")])
            stream.send(pattern(int(number)) if number.isdigit() else b"{}")
            stream.end()

    upstream.stream_event = answer
    return upstream


async def serve(harness: Harness, upstream: H2Upstream) -> None:
    connections = model.Connections(protocol=model.UpstreamProtocol.HTTP2)
    await harness.serve(
        config([cluster(upstream.endpoint("a"), tls=H2_TLS, connections=connections)], listeners=[http2_listener()])
    )


async def test_a_client_that_reads_one_stream_of_many(harness: Harness, upstream: H2Upstream) -> None:
    await serve(harness, upstream)
    client, other = await h2_client(harness), await h2_client(harness)
    streams = [client.ask(path=b"/api/v1/namespaces/a/pods/p-%d" % number) for number in range(12)]
    for stream in streams[1:]:
        stream.reads = False
    await harness.until(lambda: streams[0].ended, "the one that is read")
    assert streams[0].data == pattern(0)
    quick = [each.ask() for each in (client, other) for _ in range(5)]
    await harness.until(lambda: all(each.ended for each in quick), "others on both connections")
    await harness.turns(50)
    for stream in upstream.streams:
        if not stream.finished:
            assert stream.sent <= ON_THE_WAY
    assert sum(not stream.finished for stream in upstream.streams) == 11
    for stream in streams[1:]:
        stream.read_on()
    await harness.until(lambda: all(stream.ended for stream in streams), "the rest, once they are read")
    assert [stream.data == pattern(number) for number, stream in enumerate(streams)] == [True] * 12
    assert client.problem is None
    assert [end.problem for end in upstream.h2] == [None] * len(upstream.h2)


async def test_slow_readers_of_many_clients_hold_nobody(harness: Harness, upstream: H2Upstream) -> None:
    """Some read nothing at all, not even their connections; others' requests share their connections to the cluster."""
    await serve(harness, upstream)
    slow = [await h2_client(harness) for _ in range(6)]
    unread = [client.ask(path=b"/api/v1/namespaces/a/pods/p-%d" % number) for number, client in enumerate(slow)]
    for stream in unread:
        stream.reads = False
    for client in slow[::2]:
        client.fall_silent()
    await harness.turns(50)
    reader = await h2_client(harness)
    for number in range(3):
        read = reader.ask(path=b"/api/v1/namespaces/a/pods/p-%d" % number)
        await harness.until(lambda read=read: read.ended, "a body between the unread ones")  # type: ignore[misc]
        assert read.data == pattern(number)
    assert sum(not stream.finished for stream in upstream.streams) == 6
    for client in slow:
        client.abort()
    await harness.until(lambda: not harness.service.requests, "the slow ones are gone")


async def test_an_upload_that_the_cluster_does_not_read_holds_no_other(harness: Harness, upstream: H2Upstream) -> None:
    reads: dict[bytes, bool] = {}

    def answer(stream: PeerStream, event: Any) -> None:
        if isinstance(event, events.RequestReceived):
            stream.reads = reads.get(stream.fields[b":path"].rpartition(b"/")[2], True)
        if isinstance(event, events.StreamEnded):
            stream.head([(b":status", b"200")], end=True)

    upstream.stream_event = answer
    reads[b"unread"] = False
    await serve(harness, upstream)
    client = await h2_client(harness)
    unread = client.ask(b"PUT", b"/api/v1/namespaces/a/pods/unread", end=False)
    unread.send(pattern(1))
    unread.end()
    await harness.turns(50)
    for _ in range(3):
        other = client.ask(b"PUT", b"/api/v1/namespaces/a/pods/read", end=False)
        other.send(pattern(2))
        other.end()
        await harness.until(lambda other=other: other.ended, "an upload beside it")  # type: ignore[misc]
    assert not unread.over
    assert unread.sent <= ON_THE_WAY
    (held,) = (stream for stream in upstream.streams if stream.fields[b":path"].endswith(b"unread"))
    held.read_on()
    await harness.until(lambda: unread.ended, "the one that is read at last")
    assert unread.status == 200
