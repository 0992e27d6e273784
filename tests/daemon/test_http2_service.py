"""HTTP/2 through the Service: what a listener speaks, before and after a reload, and how its connections end."""

from __future__ import annotations

from typing import Any

import pytest
from h2.settings import SettingCodes
from hyperframe.frame import PingFrame
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectError
from tests.proxy import conftest
from tests.proxy.harness import OK, Harness, Upstream, always, cluster, config, get, listener
from tests.proxy.http2_peers import H2_TLS, H2Client, H2Upstream, h2_client
from tests.support.ports import reserved_port

reactor, harness = conftest.reactor, conftest.harness

H1, H2 = model.HTTPProtocol.HTTP1, model.HTTPProtocol.HTTP2
BOTH = (H2, H1)
WATCH = b"/api/v1/pods?watch=true"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
FOREVER = 2**31 - 1
"""The last stream of the first of two GOAWAYs (RFC 9113 6.8)."""


def speaking(upstream: Upstream, *protocols: model.HTTPProtocol, **fields: Any) -> model.Config:
    logging = model.Logging(access=model.AccessLogConfig())
    listeners = [listener(protocols=protocols, **fields)]
    return config([cluster(upstream.endpoint())], listeners=listeners, logging=logging)


async def answered(harness: Harness, client: H2Client) -> None:
    """A request on a new stream of the connection is answered."""
    stream = client.ask()
    await harness.until(lambda: stream.ended, "the response")
    assert (stream.status, stream.data) == (200, b"{}")


async def test_each_connection_has_the_version_that_it_agreed_on_and_the_log_says_which(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    await harness.serve(speaking(upstream, *BOTH))
    await answered(harness, await h2_client(harness))
    for request in (get(), get().replace(b"HTTP/1.1", b"HTTP/1.0")):
        client = await harness.asks(request)
        await harness.until(lambda client=client: client.received.endswith(b"{}"))  # type: ignore[misc]
    assert [record.protocol for record in harness.records] == ["HTTP/2.0", "HTTP/1.1", "HTTP/1.0"]
    assert [record.reason for record in harness.records] == ["ok", "ok", "ok"]


async def test_after_a_reload_without_http_2_its_connections_go_away_and_nothing_is_dropped(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = lambda end: end.send(EVENTS) if b"watch" in end.received else always(OK)(end)
    await harness.serve(speaking(upstream, *BOTH))
    client = await h2_client(harness)
    watch = client.ask(path=WATCH)
    await harness.until(lambda: watch.data)
    await harness.serve(speaking(upstream, H1))
    await answered(harness, client)  # before the second GOAWAY, as requests that are under way
    await harness.until(lambda: len(client.goaways) == 2)
    assert client.goaways == [(FOREVER, 0), (3, 0)]
    upstream.connections[0].send(b"3\r\n[]\n\r\n")
    await harness.until(lambda: watch.data.endswith(b"[]\n"), "an event after both")
    with pytest.raises(ConnectError):
        await h2_client(harness)
    upstream.connections[0].send(b"0\r\n\r\n")
    await harness.until(lambda: client.lost is not None, "the end of the connection after its last stream")
    assert watch.ended
    assert client.problem is None


async def test_after_a_reload_without_http_1_its_connections_end_after_their_requests(harness: Harness) -> None:
    upstream = harness.upstream()
    await harness.serve(speaking(upstream, *BOTH))
    busy = await harness.asks(get())
    await harness.until(lambda: upstream.received)
    await harness.serve(speaking(upstream, H2))
    upstream.last.send(OK)
    await harness.until(lambda: busy.received.endswith(b"{}"))
    assert b"\r\nConnection: close\r\n" in busy.received
    await harness.until(lambda: busy.ended)


async def test_after_a_reload_that_speaks_http_2_again_connections_stay(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    for protocols in (BOTH, (H1,), BOTH):
        await harness.serve(speaking(upstream, *protocols))
    client = await h2_client(harness)
    await answered(harness, client)
    await deferLater(harness.reactor, 1.1)
    await answered(harness, client)
    assert client.goaways == []


async def test_a_connection_keeps_its_count_of_streams_and_new_ones_get_the_new(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    before = speaking(upstream, *BOTH, limits=model.Limits(streams=7))
    after = speaking(upstream, *BOTH, limits=model.Limits(streams=9))
    await harness.serve(before)
    old = await h2_client(harness)
    await answered(harness, old)
    await harness.serve(after)
    new = await h2_client(harness)
    await answered(harness, new)
    await answered(harness, old)
    code = SettingCodes.MAX_CONCURRENT_STREAMS
    assert [client.engine.remote_settings[code] for client in (old, new)] == [7, 9]
    assert old.goaways == new.goaways == []


async def test_goaway_chance_is_that_of_the_listener(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    await harness.serve(speaking(upstream, *BOTH))
    client = await h2_client(harness)
    await answered(harness, client)
    assert client.goaways == []
    await harness.serve(speaking(upstream, *BOTH, goaway_chance=1.0))  # more than the file may say
    await answered(harness, client)
    await harness.until(lambda: client.goaways)
    assert client.goaways[0] == (FOREVER, 0)


async def test_a_removed_listener_drains_its_connections(harness: Harness) -> None:
    upstream = harness.upstream()
    kept, gone = listener("kept", protocols=BOTH), listener("gone", port=reserved_port(), protocols=BOTH)
    await harness.serve(config([cluster(upstream.endpoint())], listeners=[kept, gone]))
    client = await h2_client(harness, port=harness.port(1))
    stream = client.ask()
    await harness.until(lambda: upstream.received)
    await harness.serve(config([cluster(upstream.endpoint())], listeners=[kept]))
    await harness.until(lambda: client.goaways)
    assert client.goaways == [(FOREVER, 0)]
    upstream.last.send(OK)
    await harness.until(lambda: stream.ended)
    assert (stream.status, stream.data) == (200, b"{}")
    await harness.until(lambda: client.lost is not None)
    assert client.goaways == [(FOREVER, 0), (1, 0)]


async def test_a_shutdown_asks_clients_to_go_by_goaway_and_ends_watches_cleanly(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = lambda end: end.send(EVENTS) if b"watch" in end.received else always(OK)(end)
    await harness.serve(speaking(upstream, *BOTH))
    client = await h2_client(harness)
    watch = client.ask(path=WATCH)
    await harness.until(lambda: watch.data)
    harness.service.begin_shutdown()
    await answered(harness, client)
    assert b"connection" not in client.streams[3].fields
    await harness.until(lambda: client.goaways)
    assert client.goaways[0] == (FOREVER, 0)
    await harness.service.drain(5.0)
    harness.service.stop_accepting()
    await harness.service.finish()
    await harness.until(lambda: client.lost is not None)
    assert watch.ended
    assert watch.reset is None
    assert client.goaways == [(FOREVER, 0), (3, 0)]
    assert client.problem is None


async def test_an_idle_connection_that_makes_room_is_told_that_nothing_more_was_served(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    await harness.serve(speaking(upstream, *BOTH, limits=model.Limits(connections=1)))
    first = await h2_client(harness)
    await answered(harness, first)
    second = await h2_client(harness)
    await harness.until(lambda: first.lost is not None)
    assert first.goaways == [(1, 0)]
    await answered(harness, second)


@pytest.mark.slow  # the connection of a check is kept for 45 s
async def test_figures_are_by_version_listener_and_cluster(harness: Harness) -> None:
    upstream = harness.add(H2Upstream(harness.reactor))
    plain = harness.upstream()
    plain.reply = lambda end: end.send(EVENTS) if b"watch" in end.received else None
    over_http2 = cluster(
        upstream.endpoint(),
        tls=H2_TLS,
        name="east",
        health_check=model.HealthCheck(path="/readyz-check", interval=3600.0),
    )
    over_http1 = cluster(plain.endpoint(), name="west")
    servers = [
        model.Server(
            name=each.name,
            listeners=("tls",),
            server_names=(f"{each.name}.wild.test",),
            default=each is over_http2,
            backend=model.ClusterBackend(each.name),
        )
        for each in (over_http2, over_http1)
    ]
    listeners = [listener(protocols=BOTH)]
    await harness.serve(config([over_http2, over_http1], servers, listeners))
    client = await h2_client(harness)
    for _ in range(3):
        client.ask(path=WATCH)
    await harness.until(lambda: len(upstream.streams) == 3)
    other = await harness.asks(get(WATCH), server_name="west.wild.test")
    await harness.until(lambda: other.received.endswith(b"{}\n\r\n"))
    await harness.until(lambda: harness.service.figures["clusters"][1]["connections"]["HTTP/1.1"] == 1, "a check's end")
    await harness.client()
    await harness.until(lambda: harness.service.figures["listeners"][0]["connections"]["HTTP/1.1"] == 2)
    figures = harness.service.figures
    (shown,) = figures["listeners"]
    assert shown == {
        "name": "tls",
        "bind": "127.0.0.1:0",
        "address": f"127.0.0.1:{harness.port()}",
        "serves": "API",
        "accepting": True,
        "handshakes": 0,
        "connections": {"HTTP/1.1": 2, "HTTP/2.0": 1},
        "requests": {"HTTP/1.1": 1, "HTTP/2.0": 3},
        "protection": {},
        "limits": {"connections": 20000},
    }
    east, west = figures["clusters"]
    assert (east["name"], east["connections"]) == ("east", {"HTTP/1.1": 0, "HTTP/2.0": 1})
    assert east["requests"] == {"HTTP/1.1": 0, "HTTP/2.0": 3}
    assert (west["name"], west["connections"]) == ("west", {"HTTP/1.1": 1, "HTTP/2.0": 0})
    assert west["requests"] == {"HTTP/1.1": 1, "HTTP/2.0": 0}
    (endpoint,) = east["endpoints"]
    assert (endpoint["url"], endpoint["inFlight"], endpoint["connections"]) == (upstream.endpoint().url, 3, 1)
    assert figures["servers"] == [{"name": "east", "inFlight": 3}, {"name": "west", "inFlight": 1}]


async def test_floods_are_among_the_figures(harness: Harness) -> None:
    await harness.serve(speaking(harness.upstream(), *BOTH))
    client = await h2_client(harness)
    assert client.transport is not None
    client.transport.write(PingFrame(0, b"12345678").serialize() * 2000)
    await harness.until(lambda: client.lost is not None)
    protection = harness.service.figures["listeners"][0]["protection"]
    assert sum(protection.values()) == 1, protection
    assert client.goaways[-1][1] == 11, "ENHANCE_YOUR_CALM"
