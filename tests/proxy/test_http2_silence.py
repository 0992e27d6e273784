"""Peers that HTTP/2 connections are open to and that answer nothing any more: PING finds them out.

The daemon asks after 30 s of silence and waits for 15 s; here both are shorter.
"""

from __future__ import annotations

from typing import Any

import pytest
from h2 import events

from mcproxy.config import model
from mcproxy.http.h2 import h2_connection, keepalive
from tests.proxy.harness import Harness, cluster, config
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream, h2_client, http2_listener

WATCH = b"/api/v1/pods?watch=1"
EVENT = b'{"type":"ADDED","object":{}}\n'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "PING_AFTER", 0.2)
    monkeypatch.setattr(keepalive, "PING_TIMEOUT", 3.0)  # as long as this process may stand still
    monkeypatch.setattr(h2_connection, "_CHECK", 0.1)


def answers(stream: PeerStream, event: Any) -> None:
    """A watch gets one event and goes on, all else {}."""
    if isinstance(event, events.RequestReceived):
        watch = b"watch=1" in stream.fields[b":path"]
        stream.head([(b":status", b"200"), (b"content-type", b"application/json")])
        stream.send(EVENT if watch else b"{}")
        if not watch:
            stream.end()


async def serve(harness: Harness) -> tuple[H2Upstream, H2Upstream]:
    """One cluster of two endpoints; which one is next is known: it is RoundRobin."""
    one, other = (harness.add(H2Upstream(harness.reactor)) for _ in range(2))
    one.stream_event = other.stream_event = answers
    connections = model.Connections(protocol=model.UpstreamProtocol.HTTP2)
    await harness.serve(
        config(
            [cluster(one.endpoint("a"), other.endpoint("b"), tls=H2_TLS, connections=connections)],
            listeners=[http2_listener()],
        )
    )
    return one, other


@pytest.mark.slow
async def test_streams_of_a_silent_endpoint_end_and_those_of_others_go_on(harness: Harness) -> None:
    one, other = await serve(harness)
    client = await h2_client(harness)
    watches = [client.ask(path=WATCH + b"&n=%d" % number) for number in range(4)]
    await harness.until(lambda: all(watch.data == EVENT for watch in watches))
    silent = {stream.fields[b":path"][-1:] for stream in one.streams}
    assert len(silent) == 2
    for end in one.h2:
        end.fall_silent()
    reads = [client.ask() for _ in range(2)]  # one of them goes to the silent one, and elsewhere when that is known
    await harness.until(lambda: sum(watch.ended for watch in watches) == 2, "the watches end")
    await harness.until(lambda: all(read.status == 200 for read in reads), "the reads are answered")
    await harness.turns(20)
    assert [watch.reset for watch in watches] == [None] * 4  # in an orderly way: between two events
    for number, watch in enumerate(watches):
        assert watch.ended == (b"%d" % number in silent)
    for stream in other.streams:
        if b"watch" in stream.fields[b":path"]:
            stream.send(EVENT)
    await harness.until(lambda: sum(watch.data == EVENT * 2 for watch in watches) == 2, "events go on")
    assert client.problem is None


@pytest.mark.slow
async def test_a_silent_client_holds_no_streams_to_clusters(harness: Harness) -> None:
    one, other = await serve(harness)
    gone, here = await h2_client(harness), await h2_client(harness)
    watches = [client.ask(path=WATCH) for client in (gone, gone, here, here)]
    await harness.until(lambda: all(watch.data == EVENT for watch in watches))
    gone.fall_silent()

    def open_streams() -> int:
        return sum(stream.reset is None for upstream in (one, other) for stream in upstream.streams)

    await harness.until(lambda: open_streams() == 2, "its streams are cancelled")
    await harness.until(lambda: here.pings_received >= 3, "PINGs")  # streams of a client that answers stay
    assert open_streams() == 2
    assert not any(watch.over for watch in watches[2:])
    assert len(harness.service.requests) == 2


async def test_a_peer_that_answers_pings_may_be_silent_otherwise(harness: Harness) -> None:
    one, other = await serve(harness)
    client = await h2_client(harness)
    watch = client.ask(path=WATCH)
    await harness.until(lambda: watch.data == EVENT)
    (end,) = one.h2 or other.h2
    await harness.until(lambda: client.pings_received >= 3 and end.pings_received >= 3, "PINGs on both sides")
    assert not watch.over
