"""However a stream ends: its place in a limit comes back, its upstream's work is given up, it is recorded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcproxy.config import model
from tests.http.h2 import raw
from tests.http.h2.raw import END_HEADERS, END_STREAM, data, headers, literal
from tests.proxy.harness import NAME, Harness, Upstream, always, cluster, config
from tests.security.http2_attacker import H2_LISTENER, POD, Attacker, attacker

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
PLACES = 3


async def _limited(harness: Harness) -> Upstream:
    """A proxy that lets PLACES requests through at the same time, to an upstream that answers nothing yet."""
    upstream = harness.upstream()
    everything = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
    limit = model.FlowControl(name="few", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=PLACES)
    server = model.Server(
        name="main",
        listeners=("tls",),
        server_names=(NAME,),
        default=True,
        backend=model.ClusterBackend("east"),
        dispatch=(model.Policy(name="all", rules=(everything,), flow_control="few"),),
    )
    await harness.serve(
        config(
            [cluster(upstream.endpoint())],
            [server],
            [H2_LISTENER],
            flow_controls=(limit,),
            logging=model.Logging(access=model.AccessLogConfig()),
        )
    )
    runtime = harness.service.runtime
    assert runtime is not None
    await harness.until(lambda: runtime.clusters["east"].endpoints[0].ready, "readiness")
    return upstream


#: What the client does to a stream of an unfinished POST; the last one says whether the connection goes on.
ENDS: dict[str, tuple[Callable[[int], bytes], bool]] = {
    "RST_STREAM": (raw.rst_stream, True),
    "RST_STREAM with an unknown code": (lambda stream: raw.rst_stream(stream, 0xFF), True),
    "a window above the greatest": (lambda stream: raw.window_update(stream, raw.MAX_WINDOW), True),
    "a WINDOW_UPDATE of 0": (lambda stream: raw.window_update(stream, 0), True),
    "DATA beyond content-length": (lambda stream: data(stream, b"x" * 101), True),
    "an end before content-length": (lambda stream: data(stream, b"x", END_STREAM), True),
    "malformed trailers": (lambda stream: headers(stream, literal(b"X", b"y")), True),
    "HEADERS within the body": (lambda stream: headers(stream, literal(b"x", b"y"), END_HEADERS), True),
    "DATA behind the end": (lambda stream: data(stream, b"x" * 100, END_STREAM) + data(stream, b"x"), True),
    "a frame that is too large": (lambda stream: raw.frame(raw.DATA, 0, stream, length=20000), False),
    "a PING of 7 bytes": (lambda _: raw.frame(raw.PING, payload=b"1234567"), False),
    "DATA on an idle stream": (lambda stream: data(stream + 50, b"x"), False),
    "a flood": (lambda _: raw.settings() * 1100, False),
}


@pytest.mark.parametrize("name", ENDS)
async def test_however_a_stream_ends_its_place_comes_back(harness: Harness, name: str) -> None:
    upstream = await _limited(harness)
    makes, goes_on = ENDS[name]
    client = await attacker(harness)
    block = raw.request((b"content-length", b"100"), method=b"POST", path=POD)
    streams = [client.ask_block(block, END_HEADERS) for _ in range(PLACES)]
    await harness.until(lambda: upstream.received.count(b"POST ") == PLACES, "the requests")
    other = await attacker(harness)
    assert (await other.answer())[0] == 429
    for stream in streams:
        client.send(makes(stream))
    await _ended(harness, client, upstream, goes_on)
    upstream.reply = always(OK)
    for _ in range(2 * PLACES):
        assert await other.answer() == (200, b"{}")
    # Those that were served, the one that was refused, and each that was broken off, once.
    assert len(harness.records) == PLACES + 1 + 2 * PLACES
    connections = [each for listener in harness.service.listeners for each in listener.factory.connections]
    assert all(not each.streams for each in connections if hasattr(each, "streams"))


async def _ended(harness: Harness, client: Attacker, upstream: Upstream, goes_on: bool) -> None:
    await harness.until(lambda: all(each.lost is not None for each in upstream.connections), "the upstream's release")
    await client.settled()
    assert (client.lost is None) is goes_on
    await harness.until(lambda: len(harness.records) == PLACES + 1, "the records")


async def test_requests_that_are_reset_at_once_never_reach_a_cluster(harness: Harness) -> None:
    """Rapid reset in one read: 150 requests and their resets, of which none begins."""
    upstream = await _limited(harness)
    client = await attacker(harness)
    await client.settled()
    block = raw.request(path=POD)
    sent = b"".join(headers(2 * n + 1, block) + raw.rst_stream(2 * n + 1) for n in range(150))
    assert len(sent) < 16384  # one record of TLS, which is read at once
    client.send(sent)
    await client.settled()
    assert client.lost is None
    await harness.turns(3)
    assert upstream.received == b""
    upstream.reply = always(OK)
    client.send(headers(301, block))
    await client.until(lambda: client.seen.ended(301))
    assert client.seen.status(301) == 200


async def test_many_attackers_leave_nothing(harness: Harness) -> None:
    """Connection after connection is ended because of a flood; what they all leave is a count for each kind."""
    upstream = await _limited(harness)
    upstream.reply = always(OK)
    block = raw.request(path=POD)
    attacks: dict[str, Any] = {
        "rapid_reset": lambda: b"".join(headers(2 * n + 1, block) + raw.rst_stream(2 * n + 1) for n in range(450)),
        "ping_flood": lambda: raw.ping() * 1200,
        "settings_flood": lambda: raw.settings() * 1200,
        "continuation_flood": lambda: headers(1, block, 0) + raw.continuation(1, b"", 0) * 20,
    }
    for make in attacks.values():
        for _ in range(5):
            client = await attacker(harness)
            client.send(make())
            await client.until(lambda client=client: client.lost)  # type: ignore[misc]
    (listener,) = harness.service.listeners
    assert {kind: listener.factory.protection[kind] for kind in attacks} == dict.fromkeys(attacks, 5)
    await harness.until(lambda: not listener.factory.connections, "the connections' end")
    good = await attacker(harness)
    assert await good.answer() == (200, b"{}")
