"""Tunnels and connections of tunnels that the hub refuses, and what somebody at either end gets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.tunnels import protocol
from mcproxy.tunnels.hub import Awaited
from tests.proxy.harness import Client, get
from tests.tunnels.site import EDGES, TunnelSite

INSTANCE = b"Mcproxy-Instance: " + b"a" * 32
UPGRADE = (b"Connection: Upgrade", b"Upgrade: mcproxy-tunnel/1")


def request(
    *fields: bytes, name: bytes = b"site-a", token: bytes = b"edge-token", upgrade: tuple[bytes, ...] = UPGRADE
) -> bytes:
    head = get(b"/mcproxy.io/v1/tunnels/" + name, b"Authorization: Bearer " + token, *upgrade, *fields)
    return head.replace(b"Host: k8s.test", b"Host: " + EDGES.encode())


async def answered(site: TunnelSite, raw: bytes) -> tuple[Client, int, str]:
    client = await site.hub.asks(raw, server_name=EDGES)
    await site.hub.until(lambda: b"\r\n\r\n" in client.received, "the answer")
    status, _, body = client.answer()
    return client, status, json.loads(body)["message"] if status != 101 else ""


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_tunnel_is_for_its_users_whether_it_exists_or_not(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config())
    messages = set()
    for name, token in ((b"site-a", b"other-token"), (b"nowhere", b"other-token"), (b"site-b", b"edge-token")):
        _, status, message = await answered(site, request(INSTANCE, name=name, token=token))
        assert status == 403
        messages.add(message.replace("edge-b", "edge-a"))
    assert messages == {'user "edge-a" may not open a tunnel of this name'}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_nobody_without_a_credential_learns_of_tunnels(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config())
    _, status, message = await answered(site, request(INSTANCE, token=b"wrong"))
    assert (status, message) == (401, "Unauthorized")


@pytest.mark.parametrize(
    ("raw", "status", "text"),
    [
        (request(INSTANCE, upgrade=()), 400, "Upgrade: mcproxy-tunnel/1"),
        (request(INSTANCE, upgrade=(b"Connection: Upgrade", b"Upgrade: websocket")), 400, "Upgrade: mcproxy-tunnel/1"),
        (request(), 400, "Mcproxy-Instance"),
        (request(b"Mcproxy-Instance: " + b"A" * 32), 400, "Mcproxy-Instance"),
        (request(INSTANCE, b"Mcproxy-Ticket: x"), 403, "ticket"),
        (request(INSTANCE, b"Mcproxy-Ticket: hub." + b"0" * 32), 403, "ticket"),
        (request(INSTANCE, b"Mcproxy-Ticket: worker-9-1." + b"0" * 32), 403, "ticket"),
        (request(INSTANCE).replace(b"/mcproxy.io/v1/tunnels/site-a", b"/api/v1/pods"), 404, "only tunnels"),
        (request(INSTANCE).replace(b"GET ", b"PUT "), 400, "GET"),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_request_that_is_none_for_a_tunnel(site: TunnelSite, raw: bytes, status: int, text: str) -> None:
    await site.hub.serve(site.hub_config())
    _, found, message = await answered(site, raw)
    assert found == status
    assert text in message


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_ticket_is_for_one_tunnel_and_once(site: TunnelSite) -> None:
    await site.start()
    hub = site.hub.service.tunnels
    foreign, own = (protocol.new_ticket("hub") for _ in range(2))
    hub._awaited[foreign] = Awaited("site-b", b"h2")
    hub._awaited[own] = Awaited("site-a", b"http/1.1")
    instance = b"Mcproxy-Instance: " + site.state.controls[0].instance
    _, status, _ = await answered(site, request(instance, b"Mcproxy-Ticket: " + foreign.encode()))
    assert status == 403
    arrived: list[Any] = []
    hub._awaited[own].arrived.addCallback(arrived.append)
    client, status, _ = await answered(site, request(instance, b"Mcproxy-Ticket: " + own.encode()))
    assert status == 101
    assert arrived
    _, status, _ = await answered(site, request(instance, b"Mcproxy-Ticket: " + own.encode()))
    assert status == 403, "used"
    arrived[0].abort()
    await site.hub.until(lambda: client.over, "the end")
    hub._awaited.clear()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_edge_that_speaks_nonsense_after_the_101_is_dropped(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config())
    client, status, _ = await answered(site, request(INSTANCE))
    assert status == 101
    assert site.state.is_up
    client.send(b"HTTP/1.1 200 OK\r\n\r\n" * 100)
    await site.hub.until(lambda: client.over and not site.state.is_up, "the end")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_what_an_edge_sends_before_the_101_belongs_to_the_next_engine(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config())
    settings = b"\0\0\0\4\0\0\0\0\0"
    client = await site.hub.asks(request(INSTANCE) + settings, server_name=EDGES)
    await site.hub.until(lambda: site.state.is_up, "the tunnel")
    await site.hub.until(lambda: b"\0\0\0\4\1\0\0\0\0" in client.received, "the acknowledgement of the settings")
    client.abort()
    await site.hub.until(lambda: not site.state.is_up, "the end")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_other_paths_of_the_hub_know_no_tunnels(site: TunnelSite) -> None:
    """On a server of clusters the request is one for the cluster: no tunnel is opened."""
    await site.start()
    before = len(site.state.controls)
    raw = request(INSTANCE).replace(b"Host: " + EDGES.encode(), b"Host: k8s.test")
    client = await site.hub.asks(raw)
    await site.hub.until(lambda: b"\r\n\r\n" in client.received, "the answer")
    assert client.answer()[0] == 200
    assert len(site.state.controls) == before


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_edge_asks_for_the_server_by_one_name_alone(site: TunnelSite) -> None:
    """The host of the URL can be the name of another server of the hub: with it the answer would be 421."""
    await site.start()
    other = model.Server(
        name="by-address",
        listeners=("tls",),
        server_names=("127.0.0.1",),
        backend=model.ClusterBackend("site"),
        authentication="all",
    )
    config = site.hub_config()
    await site.hub.service.apply(replace(config, servers=(*config.servers, other)))
    site.passage.cut()
    await site.hub.until(lambda: not site.state.is_up, "the loss")
    await site.up()
    assert (await site.ask())[0] == 200
