"""Nobody takes the proxy's memory, or others' streams, by what HTTP/2 lets one connection have at the same time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from h2.events import RequestReceived
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.http.h2.frames import GOAWAY, PREFACE, Flood, rst_stream
from mcproxy.http.h2.h2_server import UnreadResponses
from mcproxy.http.h2.hpack.decoder import HPACKDecoder, Representations
from tests.http.h1.harness import Handled
from tests.http.h2 import raw
from tests.http.h2.client_harness import OK, H2ClientHarness, response
from tests.http.h2.harness import H2ServerHarness, H2Wire, data, frames, request
from tests.proxy.harness import Harness, cluster, config
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream, h2_client, http2_listener

NO_WINDOW = raw.settings((raw.INITIAL_WINDOW_SIZE, 0)) + raw.SETTINGS_ACK


# -- memory -----------------------------------------------------------------------------------------------------------


def test_the_heads_of_answered_requests_are_not_kept_while_the_client_reads_nothing() -> None:
    """Without a credential: 250 heads of 60 KiB, each some bytes on the wire, would be 15 MB for each connection."""
    server = H2ServerHarness(begun=False)
    server.sends(PREFACE + NO_WINDOW)
    repeated = raw.indexing(b"a", b"x" * 3900)
    for stream in range(1, 501, 2):
        server.sends(request(stream, fields=(repeated if stream == 1 else b"") + raw.indexed(62) * 14))
        assert len(server.last.exchange.head.fields) > 54_000
        server.last.answer(b"unauthorized", 401)
    streams = server.connection.streams
    assert len(streams) == 250
    assert sum(len(stream.head.fields) for stream in streams.values()) == 0


def test_octets_that_stand_for_much_make_nothing_of_it() -> None:
    """65,000 indexed crumbs of a cookie of 4,000 bytes would be 260 MB, in a header block of 64 KiB. Here less."""
    decoder = HPACKDecoder(Representations())
    decoder.decode(raw.request() + raw.indexing(b"cookie", b"x" * 4000), 65536, 200)
    tracemalloc.start()
    try:
        with pytest.raises(Flood):
            decoder.decode(raw.request() + raw.indexed(62) * 10_000, 65536, 200)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [b"a", b"cookie"])
@pytest.mark.parametrize("path", [b"\x04\x02/x", b"\x84"])
def test_large_heads_of_few_octets_are_not_remembered_by_their_connection(name: bytes, path: bytes) -> None:
    decoder = HPACKDecoder(Representations())
    decoder.decode(raw.request() + raw.indexing(name, b"x" * 3900), 65536, 200)
    tracemalloc.start()
    try:
        for number in range(8):
            block = b"\x82\x87" + path + raw.literal(b"b", b"%d" % number) + raw.indexed(62) * 16
            assert sum(map(len, decoder.decode(block, 65536, 200).lines)) > 62_000
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_the_head_of_a_request_that_lingers_is_not_kept() -> None:
    server = H2ServerHarness()
    server.sends(request(1, b"POST", end=False, fields=raw.literal(b"a", b"x" * 10_000)))
    server.last.answer(b"unauthorized", 401)
    assert server.connection.streams[1].head.fields == b""


class Listener:
    """Connections of several clients to one listener, none of which gives windows back."""

    def __init__(self, most: int) -> None:
        self.server = H2ServerHarness(attach=True)
        self.factory = self.server.factory
        self.factory.http2.unread_responses = UnreadResponses(self.server.deadlines, most)

    def client(self, address: str) -> H2Wire:
        wire = H2Wire(None)
        wire.getPeer = lambda: IPv4Address("TCP", address, 1)  # type: ignore[method-assign]
        connection: Any = self.factory.build(wire)  # type: ignore[arg-type]
        wire.protocol = connection
        connection.makeConnection(wire)
        wire.deliver(PREFACE + NO_WINDOW)
        return wire

    def asks(self, wire: H2Wire, stream: int, size: int) -> Handled:
        """A request whose response waits."""
        wire.deliver(request(stream))
        handled = self.server.last
        handled.answer(b"x" * size)
        wire.turn()
        return handled

    def passes(self, seconds: float) -> None:
        self.server.passes(seconds)


def test_the_client_with_the_most_unread_bytes_loses_its_connection_when_they_are_too_many() -> None:
    listener = Listener(most=2_000_000)
    slow, greedy, twin = listener.client("10.0.0.1"), listener.client("10.0.0.2"), listener.client("10.0.0.2")
    for stream in range(1, 13, 2):
        listener.asks(slow, stream, 60_000)
        listener.asks(greedy, stream, 80_000)
        listener.asks(twin, stream, 100_000)
    listener.passes(0.5)
    assert slow.open
    assert greedy.open
    assert twin.open  # 1.44 MB wait
    listener.asks(slow, 13, 600_000)  # the largest connection is now that of a client with less
    listener.passes(0.5)
    assert slow.open
    assert greedy.open
    assert not bool(twin.open)
    last = frames(twin.taken())[-1]
    assert (last.kind, last.code) == (GOAWAY, raw.ENHANCE_YOUR_CALM)
    assert listener.factory.protection == {"unread_responses": 1}
    slow.deliver(b"".join(rst_stream(stream, raw.CANCEL) for stream in range(1, 15, 2)))
    greedy.deliver(b"".join(rst_stream(stream, raw.CANCEL) for stream in range(1, 13, 2)))
    listener.passes(0.5)
    assert (
        listener.factory.http2.unread_responses not in listener.server.deadlines._items
    )  # nothing to look at any more


def test_what_little_waits_is_not_looked_at() -> None:
    listener = Listener(most=1000)
    client = listener.client("10.0.0.1")
    listener.asks(client, 1, 200_000)
    listener.passes(1.0)
    assert client.open


# -- streams of others ------------------------------------------------------------------------------------------------


def test_a_connection_to_a_cluster_takes_no_more_streams_once_many_were_reset() -> None:
    cluster = H2ClientHarness((raw.MAX_CONCURRENT_STREAMS, 250))
    _, watch = cluster.asks(timeout=0.0, lasting=True)
    cluster.answers(response(1))
    for _ in range(200):
        cluster.asks()[0].cancel()
    assert cluster.connection.usable
    cluster.asks()[0].cancel()
    assert not bool(cluster.connection.usable)
    assert cluster.unusable == 1
    cluster.answers(data(1, b"event"))
    assert watch.body == b"event"
    assert cluster.wire.open


@pytest.mark.parametrize("logs", [1, 20])
def test_a_client_that_leaves_chatty_logs_costs_nobody_the_connection(logs: int) -> None:
    """Lines of 40 bytes, each a frame, that the cluster has sent within the windows before it hears of the end."""
    cluster = H2ClientHarness((raw.MAX_CONCURRENT_STREAMS, 250))
    _, watch = cluster.asks(timeout=0.0, lasting=True)
    cluster.answers(response(1))
    followed = [cluster.asks(timeout=0.0, lasting=True)[0] for _ in range(logs)]
    cluster.answers(*[response(stream.stream_id) for stream in followed])
    for stream in followed:
        stream.cancel()
    for stream in followed:
        cluster.answers(*[data(stream.stream_id, b"x" * 40)] * 1500)
    assert cluster.wire.open
    assert not cluster.violations
    cluster.answers(data(1, b"event"))
    assert watch.body == b"event"


def test_a_connection_with_few_resets_a_second_goes_on() -> None:
    cluster = H2ClientHarness((raw.MAX_CONCURRENT_STREAMS, 250))
    for _ in range(30):
        for _ in range(20):
            cluster.asks()[0].cancel()
        stream, _ = cluster.asks()
        cluster.answers(response(stream.stream_id, OK, end=True))
        cluster.passes(3.0)
    assert cluster.connection.usable


@pytest.fixture
def proxy(reactor: Any, nothing_left_open: None) -> Iterator[Harness]:
    proxy = Harness(reactor)
    yield proxy
    pytest_twisted.blockon(Deferred.fromCoroutine(proxy.close()))


class ProtectsItself(H2Upstream):
    """A cluster that ends a connection with 300 resets; it answers watches, and nothing else."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.asked: list[PeerStream] = []
        self.stream_event = self._event
        self.expected = 0
        self.ended = 0

    def all_came(self) -> bool:
        return len(self.asked) == self.expected

    def last_is_over(self) -> bool:
        last = self.asked[-1]
        return last.reset is not None or last.peer.lost is not None

    def _event(self, stream: PeerStream, event: Any) -> None:
        if isinstance(event, RequestReceived):
            self.asked.append(stream)
            if b"watch" in stream.fields[b":path"]:
                stream.head([(b":status", b"200"), (b"content-type", b"application/json")])
        elif sum(each.reset is not None for each in stream.peer.streams.values()) > 300:
            self.ended += 1
            stream.peer.abort()


async def test_clients_that_cancel_all_the_time_do_not_cost_others_their_watches(proxy: Harness) -> None:
    upstream = proxy.add(ProtectsItself(proxy.reactor))
    http2 = model.Connections(protocol=model.UpstreamProtocol.HTTP2)
    behind = cluster(upstream.endpoint(), tls=H2_TLS, connections=http2)
    await proxy.serve(config([behind], (), (http2_listener(),)))
    victim = await h2_client(proxy)
    watch = victim.ask(path=b"/api/v1/pods?watch=1")
    await proxy.until(lambda: watch.status == 200, "the watch")
    for _ in range(4):
        other = await h2_client(proxy)
        for _ in range(2):
            upstream.expected = len(upstream.asked) + 60
            asked = [other.ask() for _ in range(60)]
            await proxy.until(upstream.all_came, "the requests")
            for each in asked:
                each.cancel()
            await proxy.until(upstream.last_is_over, "the resets")
    assert not upstream.ended
    upstream.asked[0].send(b"event")
    await proxy.until(lambda: watch.data == b"event", "the event")
